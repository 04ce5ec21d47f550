"""Helpers for all plots: colors, a blank figure, arrays from tensors, thinning of long streams, saving."""

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gp_ensembles.files.replacing import replace_file

Array = NDArray[np.float64]

INK = "#22303c"
FAINT = "#9aa5b1"
MEAN = "#0b6e99"
BAND = "#8ecae6"
ALARM = "#c8553d"
# Distinct for readers with red-green color blindness, and in grey print by their order of lightness.
SERIES = ("#0b6e99", "#e09f3e", "#5f7f5a", "#9a5b8f", "#c8553d", "#56b4c9", "#7d6b57", "#3d5a80", "#b5a642")
REST = "#d5dae0"


def new_figure(num_rows: int, num_columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A blank figure in the common style, its size in inches, and its axes row by row."""
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
    """Title and axis labels in the common style."""
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.set_xlabel(x, fontsize=9, color=INK)
    axis.ticklabel_format(axis="both", style="plain", useOffset=False)
    axis.set_ylabel(y, fontsize=9, color=INK)


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure to ``path`` in one step; the suffix chooses the format.

    The file is written next to its destination and then renamed, so a reader sees the old file or the new one, and
    an error leaves the old one in place.

    Args:
        figure: The figure.
        path: Where to write; its folder must exist. ``.png``, ``.pdf`` and ``.svg`` are supported.

    Returns:
        The path written.

    Raises:
        ValueError: If the suffix is not one of those.
        OSError: If the folder does not exist or cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_figure(Figure(figsize=(1, 1)), folder + "/empty.png").name
        'empty.png'
    """
    goal = Path(path)
    kind = goal.suffix.lower().removeprefix(".")
    if kind not in ("png", "pdf", "svg"):
        raise ValueError(f"cannot save a plot to {goal.name!r}; end the name in .png, .pdf or .svg")
    replace_file(goal, lambda file: figure.savefig(file, format=kind))
    return goal


def as_array(values: Tensor | ArrayLike, num_axes: int, name: str) -> Array:
    """A float64 array, not empty, of the values of a tensor (on any device, with or without gradient) or an array."""
    plain = values.detach().cpu().double().numpy() if isinstance(values, torch.Tensor) else values
    array = np.asarray(plain, dtype=np.float64)
    if array.ndim != num_axes or array.size == 0:
        raise ValueError(f"{name} must be a non-empty array with {num_axes} axes, got shape {array.shape}")
    return array


def as_columns(values: Mapping[str, Tensor | ArrayLike]) -> dict[str, Array]:
    """Float64 arrays (N,) of one length, by name."""
    arrays = {name: as_array(column, 1, name) for name, column in values.items()}
    lengths = {name: len(column) for name, column in arrays.items()}
    if len(set(lengths.values())) > 1:
        *names, last = lengths
        raise ValueError(f"{', '.join(names)} and {last} must have the same length, got {lengths}")
    return arrays


def bins(num_rows: int, max_rows: int) -> list[slice]:
    """Cut ``num_rows`` rows into at most ``max_rows`` runs of nearly equal length, in order."""
    edges = np.linspace(0, num_rows, min(num_rows, max_rows) + 1).round().astype(int)
    return [slice(int(start), int(stop)) for start, stop in pairwise(edges)]


def thin(values: Array, runs: list[slice], reduce: Callable[[Array], float]) -> Array:
    """Reduce each run of a stream (N,) to one number, ignoring NaN; a run of NaN only stays NaN."""
    seen = [values[run][~np.isnan(values[run])] for run in runs]
    return np.array([reduce(run) if run.size else np.nan for run in seen])


def draw_band(axis: Axes, x: Array, mean: Array, lower: Array, upper: Array) -> None:
    """A predictive mean and its 90 % band."""
    axis.fill_between(x, lower, upper, color=BAND, alpha=0.55, linewidth=0, label="90 % band")
    axis.plot(x, mean, color=MEAN, linewidth=1.2, label="predictive mean")
