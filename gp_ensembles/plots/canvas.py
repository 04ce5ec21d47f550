"""What the pictures share: colors, a blank figure, arrays from tensors, and thinning of long streams."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array = NDArray[np.float64]

INK = "#22303c"
FAINT = "#9aa5b1"
MEAN = "#0b6e99"
BAND = "#8ecae6"
ALARM = "#c8553d"
# Distinct for readers who cannot tell red from green, and in grey print by their order of lightness.
SERIES = ("#0b6e99", "#e09f3e", "#5f7f5a", "#9a5b8f", "#c8553d", "#56b4c9", "#7d6b57", "#3d5a80", "#b5a642")
REST = "#d5dae0"


def new_figure(num_rows: int, num_columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A blank figure of the house style, in inches, and its axes row by row."""
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.spines[["left", "bottom"]].set_color(FAINT)
        axis.tick_params(colors=INK, labelsize=9)
        axis.grid(True, color=FAINT, alpha=0.22, linewidth=0.6)
        axis.set_axisbelow(True)
        axis.title.set_color(INK)
    return figure, axes


def label(axis: Axes, title: str, x: str, y: str) -> None:
    """Title and axis labels in the house style."""
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.set_xlabel(x, fontsize=9, color=INK)
    axis.ticklabel_format(axis="both", style="plain", useOffset=False)
    axis.set_ylabel(y, fontsize=9, color=INK)


def as_array(values: Tensor | ArrayLike, num_axes: int, name: str) -> Array:
    """A float64 array of the values of a tensor (on any device, with or without gradient) or of an array.

    Raises:
        ValueError: If it has another number of axes, or is empty.
    """
    plain = values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else values
    array = np.asarray(plain, dtype=np.float64)
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name} must be a non-empty array with {num_axes} axes, got shape {array.shape}")
    return array


def bins(num_rows: int, max_rows: int) -> list[slice]:
    """Cut ``num_rows`` rows into at most ``max_rows`` runs of nearly equal length, in order."""
    edges = np.linspace(0, num_rows, min(num_rows, max_rows) + 1).round().astype(int)
    return [slice(int(start), int(stop)) for start, stop in pairwise(edges)]


def thin(values: Array, runs: list[slice], reduce: Callable[[Array], float]) -> Array:
    """Reduce each run of a stream (N,) to one number, ignoring NaN; a run of NaN only stays NaN."""
    seen = [values[run][~np.isnan(values[run])] for run in runs]
    return np.array([reduce(run) if run.size else np.nan for run in seen])
