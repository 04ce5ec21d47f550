"""The sections of a report, in the order of the questions: what was said, how good it was, when it was not, why."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from gp_ensembles.calibration.coverage import WINDOW
from gp_ensembles.cli.report import figures, score_tables
from gp_ensembles.cli.report.events import kind_of
from gp_ensembles.cli.report.figures import Axis
from gp_ensembles.cli.report.findings import coverage_heading, percent, score_heading, signed, weights_heading
from gp_ensembles.cli.report.history import PIT_BINS, RunHistory
from gp_ensembles.cli.report.markup import Column, Markup, escaped, joined, number_text, table
from gp_ensembles.cli.report.windows import COVERAGE, Window

Summary = Mapping[str, Any]
_DAY = 86_400_000.0
_MOST_WINDOWS = 5
_LAST_ROWS = (2000, 200)
_COLUMN_TITLES = {"name": "column", "made": "what was made of it", "num_inputs": "inputs"}


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        name: Its place in the page.
        kicker: What it is about.
        heading: What it says.
        body: Its HTML.
        figures: Plots by the place that ``body`` has for them.
    """

    name: str
    kicker: str
    heading: str
    body: Markup
    figures: dict[str, Any] = {}  # noqa: RUF012 (never written to)


def sections_of(summary: Summary, history: RunHistory) -> tuple[list[Section], tuple[float, float]]:
    """Sections of a report, and the first and the last place of its time axis; those without content are left out."""
    axis = figures.axis_of(history, summary.get("time"))
    recent = history.recent()
    times = history.bins.least("time")
    assert history.first_row is not None
    first = axis.place(float(history.first_row), float(times[0]))
    last = axis.place(float(recent["row"][-1]), float(recent["time"][-1]))
    extent = (first, last if last > first else first + 1.0)
    makers: Sequence[Callable[[Summary, RunHistory, Axis, tuple[float, float]], Section | None]] = (
        _predictions, _scores, _coverage, _worst, _weights, _calibration,
    )  # fmt: skip
    found = [make(summary, history, axis, extent) for make in makers]
    found += [_table(summary), _guests(summary), _happened(history, axis, extent), _columns(summary)]
    return [section for section in [*found, _settings(summary)] if section is not None], extent


def _predictions(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section:
    buttons: list[tuple[str, tuple[float, float] | None]] = [("Whole run", None)]
    recent = axis.places(history.recent()["row"], history.recent()["time"])
    for num in _LAST_ROWS:
        if history.num_rows > num and len(recent) >= num:
            buttons.append((f"Last {number_text(num)} rows", (float(recent[-num]), extent[1])))
    if axis.is_date:
        spans = (("Last week", 7), ("Last day", 1))
        buttons += [
            (name, (extent[1] - days * _DAY, extent[1])) for name, days in spans if extent[1] - extent[0] > days * _DAY
        ]
    worst = _worst_windows(history)
    if worst:
        buttons.append(("Worst window", figures.window_range(axis, worst[0])))
    width = history.bins.width
    notes = ["Drag to zoom, double-click for the whole run; all plots over time follow."]
    if history.is_class:
        heading = "How sure the predictions were, and how often they were right"
        figure = figures.certainty(history, axis)
    else:
        heading = f"{history.target_name}: what was predicted, and what came"
        figure = figures.predictions(history, axis)
    if width > 1 and not history.is_class:
        rows = len(recent)
        notes.append(
            f"Seen as a whole, {width} rows are one point; the last {number_text(rows)} rows appear one by one when "
            f"you zoom into them. predictions.csv has every row."
        )
    if history.windows.num_broken and not history.is_class:
        notes.append(
            joined(
                Markup('<span class="key"></span> '),
                "windows of 500 targets in which the intervals broke their promise",
            )
        )
    body = joined(_quiet(*notes), _buttons(buttons), _plot("plot-predictions", heading))
    return Section("predictions", "Predictions", heading, body, {"plot-predictions": figure})


def _scores(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    if not summary["rows_scored"]:
        return None
    heading = score_heading(summary)
    words = "log probability" if history.is_class else "log density"
    note = f"Mean {words} of the targets over stretches of the run, before each was seen."
    return Section(
        "scores", "Score over time", heading, joined(_quiet(note), _plot("plot-scores", heading)),
        {"plot-scores": figures.scores(history, axis)},
    )  # fmt: skip


def _coverage(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    if not history.has_intervals or not history.windows.all():
        return None
    heading = coverage_heading(summary)
    low, high = 100 * COVERAGE - 50 * (1 - COVERAGE), 100 * COVERAGE + 50 * (1 - COVERAGE)
    note = (
        f"A window is {WINDOW} targets that follow one another. The promise is kept where {low:g} to {high:g} % of "
        f"them lie within their intervals."
    )
    return Section(
        "coverage", "Intervals over time", heading, joined(_quiet(note), _plot("plot-coverage", heading)),
        {"plot-coverage": figures.coverage(history, axis)},
    )  # fmt: skip


def _worst_windows(history: RunHistory) -> list[Window]:
    windows = history.windows.all()
    if len(windows) < 2:
        return []
    return sorted(windows, key=lambda window: window.log_score)[: min(_MOST_WINDOWS, len(windows) // 2)]


def _worst(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    windows = _worst_windows(history)
    if not windows:
        return None
    rows = []
    for window in windows:
        start, end = figures.window_range(axis, window)
        when = f"rows {number_text(window.first_row)} to {number_text(window.last_row)}"
        if not axis.is_row:
            when = f"{_moment(axis, start)} to {_moment(axis, end)}"
        leading = _leading(history, window)
        covered = [percent(window.share)] if history.has_intervals else []
        cells = [when, number_text(window.log_score), *covered]
        rows.append([*cells, leading, _events_within(history, window), _button("Show", (start, end))])
    whole = summary["log_score"]
    heading = (
        f"Least expected: {rows[0][0]}, {signed(windows[0].log_score)} nats a row against {signed(whole)} on the whole"
    )
    columns = [
        Column("window", is_number=False), Column("log score", "nats a row"),
        *([Column("covered", "of 90 %")] if history.has_intervals else []),
        Column("leading experts", is_number=False), Column("what happened", is_number=False),
        Column("", is_number=False),
    ]  # fmt: skip
    body = table(f"The windows of {WINDOW} targets with the lowest log scores", columns, rows)
    return Section("worst", "When it was worst", heading, body)


def _leading(history: RunHistory, window: Window) -> str:
    """The family with most weight in a window."""
    centers = history.centers()
    inside = (centers >= window.first_row) & (centers <= window.last_row)
    if not inside.any():
        return "–"
    sums: dict[str, float] = {}
    for family, means in history.weights().items():
        sums[family.kind] = sums.get(family.kind, 0.0) + float(means[inside].mean())
    kind = max(sums, key=lambda name: sums[name])
    return f"{kind} ({100 * sums[kind]:.0f} %)"


def _events_within(history: RunHistory, window: Window) -> str:
    found = []
    for kind, events in history.events.items():
        number = sum(int(event[2]) for event in events if window.first_row <= event[0] <= window.last_row)
        if number:
            found.append(f"{kind_of(kind).title}: {number_text(number)}")
    return "; ".join(found) or "–"


def _weights(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    if len(history.families) < 2:
        return None
    plots = {"plot-kinds": figures.weights(history, axis, by="kind")}
    body = [_quiet("Weights in force before each target."), _plot("plot-kinds", "weights by kind of expert")]
    speeds = {family.speed for family in history.families}
    if len(speeds) > 1:
        plots["plot-speeds"] = figures.weights(history, axis, by="speed")
        body += [Markup("<h3>By how they adapt</h3>"), _plot("plot-speeds", "weights by how experts adapt")]
    return Section("weights", "Who predicted", weights_heading(history), joined(*body), plots)


def _calibration(summary: Summary, history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    if history.is_class:
        if not history.confidence_counts.sum():
            return None
        error = summary.get("calibration_error")
        heading = "Probabilities" if error is None else f"Probabilities are off by {percent(error)} on average"
        plots = {
            "plot-reliability": figures.reliability(history),
            "plot-confidence": figures.confidence_histogram(history),
        }
    else:
        if not history.pit_counts.sum():
            return None
        half = PIT_BINS // 2
        shells = history.pit_counts[:half][::-1] + history.pit_counts[half:]
        off = np.abs(np.cumsum(shells) / shells.sum() - np.arange(1, half + 1) / half).max()
        heading = f"Intervals of every level are off by at most {100 * off:.1f} percentage points"
        plots = {"plot-reliability": figures.reliability(history), "plot-pit": figures.pit_histogram(history)}
    note = (
        "Left: the closer to the diagonal, the better. Right: where the targets fell. The shaded regions are what "
        "calibrated predictions of independent targets would give."
        if not history.is_class
        else "Left: the closer to the diagonal, the better. Right: how sure the predictions were."
    )
    panels = joined(*(_plot(name, heading) for name in plots))
    body = joined(_quiet(note), Markup('<div class="pair">'), panels, Markup("</div>"))
    return Section("calibration", "Calibration", heading, body, plots)


def _table(summary: Summary) -> Section:
    return Section("table", "Scores", *score_tables.score_table(summary))


def _guests(summary: Summary) -> Section | None:
    found = score_tables.guest_table(summary)
    return None if found is None else Section("guests", "Models from outside", *found)


def _happened(history: RunHistory, axis: Axis, extent: tuple[float, float]) -> Section | None:
    events = history.events
    if not events:
        return None
    titles = {kind: kind_of(kind).title for kind in events}
    totals = {kind: sum(int(event[2]) for event in found) for kind, found in events.items()}
    rows = [
        [titles[kind], number_text(totals[kind]), _when(axis, found[0]), _when(axis, found[-1])]
        for kind, found in events.items()
    ]
    columns = [Column("what", is_number=False), Column("how often"), Column("first"), Column("last")]
    heading = "; ".join(f"{titles[kind]}: {number_text(totals[kind])}" for kind in list(events)[:3])
    body = joined(
        _plot("plot-happened", "what happened, and when"),
        table("What was done to rows and experts in this run", columns, rows),
    )
    figure = figures.happenings(events, titles, axis, extent)
    return Section("happened", "What happened", heading, body, {"plot-happened": figure})


def _columns(summary: Summary) -> Section | None:
    names = summary["features"]
    tables = [
        _records(summary.get("columns"), "What was made of the columns of the table"),
        _inputs(summary.get("inputs")),
    ]
    notes = [_quiet(note) for note in summary.get("notes") or ()]
    body = joined(*(found for found in tables if found is not None), *notes)
    if tables[0] is None:
        body = joined(_quiet(f"Inputs: {', '.join(map(str, names))}."), body)
        return Section("columns", "Columns", f"{len(names)} inputs, all numbers", body)
    num = len(summary["columns"])
    return Section("columns", "Columns", f"{num} columns became {len(names)} inputs", body)


def _inputs(reports: object) -> Markup | None:
    """A table of the inputs that were missing or asleep; ``None`` where there were none."""
    rows = []
    for report in reports if isinstance(reports, list) else []:
        if not (report["num_imputed"] or report["slept"]):
            continue
        stood_in = f"{100 * report['persistence']:.0f} % of the last value, the mean for the rest"
        woke = f"since row {number_text(report['woke'])}" if report["woke"] else "not yet"
        rows.append([
            report["name"], number_text(report["num_imputed"]), stood_in if report["num_imputed"] else "–",
            "yes" if report["has_indicator"] else "no", woke if report["slept"] else "–",
        ])  # fmt: skip
    columns = [
        Column("input", is_number=False), Column("missing", "rows, warm-up included"),
        Column("what stood in", "a row later", is_number=False), Column("seen as missing", is_number=False),
        Column("moves", "if constant in the warm-up", is_number=False),
    ]  # fmt: skip
    return table("Inputs that were missing, or constant in the warm-up", columns, rows) if rows else None


def _records(content: object, caption: str) -> Markup | None:
    """A table of records, a row for each; ``None`` where there is none."""
    if isinstance(content, dict):
        content = [
            {"name": name, **(made if isinstance(made, dict) else {"made": made})} for name, made in content.items()
        ]
    if not isinstance(content, list) or not content or not all(isinstance(entry, dict) for entry in content):
        return None
    keys = list(dict.fromkeys(key for entry in content for key in entry))
    heads = [Column(_COLUMN_TITLES.get(key, str(key).replace("_", " ")), is_number=False) for key in keys]
    rows = [[_share(entry[key]) if key == "missing" else _words(entry.get(key)) for key in keys] for entry in content]
    return table(caption, heads, rows)


def _share(value: object) -> str:
    return percent(value) if isinstance(value, float) and value else "none"


def _settings(summary: Summary) -> Section:
    groups = {
        "Run": {key: summary.get(key) for key in ("device", "dtype", "seed", "block_size", "num_threads", "fit_seconds",
                                                  "stream_seconds", "rows", "rows_this_run", "rows_scored")},
        "Config": _flat(summary["config"]),
        "Versions": summary["versions"],
    }  # fmt: skip
    if isinstance(summary.get("time"), dict):
        groups["Time"] = summary["time"]
    heads = [Column("setting", is_number=False), Column("value", is_number=False)]
    body = joined(
        *(
            joined(
                Markup(f"<details><summary>{escaped(name)}</summary>"),
                table(name, heads, [[key, _words(value)] for key, value in group.items()]),
                Markup("</details>"),
            )
            for name, group in groups.items()
        )
    )
    version = summary["versions"].get("gp_ensembles", "")
    return Section("settings", "Settings and versions", f"{summary['model']}, gp_ensembles {version}", body)


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Settings within settings by their path.

    Example:
        >>> _flat({"a": {"b": 1, "c": []}, "d": [1, 2]})
        {'a.b': 1, 'a.c': [], 'd': [1, 2]}
    """
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_words(part)}" for key, part in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _when(axis: Axis, event: Sequence[float]) -> str:
    return f"row {number_text(int(event[0]))}" if axis.is_row else _moment(axis, axis.place(event[0], event[1]))


def _moment(axis: Axis, place: float) -> str:
    """A place on a time axis as text."""
    if not axis.is_date:
        return f"{axis.title} {number_text(place)}"
    text = datetime.fromtimestamp(place / 1000.0, tz=UTC).strftime("%Y-%m-%d %H:%M")
    return text.removesuffix(" 00:00")


def _quiet(*parts: object) -> Markup:
    spaced = [piece for part in parts for piece in (" ", part)]
    return joined(Markup('<p class="quiet">'), *spaced[1:], Markup("</p>"))


def _plot(name: str, label: str) -> Markup:
    return Markup(f'<div class="plot" id="{name}" role="figure" aria-label="{escaped(label)}"></div>')


def _buttons(buttons: Sequence[tuple[str, tuple[float, float] | None]]) -> Markup:
    return joined(Markup('<div class="buttons">'), *(_button(*button) for button in buttons), Markup("</div>"))


def _button(text: str, places: tuple[float, float] | None) -> Markup:
    start, end = ("", "") if places is None else (f"{places[0]!r}", f"{places[1]!r}")
    return Markup(f'<button type="button" data-from="{start}" data-to="{end}">{escaped(text)}</button>')
