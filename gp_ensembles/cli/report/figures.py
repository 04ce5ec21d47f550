"""Plots of a report; their colors are variables of ``page.css``, and common settings are in ``page.js``."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from gp_ensembles.cli.report.history import COVERAGE, PIT_BINS, RECENT, Array, RunHistory, TargetWindow

_INK, _MUTED, _ALARM, _BAND, _RANGE, _REST = (
    f"var(--{name})" for name in ("ink", "muted", "alarm", "band", "range", "rest")
)
_SERIES = [f"var(--series-{k})" for k in range(8)]
_OVERVIEW, _MOST_SEEN, _SEGMENTS, _LAYERS, _PIT_BARS = 300, 1200, 160, 320, 20
LOWEST, HIGHEST = 100 * COVERAGE - 50 * (1 - COVERAGE), 100 * COVERAGE + 50 * (1 - COVERAGE)  # % covered in a window


class Axis(NamedTuple):
    """The horizontal axis of a run: row numbers, else a number or a date (milliseconds since 1970, UTC)."""

    name: str = "row"
    kind: str = "row"

    def places(self, rows: Any, times: Any) -> Any:
        """Positions of rows on the axis."""
        if self.kind == "row" or times is None:
            return rows
        return times * 1000.0 if self.kind == "date" else times

    def text(self, row: float, time: float) -> str:
        """A position as text."""
        if self.kind != "date":
            return f"{self.name} {self.places(int(row), time)}"
        return datetime.fromtimestamp(time, tz=UTC).strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")

    def span(self, window: TargetWindow) -> list[float]:
        """Positions of the first and the last target of a window."""
        first, last = (window.first_row, window.first_time), (window.last_row, window.last_time)
        return [self.places(*first), self.places(*last)]


def predictions(history: RunHistory, axis: Axis) -> go.Figure:
    """Targets, means and intervals at several levels of detail, from groups of rows to single rows."""
    bins, levels = history.bins, []
    figure = _over_time(axis, history.target_name)
    x, rows = _centers(history, axis), {name: history.mean(name) for name in ("y", "mean", "lower", "upper", "inside")}
    details = [_OVERVIEW, bins.num_bins][: 1 + (bins.width > 1)] if history.num_rows > RECENT else []
    for most in details:
        runs, places = history.runs(most), _centers(history, axis, most)
        _band(figure, places, runs["lower"], runs["upper"], "90 % interval", _BAND)
        _band(figure, places, runs["least"], runs["greatest"], "range of the targets", _RANGE)
        _line(figure, places, runs["mean"], "mean", _SERIES[0], 1.4)
        levels.append({"traces": len(figure.data), "from": places[0], "to": places[-1], "most": _MOST_SEEN})
    is_missing = bins["count y"] < bins.sizes
    missing = x[is_missing]
    if bins.width > 1:
        rows = history.recent()
        x = axis.places(rows["row"], rows["time"])
    is_outside = history.has_intervals & (rows["inside"] == 0) & np.isfinite(rows["y"])
    _band(figure, x, rows["lower"], rows["upper"], "90 % interval", _BAND)
    _line(figure, x, rows["mean"], "mean", _SERIES[0], 1.4)
    _points(figure, x, rows["y"], "observed", _INK, 3.5)
    _points(figure, x[is_outside], rows["y"][is_outside], "observed outside its interval", _ALARM, 6)
    levels.append({"traces": len(figure.data), "from": x[0], "to": x[-1], "most": RECENT})
    for trace in figure.data[levels[0]["traces"] :]:
        trace.visible = False
    if missing.size:
        _points(figure, missing, np.full(missing.size, 0.02), "missing target", _MUTED, 7)
        figure.data[-1].update(yaxis="y2", marker_symbol="line-ns-open", hoverinfo="skip")
    targets = _robust_range(bins["least y"], bins["greatest y"])
    ends = _robust_range(bins["least lower"], bins["greatest upper"], tail=0.3)
    height = [min(targets[0], ends[0]), max(targets[1], ends[1])]
    slider = {"visible": True, "thickness": 0.09, "bgcolor": "var(--slider)", "yaxis": {"range": height}}
    figure.update_layout(xaxis_rangeslider=slider | {"yaxis_rangemode": "fixed"}, yaxis_range=height)
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    figure.layout.meta |= {"levels": levels}
    return _shaded(figure, history, axis)


def certainty(history: RunHistory, axis: Axis) -> go.Figure:
    """Confidence and accuracy of predicted classes."""
    figure = _over_time(axis, "% of targets")
    names = {"confidence": "confidence in the most probable class", "hit": "accuracy"}
    for color, (key, name) in zip(_SERIES, names.items(), strict=False):
        _line(figure, *_segments(history, axis, f"sum {key}", 60, 100.0), name, color, 1.8)
    return figure


def scores(history: RunHistory, axis: Axis) -> go.Figure:
    """Mean log scores of the model and its baselines over segments of the run."""
    figure = _over_time(axis, "nats per row, more is better")
    keys = {history.model_name: "sum log_prob"}
    keys |= {name: f"sum baseline {k}" for k, name in enumerate(history.baselines)}
    for place, (name, key) in reversed(list(enumerate(keys.items()))):
        _line(figure, *_segments(history, axis, key), name, _SERIES[place % 8], 1.3 if place else 2.4)
        figure.data[-1].line.dash = ("solid", "dot", "dash", "dashdot", "longdash")[place % 5]
    height = _robust_range(*(np.array(trace.y, dtype=float) for trace in figure.data))
    figure.update_layout(yaxis_range=height, legend_traceorder="reversed")
    return _shaded(figure, history, axis)


def coverage(history: RunHistory, axis: Axis) -> go.Figure:
    """Coverage of 90 % intervals by window."""
    figure = _over_time(axis, "% of targets covered")
    windows = history.windows.completed
    x = np.array([sum(axis.span(window)) / 2 for window in windows])
    y = np.array([100 * window.share for window in windows])
    is_broken = np.array([window.num_broken > 0 for window in windows])
    _line(figure, x, y, "by window", _MUTED, 1)
    figure.data[-1].showlegend = False
    _points(figure, x[~is_broken], y[~is_broken], "within the limits", _SERIES[0], 8)
    _points(figure, x[is_broken], y[is_broken], "outside the limits", _ALARM, 11)
    figure.data[-1].update(marker_symbol="x", visible=bool(is_broken.any()))
    figure.update_layout(yaxis_range=[min(80.0, float(y.min()) - 2), 101])
    figure.add_hrect(LOWEST, HIGHEST, fillcolor=_BAND, line_width=0, layer="below")
    return figure.add_hline(100 * COVERAGE, line={"color": _MUTED, "width": 1, "dash": "dash"})


def weights(history: RunHistory, axis: Axis, by: str) -> go.Figure:
    """Weights over the run, summed by "kind" or by "speed" of the experts."""
    sizes, sums = history.bins.sizes, weights_by(history, by)
    layers = {name: 100 * history.grouped(means * sizes, _LAYERS) for name, means in sums.items()}
    if len(layers) > len(_SERIES):
        rest = list(layers)[len(_SERIES) - 1 :]
        layers[f"{len(rest)} others"] = np.sum([layers.pop(name) for name in rest], axis=0)
    figure, x = _over_time(axis, "% of the weight"), _centers(history, axis, _LAYERS)
    for color, (name, values) in zip(_SERIES, layers.items(), strict=False):
        color = _REST if name not in sums else color
        _line(figure, x, values / history.grouped(sizes, _LAYERS), name, color, 0.5)
        figure.data[-1].update(stackgroup="one", fillcolor=color, hovertemplate="%{y:.1f} %")
    return figure.update_layout(yaxis_range=[0, 100], legend_traceorder="normal")


def weights_by(history: RunHistory, by: str) -> dict[str, Array]:
    """Mean weights by bin, summed by "kind" or by "speed" of the experts, the heaviest first."""
    sums: dict[str, Array] = {}
    for family, means in history.weights().items():
        name = getattr(family, by)
        sums[name] = sums.get(name, 0.0) + means
    return dict(sorted(sums.items(), key=lambda pair: -float((pair[1] * history.bins.sizes).sum())))


def pit_histogram(history: RunHistory) -> go.Figure:
    """Histogram of the probability integral transform with a band for calibrated predictions."""
    counts = history.pit_counts.reshape(_PIT_BARS, -1).sum(1)
    figure = _bars(counts * _PIT_BARS / counts.sum(), "quantile of the observed target", "density, 1 if calibrated")
    spread = 1.96 * math.sqrt((_PIT_BARS - 1) / counts.sum())
    figure.add_hrect(1 - spread, 1 + spread, fillcolor=_BAND, line_width=0)
    figure.add_hline(1, line={"color": _MUTED, "width": 1, "dash": "dash"})
    return figure.update_layout(yaxis_range=[0, max(1.6, 1.1 * max(figure.data[0].y))])


def confidence_histogram(history: RunHistory) -> go.Figure:
    """Histogram of the confidence of predicted classes."""
    return _bars(history.confidence_counts, "probability of the most probable class", "targets")


def interval_shares(history: RunHistory) -> tuple[Array, Array]:
    """Levels of central intervals, and their coverage."""
    half = PIT_BINS // 2
    shells = history.pit_counts[:half][::-1] + history.pit_counts[half:]
    return np.linspace(0.0, 1.0, half + 1), np.concatenate([[0.0], np.cumsum(shells)]) / shells.sum()


def reliability(history: RunHistory) -> go.Figure:
    """Share of targets in central intervals by their level; for classes, of classes by their probability."""
    x, y = interval_shares(history) if not history.is_class else (np.zeros(0), np.zeros(0))
    count: Any = history.pit_counts.sum()
    names = "level of the central interval", "share of targets inside"
    if history.is_class:
        count, total, true = history.reliability[:, history.reliability[0] > 0]
        x, y, names = total / count, true / count, ("predicted probability", "share of targets of the class")
    spread = 1.96 * np.sqrt(x * (1 - x) / count)
    figure = _figure(*names, xaxis_range=[0, 1], yaxis_range=[0, 1])
    _band(figure, x, (x - spread).clip(0, 1), (x + spread).clip(0, 1), "95 % of runs if calibrated", _BAND)
    _line(figure, np.array([0.0, 1.0]), np.array([0.0, 1.0]), "calibrated", _MUTED, 1)
    figure.data[-1].hoverinfo = "skip"
    _line(figure, x, y, "these predictions", _SERIES[0], 2.2)
    figure.data[-1].mode = "lines+markers" if history.is_class else "lines"
    return figure


def events(found: Mapping[str, Sequence[Sequence[float]]], axis: Axis) -> go.Figure:
    """Events over the run, a line for each title."""
    figure = _over_time(axis, "", hovermode="closest")
    for color, (title, times) in zip(_SERIES * len(found), found.items(), strict=False):
        label = "<br>".join(map(_escaped, textwrap.wrap(title, 34) or ["-"]))
        x = [axis.places(row, time) for row, time, _ in times]
        figure.add_scatter(x=x, y=[label] * len(x), mode="markers", marker={"color": color, "size": 9})
        figure.data[-1].update(
            customdata=[int(time[2]) for time in times], hovertemplate="%{customdata}<extra></extra>"
        )
    figure.update_traces(showlegend=False, cliponaxis=False, hovertemplate="%{customdata}<extra></extra>")
    figure.layout.meta |= {"height": 110 + 42 * len(found)}
    return figure.update_yaxes(autorange="reversed", fixedrange=True, type="category", ticklabelstandoff=8)


def _figure(x_title: str, y_title: str, **layout: Any) -> go.Figure:
    titles = {"xaxis_title_text": _escaped(x_title), "yaxis_title_text": _escaped(y_title)}
    return go.Figure(layout={"template": "none", "meta": {}}).update_layout(**titles, **layout)


def _over_time(axis: Axis, y_title: str, **layout: Any) -> go.Figure:
    kind = "date" if axis.kind == "date" else "linear"
    return _figure(axis.name, y_title, xaxis_type=kind, meta={"is_over_time": True}, **layout)


def _line(figure: go.Figure, x: Array, y: Array, name: str, color: str, width: float) -> None:
    name = _escaped(name)
    figure.add_scatter(x=_rounded(x), y=_rounded(y), mode="lines", name=name, legendgroup=name)
    figure.data[-1].line = {"color": color, "width": width}


def _points(figure: go.Figure, x: Array, y: Array, name: str, color: str, size: float) -> None:
    marker = {"color": color, "size": size}
    figure.add_scatter(x=_rounded(x), y=_rounded(y), mode="markers", name=name, legendgroup=name, marker=marker)


def _band(figure: go.Figure, x: Array, lower: Array, upper: Array, name: str, color: str) -> None:
    for y in (lower, upper):
        _line(figure, x, y, name, color, 0)
    figure.data[-2].update(hoverinfo="skip", showlegend=False)
    figure.data[-1].update(hoverinfo="skip", fill="tonexty", fillcolor=color)


def _bars(heights: Array, x_title: str, y_title: str) -> go.Figure:
    figure = _figure(x_title, y_title, xaxis_range=[0, 1], hovermode="closest", showlegend=False)
    centers = (np.arange(len(heights)) + 0.5) / len(heights)
    figure.add_bar(x=centers.tolist(), y=heights.tolist(), width=0.92 / len(heights), marker_color=_SERIES[0])
    return figure.update_traces(hovertemplate="%{y:.4g}<extra></extra>")


def _shaded(figure: go.Figure, history: RunHistory, axis: Axis) -> go.Figure:
    """Shade windows whose coverage is outside the limits."""
    for is_broken, found in itertools.groupby(history.windows.completed, lambda window: window.num_broken > 0):
        if is_broken:
            first, *_, last = [place for window in found for place in axis.span(window)]
            figure.add_vrect(first, last, fillcolor="var(--alarm-soft)", line_width=0, layer="below")
    return figure


def _centers(history: RunHistory, axis: Axis, most: int | None = None) -> Array:
    """Positions of bins, or of at most this many groups of them."""
    sizes, centers = history.bins.sizes, axis.places(history.centers(), history.times())
    most = most or len(sizes)
    return history.grouped(centers * sizes, most) / history.grouped(sizes, most)


def _segments(
    history: RunHistory, axis: Axis, key: str, most: int = _SEGMENTS, factor: float = 1.0
) -> tuple[Array, Array]:
    """Positions of segments of the run, and the mean of a score in them; NaN without targets."""
    total, count = (history.grouped(history.bins[name], most) for name in (key, "count y"))
    return _centers(history, axis, most), factor * total / np.where(count > 0, count, np.nan)


def _robust_range(*series: Array, tail: float = 3.0) -> list[float]:
    """A range of an axis that ignores a few extreme values."""
    values = np.concatenate(series)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.array([0.0, 1.0])
    low, high = np.quantile(values, [0.005, 0.995])
    span = max(high - low, 1e-12 * max(abs(low), abs(high)), 1e-300)
    least, greatest = values.min(), values.max()
    low = least if low - least < tail * span else low - 0.5 * min(tail, 1.0) * span
    high = greatest if greatest - high < tail * span else high + 0.5 * min(tail, 1.0) * span
    margin = 0.04 * max(high - low, span)
    return [float(low - margin), float(high + margin)]


def _rounded(values: NDArray[np.float64]) -> list[float | None]:
    """Numbers to a hundred-thousandth of their range, ``None`` for those that are not finite."""
    known = values[np.isfinite(values)]
    spread = float(np.ptp(known)) if known.size else 0.0
    rounded = np.round(values, 5 - math.floor(math.log10(spread))) if spread > 0 else values
    return [value if math.isfinite(value) else None for value in rounded.tolist()]


def _escaped(text: str) -> str:
    """Text without markup of plotly."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")
