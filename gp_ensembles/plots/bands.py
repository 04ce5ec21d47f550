"""A stream of targets with the predictions that were made before each of them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import ALARM, BAND, FAINT, INK, MEAN, Array, as_array, bins, label, new_figure, thin


def plot_bands(
    y: Tensor | ArrayLike,
    mean: Tensor | ArrayLike,
    lower: Tensor | ArrayLike,
    upper: Tensor | ArrayLike,
    *,
    target_name: str = "y",
    first_row: int = 0,
) -> Figure:
    """Targets, predictive mean and 90 % band: the whole stream above, its last rows below.

    Streams of more than 2000 rows are thinned in the upper panel: each run of rows becomes the range of its targets
    and the medians of its means and bands, so that no outlying target is lost. The lower panel shows the last 200
    rows one by one.

    Args:
        y: Targets, shape (N,); NaN where missing (marked at the foot of the panel).
        mean: Predictive means made before each target, shape (N,).
        lower: Predictive 5 % quantiles, shape (N,).
        upper: Predictive 95 % quantiles, shape (N,).
        target_name: Name of the target, with its unit if it has one.
        first_row: Number of the first row shown, for instance the length of the warm-up.

    Returns:
        The figure.

    Raises:
        ValueError: If the four do not have the same length, or are empty.

    Example:
        >>> import torch
        >>> y = torch.tensor([0.3, float("nan"), 0.1])
        >>> figure = plot_bands(y, y.new_zeros(3), y.new_full((3,), -1.6), y.new_full((3,), 1.6))
        >>> len(figure.axes)
        1
    """
    named = {"y": y, "mean": mean, "lower": lower, "upper": upper}
    arrays = {name: as_array(values, 1, name) for name, values in named.items()}
    lengths = {name: len(values) for name, values in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"y, mean, lower and upper must have the same length, got {lengths}")
    num_rows = lengths["y"]
    zoomed = num_rows > 400
    figure, axes = new_figure(2 if zoomed else 1, 1, 9.0, 6.0 if zoomed else 3.4)
    title = f"{target_name}: one-step-ahead predictions and what came"
    if num_rows > 2000:
        _draw_thinned(axes[0], arrays, first_row)
    else:
        _draw_rows(axes[0], arrays, 0, first_row)
    label(axes[0], title, "" if zoomed else "row", target_name)
    if zoomed:
        _draw_rows(axes[1], arrays, num_rows - 200, first_row)
        label(axes[1], "the last 200 rows", "row", target_name)
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_rows(axis: Axes, arrays: dict[str, Array], start: int, first_row: int) -> None:
    """Draw every row from ``start`` on."""
    y, mean, lower, upper = (arrays[name][start:] for name in ("y", "mean", "lower", "upper"))
    rows = first_row + start + np.arange(len(y), dtype=np.float64)
    if len(rows) == 1:
        axis.errorbar(
            rows,
            mean,
            [mean - lower, upper - mean],
            fmt="_",
            color=MEAN,
            ecolor=BAND,
            elinewidth=6,
            label="mean and 90 % band",
        )
    else:
        axis.fill_between(rows, lower, upper, color=BAND, alpha=0.55, linewidth=0, label="90 % band")
        axis.plot(rows, mean, color=MEAN, linewidth=1.2, label="predictive mean")
    size = 3.2 if len(rows) <= 500 else 1.6
    axis.plot(rows, y, linestyle="none", marker="o", markersize=size, color=INK, alpha=0.8, label="target")
    _mark_missing(axis, rows[np.isnan(y)])


def _draw_thinned(axis: Axes, arrays: dict[str, Array], first_row: int) -> None:
    """Draw one point for each run of rows."""
    num_rows = len(arrays["y"])
    runs = bins(num_rows, 1000)
    rows = first_row + np.array([(run.start + run.stop - 1) / 2 for run in runs])
    lowest, highest = thin(arrays["y"], runs, np.min), thin(arrays["y"], runs, np.max)
    mean, lower, upper = (thin(arrays[name], runs, np.median) for name in ("mean", "lower", "upper"))
    axis.fill_between(rows, lowest, highest, color=FAINT, alpha=0.45, linewidth=0, label="range of targets")
    axis.fill_between(rows, lower, upper, color=BAND, alpha=0.55, linewidth=0, label="90 % band")
    axis.plot(rows, mean, color=MEAN, linewidth=1.0, label="predictive mean")
    share = np.array([np.isnan(arrays["y"][run]).any() for run in runs])
    _mark_missing(axis, rows[share])
    axis.text(
        1.0, 1.02, f"grey: range of the targets in runs of {-(-num_rows // 1000)} rows",
        transform=axis.transAxes, ha="right", va="bottom", fontsize=8, color=INK,
    )  # fmt: skip


def _mark_missing(axis: Axes, rows: Array) -> None:
    """Tick the foot of the panel where a target is missing."""
    if len(rows):
        axis.plot(
            rows, np.full(len(rows), 0.015), transform=axis.get_xaxis_transform(), linestyle="none", marker="|",
            markersize=7, markeredgewidth=1.2, color=ALARM, label="target missing",
        )  # fmt: skip
