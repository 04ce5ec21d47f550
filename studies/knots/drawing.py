"""Layouts of the knot-selection paper's figures: a further knot, how knots move, and objectives by their number."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from gp_ensembles.plots.canvas import ALARM, FAINT, INK, SERIES, as_array, draw_band, label, new_figure

Rows = tuple[Tensor, Tensor]


class KnotFit(NamedTuple):
    """Knots and the predictions made with them."""

    knots: Tensor  # shape (K, D)
    mean: Tensor  # at the points of a picture, shape (P,), as both below
    lower: Tensor  # predictive 5 % quantiles
    upper: Tensor  # predictive 95 % quantiles


def plot_new_knot(
    places: Tensor, bound: Tensor, *, without: float, chosen: float, fit: tuple[Tensor, KnotFit], seen: Rows
) -> Figure:
    """Figure 1: the bound with a further knot against its place, the fit with the knots so far above.

    Thin lines stand at the knots so far: a further knot there brings nothing.

    Args:
        places: Places of the further knot, rising, shape (P,).
        bound: The bound with a knot there, shape (P,), in nats.
        without: The bound without it.
        chosen: Where the further knot is put.
        fit: Points (Q, 1), rising, and the fit there of the knots so far.
        seen: Inputs, shape (N, 1), and targets, shape (N,), of the training rows.
    """
    figure, (above, below) = new_figure(2, 1, 9.0, 5.2)
    points, drawn = fit
    knots = as_array(drawn.knots, 2, "knots")[:, 0]
    _draw_fit(above, points, drawn, seen)
    _mark(above, knots, 0.03, "^", INK, "knots")
    above.legend(frameon=False, fontsize=8, ncols=4)
    label(above, "the rows and the knots so far", "", "y")
    below.plot(places, bound, color=SERIES[0], linewidth=1.3, label="bound")
    for knot in knots:
        below.axvline(knot, color=INK, linewidth=0.6, alpha=0.5)
    below.axhline(without, color=INK, linewidth=1.0, linestyle="--", label="without it")
    below.axvline(chosen, color=ALARM, linewidth=1.2, linestyle=":", label="chosen")
    below.legend(frameon=False, fontsize=8, ncols=3)
    below.sharex(above)
    label(below, "bound with a further knot", "place of the further knot", "nats")
    return figure


def plot_knot_moves(points: Tensor, fits: Mapping[str, KnotFit], *, starts: Mapping[str, Tensor], seen: Rows) -> Figure:
    """Figure 2: fits with the knots where they ended, at the foot, and where they started, at the top.

    Args:
        points: Where all are predicted, rising, shape (P, 1).
        fits: By name, knots at the end and predictions; a panel each.
        starts: By the same names, the knots at the start, each of shape (K, 1).
        seen: Inputs, shape (N, 1), and targets, shape (N,), of the training rows.
    """
    figure, axes = new_figure(len(fits), 1, 9.0, 3.2 * len(fits))
    for axis, (name, fit) in zip(axes, fits.items(), strict=True):
        _draw_fit(axis, points, fit, seen)
        _mark(axis, as_array(fit.knots, 2, "knots")[:, 0], 0.03, "^", INK, "knots at the end")
        _mark(axis, as_array(starts[name], 2, "knots")[:, 0], 0.97, "v", ALARM, "knots at the start")
        label(axis, name, "x" if axis is axes[-1] else "", "y")
        axis.sharex(axes[0])
        axis.margins(y=0.15)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    return figure


def plot_growth(histories: Mapping[str, tuple[Sequence[float], ...]], *, evidence: float | None, title: str) -> Figure:
    """Objectives (lines) and upper bounds of the log evidence (dashes) against the number of knots.

    Args:
        histories: By name, up to nine selections: numbers of knots, objectives and upper bounds, in nats, by step.
        evidence: The exact model's log evidence, drawn as a level line.
        title: What the selections were made on.

    Returns:
        The figure. Where upper bounds would squeeze the objectives into a corner, the picture is cut above; it reaches
        as far above the best objective as the objectives reach down, and the legend names bounds that lie above it all.
    """
    figure, (axis,) = new_figure(1, 1, 9.0, 4.2)
    bounds = []
    for color, (name, (knots, objective, upper)) in zip(SERIES, histories.items(), strict=False):
        axis.plot(knots, objective, color=color, linewidth=1.5, marker="o", markersize=2.5, label=name)
        bounds += axis.plot(knots, upper, color=color, linewidth=1.0, linestyle="--", label=f"{name}, upper bound")
    objectives = [value for _, objective, _ in histories.values() for value in objective]
    lowest, highest = min(objectives), max([*objectives, *([] if evidence is None else [evidence])])
    if evidence is not None:
        axis.axhline(evidence, color=INK, linewidth=1.0, linestyle=":", label="exact model")
    top = 2.0 * highest - lowest
    if highest > lowest and max(max(upper) for _, _, upper in histories.values()) > top:
        axis.set_ylim(lowest - 0.05 * (highest - lowest), top)
        for bound in bounds:
            if np.min(bound.get_ydata()) > top:
                bound.set_label(f"{bound.get_label()} (above the picture)")
    label(axis, f"{title}: objective and upper bound", "knots", "nats")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure


def _draw_fit(axis: Axes, points: Tensor, fit: KnotFit, seen: Rows) -> None:
    """The predictions and the rows."""
    mean, lower, upper = (as_array(part, 1, "predictions") for part in fit[1:])
    draw_band(axis, as_array(points, 2, "points")[:, 0], mean, lower, upper)
    axis.plot(seen[0][:, 0], seen[1], linestyle="none", marker="o", markersize=2.5, color=FAINT, label="rows")


def _mark(axis: Axes, knots: np.ndarray, height: float, marker: str, color: str, name: str) -> None:
    """Knots at a height of the picture, whatever the values are."""
    axis.plot(
        knots, np.full(len(knots), height), transform=axis.get_xaxis_transform(), linestyle="none", marker=marker,
        markersize=7, color=color, label=name,
    )  # fmt: skip
