"""A stream: targets with the predictions made before them, running log scores, the experts' weights, a forecast."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gp_ensembles.plots.canvas import (
    ALARM,
    BAND,
    FAINT,
    INK,
    MEAN,
    REST,
    SERIES,
    Array,
    as_array,
    as_columns,
    bins,
    draw_band,
    label,
    new_figure,
    thin,
)

_PATHS = 6  # of a forecast that are drawn


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
    arrays = as_columns({"y": y, "mean": mean, "lower": lower, "upper": upper})
    last_row, last = first_row + len(arrays["y"]) - 1, {name: values[-200:] for name, values in arrays.items()}
    if len(arrays["y"]) > 2000:
        runs = _runs_of(arrays, first_row)
        return _bands_figure(lambda axis: _draw_runs(axis, runs), last, target_name, last_row)
    if len(arrays["y"]) > 400:
        return _bands_figure(lambda axis: _draw_rows(axis, arrays, last_row), last, target_name, last_row)
    return _bands_figure(None, arrays, target_name, last_row)


def _bands_figure(
    draw: Callable[[Axes], None] | None, last: dict[str, Array], target_name: str, last_row: int
) -> Figure:
    """The last rows, below the whole stream if there is a way to draw that."""
    figure, axes = new_figure(1 if draw is None else 2, 1, 9.0, 3.4 if draw is None else 6.0)
    title = f"{target_name}: one-step-ahead predictions and targets"
    if draw is not None:
        draw(axes[0])
        label(axes[0], title, "", target_name)
        title = f"the last {len(last['y'])} rows"
    _draw_rows(axes[-1], last, last_row)
    label(axes[-1], title, "row", target_name)
    handles, names = axes[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def plot_score(log_prob: Mapping[str, Tensor | ArrayLike], *, first_row: int = 0) -> Figure:
    """Mean log score so far (above) and the lead of the first model over each other, summed (below).

    Args:
        log_prob: Name of the model -> log predictive density of each target, made before it, shape (N,); NaN where
            the target is missing. The first is the model, the others its baselines; at most 9.
        first_row: Number of the first row shown, for instance the length of the warm-up.

    Returns:
        The figure; with one model it has the upper panel only.

    Raises:
        ValueError: If there is no model or more than 9, or their lengths differ.

    Example:
        >>> import torch
        >>> figure = plot_score({"ensemble": torch.tensor([-1.0, -0.5]), "last value": torch.tensor([-2.0, -1.0])})
        >>> [axis.get_title(loc="left") for axis in figure.axes]
        ['mean log score so far', 'summed lead of ensemble']
    """
    if not 1 <= len(log_prob) <= len(SERIES):
        raise ValueError(f"a score plot takes 1 to {len(SERIES)} models, got {len(log_prob)}")
    series = as_columns(log_prob)
    known = ~np.isnan(next(iter(series.values())))
    starts, ends = np.array([(run.start, run.stop) for run in bins(len(known), 1000)]).T
    columns = {name: np.add.reduceat(np.where(known, values, 0.0), starts) for name, values in series.items()}
    ends, number = first_row + ends - 1, np.cumsum(np.add.reduceat(known.astype(float), starts))
    totals = {name: np.cumsum(values) for name, values in columns.items()}
    known = np.where(number > 0, number, np.nan)
    ahead, *others = totals
    means = {name: total / known for name, total in totals.items()}
    leads = {name: np.nancumsum(columns[ahead] - columns[name]) for name in others}
    figure, axes = new_figure(2 if leads else 1, 1, 9.0, 6.0 if leads else 3.4)
    for (name, values), color in zip(means.items(), SERIES, strict=False):
        text = f"{name}  ({values[-1]:.3f})" if np.isfinite(values[-1]) else name
        _draw_score(axes[0], ends, values, color, text, name == ahead)
    _limit_to_settled(axes[0], list(means.values()))
    label(axes[0], "mean log score so far", "" if leads else "row", "nats per row")
    axes[0].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    if leads:
        for (name, lead), color in zip(leads.items(), SERIES[1:], strict=False):
            _draw_score(axes[1], ends, lead, color, f"over {name}", False)
        axes[1].axhline(0.0, color=FAINT, linewidth=1.0, linestyle="--")
        label(axes[1], f"summed lead of {ahead}", "row", "nats")
        axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
        _stretch(axes[1], np.concatenate(list(leads.values())))
    return figure


def plot_weights(
    log_weights: Tensor | ArrayLike, names: Sequence[str], *, first_row: int = 0, rows: ArrayLike | None = None
) -> Figure:
    """Weights before each target, stacked to one; the leading experts are named, the rest grouped.

    Experts are ranked by their mean weight over the stream. Streams of more than 1000 rows are averaged over runs.

    Args:
        log_weights: Log weights before each target, shape (M, N); minus infinity for a dead expert.
        names: A name for each of the M experts.
        first_row: Number of the first row shown, for instance the length of the warm-up.
        rows: Number of each row, shape (N,), where they do not follow one another.

    Returns:
        The figure.

    Raises:
        ValueError: If there is not one name per expert, or the weights of a row do not sum to one.

    Example:
        >>> import torch
        >>> log_weights = torch.tensor([[0.9, 0.4], [0.1, 0.6]]).log()
        >>> figure = plot_weights(log_weights, ["smooth", "rough"])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['smooth', 'rough']
    """
    weights = np.exp(as_array(log_weights, 2, "log_weights"))
    if len(names) != len(weights):
        raise ValueError(f"there are {len(weights)} experts in log_weights but {len(names)} names")
    totals = weights.sum(axis=0)
    wrong = ~(np.abs(totals - 1) <= 1e-3)  # true for NaN as well
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"the weights of row {row} sum to {totals[row]:.6g}, not to one; normalize log_weights")
    num_experts, num_rows = weights.shape
    runs = bins(num_rows, 1000)
    order = np.argsort(-weights.mean(axis=1), kind="stable")
    # One expert left over is as easily named as grouped.
    num_shown = num_experts if num_experts <= len(SERIES) else len(SERIES) - 1
    layers = [thin(weights[m], runs, np.mean) for m in order[:num_shown]]
    labels = [names[m] for m in order[:num_shown]]
    colors = list(SERIES[:num_shown])
    if num_shown < num_experts:
        layers.append(thin(weights[order[num_shown:]].sum(axis=0), runs, np.mean))
        labels.append(f"{num_experts - num_shown} others")
        colors.append(REST)
    numbers = first_row + np.arange(num_rows) if rows is None else as_array(rows, 1, "rows")
    middles = np.array([numbers[run].mean() for run in runs])
    if num_rows == 1:  # a single row has no width: give it one
        middles = middles + np.array([-0.5, 0.5])
        layers = [np.repeat(layer, 2) for layer in layers]
    figure, (axis,) = new_figure(1, 1, 9.0, 3.6)
    axis.stackplot(middles, layers, labels=labels, colors=colors, linewidth=0.3, edgecolor="white")
    axis.set_xlim(middles[0], middles[-1])
    axis.set_ylim(0.0, 1.0)
    axis.grid(False)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    label(axis, "weights before each target", "row", "weight")
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, labelcolor=INK)
    return figure


def plot_forecast(
    recent: Tensor | Sequence[float] | NDArray[np.float64],
    quantiles: Tensor | ArrayLike,
    paths: Tensor | ArrayLike,
    *,
    x: ArrayLike | None = None,
    target_name: str = "y",
    x_name: str = "step",
) -> Figure:
    """Bands of 50 and 90 % of the next H rows after the last R targets, the median, and some paths.

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


def _draw_rows(axis: Axes, arrays: dict[str, Array], last_row: int) -> None:
    """Draw every row."""
    y, mean, lower, upper = (arrays[name] for name in ("y", "mean", "lower", "upper"))
    rows = last_row + 1 - np.arange(len(y), 0, -1, dtype=np.float64)
    if len(rows) == 1:
        axis.errorbar(
            rows,
            mean,
            [(mean - lower).tolist(), (upper - mean).tolist()],  # arrays of one number make older Matplotlib warn
            fmt="_",
            color=MEAN,
            ecolor=BAND,
            elinewidth=6,
            label="mean and 90 % band",
        )
    else:
        draw_band(axis, rows, mean, lower, upper)
    size = 3.2 if len(rows) <= 500 else 1.6
    axis.plot(rows, y, linestyle="none", marker="o", markersize=size, color=INK, alpha=0.8, label="target")
    _mark_missing(axis, rows[np.isnan(y)])


def _runs_of(arrays: dict[str, Array], first_row: int) -> dict[str, Any]:
    """Runs of rows, at most a thousand."""
    runs = bins(len(arrays["y"]), 1000)
    rows = first_row + np.array([(run.start + run.stop - 1) / 2 for run in runs])
    lowest, highest = thin(arrays["y"], runs, np.min), thin(arrays["y"], runs, np.max)
    mean, lower, upper = (thin(arrays[name], runs, np.median) for name in ("mean", "lower", "upper"))
    is_missing = np.array([np.isnan(arrays["y"][run]).any() for run in runs])
    bands = {"mean": mean, "lower": lower, "upper": upper}
    return {"rows": rows, "least": lowest, "greatest": highest, **bands, "is_missing": is_missing}


def _draw_runs(axis: Axes, runs: Mapping[str, Any]) -> None:
    rows, span = runs["rows"], (runs["least"], runs["greatest"])
    axis.fill_between(rows, *span, color=FAINT, alpha=0.45, linewidth=0, label="range of targets")
    draw_band(axis, rows, runs["mean"], runs["lower"], runs["upper"])
    _mark_missing(axis, rows[runs["is_missing"]])
    axis.text(
        1.0, 1.02, "gray: range of the targets in runs of rows",
        transform=axis.transAxes, ha="right", va="bottom", fontsize=8, color=INK,
    )  # fmt: skip


def _mark_missing(axis: Axes, rows: Array) -> None:
    """Tick the foot of the panel where a target is missing."""
    if len(rows):
        axis.plot(
            rows, np.full(len(rows), 0.015), transform=axis.get_xaxis_transform(), linestyle="none", marker="|",
            markersize=7, markeredgewidth=1.2, color=ALARM, label="target missing",
        )  # fmt: skip


def _draw_score(axis: Axes, rows: Array, values: Array, color: str, text: str, bold: bool) -> None:
    """One line; a dot if there is one row only."""
    marker = "o" if len(rows) == 1 else ""
    axis.plot(
        rows, values, color=color, linewidth=2.2 if bold else 1.3, marker=marker, label=text,
        zorder=3 if bold else 2,
    )  # fmt: skip


def _limit_to_settled(axis: Axes, means: list[Array]) -> None:
    """Choose the vertical range from the last nine tenths, so that the first rows do not squash the rest."""
    settled = np.concatenate([values[len(values) // 10 :] for values in means])
    settled = settled[np.isfinite(settled)]
    if settled.size > 1 and settled.max() > settled.min():
        margin = 0.08 * (settled.max() - settled.min())
        axis.set_ylim(settled.min() - margin, settled.max() + margin)


def _stretch(axis: Axes, values: Array) -> None:
    """Fit the vertical range to the values, on a signed logarithmic scale if they are large."""
    finite = values[np.isfinite(values)]
    low, high = min(0.0, float(finite.min(initial=0.0))), max(0.0, float(finite.max(initial=0.0)))
    if max(-low, high) > 100.0:
        axis.set_yscale("symlog", linthresh=10.0)
        axis.set_ylim(2.0 * low - 2.0, 2.0 * high + 2.0)
