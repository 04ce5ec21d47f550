"""Knots over the data, with the predictions made with them."""

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import ALARM, FAINT, INK, Array, as_array, draw_band, label, new_figure

_Values = Tensor | ArrayLike
_Rows = tuple[_Values, _Values]


class KnotFit(NamedTuple):
    """Knots and the predictions made with them.

    Attributes:
        knots: Knots, shape (K, D).
        mean: Predictive means at the points of a picture, shape (P,).
        lower: Predictive 5 % quantiles there, shape (P,).
        upper: Predictive 95 % quantiles there, shape (P,).
    """

    knots: _Values
    mean: _Values
    lower: _Values
    upper: _Values


def plot_knots(points: _Values, fit: KnotFit, *, seen: _Rows, names: tuple[str, ...] = (), title: str = "") -> Figure:
    """Knots over the data with the predictive mean and 90 % band, of one input or two.

    One input is drawn as a function with its band; two as a map of the mean next to a map of the band's width, knots as
    crosses on both.

    Args:
        points: Where it is predicted, shape (P, 1) or (P, 2), in any order; for two inputs at least three points.
        fit: Knots and predictions.
        seen: Inputs, shape (N, 1) or (N, 2), and targets, shape (N,), of the training rows.
        names: Names of the inputs and the target, with their units if they have any; x, y (or x1, x2, y) by default.
        title: What is drawn.

    Returns:
        The figure.

    Raises:
        ValueError: If there are more than two inputs, or shapes do not fit.

    Example:
        >>> fit = KnotFit([[0.5]], [0.0, 0.1], [-1.0, -1.0], [1.0, 1.2])
        >>> figure = plot_knots([[0.0], [1.0]], fit, seen=([[0.5]], [0.3]))
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['predictive mean', 'rows', 'knots']
    """
    places = as_array(points, 2, "points")
    num_inputs = places.shape[1]
    if num_inputs > 2:
        raise ValueError(f"knots can be drawn for one input or two, got {num_inputs}; choose two columns")
    given = names or (("x", "y") if num_inputs == 1 else ("x1", "x2", "y"))
    if len(given) != num_inputs + 1:
        raise ValueError(f"{num_inputs} input(s) and a target need {num_inputs + 1} names, got {', '.join(given)}")
    drawn = _checked(places, fit)
    rows = _checked_rows(seen, num_inputs)
    if num_inputs == 1:
        figure, (axis,) = new_figure(1, 1, 9.0, 3.8)
        _draw_function(axis, places, drawn, rows)
        label(axis, title or f"{len(drawn[0])} knots", *given)
        figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9)
        return figure
    if len(places) < 3:
        raise ValueError(f"a map needs three points at least, got {len(places)}")
    figure, axes = new_figure(1, 2, 10.0, 4.4)
    heights = {f"mean of {given[2]}": drawn[1], "width of the 90 % band": drawn[3] - drawn[2]}
    for axis, (what, values) in zip(axes, heights.items(), strict=True):
        surface = axis.tripcolor(places[:, 0], places[:, 1], values, shading="gouraud", cmap="cividis")
        figure.colorbar(surface, ax=axis, shrink=0.9)
        axis.plot(*rows[0].T, "o", markersize=3, color="white", markeredgecolor=INK, markeredgewidth=0.4, label="rows")
        axis.plot(*drawn[0].T, "x", markersize=7, markeredgewidth=1.6, color=ALARM, label="knots")
        label(axis, what, given[0], given[1])
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def _draw_function(
    axis: Axes, places: Array, fit: tuple[Array, Array, Array, Array], rows: tuple[Array, Array]
) -> None:
    order = np.argsort(places[:, 0], kind="stable")
    x, (knots, mean, lower, upper) = places[order, 0], fit
    draw_band(axis, x, mean[order], lower[order], upper[order])
    axis.plot(rows[0][:, 0], rows[1], linestyle="none", marker="o", markersize=2.5, color=FAINT, label="rows")
    axis.plot(  # at the foot of the picture, whatever the heights are
        knots[:, 0], np.full(len(knots), 0.03), transform=axis.get_xaxis_transform(), linestyle="none", marker="^",
        markersize=7, color=INK, label="knots",
    )  # fmt: skip


def _checked(places: Array, fit: KnotFit) -> tuple[Array, Array, Array, Array]:
    knots = as_array(fit.knots, 2, "the knots of the fit")
    values = zip((fit.mean, fit.lower, fit.upper), ("mean", "lower", "upper"), strict=True)
    mean, lower, upper = (as_array(given, 1, f"{what} of the fit") for given, what in values)
    if knots.shape[1] != places.shape[1]:
        raise ValueError(f"the knots of the fit have {knots.shape[1]} columns, the points {places.shape[1]}")
    if not len(places) == len(mean) == len(lower) == len(upper):
        lengths = f"{len(mean)} means, {len(lower)} lower and {len(upper)} upper quantiles"
        raise ValueError(f"the fit has {lengths} for {len(places)} points")
    return knots, mean, lower, upper


def _checked_rows(seen: _Rows, num_inputs: int) -> tuple[Array, Array]:
    inputs, targets = as_array(seen[0], 2, "inputs of the rows"), as_array(seen[1], 1, "targets of the rows")
    if inputs.shape != (len(targets), num_inputs):
        raise ValueError(
            f"the rows have inputs {inputs.shape} and {len(targets)} targets; inputs are (N, {num_inputs})"
        )
    return inputs, targets
