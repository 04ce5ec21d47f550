"""Plots of a report.

Colors of plots are variables of ``page.css``, and their common settings are in ``page.js``.
"""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import plotly.graph_objects as go

from gp_ensembles.cli.report.history import CAPACITY, COVERAGE, RECENT, Array, RunHistory

_INK, _MUTED, _ALARM, _BAND, _REST = (f"var(--{name})" for name in ("ink", "muted", "alarm", "band", "rest"))
_SERIES = [f"var(--series-{k})" for k in range(8)]
_DASHES = ("solid", "dot", "dash", "dashdot", "longdash")
_DASHED = {"color": _MUTED, "width": 1, "dash": "dash"}
_OVERVIEW, _MOST_SEEN, _SEGMENTS, _LAYERS, _PIT_BARS = 300, 1200, 160, 320, 20
LIMITS = [50 * (3 * COVERAGE - 1), 50 * (COVERAGE + 1)]  # percent covered in a window


class Axis(NamedTuple):
    """The horizontal axis of a run: its title, plotly's kind, and places of some rows (milliseconds since 1970)."""

    name: str
    kind: str
    rows: Array
    places: Array

    @classmethod
    def of(cls, history: RunHistory, time: Mapping[str, Any] | None) -> "Axis":
        """The time axis where every row has a time, else that of rows."""
        recent, rows = history.recent(), history.mean("row")
        is_early = rows < recent["row"][0]
        rows = np.concatenate([rows[is_early], recent["row"]])
        if time is None or not history.has_times:
            return cls("row", "linear", rows, rows)
        times = np.concatenate([history.mean("time")[is_early], recent["time"]])
        is_date = time.get("kind") == "date"
        return cls(time["name"], "date" if is_date else "linear", rows, 1000 * times if is_date else times)

    def at(self, rows: Array | Sequence[float]) -> Array:
        """Positions of rows, interpolated between those known."""
        return np.asarray(np.interp(rows, self.rows, self.places))


def predictions(history: RunHistory, axis: Axis) -> go.Figure:
    """Targets, means and intervals at several levels of detail, from groups of rows to single rows."""
    bins, levels, traces = history.bins, [], []
    for most in [_OVERVIEW, CAPACITY][: 1 + (bins.width > 1)] if history.num_rows > RECENT else []:
        runs = history.runs(most)
        x = axis.at(runs["rows"])
        traces += _band(x, runs["lower"], runs["upper"], "90 % interval", _BAND)
        traces += _band(x, runs["least"], runs["greatest"], "range of the targets", "var(--range)")
        traces.append(_line(x, runs["mean"], "mean", _SERIES[0]))
        levels.append({"traces": len(traces), "from": x[0], "to": x[-1], "most": _MOST_SEEN})
    names = ("row", "y", "mean", "lower", "upper", "inside")
    rows = history.recent() if bins.width > 1 else {name: history.mean(name) for name in names}
    x, y, is_outside = axis.at(rows["row"]), rows["y"], rows["inside"] == 0
    traces += _band(x, rows["lower"], rows["upper"], "90 % interval", _BAND)
    traces.append(_line(x, rows["mean"], "mean", _SERIES[0]))
    traces.append(_points(x, y, "observed", _INK, 3.5))
    traces.append(_points(x[is_outside], y[is_outside], "observed outside its interval", _ALARM, 6))
    levels.append({"traces": len(traces), "from": x[0], "to": x[-1], "most": RECENT})
    for trace in traces[levels[0]["traces"] :]:
        trace.visible = False
    missing = axis.at(history.mean("row")[bins["count y"] < bins["count row"]])
    look = {"yaxis": "y2", "marker_symbol": "line-ns-open", "hoverinfo": "skip", "visible": bool(missing.size)}
    traces.append(_points(missing, np.full(missing.size, 0.02), "missing target", _MUTED, 7, **look))
    height = _robust_range(*(bins[key] for key in ("least y", "greatest y", "least lower", "greatest upper")))
    slider = {"visible": True, "thickness": 0.09, "bgcolor": "var(--slider)"}
    figure = _over_time(axis, history.target_name, traces, yaxis_range=height, xaxis_rangeslider=slider)
    figure.layout.meta |= {"levels": levels}
    figure.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})
    figure.update_layout(xaxis_rangeslider_yaxis={"range": height, "rangemode": "fixed"})
    return _shaded(figure, history, axis)


def certainty(history: RunHistory, axis: Axis) -> go.Figure:
    """Confidence and accuracy of predicted classes."""
    names, x = {"confidence": "confidence in the most probable class", "hit": "accuracy"}, history.mean("row", 60)
    lines = [_line(axis.at(x), 100 * history.mean(key, 60), name, _SERIES[0]) for key, name in names.items()]
    return _over_time(axis, "% of targets", [lines[0], lines[1].update(line_color=_SERIES[1])])


def scores(history: RunHistory, axis: Axis) -> go.Figure:
    """Mean log scores of the model and its baselines over segments of the run."""
    keys = {history.model_name: "log_prob", **{name: f"baseline {name}" for name in history.baselines}}
    x, means = axis.at(history.mean("row", _SEGMENTS)), [history.mean(key, _SEGMENTS) for key in keys.values()]
    lines = list(map(_line, itertools.repeat(x), means, keys, _SERIES))
    for line, dash in zip(lines, itertools.cycle(_DASHES), strict=False):
        line.line.update(dash=dash, width=2.4 if line is lines[0] else 1.3)
    layout = {"yaxis_range": _robust_range(*means), "legend_traceorder": "reversed"}
    return _shaded(_over_time(axis, "nats per row, higher is better", lines[::-1], **layout), history, axis)


def coverage(history: RunHistory, axis: Axis) -> go.Figure:
    """Coverage of 90 % intervals by window."""
    windows, y = history.window_bins, 100 * history.window_shares
    x, broken = axis.at((windows["least first"] + windows["greatest last"]) / 2), windows["sum broken"] > 0
    traces = [
        _line(x, y, "by window", _MUTED, 1, showlegend=False),
        _points(x[~broken], y[~broken], "within the limits", _SERIES[0], 8),
        _points(x[broken], y[broken], "outside the limits", _ALARM, 11, marker_symbol="x", visible=bool(broken.any())),
    ]
    figure = _over_time(axis, "% of targets covered", traces, yaxis_range=[min(80.0, float(y.min()) - 2), 101])
    figure.add_hrect(*LIMITS, fillcolor=_BAND, line_width=0, layer="below")
    return figure.add_hline(100 * COVERAGE, line=_DASHED)


def weights(history: RunHistory, axis: Axis) -> go.Figure:
    """Weights over the run by family of experts, the heaviest in their own colors."""
    layers, x = history.weights(_LAYERS), axis.at(history.mean("row", _LAYERS))
    if len(layers) > len(_SERIES):
        rest = list(layers)[len(_SERIES) - 1 :]
        layers[f"{len(rest)} others"] = np.sum([layers.pop(name) for name in rest], axis=0)
    lines = [
        _line(x, 100 * y, name, color, 0.5, fillcolor=color, stackgroup="one", hovertemplate="%{y:.1f} %")
        for (name, y), color in zip(layers.items(), [*_SERIES[:-1], _REST], strict=False)
    ]
    return _over_time(axis, "% of the weight", lines, yaxis_range=[0, 100], legend_traceorder="normal")


def reliability(history: RunHistory) -> go.Figure:
    """Share of the targets of a class by its probability."""
    count, total, true = history.reliability[:, history.reliability[0] > 0]
    x, diagonal = total / count, np.array([0.0, 1.0])
    spread = 1.96 * np.sqrt(x * (1 - x) / count)
    traces = _band(x, (x - spread).clip(0, 1), (x + spread).clip(0, 1), "95 % of runs if calibrated", _BAND)
    traces.append(_line(diagonal, diagonal, "calibrated", _MUTED, 1, hoverinfo="skip"))
    traces.append(_line(x, true / count, "these predictions", _SERIES[0], 2.2, mode="lines+markers"))
    return _figure("predicted probability", "share of targets of the class", traces, xaxis_range=[0, 1])


def pit_histogram(history: RunHistory) -> go.Figure:
    """Histogram of the probability integral transform with a band for calibrated predictions."""
    counts = history.pit_counts.reshape(_PIT_BARS, -1).sum(1)
    density, spread = counts * _PIT_BARS / counts.sum(), 1.96 * math.sqrt((_PIT_BARS - 1) / counts.sum())
    bars = go.Bar(x0=0.5 / _PIT_BARS, dx=1 / _PIT_BARS, y=density.tolist(), marker_color=_SERIES[0])
    layout = {"hovermode": "closest", "bargap": 0.08, "yaxis_range": [0, max(1.6, 1.1 * density.max())]}
    figure = _figure("quantile of the observed target", "density, 1 if calibrated", [bars], **layout)
    return figure.add_hrect(1 - spread, 1 + spread, fillcolor=_BAND, line_width=0).add_hline(1, line=_DASHED)


def events(history: RunHistory, axis: Axis) -> go.Figure:
    """Events over the run, a line for each kind."""
    traces, rows = [], history.mean("row")
    for color, (kind, numbers) in zip(itertools.cycle(_SERIES), history.events.items(), strict=False):
        x, y = axis.at(rows[numbers > 0]), ["<br>".join(map(_escaped, textwrap.wrap(kind, 34)))]
        look = {"customdata": numbers[numbers > 0].tolist(), "hovertemplate": "%{customdata}<extra></extra>"}
        traces.append(_points(x, x, kind, color, 9, cliponaxis=False, **look).update(y=y * len(x)))
    figure = _over_time(axis, "", traces, hovermode="closest", showlegend=False)
    figure.layout.meta |= {"height": 110 + 42 * len(traces)}
    return figure.update_yaxes(autorange="reversed", fixedrange=True, type="category", ticklabelstandoff=8)


def _figure(x_title: str, y_title: str, traces: Sequence[Any], **layout: Any) -> go.Figure:
    titles = {"xaxis_title_text": _escaped(x_title), "yaxis_title_text": _escaped(y_title)}
    return go.Figure(traces, {"template": "none", "meta": {}}).update_layout(**titles, **layout)


def _over_time(axis: Axis, y_title: str, traces: Sequence[Any], **layout: Any) -> go.Figure:
    return _figure(axis.name, y_title, traces, xaxis_type=axis.kind, meta={"is_over_time": True}, **layout)


def _line(x: Array, y: Array, name: str, color: str, width: float = 1.4, **look: Any) -> go.Scatter:
    look, name = {"mode": "lines", "line": {"color": color, "width": width}, **look}, _escaped(name)
    return go.Scatter(x=_rounded(x), y=_rounded(y), name=name, legendgroup=name, **look)


def _points(x: Array, y: Array, name: str, color: str, size: float, **look: Any) -> go.Scatter:
    return _line(x, y, name, color, mode="markers", marker_color=color, marker_size=size, **look)


def _band(x: Array, lower: Array, upper: Array, name: str, color: str) -> list[go.Scatter]:
    lowest = _line(x, lower, name, color, 0, hoverinfo="skip", showlegend=False)
    return [lowest, _line(x, upper, name, color, 0, hoverinfo="skip", fill="tonexty", fillcolor=color)]


def _shaded(figure: go.Figure, history: RunHistory, axis: Axis) -> go.Figure:
    """Shade windows whose coverage is outside the limits."""
    windows = history.window_bins
    edges = np.flatnonzero(np.diff(windows["sum broken"] > 0, prepend=False, append=False))
    ends = axis.at(windows["least first"][edges[::2]]), axis.at(windows["greatest last"][edges[1::2] - 1])
    for first, last in zip(*ends, strict=True):
        figure.add_vrect(first, last, fillcolor="var(--alarm-soft)", line_width=0, layer="below")
    return figure


def _robust_range(*series: Array) -> list[float]:
    """A range of an axis that ignores a few extreme values."""
    values = np.concatenate(series)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.array([0.0, 1.0])
    low, high = np.quantile(values, [0.005, 0.995])
    span = max(high - low, 1e-12 * max(abs(low), abs(high)), 1e-300)
    return [float(max(values.min(), low - span / 2) - span / 25), float(min(values.max(), high + span / 2) + span / 25)]


def _rounded(values: Array) -> list[float | None]:
    """Numbers to a hundred-thousandth of their range, ``None`` for those that are not finite."""
    known = values[np.isfinite(values)]
    spread = float(np.ptp(known)) if known.size else 0.0
    rounded = np.round(values, 5 - math.floor(math.log10(spread))) if spread > 0 else values
    return [value if math.isfinite(value) else None for value in rounded.tolist()]


def _escaped(text: str) -> str:
    """Text without markup of plotly."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")
