"""Calibration of predictive distributions by the PIT."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, FAINT, INK, MEAN, Array, as_array, label, new_figure


def plot_calibration(pit: Tensor | ArrayLike) -> Figure:
    r"""Reliability of the central intervals (left) and histogram of the PIT (right).

    The probability integral transform is :math:`u_t = F_t(y_t)`, :math:`F_t` being the predictive distribution
    function; if the predictions are calibrated, u is uniform (Dawid, 1984), and the central interval of level p, which
    contains :math:`y_t` exactly if :math:`|2 u_t - 1| \le p`, covers a share p of the targets. The shaded regions cover
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
    figure, (left, right) = new_figure(1, 2, 9.0, 4.0)
    size = seen.size
    if size:
        covered = inside / size
        ninety = float(np.interp(0.9, levels, covered))
        left.plot([0.9], [ninety], marker="o", color=MEAN, markersize=5)
        left.annotate(
            f"90 % interval holds {100 * ninety:.1f} %", (0.9, ninety), xytext=(0.97, 0.30), ha="right",
            textcoords="axes fraction", fontsize=9, color=INK, arrowprops={"arrowstyle": "-", "color": FAINT},
        )  # fmt: skip
        _draw_reliability(left, levels, covered, np.full(len(levels), size), "")
        heights, spread = counts * len(counts) / size, 1.96 * np.sqrt((len(counts) - 1) / size)
        right.axhspan(max(0.0, 1 - spread), 1 + spread, color=BAND, alpha=0.45, linewidth=0)
        edges, width = np.arange(len(heights)) / len(heights), 1 / len(heights)
        right.bar(edges, heights, width=width, align="edge", color=MEAN, alpha=0.85, edgecolor="white")
        right.set_ylim(0, max(1.6, 1.1 * float(heights.max()), min(1 + 1.1 * spread, 4.0)))
    right.axhline(1.0, color=FAINT, linewidth=1.0, linestyle="--")
    label(left, "central intervals", "level of the interval", "share of targets inside")
    label(right, f"PIT of {size} target{'' if size == 1 else 's'}", "predictive cdf at the target", "density")
    return _finished(figure, size)


def _draw_reliability(axis: Axes, x: Array, share: Array, sizes: Array, marker: str) -> None:
    """Shares against what they are if calibrated, with the region of 95 % of calibrated predictions."""
    spread = 1.96 * np.sqrt(x * (1 - x) / sizes)
    low, high = np.clip(x - spread, 0, 1), np.clip(x + spread, 0, 1)
    axis.fill_between(x, low, high, color=BAND, alpha=0.45, linewidth=0, label="95 % if calibrated")
    axis.plot(x, share, color=MEAN, marker=marker, markersize=4, linewidth=1.8, label="these predictions")


def _finished(figure: Figure, size: int) -> Figure:
    """The figure with the diagonal, or a word where nothing was observed."""
    left, right = figure.axes
    left.plot([0, 1], [0, 1], color=FAINT, linewidth=1.0, linestyle="--", label="calibrated")
    left.legend(loc="upper left", frameon=False, fontsize=9)
    left.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    right.set_xlim(0, 1)
    if not size:
        for axis in (left, right):
            axis.text(0.5, 0.5, "no target observed", transform=axis.transAxes, ha="center", color=INK)
    return figure
