"""Knots: over the data, as the objective against a new one's place, as they move, and by number."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import ALARM, FAINT, INK, SERIES, Array, as_array, draw_band, label, new_figure

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

    One input is drawn as a function with its band; two as a map of the mean beside a map of the band's width, knots as
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
    drawn = _checked(places, fit, "the fit")
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
        _mark_knots(axis, drawn[0])
        label(axis, what, given[0], given[1])
    if title:
        figure.suptitle(title, fontsize=10, color=INK)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def plot_new_knot(
    positions: _Values,
    objectives: Mapping[str, _Values],
    *,
    knots: _Values,
    seen: _Rows,
    chosen: Mapping[str, float] | None = None,
    without: Mapping[str, float] | None = None,
    fit: tuple[_Values, KnotFit] | None = None,
) -> Figure:
    """Objectives against the place of one further knot, the data and the knots so far above (the paper's Figure 1).

    Each objective has a panel of its own, in which thin lines stand at the knots so far: a further knot there brings
    nothing, and the objective falls in a spike to its level without it.

    Args:
        positions: Places of the further knot, shape (P,), in any order.
        objectives: By name, the objective with a knot there, each of shape (P,), in nats.
        knots: Knots so far, shape (K, 1).
        seen: Inputs, shape (N, 1), and targets, shape (N,), of the training rows.
        chosen: By the objective's name, where the further knot is put.
        without: By the objective's name, its level without the further knot, drawn as dashes.
        fit: Points (Q, 1), in any order, and the fit there of the knots so far, drawn above.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no objective, shapes do not fit, or a name is unknown.

    Example:
        >>> figure = plot_new_knot([0.0, 1.0], {"VFE": [-3.0, -2.0]}, knots=[[0.5]], seen=([[0.5]], [0.3]))
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['the rows and the knots so far', 'VFE with a further knot']
    """
    if not objectives:
        raise ValueError("there is no objective to draw")
    places = as_array(positions, 1, "positions")
    order = np.argsort(places, kind="stable")
    rows = _checked_rows(seen, 1)
    found = as_array(knots, 2, "knots")
    if found.shape[1] != 1:
        raise ValueError(f"the knots have {found.shape[1]} columns, the positions one")
    marked, levels = dict(chosen or {}), dict(without or {})
    for what, given in (("a knot is chosen", marked), ("a level is given", levels)):
        unknown = sorted(set(given) - set(objectives))
        if unknown:
            raise ValueError(f"{what} for {', '.join(unknown)}, but objectives are {', '.join(objectives)}")
    figure, axes = new_figure(1 + len(objectives), 1, 9.0, 2.6 * (1 + len(objectives)))
    if fit is None:
        axes[0].plot(rows[0][:, 0], rows[1], linestyle="none", marker="o", markersize=3, color=FAINT, label="rows")
        _mark_places(axes[0], found)
    else:
        points = as_array(fit[0], 2, "points of the fit")
        _draw_function(axes[0], points, _checked(points, fit[1], "the fit"), rows)
    axes[0].legend(frameon=False, fontsize=8, ncols=4)
    label(axes[0], "the rows and the knots so far", "", "y")
    for axis, color, (name, values) in zip(axes[1:], SERIES * len(objectives), objectives.items(), strict=False):
        heights = as_array(values, 1, name)
        if len(heights) != len(places):
            raise ValueError(f"{name} has {len(heights)} values for {len(places)} positions")
        axis.plot(places[order], heights[order], color=color, linewidth=1.3, label=name)
        for knot in found[:, 0]:
            axis.axvline(knot, color=INK, linewidth=0.6, alpha=0.5)
        if name in levels:
            axis.axhline(levels[name], color=INK, linewidth=1.0, linestyle="--", label="without it")
        if name in marked:
            axis.axvline(marked[name], color=ALARM, linewidth=1.2, linestyle=":", label="chosen")
        if name in levels or name in marked:
            axis.legend(frameon=False, fontsize=8, ncols=3)
        axis.sharex(axes[0])
        label(axis, f"{name} with a further knot", "", "nats")
    axes[-1].set_xlabel("place of the further knot", fontsize=9, color=INK)
    return figure


def plot_refinement(points: _Values, before: KnotFit, after: KnotFit, *, seen: _Rows) -> Figure:
    """The fit with a proposed knot, before and after it moved together with the hyperparameters.

    Args:
        points: Where both are predicted, shape (P, 1), in any order.
        before: Knots and predictions with the new knot, the last, where it was proposed.
        after: The same when it and the hyperparameters have been optimized.
        seen: Inputs, shape (N, 1), and targets, shape (N,), of the training rows.

    Returns:
        The figure; the new knot is marked in red.

    Raises:
        ValueError: If shapes do not fit, or there is more than one input.

    Example:
        >>> fit = KnotFit([[0.5]], [0.0, 0.1], [-1.0, -1.0], [1.0, 1.2])
        >>> figure = plot_refinement([[0.0], [1.0]], fit, fit._replace(knots=[[0.6]]), seen=([[0.5]], [0.3]))
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['before refinement', 'after refinement']
    """
    places = as_array(points, 2, "points")
    rows = _checked_rows(seen, 1)
    figure, axes = new_figure(2, 1, 9.0, 6.2)
    for axis, fit, when in zip(axes, (before, after), ("before", "after"), strict=True):
        drawn = _checked(places, fit, f"the fit {when}")
        if places.shape[1] != 1:
            raise ValueError(f"a refinement can be drawn for one input, got {places.shape[1]}")
        _draw_function(axis, places, (drawn[0][:-1], *drawn[1:]), rows)
        _mark_places(axis, drawn[0][-1:], ALARM, "new knot")
        label(axis, f"{when} refinement", "x" if when == "after" else "", "y")
    axes[0].sharex(axes[1])
    axes[0].sharey(axes[1])
    handles = axes[1].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


def plot_knot_moves(
    points: _Values, fits: Mapping[str, KnotFit], *, starts: Mapping[str, _Values], seen: _Rows
) -> Figure:
    """Fits with the knots where they ended, at the foot, and where they started, at the top (the paper's Figure 2).

    Args:
        points: Where all are predicted, shape (P, 1), in any order.
        fits: By name, knots at the end and predictions; a panel each.
        starts: By the same names, the knots at the start, each of shape (K, 1); there may be fewer than at the end.
        seen: Inputs, shape (N, 1), and targets, shape (N,), of the training rows.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no fit, names differ, shapes do not fit, or there is more than one input.

    Example:
        >>> fit = KnotFit([[0.5]], [0.0, 0.1], [-1.0, -1.0], [1.0, 1.2])
        >>> figure = plot_knot_moves([[0.0], [1.0]], {"OAT": fit}, starts={"OAT": [[0.2]]}, seen=([[0.5]], [0.3]))
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['predictive mean', 'rows', 'knots at the end', 'knots at the start']
    """
    places = as_array(points, 2, "points")
    if not fits or set(fits) != set(starts):
        raise ValueError(f"there are fits of {', '.join(fits) or 'nothing'} and starts of {', '.join(starts)}")
    if places.shape[1] != 1:
        raise ValueError(f"moves can be drawn for one input, got {places.shape[1]}")
    rows = _checked_rows(seen, 1)
    figure, axes = new_figure(len(fits), 1, 9.0, 3.2 * len(fits))
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        drawn = _checked(places, fit, name)
        _draw_function(axis, places, (drawn[0][:0], *drawn[1:]), rows)
        _mark_places(axis, drawn[0], name="knots at the end")
        first = _checked(places, fit._replace(knots=starts[name]), f"the start of {name}")[0]
        axis.plot(
            first[:, 0], np.full(len(first), 0.97), transform=axis.get_xaxis_transform(), linestyle="none", marker="v",
            markersize=7, color=ALARM, label="knots at the start",
        )  # fmt: skip
        label(axis, name, "x" if axis is axes[-1] else "", "y")
        axis.sharex(axes[0])
        axis.margins(y=0.15)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def plot_growth(
    histories: Mapping[str, tuple[_Values, _Values, _Values]], *, evidence: float | None = None, title: str = ""
) -> Figure:
    """Objectives (lines) and upper bounds of the log evidence (dashes) against the number of knots.

    Args:
        histories: By name, up to nine selections: numbers of knots, objectives and upper bounds, each of shape (S,), in
            the order of the steps; the bounds in nats.
        evidence: The exact model's log evidence, drawn as a level line.
        title: What the selections were made on.

    Returns:
        The figure. Where upper bounds would squeeze the objectives into a corner, the picture is cut above; it reaches
        as far above the best objective as the objectives reach down, and the legend names bounds that lie above it all.

    Raises:
        ValueError: If there is no selection, there are more than nine, or lengths do not fit.

    Example:
        >>> figure = plot_growth({"greedy": ([5, 10], [-20.0, -12.0], [-9.0, -11.0])}, evidence=-11.5)
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['greedy', 'greedy, upper bound', 'exact model']
    """
    if not 1 <= len(histories) <= len(SERIES):
        raise ValueError(f"from 1 to {len(SERIES)} selections can be drawn, got {len(histories)}")
    figure, (axis,) = new_figure(1, 1, 9.0, 4.2)
    lowest, highest, most, bounds = [], [], [], []
    for color, (name, history) in zip(SERIES, histories.items(), strict=False):
        what = ("numbers of knots", "objectives", "upper bounds")
        knots, objective, upper = (as_array(v, 1, f"{name}: {w}") for v, w in zip(history, what, strict=True))
        if not len(knots) == len(objective) == len(upper):
            lengths = f"{len(knots)} numbers of knots, {len(objective)} objectives and {len(upper)} upper bounds"
            raise ValueError(f"{name}: {lengths}; give one of each for every step")
        axis.plot(knots, objective, color=color, linewidth=1.5, marker="o", markersize=2.5, label=name)
        bounds += axis.plot(knots, upper, color=color, linewidth=1.0, linestyle="--", label=f"{name}, upper bound")
        lowest.append(float(objective.min()))
        highest.append(float(objective.max()))
        most.append(float(upper.max()))
    if evidence is not None:
        axis.axhline(evidence, color=INK, linewidth=1.0, linestyle=":", label="exact model")
        highest.append(evidence)
    reach = max(highest) - min(lowest)
    if reach > 0 and max(most) > max(highest) + reach:
        top = max(highest) + reach
        axis.set_ylim(min(lowest) - 0.05 * reach, top)
        for bound in bounds:
            if np.min(bound.get_ydata()) > top:
                bound.set_label(f"{bound.get_label()} (above the picture)")
    label(axis, f"{title}: objective and upper bound" if title else "objective and upper bound", "knots", "nats")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_function(
    axis: Axes, places: Array, fit: tuple[Array, Array, Array, Array], rows: tuple[Array, Array]
) -> None:
    order = np.argsort(places[:, 0], kind="stable")
    x, (knots, mean, lower, upper) = places[order, 0], fit
    draw_band(axis, x, mean[order], lower[order], upper[order])
    axis.plot(rows[0][:, 0], rows[1], linestyle="none", marker="o", markersize=2.5, color=FAINT, label="rows")
    if len(knots):
        _mark_places(axis, knots)


def _mark_places(axis: Axes, knots: Array, color: str = INK, name: str = "knots") -> None:
    """Knots of one input at the foot of the picture, whatever the heights are."""
    axis.plot(
        knots[:, 0], np.full(len(knots), 0.03), transform=axis.get_xaxis_transform(), linestyle="none", marker="^",
        markersize=7, color=color, label=name,
    )  # fmt: skip


def _mark_knots(axis: Axes, knots: Array) -> None:
    axis.plot(*knots.T, linestyle="none", marker="x", markersize=7, markeredgewidth=1.6, color=ALARM, label="knots")


def _checked(places: Array, fit: KnotFit, name: str) -> tuple[Array, Array, Array, Array]:
    knots = as_array(fit.knots, 2, f"the knots of {name}")
    values = zip((fit.mean, fit.lower, fit.upper), ("mean", "lower", "upper"), strict=True)
    mean, lower, upper = (as_array(given, 1, f"{what} of {name}") for given, what in values)
    if knots.shape[1] != places.shape[1]:
        raise ValueError(f"the knots of {name} have {knots.shape[1]} columns, the points {places.shape[1]}")
    if not len(places) == len(mean) == len(lower) == len(upper):
        lengths = f"{len(mean)} means, {len(lower)} lower and {len(upper)} upper quantiles"
        raise ValueError(f"{name} has {lengths} for {len(places)} points")
    return knots, mean, lower, upper


def _checked_rows(seen: _Rows, num_inputs: int) -> tuple[Array, Array]:
    inputs, targets = as_array(seen[0], 2, "inputs of the rows"), as_array(seen[1], 1, "targets of the rows")
    if inputs.shape != (len(targets), num_inputs):
        raise ValueError(
            f"the rows have inputs {inputs.shape} and {len(targets)} targets; inputs are (N, {num_inputs})"
        )
    return inputs, targets
