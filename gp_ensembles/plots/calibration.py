"""Calibration: of predictive distributions by the PIT, and of class probabilities."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, FAINT, INK, MEAN, Array, as_array, label, new_figure

_BINS = 10


def plot_calibration(pit: Tensor | ArrayLike) -> Figure:
    r"""Reliability of the central intervals (left) and histogram of the PIT (right).

    The probability integral transform is :math:`u_t = F_t(y_t)`, :math:`F_t` being the predictive distribution
    function; if the predictions are calibrated, u is uniform (Dawid, 1984), and the central interval of level p, which
    holds :math:`y_t` exactly if :math:`|2 u_t - 1| \le p`, holds a share p of the targets. The shaded regions hold
    95 % of the curves or bars, each taken alone, that calibrated predictions of independent targets would give.

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
    levels = np.linspace(0.0, 1.0, 101)
    depth = np.sort(np.abs(2 * seen - 1))
    # A point on the edge counts as inside, whatever the last bit of 2 u - 1 says.
    inside = np.searchsorted(depth, levels + 1e-12, side="right")
    counts = np.histogram(seen, bins=20 if seen.size >= 200 else 10, range=(0.0, 1.0))[0]
    return _calibration_figure(levels, inside.astype(np.float64), counts.astype(np.float64))


def plot_pit_counts(counts: ArrayLike) -> Figure:
    """As :func:`plot_calibration`, from how many transforms fell into each of equal bins: in constant room.

    Raises:
        ValueError: If K is not a multiple of 20.
    """
    fine = as_array(counts, 1, "counts")
    if len(fine) % 20:
        raise ValueError(f"the number of bins must be a multiple of 20, got {len(fine)}")
    half = len(fine) // 2
    inside = np.concatenate([[0.0], np.cumsum(fine[:half][::-1] + fine[half:])])
    bars = 20 if fine.sum() >= 200 else 10
    return _calibration_figure(np.linspace(0.0, 1.0, half + 1), inside, fine.reshape(bars, -1).sum(1))


def _calibration_figure(levels: Array, inside: Array, counts: Array) -> Figure:
    """Reliability from the targets inside of intervals of some levels, and a histogram."""
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    _draw_reliability(left, levels, inside, counts.sum())
    _draw_histogram(right, counts)
    if not counts.sum():
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    return figure


def plot_class_calibration(probabilities: Tensor | ArrayLike, y: Tensor | ArrayLike) -> Figure:
    """Share of targets against predicted probability (left) and histogram of the largest probability (right).

    Shapes: ``probabilities`` (N, C), ``y`` (N,).
    """
    shares, labels = as_array(probabilities, 2, "probabilities"), as_array(y, 1, "y")
    seen = ~np.isnan(labels)
    shares, labels = shares[seen], labels[seen].astype(int)
    hits = (labels[:, None] == np.arange(shares.shape[1])).astype(np.float64)
    number = np.clip((shares * _BINS).astype(int), 0, _BINS - 1).ravel()
    sums = [np.bincount(number, part.ravel(), _BINS) for part in (np.ones_like(shares), shares, hits)]
    largest = shares.max(-1, initial=0.0)
    return plot_class_counts(np.stack(sums), np.histogram(largest, bins=20, range=(0.0, 1.0))[0])


def plot_class_counts(pairs: ArrayLike, confidence: ArrayLike) -> Figure:
    """As :func:`plot_class_calibration`, from sums over bins, so that it takes constant room.

    Shapes: ``pairs`` (3, K), ``confidence`` (L,).
    """
    sums, rows = as_array(pairs, 2, "pairs"), as_array(confidence, 1, "confidence")
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    left.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    if rows.sum():
        count, total, true = sums[:, sums[0] > 0]
        center, share = total / count, true / count
        spread = 1.96 * np.sqrt(center * (1 - center) / count)
        left.errorbar(
            center, center, spread, fmt="none", ecolor=BAND, elinewidth=6, alpha=0.6, label="95 % if calibrated"
        )
        left.plot(center, share, color=MEAN, marker="o", markersize=4, linewidth=1.8, label="these predictions")
        edges = np.arange(len(rows)) / len(rows)
        right.bar(edges, rows, width=1 / len(rows), align="edge", color=MEAN, alpha=0.85, edgecolor="white")
    else:
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    left.set_xlim(0, 1)
    left.set_ylim(0, 1)
    left.set_aspect("equal")
    left.legend(loc="upper left", frameon=False, fontsize=9)
    label(left, "probabilities of classes", "predicted probability", "share of targets")
    right.set_xlim(0, 1)
    label(right, f"confidence in {int(rows.sum())} targets", "largest probability", "rows")
    return figure


def _draw_reliability(axis: Axes, levels: Array, inside: Array, size: float) -> None:
    """Share of targets inside the central interval against its level."""
    axis.plot(levels, levels, color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    if size:
        spread = 1.96 * np.sqrt(levels * (1 - levels) / size)
        covered = inside / size
        low, high = np.clip(levels - spread, 0, 1), np.clip(levels + spread, 0, 1)
        axis.fill_between(levels, low, high, color=BAND, alpha=0.45, linewidth=0, label="95 % if calibrated")
        axis.plot(levels, covered, color=MEAN, linewidth=1.8, label="these predictions")
        ninety = float(np.interp(0.9, levels, covered))
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


def _draw_histogram(axis: Axes, counts: Array) -> None:
    """Density of the PIT with the region of calibrated bars."""
    num_bins, size = len(counts), int(counts.sum())
    axis.axhline(1.0, color=FAINT, linewidth=1.0, linestyle="--")
    if size:
        heights, edges = counts * num_bins / size, np.arange(num_bins) / num_bins
        spread = 1.96 * np.sqrt((num_bins - 1) / size)
        axis.axhspan(max(0.0, 1 - spread), 1 + spread, color=BAND, alpha=0.45, linewidth=0)
        axis.bar(edges, heights, width=1 / num_bins, align="edge", color=MEAN, alpha=0.85, edgecolor="white")
        axis.set_ylim(0, max(1.6, 1.1 * float(heights.max()), min(1 + 1.1 * spread, 4.0)))
    axis.set_xlim(0, 1)
    label(axis, f"PIT of {size} target{'' if size == 1 else 's'}", "predictive cdf at the target", "density")
