"""Rows in a latent space, colored by label or by time, and the experts' weights next to them."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import FAINT, INK, REST, SERIES, Array, as_array, label, new_figure
from gp_ensembles.plots.stream import draw_weights

_MOST_DRAWN = 20_000
_MOST_LISTED = 24  # categories in the legend
_LEGEND_SIZE = 24.0  # points squared


def plot_embedding(
    X: Tensor | ArrayLike,
    labels: Sequence[str] | Tensor | ArrayLike | None = None,
    *,
    log_weights: Tensor | ArrayLike | None = None,
    names: Sequence[str] = (),
    label_name: str = "",
    title: str = "",
) -> Figure:
    """Rows in one latent space, and if wanted the weights of the experts over time.

    Of more than 20 000 rows every second, third and so on is drawn. One dimension is drawn against time; of three and
    more the first two are, and the picture says so. Texts are categories, each with its own color; numbers are a
    quantity with a bar of colors; without labels the color is time.

    Args:
        X: Places in the order of time, shape (N, d), finite.
        labels: Names of categories, empty where unknown, or numbers, NaN where unknown; one a row.
        log_weights: Log weights of M experts, shape (M, N).
        names: Names of the M experts; numbers by default.
        label_name: What the labels are.
        title: What is drawn.

    Returns:
        The figure.

    Raises:
        ValueError: If a place is not finite, or there is not one label and one weight a row, or one name an expert.

    Example:
        >>> figure = plot_embedding([[0.0, 1.0], [1.0, 0.0]], ["on", "off"])
        >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
        ['off', 'on']
    """
    places = as_array(X, 2, "X")
    if not np.isfinite(places).all():
        row = int((~np.isfinite(places)).any(axis=1).argmax())
        raise ValueError(f"the place of row {row} is not finite; leave rows without a place out")
    given = _checked_labels(labels, len(places))
    weights = None if log_weights is None else _checked_weights(log_weights, names, len(places))
    stride = -(-len(places) // _MOST_DRAWN)
    rows = np.arange(0, len(places), stride)
    time: Array = rows.astype(np.float64)
    figure, axes = new_figure(1, 1 if weights is None else 2, 6.4 if weights is None else 13.0, 4.8)
    num_latent = places.shape[1]
    first, second = (time, places[rows, 0]) if num_latent == 1 else (places[rows, 0], places[rows, 1])
    if isinstance(given, list):
        _draw_categories(axes[0], (first, second), [given[row] for row in rows], label_name)
    else:
        values, name = (time, "row") if given is None else (given[rows], label_name or "label")
        _draw_quantity(figure, axes[0], (first, second), values, name)
    notes = [title] if title else []
    notes += [f"the first two of {num_latent} dimensions"] if num_latent > 2 else []
    notes += [f"every {stride}. row"] if stride > 1 else []
    label(axes[0], ", ".join(notes), *(("row", "x1") if num_latent == 1 else ("x1", "x2")))
    if weights is not None:
        draw_weights(axes[1], weights, list(names) or [str(number) for number in range(len(weights))])
        label(axes[1], "weights before each row", "row", "weight")
        _legend(axes[1])
    return figure


def _checked_labels(labels: Sequence[str] | Tensor | ArrayLike | None, num_rows: int) -> list[str] | Array | None:
    if labels is None:
        return None
    texts = [] if isinstance(labels, torch.Tensor) else np.asarray(labels).tolist()
    is_text = bool(texts) and all(isinstance(text, str) for text in texts)
    found = texts if is_text else as_array(labels, 1, "labels")
    if len(found) != num_rows:
        raise ValueError(f"there are {num_rows} rows and {len(found)} labels; give one per row")
    return found


def _checked_weights(log_weights: Tensor | ArrayLike, names: Sequence[str], num_rows: int) -> Array:
    weights: Array = np.exp(as_array(log_weights, 2, "log_weights"))
    if weights.shape[1] != num_rows:
        raise ValueError(f"there are {num_rows} rows and weights of {weights.shape[1]}; give one per row and expert")
    if names and len(names) != len(weights):
        raise ValueError(f"there are {len(weights)} experts in log_weights but {len(names)} names")
    return weights


def _draw_categories(axis: Axes, places: tuple[Array, Array], texts: list[str], name: str) -> None:
    first, second = places
    kinds = sorted(set(texts) - {""}, key=_order)
    many = [to_hex(color) for color in colormaps["turbo"](np.linspace(0.03, 0.97, len(kinds)))]
    colors = list(SERIES) if len(kinds) <= len(SERIES) else many
    cells = np.asarray(texts)
    size = _size(len(cells))
    if (cells == "").any():
        own = cells == ""
        axis.scatter(first[own], second[own], s=size, color=REST, linewidths=0, label="no label")
    for place, kind in enumerate(kinds):
        own = cells == kind
        # A leading underscore keeps a name out of the legend; between dollars would stand mathematics.
        listed = kind.replace("$", r"\$") if place < _MOST_LISTED else "_"
        axis.scatter(first[own], second[own], s=size, color=colors[place], linewidths=0, alpha=0.8, label=listed)
    more = f"{_MOST_LISTED} of {len(kinds)}" if len(kinds) > _MOST_LISTED else ""
    legend = _legend(axis, ", ".join(part for part in (name, more) if part))
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([_LEGEND_SIZE])


def _draw_quantity(figure: Figure, axis: Axes, places: tuple[Array, Array], values: Array, name: str) -> None:
    first, second = places
    known = ~np.isnan(values)
    size = _size(len(values))
    axis.scatter(first[~known], second[~known], s=size, color=REST, linewidths=0)
    drawn = axis.scatter(first[known], second[known], s=size, c=values[known], cmap="viridis", linewidths=0, alpha=0.8)
    bar = figure.colorbar(drawn, ax=axis, pad=0.02)
    bar.ax.tick_params(colors=INK, labelsize=8)
    bar.set_label(name, fontsize=9, color=INK)
    bar.outline.set_edgecolor(FAINT)


def _legend(axis: Axes, title: str = "") -> Legend:
    style = {"frameon": False, "fontsize": 8, "labelcolor": INK, "title_fontsize": 8}
    return axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), title=title or None, **style)


def _size(num_rows: int) -> float:
    return float(np.clip(8000 / max(num_rows, 1), 3.0, 24.0))


def _order(kind: str) -> tuple[bool, float, str]:
    """Numbers first, in their order, then words in theirs."""
    try:
        return False, float(kind), kind
    except ValueError:
        return True, 0.0, kind
