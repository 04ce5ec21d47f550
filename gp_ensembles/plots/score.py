"""Does the model earn its keep? Running log scores of a model and its baselines."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import FAINT, SERIES, Array, as_array, bins, label, new_figure


def plot_score(log_prob: Mapping[str, Tensor | ArrayLike], *, first_row: int = 0) -> Figure:
    """Mean log score so far (above) and the lead of the first model over each other, summed (below).

    Args:
        log_prob: Name of the model -> log predictive density of each target, made before it, shape (N,); NaN where
            the target is missing. The first is the model, the others its baselines; at most 9.
        first_row: Number of the first row shown, for instance the length of the warm-up.

    Returns:
        The figure; with one model it has the upper panel only.

    Raises:
        ValueError: If there is no model or more than 9, or their lengths differ.

    Example:
        >>> import torch
        >>> figure = plot_score({"ensemble": torch.tensor([-1.0, -0.5]), "last value": torch.tensor([-2.0, -1.0])})
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['mean log score so far', 'summed lead of ensemble']
    """
    if not 1 <= len(log_prob) <= len(SERIES):
        raise ValueError(f"a score picture takes 1 to {len(SERIES)} models, got {len(log_prob)}")
    series = {name: as_array(values, 1, name) for name, values in log_prob.items()}
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"all models must be scored on the same rows, got lengths {lengths}")
    ahead, *others = series
    num_rows = lengths[ahead]
    last = np.array([run.stop - 1 for run in bins(num_rows, 1000)])
    figure, axes = new_figure(2 if others else 1, 1, 9.0, 6.0 if others else 3.4)
    means = {name: _running_mean(values) for name, values in series.items()}
    for (name, values), color in zip(means.items(), SERIES, strict=False):
        text = f"{name}  ({values[-1]:.3f})" if np.isfinite(values[-1]) else name
        _draw(axes[0], first_row + last, values[last], color, text, name == ahead)
    _limit_to_settled(axes[0], list(means.values()))
    label(axes[0], "mean log score so far", "" if others else "row", "nats per row")
    axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    if others:
        leads = {name: np.nancumsum(series[ahead] - series[name])[last] for name in others}
        for (name, lead), color in zip(leads.items(), SERIES[1:], strict=False):
            _draw(axes[1], first_row + last, lead, color, f"over {name}", False)
        axes[1].axhline(0.0, color=FAINT, linewidth=1.0, linestyle="--")
        label(axes[1], f"summed lead of {ahead}", "row", "nats")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
        _stretch(axes[1], np.concatenate(list(leads.values())))
    return figure


def _running_mean(values: Array) -> Array:
    """Mean of the values seen so far; NaN before the first."""
    counts = np.cumsum(~np.isnan(values))
    return np.where(counts > 0, np.nancumsum(values) / np.maximum(counts, 1), np.nan)


def _draw(axis: Axes, rows: Array, values: Array, color: str, text: str, bold: bool) -> None:
    """One line; a dot if there is one row only."""
    marker = "o" if len(rows) == 1 else ""
    axis.plot(
        rows, values, color=color, linewidth=2.2 if bold else 1.3, marker=marker, label=text,
        zorder=3 if bold else 2,
    )  # fmt: skip


def _limit_to_settled(axis: Axes, means: list[Array]) -> None:
    """Choose the vertical range from the last nine tenths, so that the first rows do not squash the rest."""
    settled = np.concatenate([values[len(values) // 10 :] for values in means])
    settled = settled[np.isfinite(settled)]
    if settled.size > 1 and settled.max() > settled.min():
        margin = 0.08 * (settled.max() - settled.min())
        axis.set_ylim(settled.min() - margin, settled.max() + margin)


def _stretch(axis: Axes, values: Array) -> None:
    """Fit the vertical range to the values, on a signed logarithmic scale if they are large."""
    finite = values[np.isfinite(values)]
    low, high = min(0.0, float(finite.min(initial=0.0))), max(0.0, float(finite.max(initial=0.0)))
    if max(-low, high) > 100.0:
        axis.set_yscale("symlog", linthresh=10.0)
        axis.set_ylim(2.0 * low - 2.0, 2.0 * high + 2.0)
