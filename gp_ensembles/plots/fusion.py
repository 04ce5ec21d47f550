"""Fusion over one input: experts, their weights and the fused prediction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, FAINT, INK, SERIES, Array, as_array, label, new_figure

_Values = Tensor | ArrayLike
_DEPTH = 4.0  # nats below the highest density at which its shade ends


class Band(NamedTuple):
    """Lines and the bands around them.

    Attributes:
        middle: Heights of the lines, shape (K, P), or (P,) for one line.
        lower: Lower edges, of the same shape.
        upper: Upper edges, of the same shape.
    """

    middle: _Values
    lower: _Values
    upper: _Values


class FusionView(NamedTuple):
    """A fusion of K experts at P inputs.

    Attributes:
        x: Inputs, shape (P,), in any order, two at least.
        experts: The experts' predictions, shapes (K, P).
        weights: Their weights with bands, shapes (K, P).
        fused: The fused prediction, shapes (P,).
        density: Its density, drawn as a shade behind the prediction: rising targets, shape (T,), two at least, and log
            densities of each at each input, shape (T, P), in nats; none if not given.
    """

    x: _Values
    experts: Band
    weights: Band
    fused: Band
    density: tuple[_Values, _Values] | None = None


def plot_fusion(
    view: FusionView,
    *,
    seen: tuple[_Values, _Values] | None = None,
    expert_names: Sequence[str] = (),
    names: tuple[str, str] = ("x", "y"),
) -> Figure:
    """Experts with their bands, weights over the input with theirs, and the fused prediction.

    Weights of a log-linear pool need not sum to one; the axis follows them.

    Args:
        view: What to draw.
        seen: Inputs (N,) and targets (N,) of rows drawn with the experts and the fused prediction.
        expert_names: A name for each expert; numbers by default.
        names: Names of the input and the target, with their units if they have any.

    Returns:
        The figure, three panels above each other.

    Raises:
        ValueError: If shapes do not fit, there are more than nine experts, or a number of names does not fit.

    Example:
        >>> experts = Band([[0.0, 0.0], [1.0, 1.0]], [[-1.0, -1.0], [0.0, 0.0]], [[1.0, 1.0], [2.0, 2.0]])
        >>> weights = Band([[0.9, 0.2], [0.1, 0.8]], [[0.8, 0.1], [0.0, 0.7]], [[1.0, 0.3], [0.2, 0.9]])
        >>> fused = Band([0.1, 0.8], [-1.0, -0.5], [1.2, 2.0])
        >>> figure = plot_fusion(FusionView([0.0, 1.0], experts, weights, fused), expert_names=["left", "right"])
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['the experts and their bands', 'their weights', 'the fused prediction']
    """
    places = as_array(view.x, 1, "x")
    order = np.argsort(places, kind="stable")
    experts, weights = _checked(view.experts, 2, "experts"), _checked(view.weights, 2, "weights")
    fused = _checked(view.fused, 1, "fused")
    num_experts, shape = len(experts[0]), (len(experts[0]), len(places))
    for name, found, due in (("experts", experts, shape), ("weights", weights, shape), ("fused", fused, shape[1:])):
        if found[0].shape != due:
            raise ValueError(f"{name} must have shape {due}, experts by inputs, got {found[0].shape}")
    if num_experts > len(SERIES):
        raise ValueError(f"up to {len(SERIES)} experts can be drawn, got {num_experts}; choose some of them")
    if len(places) < 2:
        raise ValueError("lines over the input need two inputs at least")
    called = list(expert_names) or [f"expert {number + 1}" for number in range(num_experts)]
    if len(called) != num_experts:
        raise ValueError(f"there are {num_experts} experts but {len(called)} names")
    rows = None if seen is None else _checked_rows(seen)
    figure, axes = new_figure(3, 1, 9.0, 8.4)
    places = places[order]
    for axis, band in zip(axes, (experts, weights), strict=False):
        for name, color, middle, low, high in zip(called, SERIES, *band, strict=False):
            axis.fill_between(places, low[order], high[order], color=color, alpha=0.18, linewidth=0)
            axis.plot(places, middle[order], color=color, linewidth=1.5, label=name if axis is axes[0] else None)
    axes[1].set_ylim(bottom=0.0)
    _draw_fused(axes[2], places, [part[order] for part in fused], view.density is None)
    if view.density is not None:
        _shade(axes[2], places, _checked_density(view.density, len(places)), order)
    if rows is not None:
        for axis, name in ((axes[0], ""), (axes[2], "rows")):
            axis.plot(*rows, "o", color=FAINT, markersize=2.5, alpha=0.7, zorder=1.5, label=name)
    titles = ("the experts and their bands", "their weights", "the fused prediction")
    for axis, title, height in zip(axes, titles, (names[1], "weight", names[1]), strict=True):
        label(axis, title, names[0] if axis is axes[2] else "", height)
        axis.set_xlim(places[0], places[-1])
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _draw_fused(axis: Axes, places: Array, band: Sequence[Array], filled: bool) -> None:
    """The fused line with its band, or with the edges of it where a shade is to be seen between them."""
    middle, low, high = band
    if filled:
        axis.fill_between(places, low, high, color=BAND, alpha=0.55, linewidth=0, label="band")
    else:
        axis.plot(places, low, color=INK, linewidth=0.8, linestyle="--", label="band")
        axis.plot(places, high, color=INK, linewidth=0.8, linestyle="--")
    axis.plot(places, middle, color=INK, linewidth=1.5, label="fused")


def _shade(axis: Axes, places: Array, density: tuple[Array, Array], order: NDArray[np.intp]) -> None:
    """The density as a shade, the darker the higher, on a logarithmic scale of a few nats."""
    targets, log_prob = density
    top = float(log_prob.max())
    axis.pcolormesh(
        places, targets, log_prob[:, order], cmap="Blues", shading="gouraud", rasterized=True,
        vmin=top - _DEPTH, vmax=top + _DEPTH / 2,  # not the darkest shades: lines stand on them
    )  # fmt: skip
    axis.set_ylim(targets[0], targets[-1])


def _checked_density(density: tuple[_Values, _Values], num_places: int) -> tuple[Array, Array]:
    targets, log_prob = as_array(density[0], 1, "targets"), as_array(density[1], 2, "log_prob")
    if log_prob.shape != (len(targets), num_places) or len(targets) < 2 or not (np.diff(targets) > 0).all():
        raise ValueError(
            f"a density needs two rising targets at least and log densities (targets, inputs), got {len(targets)} and "
            f"{log_prob.shape}"
        )
    return targets, log_prob


def _checked(band: Band, num_axes: int, name: str) -> tuple[Array, Array, Array]:
    middle, lower, upper = (as_array(part, num_axes, f"the {what} of {name}") for what, part in band._asdict().items())
    if not middle.shape == lower.shape == upper.shape:
        raise ValueError(f"the lines and edges of {name} have shapes {middle.shape}, {lower.shape} and {upper.shape}")
    return middle, lower, upper


def _checked_rows(seen: tuple[_Values, _Values]) -> tuple[Array, Array]:
    x, y = (
        as_array(values, 1, f"{what} of the rows") for what, values in zip(("inputs", "targets"), seen, strict=True)
    )
    if len(x) != len(y):
        raise ValueError(f"the rows have {len(x)} inputs and {len(y)} targets")
    return x, y
