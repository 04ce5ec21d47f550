"""The plots of a report: plain dictionaries in the format of plotly, with colors from the page's style sheet."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.cli.report.history import PIT_BINS, RunHistory
from gp_ensembles.cli.report.windows import COVERAGE, Window

Array = NDArray[np.float64]
Plain = dict[str, Any]
INK, MUTED, ALARM, ALARM_SOFT, BAND, RANGE = (
    f"var(--{name})" for name in ("ink", "muted", "alarm", "alarm-soft", "band", "range")
)
SERIES = tuple(f"var(--series-{k})" for k in range(8))
REST = "var(--rest)"
MOST_ROWS = 2000  # drawn one by one
_MOST_RUNS, _OVERVIEW, _STRETCHES, _LAYERS = 1200, 300, 160, 320
_CLASS_STRETCHES = 60
_NUM_PIT_BARS = 20
_TAIL = 3.0  # in ranges of all but a hundredth of the values


class Axis(NamedTuple):
    """The horizontal axis of a run.

    Attributes:
        is_date: Whether places are milliseconds since 1970 (UTC).
        is_row: Whether they are row numbers.
        title: What they are.
    """

    is_date: bool = False
    is_row: bool = True
    title: str = "row"

    def places(self, rows: Array, times: Array | None) -> Array:
        """Where rows stand."""
        if self.is_row or times is None:
            return rows
        return times * 1000.0 if self.is_date else times

    def place(self, row: float, time: float) -> float:
        """Where one row stands."""
        return float(self.places(np.array([row]), np.array([time]))[0])

    def layout(self, **more: Any) -> Plain:
        """Of plotly."""
        return {**_axis(self.title), "type": "date" if self.is_date else "linear", **more}


def axis_of(history: RunHistory, time: object) -> Axis:
    """The axis of a run: its time column, if every row has a time, else row numbers.

    Args:
        history: The run.
        time: What the summary says of the time column.
    """
    if history.times() is None or not isinstance(time, dict):
        return Axis()
    return Axis(time.get("kind") == "date", False, str(time.get("name", "time")))


def predictions(history: RunHistory, axis: Axis) -> Plain:
    """Targets, means and intervals: runs of rows as a whole, and single rows where one looks closely.

    Its ``levels`` are the traces of each resolution, the coarsest first, with the stretch that they know and how many
    of their points may be seen at once.
    """
    bins, x = history.bins, axis.places(history.centers(), history.times())
    series = {name: history.mean(name) for name in ("y", "mean", "lower", "upper")}
    recent = history.recent()
    if bins.width == 1:
        close_x, fine = x, series
        outside = (bins.sum("targets") > 0) & (bins.sum("inside") == 0) & history.has_intervals
    else:
        close_x, fine = axis.places(recent["row"], recent["time"]), {name: recent[name] for name in series}
        outside = (recent["inside"] == 0) & np.isfinite(recent["y"])
    rows = _rows(close_x, fine, outside)
    traces: list[Plain] = []
    levels: list[Plain] = []
    if history.num_rows > MOST_ROWS:
        coarse = [_OVERVIEW] if bins.width == 1 else [_OVERVIEW, bins.num_bins]
        for most in coarse:
            _append_level(levels, traces, _runs(history, axis, most), x, _MOST_RUNS)
    _append_level(levels, traces, rows, close_x, MOST_ROWS)
    missing = bins.sum("targets") < bins.sizes
    if missing.any():
        ticks = _points(x[missing], np.full(int(missing.sum()), 0.02), MUTED, "target missing", size=7)
        ticks["marker"]["symbol"] = "line-ns-open"
        traces.append({**ticks, "yaxis": "y2", "hoverinfo": "skip"})
    low, high = _robust_range([bins.least("y"), bins.greatest("y")])
    ends = _robust_range([bins.least("lower"), bins.greatest("upper")], tail=0.3)
    height = [min(low, ends[0]), max(high, ends[1])]
    slider: Plain = {"visible": True, "thickness": 0.09, "bgcolor": "var(--slider)"}
    slider["yaxis"] = {"rangemode": "fixed", "range": height}
    layout = _layout(
        xaxis=axis.layout(rangeslider=slider),
        yaxis={**_axis(history.target_name), "range": height},
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        shapes=[_shade(axis, window) for window in _broken_runs(history.windows.all())],
    )
    return {"data": traces, "layout": layout, "group": "time", "levels": levels}


def _append_level(levels: list[Plain], traces: list[Plain], more: list[Plain], x: Array, most: int) -> None:
    places = list(range(len(traces), len(traces) + len(more)))
    traces += [{**trace, "visible": not levels} for trace in more]
    levels.append({"traces": places, "from": float(x[0]), "to": float(x[-1]), "most": most})


def _runs(history: RunHistory, axis: Axis, most: int) -> list[Plain]:
    """Traces of runs of rows: the range of the targets, and of the ends of their intervals."""
    runs = history.runs(most)
    x = axis.places(runs.rows, runs.times)
    return [
        *_between(x, runs.lower, runs.upper, BAND, "90 % intervals", legend="band"),
        *_between(x, runs.least, runs.greatest, RANGE, "range of the targets", legend="range"),
        _line(x, runs.mean, SERIES[0], "mean", legend="mean", width=1.4),
    ]


def certainty(history: RunHistory, axis: Axis) -> Plain:
    """For classes: how sure the predictions were, and how often they were right."""
    x, sums, count = _stretches(history, axis, ["confidence", "hit"], _CLASS_STRETCHES)
    traces = [
        _line(x, 100 * sums["confidence"] / count, SERIES[0], "confidence in the most probable class", width=1.8),
        _line(x, 100 * sums["hit"] / count, SERIES[1], "targets that were of that class", width=1.8),
    ]
    layout = _layout(xaxis=axis.layout(), yaxis={**_axis("% of targets")})
    return {"data": traces, "layout": layout, "group": "time"}


def scores(history: RunHistory, axis: Axis) -> Plain:
    """Mean log scores of the model and its baselines over stretches of the run."""
    names = [f"baseline {k}" for k in range(len(history.baselines))]
    x, sums, count = _stretches(history, axis, ["log_prob", *names])
    lines = {history.model_name: sums["log_prob"] / count}
    lines |= {name: sums[key] / count for key, name in zip(names, history.baselines, strict=True)}
    traces = [
        _line(x, values, color, name, width=2.4 if place == 0 else 1.3)
        for place, ((name, values), color) in enumerate(zip(lines.items(), SERIES, strict=False))
    ]
    for trace, dash in zip(traces[1:], ("dot", "dash", "dashdot", "longdash"), strict=False):
        trace["line"]["dash"] = dash
    low, high = _robust_range(list(lines.values()))
    shades = [_shade(axis, window) for window in _broken_runs(history.windows.all())]
    layout = _layout(
        xaxis=axis.layout(), yaxis={**_axis("nats a row, more is better"), "range": [low, high]}, shapes=shades
    )
    return {"data": traces[::-1], "layout": {**layout, "legend": {**layout["legend"], "traceorder": "reversed"}},
            "group": "time"}  # fmt: skip


def coverage(history: RunHistory, axis: Axis) -> Plain:
    """The share of targets within 90 % intervals, in windows of 500 targets."""
    windows = history.windows.all()
    middle = [_middle(axis, window) for window in windows]
    x, y = np.array(middle), np.array([100 * window.share for window in windows])
    broken = np.array([window.num_broken > 0 for window in windows])
    low, high = 100 * COVERAGE - 50 * (1 - COVERAGE), 100 * COVERAGE + 50 * (1 - COVERAGE)
    traces = [_line(x, y, MUTED, "by window", width=1.0, legend="none")]
    traces[0]["showlegend"] = False
    traces.append(_points(x[~broken], y[~broken], SERIES[0], "promise kept", size=8))
    if broken.any():
        traces.append(_points(x[broken], y[broken], ALARM, "promise broken", size=11))
        traces[-1]["marker"]["symbol"] = "x"
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": low, "y1": high, "fillcolor": BAND}
    layout = _layout(
        xaxis=axis.layout(),
        yaxis={**_axis("% of targets covered"), "range": [min(80.0, float(y.min()) - 2), 101]},
        shapes=[{**band, "line": {"width": 0}, "layer": "below"}, _level(100 * COVERAGE)],
    )
    return {"data": traces, "layout": layout, "group": "time"}


def weights(history: RunHistory, axis: Axis, *, by: str) -> Plain:
    """Weights over the run, summed ``by`` "kind" or by "speed" of the experts."""
    sums: dict[str, Array] = {}
    for family, means in history.weights().items():
        name = family.kind if by == "kind" else family.speed
        sums[name] = sums.get(name, np.zeros_like(means)) + means * history.bins.sizes
    sums = dict(sorted(sums.items(), key=lambda pair: -float(pair[1].sum())))
    groups = history.groups(_LAYERS)
    sizes = _summed(history.bins.sizes, groups)
    x = _summed(axis.places(history.centers(), history.times()) * history.bins.sizes, groups) / sizes
    names, layers = list(sums), [100 * _summed(values, groups) / sizes for values in sums.values()]
    if len(names) > len(SERIES):
        rest = layers[len(SERIES) - 1 :]
        names = [*names[: len(SERIES) - 1], f"{len(rest)} further kinds"]
        layers = [*layers[: len(SERIES) - 1], np.sum(rest, axis=0)]
    colors = [*SERIES[: len(names) - 1], REST if names[-1].endswith("further kinds") else SERIES[len(names) - 1]]
    traces = [
        {
            **_line(x, values, color, name, width=0.5),
            "stackgroup": "one", "fillcolor": color, "hovertemplate": "%{y:.1f} %",
        }
        for name, values, color in zip(names, layers, colors, strict=True)
    ]  # fmt: skip
    layout = _layout(xaxis=axis.layout(), yaxis={**_axis("% of the weight"), "range": [0, 100]})
    return {"data": traces, "layout": {**layout, "legend": {**layout["legend"], "traceorder": "normal"}},
            "group": "time"}  # fmt: skip


def pit_histogram(history: RunHistory) -> Plain:
    """Density of the probability integral transform with what calibrated predictions would give."""
    counts = history.pit_counts.reshape(_NUM_PIT_BARS, -1).sum(1)
    total = counts.sum()
    heights, centers = counts * _NUM_PIT_BARS / total, (np.arange(_NUM_PIT_BARS) + 0.5) / _NUM_PIT_BARS
    spread = 1.96 * math.sqrt((_NUM_PIT_BARS - 1) / total)
    bars = {
        "type": "bar", "x": centers.tolist(), "y": heights.tolist(), "width": 0.92 / _NUM_PIT_BARS, "name": "targets",
        "marker": {"color": SERIES[0]}, "hovertemplate": "%{y:.2f}<extra></extra>", "showlegend": False,
    }  # fmt: skip
    band = {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": 1 - spread, "y1": 1 + spread, "fillcolor": BAND}
    layout = _layout(
        xaxis={**_axis("quantile at which the target fell"), "range": [0, 1]},
        yaxis={**_axis("density; 1 everywhere if calibrated"), "range": [0, max(1.6, 1.1 * float(heights.max()))]},
        shapes=[{**band, "line": {"width": 0}, "layer": "above"}, _level(1.0)],
        hovermode="closest",
    )
    return {"data": [bars], "layout": layout}


def reliability(history: RunHistory) -> Plain:
    """Share of targets within central intervals by their level; for classes, of classes by their probability."""
    if history.is_class:
        count, total, true = history.reliability
        kept = count > 0
        x, y = total[kept] / count[kept], true[kept] / count[kept]
        spread = 1.96 * np.sqrt(x * (1 - x) / count[kept])
        names, mode = ("predicted probability", "share of targets of the class"), "lines+markers"
    else:
        half = PIT_BINS // 2
        shells = history.pit_counts[:half][::-1] + history.pit_counts[half:]
        x = np.linspace(0.0, 1.0, half + 1)
        y = np.concatenate([[0.0], np.cumsum(shells)]) / shells.sum()
        spread = 1.96 * np.sqrt(x * (1 - x) / shells.sum())
        names, mode = ("level of the central interval", "share of targets inside"), "lines"
    traces = [
        *_between(x, (x - spread).clip(0, 1), (x + spread).clip(0, 1), BAND, "95 % of runs if calibrated"),
        {**_line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), MUTED, "calibrated", width=1.0), "hoverinfo": "skip"},
        {**_line(x, y, SERIES[0], "these predictions", width=2.2), "mode": mode},
    ]
    layout = _layout(xaxis={**_axis(names[0]), "range": [0, 1]}, yaxis={**_axis(names[1]), "range": [0, 1]})
    return {"data": traces, "layout": layout}


def confidence_histogram(history: RunHistory) -> Plain:
    """How many targets were predicted with which confidence."""
    counts = history.confidence_counts
    centers = (np.arange(len(counts)) + 0.5) / len(counts)
    bars = {
        "type": "bar", "x": centers.tolist(), "y": counts.tolist(), "width": 0.92 / len(counts), "name": "targets",
        "marker": {"color": SERIES[0]}, "hovertemplate": "%{y}<extra></extra>", "showlegend": False,
    }  # fmt: skip
    layout = _layout(
        xaxis={**_axis("probability of the most probable class"), "range": [0, 1]}, yaxis=_axis("targets"),
        hovermode="closest",
    )  # fmt: skip
    return {"data": [bars], "layout": layout}


def happenings(
    events: dict[str, list[list[float]]], titles: dict[str, str], axis: Axis, extent: Sequence[float]
) -> Plain:
    """When something was done to rows or experts, a line for each kind."""
    traces = []
    for place, (kind, found) in enumerate(events.items()):
        x = np.array([axis.place(row, time) for row, time, _ in found])
        number = [int(event[2]) for event in found]
        trace = _points(x, np.full(len(x), float(place)), SERIES[place % len(SERIES)], titles[kind], size=9)
        trace |= {"customdata": number, "hovertemplate": f"{_safe(titles[kind])}: %{{customdata}}<extra></extra>"}
        trace |= {"showlegend": False, "cliponaxis": False}
        traces.append(trace)
    ticks = {"tickvals": list(range(len(events))), "ticktext": [_wrapped(titles[kind]) for kind in events]}
    layout = _layout(
        xaxis=axis.layout(range=list(extent)),
        yaxis={**_axis(""), **ticks, "range": [len(events) - 0.5, -0.5], "fixedrange": True, "automargin": True},
        hovermode="closest",
    )
    return {"data": traces, "layout": layout, "group": "time", "height": 110 + 42 * len(events)}


def window_range(axis: Axis, window: Window) -> tuple[float, float]:
    """Where a window begins and ends."""
    return axis.place(window.first_row, window.first_time), axis.place(window.last_row, window.last_time)


def _rows(x: Array, series: dict[str, Array], outside: NDArray[np.bool_]) -> list[Plain]:
    """Traces of single rows."""
    traces = _between(x, series["lower"], series["upper"], BAND, "90 % interval", legend="band")
    traces.append(_line(x, series["mean"], SERIES[0], "mean", legend="mean", width=1.4))
    traces.append(_points(x, series["y"], INK, "target", size=3.5))
    if outside.any():
        traces.append(_points(x[outside], series["y"][outside], ALARM, "target outside its interval", size=6))
    return traces


def _between(x: Array, lower: Array, upper: Array, color: str, name: str, *, legend: str | None = None) -> list[Plain]:
    """Two traces, the second filled down to the first."""
    edge = {"type": "scatter", "mode": "lines", "x": x.tolist(), "line": {"width": 0, "color": color}}
    edge |= {"hoverinfo": "skip", "legendgroup": _safe(legend or name)}
    first = {**edge, "y": lower.tolist(), "showlegend": False, "name": _safe(name)}
    return [first, {**edge, "y": upper.tolist(), "fill": "tonexty", "fillcolor": color, "name": _safe(name)}]


def _line(x: Array, y: Array, color: str, name: str, *, width: float, legend: str | None = None) -> Plain:
    line = {"color": color, "width": width}
    return {"type": "scatter", "mode": "lines", "x": x.tolist(), "y": y.tolist(), "line": line, "name": _safe(name),
            "legendgroup": _safe(legend or name)}  # fmt: skip


def _points(x: Array, y: Array, color: str, name: str, *, size: float) -> Plain:
    marker = {"color": color, "size": size}
    return {"type": "scatter", "mode": "markers", "x": x.tolist(), "y": y.tolist(), "marker": marker,
            "name": _safe(name), "legendgroup": _safe(name)}  # fmt: skip


def _axis(title: str) -> Plain:
    return {
        "title": {"text": _safe(title), "standoff": 8}, "gridcolor": "var(--grid)", "linecolor": "var(--grid)",
        "zeroline": False, "tickcolor": "var(--grid)", "automargin": True,
    }  # fmt: skip


def _layout(**parts: Any) -> Plain:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13, "color": INK},
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44}, "hovermode": "x unified", "bargap": 0, "dragmode": "zoom",
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": MUTED, "activecolor": INK},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--grid)", "font": {"color": INK}},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
        **parts,
    }  # fmt: skip


def _shade(axis: Axis, window: Window) -> Plain:
    first, last = window_range(axis, window)
    return {"type": "rect", "yref": "paper", "y0": 0, "y1": 1, "x0": first, "x1": last, "fillcolor": ALARM_SOFT,
            "line": {"width": 0}, "layer": "below"}  # fmt: skip


def _level(height: float) -> Plain:
    line = {"color": MUTED, "width": 1, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}


def _middle(axis: Axis, window: Window) -> float:
    first, last = window_range(axis, window)
    return (first + last) / 2


def _broken_runs(windows: Sequence[Window]) -> list[Window]:
    """Broken windows, those that follow one another as one."""
    runs: list[Window] = []
    before = None
    for place, window in enumerate(windows):
        if window.num_broken and before is not None and before == place - 1:
            runs[-1] = runs[-1]._replace(last_row=window.last_row, last_time=window.last_time)
        elif window.num_broken:
            runs.append(window)
        before = place if window.num_broken else before
    return runs


def _summed(values: Array, groups: NDArray[np.intp]) -> Array:
    return np.bincount(groups, weights=values).astype(np.float64)


def _stretches(
    history: RunHistory, axis: Axis, names: Sequence[str], most: int = _STRETCHES
) -> tuple[Array, dict[str, Array], Array]:
    """Places of groups of bins, sums of series in them, and how many targets they have; NaN for none."""
    groups = history.groups(most)
    sizes = history.bins.sizes
    x = _summed(axis.places(history.centers(), history.times()) * sizes, groups) / _summed(sizes, groups)
    count = _summed(history.bins.sum("targets"), groups)
    sums = {name: _summed(history.bins.sum(name), groups) for name in names}
    return x, sums, np.where(count > 0, count, np.nan)


def _robust_range(series: Sequence[Array], tail: float = _TAIL) -> tuple[float, float]:
    """A range for an axis that a few wild values do not stretch."""
    values = np.concatenate(list(series))
    values = values[np.isfinite(values)]
    if not values.size:
        return 0.0, 1.0
    low, high = (float(end) for end in np.quantile(values, [0.005, 0.995]))
    span = max(high - low, 1e-12 * max(abs(low), abs(high)), 1e-300)
    least, most = float(values.min()), float(values.max())
    low = least if low - least < tail * span else low - 0.5 * min(tail, 1.0) * span
    high = most if most - high < tail * span else high + 0.5 * min(tail, 1.0) * span
    margin = 0.04 * max(high - low, span)
    return low - margin, high + margin


def _safe(text: str) -> str:
    """Text that plotly does not take for its own markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "% {")


def _wrapped(text: str, width: int = 34) -> str:
    """Text in lines of about so many characters."""
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "<br>".join(_safe(part) for part in [*lines, line])
