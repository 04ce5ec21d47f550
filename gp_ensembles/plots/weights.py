"""Who is trusted when: the experts' weights over a stream."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import INK, REST, SERIES, as_array, bins, label, new_figure, thin


def plot_weights(
    log_weights: Tensor | ArrayLike, names: Sequence[str], *, num_named: int = 8, first_row: int = 0
) -> Figure:
    """Weights in force before each target, stacked to one; the leading experts are named, the rest grouped.

    Experts are ranked by their mean weight over the stream. Streams of more than 1000 rows are averaged over runs.

    Args:
        log_weights: Log weights before each target, shape (M, N); minus infinity for a dead expert.
        names: A name for each of the M experts.
        num_named: How many experts get a color of their own, at most 9.
        first_row: Number of the first row shown, for instance the length of the warm-up.

    Returns:
        The figure.

    Raises:
        ValueError: If there is not one name per expert, ``num_named`` is not 1 to 9, or the weights of a row do not
            sum to one.

    Example:
        >>> import torch
        >>> log_weights = torch.tensor([[0.9, 0.4], [0.1, 0.6]]).log()
        >>> figure = plot_weights(log_weights, ["smooth", "rough"])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['smooth', 'rough']
    """
    weights = np.exp(as_array(log_weights, 2, "log_weights"))
    num_experts, num_rows = weights.shape
    if len(names) != num_experts:
        raise ValueError(f"there are {num_experts} experts in log_weights but {len(names)} names")
    if not 1 <= num_named <= len(SERIES):
        raise ValueError(f"num_named must be between 1 and {len(SERIES)}, got {num_named}")
    totals = weights.sum(axis=0)
    wrong = ~(np.abs(totals - 1) <= 1e-3)  # true for NaN as well
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"the weights of row {row} sum to {totals[row]:.6g}, not to one; normalize log_weights")
    runs = bins(num_rows, 1000)
    order = np.argsort(-weights.mean(axis=1), kind="stable")
    # One expert left over is as easily named as grouped.
    num_shown = num_experts if num_experts <= min(num_named + 1, len(SERIES)) else num_named
    layers = [thin(weights[m], runs, np.mean) for m in order[:num_shown]]
    labels = [names[m] for m in order[:num_shown]]
    colors = list(SERIES[:num_shown])
    if num_shown < num_experts:
        layers.append(thin(weights[order[num_shown:]].sum(axis=0), runs, np.mean))
        labels.append(f"{num_experts - num_shown} others")
        colors.append(REST)
    rows = first_row + np.array([(run.start + run.stop - 1) / 2 for run in runs])
    if num_rows == 1:  # a single row has no width: give it one
        rows = rows + np.array([-0.5, 0.5])
        layers = [np.repeat(layer, 2) for layer in layers]
    figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
    axis.stackplot(rows, layers, labels=labels, colors=colors, linewidth=0.3, edgecolor="white")
    axis.set_xlim(rows[0], rows[-1])
    axis.set_ylim(0.0, 1.0)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axis, "weights in force before each target", "row", "weight")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, labelcolor=INK)
    return figure
