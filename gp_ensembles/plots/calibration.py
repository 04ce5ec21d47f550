"""Calibration: of predictive distributions by the PIT, and of class probabilities."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, FAINT, INK, MEAN, Array, as_array, label, new_figure

_BINS = 10


def plot_calibration(pit: Tensor | ArrayLike) -> Figure:
    """Reliability of the central intervals (left) and histogram of the PIT (right).

    The probability integral transform is u_t = F_t(y_t), F_t being the predictive distribution function; if the
    predictions are calibrated, u is uniform (Dawid, 1984), and the central interval of level p, which holds y_t exactly
    if abs(2 u_t - 1) <= p, holds a share p of the targets. The shaded regions hold 95 % of the curves or bars, each
    taken alone, that calibrated predictions of independent targets would give.

    Args:
        pit: Probability integral transforms, shape (N,); NaN where the target is missing.

    Returns:
        The figure; it says so if no target was observed.

    Raises:
        ValueError: If a value lies outside [0, 1].

    Example:
        >>> import torch
        >>> figure = plot_calibration(torch.linspace(0.0, 1.0, 101))
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['central intervals', 'PIT of 101 targets']
    """
    values = as_array(pit, 1, "pit")
    seen = values[~np.isnan(values)]
    outside = (seen < 0.0) | (seen > 1.0)
    if outside.any():
        raise ValueError(f"a PIT is a probability, got {seen[outside][0]:.6g}; pass the predictive cdf at y")
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    _draw_reliability(left, seen)
    _draw_histogram(right, seen)
    if not seen.size:
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    return figure


def plot_class_calibration(probabilities: Tensor | ArrayLike, y: Tensor | ArrayLike) -> Figure:
    """Share of targets against predicted probability (left) and histogram of the largest probability (right).

    Every class of every row gives one pair of a predicted probability and whether the target was of that class. The
    bars are 95 % intervals of the shares if the predictions are calibrated and targets independent.

    Args:
        probabilities: Class probabilities, shape (N, C).
        y: Targets, class numbers, shape (N,); NaN where missing.

    Returns:
        The figure; it says so if no target was observed.

    Example:
        >>> import torch
        >>> figure = plot_class_calibration(torch.full((40, 2), 0.5), torch.arange(40) % 2)
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['probabilities of classes', 'confidence in 40 targets']
    """
    shares, labels = as_array(probabilities, 2, "probabilities"), as_array(y, 1, "y")
    seen = ~np.isnan(labels)
    shares, labels = shares[seen], labels[seen].astype(int)
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    left.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    if labels.size:
        hits = (labels[:, None] == np.arange(shares.shape[1])).ravel()
        flat = shares.ravel()
        number = np.clip((flat * _BINS).astype(int), 0, _BINS - 1)
        filled = [b for b in range(_BINS) if (number == b).any()]
        center = np.array([flat[number == b].mean() for b in filled])
        share = np.array([hits[number == b].mean() for b in filled])
        count = np.array([(number == b).sum() for b in filled])
        spread = 1.96 * np.sqrt(center * (1 - center) / count)
        left.errorbar(
            center, center, spread, fmt="none", ecolor=BAND, elinewidth=6, alpha=0.6, label="95 % if calibrated"
        )
        left.plot(center, share, color=MEAN, marker="o", markersize=4, linewidth=1.8, label="these predictions")
        right.hist(shares.max(-1), bins=20, range=(0.0, 1.0), color=MEAN, alpha=0.85, edgecolor="white")
    else:
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    left.set_xlim(0, 1)
    left.set_ylim(0, 1)
    left.set_aspect("equal")
    left.legend(loc="upper left", frameon=False, fontsize=9)
    label(left, "probabilities of classes", "predicted probability", "share of targets")
    right.set_xlim(0, 1)
    label(right, f"confidence in {labels.size} targets", "largest probability", "rows")
    return figure


def _draw_reliability(axis: Axes, seen: Array) -> None:
    """Share of targets inside the central interval against its level."""
    levels = np.linspace(0.0, 1.0, 101)
    axis.plot(levels, levels, color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    if seen.size:
        spread = 1.96 * np.sqrt(levels * (1 - levels) / seen.size)
        depth = np.sort(np.abs(2 * seen - 1))
        # A point on the edge counts as inside, whatever the last bit of 2 u - 1 says.
        covered = np.searchsorted(depth, levels + 1e-12, side="right") / seen.size
        low, high = np.clip(levels - spread, 0, 1), np.clip(levels + spread, 0, 1)
        axis.fill_between(levels, low, high, color=BAND, alpha=0.45, linewidth=0, label="95 % if calibrated")
        axis.plot(levels, covered, color=MEAN, linewidth=1.8, label="these predictions")
        ninety = float(covered[90])
        axis.plot([0.9], [ninety], marker="o", color=MEAN, markersize=5)
        axis.annotate(
            f"90 % interval holds {100 * ninety:.1f} %", (0.9, ninety), xytext=(0.97, 0.30), ha="right",
            textcoords="axes fraction", fontsize=9, color=INK, arrowprops={"arrowstyle": "-", "color": FAINT},
        )  # fmt: skip
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_aspect("equal")
    axis.legend(loc="upper left", frameon=False, fontsize=9)
    label(axis, "central intervals", "level of the interval", "share of targets inside")


def _draw_histogram(axis: Axes, seen: Array) -> None:
    """Density of the PIT with the region of calibrated bars."""
    num_bins = 20 if seen.size >= 200 else 10
    axis.axhline(1.0, color=FAINT, linewidth=1.0, linestyle="--")
    if seen.size:
        counts, edges = np.histogram(seen, bins=num_bins, range=(0.0, 1.0))
        heights = counts * num_bins / seen.size
        spread = 1.96 * np.sqrt((num_bins - 1) / seen.size)
        axis.axhspan(max(0.0, 1 - spread), 1 + spread, color=BAND, alpha=0.45, linewidth=0)
        axis.bar(edges[:-1], heights, width=1 / num_bins, align="edge", color=MEAN, alpha=0.85, edgecolor="white")
        axis.set_ylim(0, max(1.6, 1.1 * float(heights.max()), min(1 + 1.1 * spread, 4.0)))
    axis.set_xlim(0, 1)
    label(axis, f"PIT of {seen.size} target{'' if seen.size == 1 else 's'}", "predictive cdf at the target", "density")
