"""A picture of a forecast: what came last, bands of the next rows, and some paths."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gp_ensembles.plots.canvas import BAND, INK, MEAN, as_array, label, new_figure

_PATHS = 6


def plot_forecast(
    recent: Tensor | Sequence[float] | NDArray[np.float64],
    quantiles: Tensor | ArrayLike,
    paths: Tensor | ArrayLike,
    *,
    x: ArrayLike | None = None,
    target_name: str = "y",
    x_name: str = "step",
) -> Figure:
    """Bands of 50 and 90 % of the next H rows behind the last R targets, the median, and some paths.

    Shapes: ``recent`` (R,), ``quantiles`` (5, H), ``paths`` (S, H).

    Raises:
        ValueError: If a shape is wrong.
    """
    past = as_array(recent, 1, "recent") if len(recent) else np.zeros(0)
    bands, sampled = as_array(quantiles, 2, "quantiles"), as_array(paths, 2, "paths")
    if bands.shape[0] != 5 or sampled.shape[1] != bands.shape[1]:
        raise ValueError(f"quantiles must be (5, H) and paths (S, H), got {bands.shape} and {sampled.shape}")
    steps = np.arange(1 - len(past), bands.shape[1] + 1) if x is None else np.asarray(x)
    ahead = steps[len(past) :]
    figure, (axis,) = new_figure(1, 1, 9.0, 3.8)
    if len(past):
        axis.plot(steps[: len(past)], past, color=INK, linewidth=1.0, label="observed")
    for lower, upper, alpha, name in ((0, 4, 0.4, "90 % band"), (1, 3, 0.75, "50 % band")):
        axis.fill_between(ahead, bands[lower], bands[upper], color=BAND, alpha=alpha, linewidth=0, label=name)
    for path in sampled[:_PATHS]:
        axis.plot(ahead, path, color=INK, linewidth=0.5, alpha=0.35)
    axis.plot(ahead, bands[2], color=MEAN, linewidth=1.4, label="median")
    figure.legend(loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    if np.issubdtype(steps.dtype, np.datetime64):
        axis.set_title(f"{target_name}, {bands.shape[1]} rows ahead", loc="left", fontsize=10, color=INK)
        figure.autofmt_xdate()
    else:
        label(axis, f"{target_name}, {bands.shape[1]} rows ahead", x_name, target_name)
    return figure
