"""Sections of a report and its findings: predictions, their quality, the worst windows, and causes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import yaml

from gp_ensembles.calibration.coverage import WINDOW
from gp_ensembles.cli.report import figures
from gp_ensembles.cli.report.events import title_of
from gp_ensembles.cli.report.figures import Axis
from gp_ensembles.cli.report.history import RECENT, RunHistory, TargetWindow
from gp_ensembles.cli.report.tables import Markup, escaped, table

Summary = Mapping[str, Any]
_DAY = 86_400_000.0
_MOST_WINDOWS = 5
# Of each score: its name and unit, and whether more (1) or less (-1) of it is better, if either is.
_SCORES = {
    "log_score": ("log score\nnats per row, more is better", 1),
    "log_loss": ("log loss\nnats per row, less is better", -1),
    "error_rate": ("error rate\nless is better", -1),
    "brier": ("Brier score\nless is better", -1),
    "calibration_error": ("calibration error\n0 is calibrated", -1),
    "crps": ("CRPS\nunits of the target, less is better", -1),
    "mean_absolute_error": ("mean absolute error\nunits of the target", -1),
    "nmse": ("NMSE\nsquared error over the variance", -1),
    "coverage_90": ("coverage\nof 90 % intervals", 0),
    "mean_squared_z": ("mean squared z\n1 is calibrated", 0),
}
_EXTERNAL = {
    "num_answered": "answered\nrows", "num_absent": "absent\nrows", "log_score": "log score\nown, nats per row",
    "ensemble_log_score": "the ensemble's\non the same targets", "regret": "regret\nnats in total",
    "bound": "bound\nfor any targets", "weight": "weight\nnow", "mean_weight": "weight\non average",
}  # fmt: skip


class Section(NamedTuple):
    """A part of the page: its name, subject, heading, HTML, and the plots shown in it."""

    name: str
    subject: str
    heading: str
    body: str
    plots: Mapping[str, Any] = {}


class Lead(NamedTuple):
    """The log score of the model minus that of the best baseline, nats per row, and its standard error."""

    baseline: str
    difference: float
    error: float

    @property
    def size(self) -> str:
        """The difference without its sign."""
        return f"{abs(self.difference):.2f} nats"

    @property
    def side(self) -> str:
        """Where the model stands: level with the baseline within two standard errors."""
        if abs(self.difference) <= 2 * self.error:
            return f"level with {self.baseline}, the best baseline"
        return f"{'ahead of' if self.difference > 0 else 'behind'} {self.baseline}, the best baseline"

    @property
    def words(self) -> str:
        """The size, where it can be told from zero, and the side."""
        return self.side if abs(self.difference) <= 2 * self.error else f"{self.size} per row {self.side}"


def lead_of(summary: Summary, history: RunHistory) -> Lead | None:
    """The comparison with the best baseline, paired by row; ``None`` without any that was scored."""
    scored = {name: row["log_score"] for name, row in summary["baselines"].items() if row["log_score"] is not None}
    if not scored or summary["log_score"] is None:
        return None
    best = max(scored, key=lambda name: scored[name])
    error, count = math.inf, history.grouped(history.bins["count y"], 50)
    if best in history.baselines and len(count) > 1:  # from 50 segments: differences of neighbors are correlated
        place = history.baselines.index(best)
        total = history.grouped(history.bins["sum log_prob"] - history.bins[f"sum baseline {place}"], 50)
        error = float(np.sqrt(np.square(total - count * total.sum() / count.sum()).sum()) / count.sum())
    return Lead(best, summary["log_score"] - scored[best], error)


def findings(summary: Summary, history: RunHistory) -> str:
    """One or two sentences on the whole run."""
    if not summary["rows_scored"]:
        return "No row had a target, so nothing could be scored."
    lead, kept = lead_of(summary, history), _kept(summary)
    found = [] if lead is None else [f"The predictions are {lead.words}."]
    if kept is not None and kept["windows"]:
        broken, num = int(kept["windows"] - kept["windows_kept"]), int(kept["windows"])
        where = f"outside the limits in {broken} of {num}" if broken else f"within the limits in all {num}"
        found.append(f"Coverage of the intervals was {where} windows of {WINDOW} targets.")
    return " ".join(found)


def cards(summary: Summary, history: RunHistory) -> Iterator[tuple[str, str, bool]]:
    """Numbers at the top: each with what it is, and whether it is a warning."""
    lead, kept = lead_of(summary, history), _kept(summary)
    if lead is not None:
        is_behind = lead.difference < -2 * lead.error
        yield lead.size, f"per row {lead.side}", is_behind
    if kept is not None:
        yield _percent(kept["coverage"]), "of the targets in their 90 % intervals", abs(kept["coverage"] - 0.9) > 0.05
    if summary.get("error_rate") is not None:
        rates = [row["error_rate"] for row in summary["baselines"].values() if row["error_rate"] is not None]
        best = f", {_percent(min(rates))} for the best baseline" if rates else ""
        yield _percent(summary["error_rate"]), f"error rate{best}", summary["error_rate"] >= min(rates, default=2)
    if summary.get("mean_absolute_error") is not None:
        yield escaped(summary["mean_absolute_error"]), f"mean absolute error, in units of {summary['target']}", False
    if summary.get("nmse") is not None:
        yield _percent(1 - summary["nmse"]), "of the variance explained", summary["nmse"] >= 1
    if summary.get("microseconds_per_row"):
        yield escaped(round(1e6 / summary["microseconds_per_row"])), "rows per second, predicted and learned", False


def sections(summary: Summary, history: RunHistory) -> tuple[list[Section], list[float]]:
    """All sections with content, and the first and last position of the time axis."""
    time = summary.get("time")
    axis = Axis()
    if history.times() is not None and isinstance(time, dict):
        axis = Axis(str(time.get("name", "time")), "date" if time.get("kind") == "date" else "number")
    recent, start = history.recent(), history.bins["least time"][0]
    extent = [float(axis.places(history.first_row, start)), float(axis.places(recent["row"], recent["time"])[-1])]
    extent[1] += extent[1] == extent[0]
    parts = (_over_time(summary, history, axis, extent), _quality(summary, history), _causes(summary, history, axis))
    return [section for part in parts for section in part], extent


def _over_time(summary: Summary, history: RunHistory, axis: Axis, extent: Sequence[float]) -> Iterator[Section]:
    windows, recent = history.windows.completed, history.recent()
    worst = sorted(windows, key=lambda window: window.log_score)[: min(_MOST_WINDOWS, len(windows) // 2)]
    spans = {f"Last {escaped(num)} rows": axis.places(recent["row"], recent["time"])[-num:][0] for num in (RECENT, 200)}
    spans = {name: start for name, start in spans.items() if start > extent[0]}
    if axis.kind == "date":
        spans |= {f"Last {name}": extent[1] - days * _DAY for name, days in (("week", 7), ("day", 1))}
    buttons = [_button("Whole run")]
    buttons += [_button(name, start, extent[1]) for name, start in spans.items() if start >= extent[0]]
    buttons += [_button("Worst window", *axis.span(window)) for window in worst[:1]]
    note = "Drag to zoom, double-click for the whole run; all plots over time follow."
    if history.bins.width > 1 and not history.is_class:
        note += f" A point stands for a range of rows; zoom in to see the last {escaped(RECENT)} one by one."
    if history.windows.num_broken and not history.is_class:
        note += f" Shaded: windows of {WINDOW} targets whose coverage was outside the limits."
    heading = f"{history.target_name}: predicted and observed"
    plot = figures.certainty(history, axis) if history.is_class else figures.predictions(history, axis)
    if history.is_class:
        heading = "Confidence and accuracy"
    body = f'{_note(note)}<div class="buttons">{"".join(buttons)}</div>{_places("predictions")}'
    yield Section("predictions", "Predictions", heading, body, {"predictions": plot})
    lead, kept = lead_of(summary, history), _kept(summary)
    if summary["rows_scored"]:
        heading = "Scores over time" if lead is None else lead.words[0].upper() + lead.words[1:]
        note = f"Mean log {'probability' if history.is_class else 'density'} of the targets over segments of the run."
        plots = {"scores": figures.scores(history, axis)}
        yield Section("scores", "Score over time", heading, _note(note) + _places(*plots), plots)
    if kept is not None and windows:
        broken = f"{int(kept['windows'] - kept['windows_kept']) or 'none'} of {int(kept['windows'])}"
        heading = f"Intervals of 90 % covered {_percent(kept['coverage'])}; {broken} windows outside the limits"
        limits = f"{figures.LOWEST:g} to {figures.HIGHEST:g} %"
        note = f"Share covered in windows of {WINDOW} consecutive targets; the limits are {limits}."
        plots = {"coverage": figures.coverage(history, axis)}
        yield Section("coverage", "Coverage over time", heading, _note(note) + _places(*plots), plots)
    if worst:
        rows = [_window_row(history, axis, window) for window in worst]
        heads = ["window", "log score\nnats per row", "covered", "largest weight", "events", ""]
        heading = f"Lowest score: {rows[0][0]}, {worst[0].log_score:.2f} nats per row"
        heading = f"{heading} compared with {summary['log_score']:.2f} overall".replace(" -", " −")
        body = table(f"The windows of {WINDOW} targets with the lowest log scores", heads, rows)
        yield Section("worst", "Worst windows", heading, body)


def _window_row(history: RunHistory, axis: Axis, window: TargetWindow) -> list[object]:
    rows, events, weight = range(window.first_row, window.last_row + 1), [], "–"
    inside = (history.centers() >= window.first_row) & (history.centers() <= window.last_row)
    if inside.any():
        means = {kind: values[inside].mean() for kind, values in figures.weights_by(history, "kind").items()}
        weight, share = max(means.items(), key=lambda pair: pair[1])
        weight += f" ({100 * share:.0f} %)"
    for kind, found in history.events.items():
        if number := sum(int(event[2]) for event in found if event[0] in rows):
            events.append(f"{title_of(kind)}: {number}")
    when = f"{axis.text(window.first_row, window.first_time)} to {axis.text(window.last_row, window.last_time)}"
    covered = _percent(window.share) if history.has_intervals else "–"
    return [when, window.log_score, covered, weight, "; ".join(events) or "–", _button("Show", *axis.span(window))]


def _quality(summary: Summary, history: RunHistory) -> Iterator[Section]:
    if history.is_class and history.confidence_counts.sum():
        error = summary.get("calibration_error")
        heading = "Probabilities" if error is None else f"Probabilities are off by {_percent(error)} on average"
        plots = {"reliability": figures.reliability(history), "confidence": figures.confidence_histogram(history)}
        note = "Left: the closer to the diagonal, the better calibrated. Right: how confident the predictions were."
    elif history.pit_counts.sum():
        level, share = figures.interval_shares(history)
        heading = f"Central intervals are off by at most {100 * np.abs(share - level).max():.1f} percentage points"
        plots = {"reliability": figures.reliability(history), "pit": figures.pit_histogram(history)}
        note = "Left: the closer to the diagonal, the better calibrated. Right: the probability integral transform. "
        note += "The shaded regions contain 95 % of calibrated predictions of independent targets."
    if history.pit_counts.sum() or history.confidence_counts.sum():
        body = f'{_note(note)}<div class="pair">{_places(*plots)}</div>'
        yield Section("calibration", "Calibration", heading, body, plots)
    entries = {summary["model"]: summary, **summary["baselines"]}
    keys = [key for key in _SCORES if key in summary and not ("error_rate" in summary and key == "log_score")]
    rows: list[list[Any]] = [[name, *(entry.get(key) for key in keys)] for name, entry in entries.items()]
    best: set[tuple[int, int]] = set()
    for place, key in enumerate(keys, 1):
        sign = _SCORES[key][1]
        known = {number: sign * row[place] for number, row in enumerate(rows) if row[place] is not None}
        if sign and len(known) > 1:
            best |= {(number, place) for number, value in known.items() if value == max(known.values())}
    won, ranked = sum(number == 0 for number, _ in best), sum(bool(_SCORES[key][1]) for key in keys)
    heading = f"Best of {len(rows)} predictors by {won} of {ranked} scores"
    caption = f"Scores of {summary['rows_scored']} targets; ★ marks the best"
    heads = ["predictor", *(_SCORES[key][0] for key in keys)]
    yield Section("table", "Scores", heading, table(caption, heads, rows, best))


def _causes(summary: Summary, history: RunHistory, axis: Axis) -> Iterator[Section]:
    kinds = figures.weights_by(history, "kind")
    if len(history.families) > 1:
        sizes = history.bins.sizes
        shares = [f"{kind} ({100 * (means * sizes).sum() / sizes.sum():.0f} %)" for kind, means in kinds.items()]
        plots = {f"{by}s": figures.weights(history, axis, by) for by in ("kind", "speed")}
        body = _note("Weights before each target.") + _places("kinds")
        body += f"<h3>By adaptation</h3>{_places('speeds')}"
        heading = f"Largest weights on average: {', '.join(shares[:2])}"
        yield Section("weights", "Weights of the experts", heading, body, plots)
    if external_models := summary.get("external_models"):
        ahead = sum(entry["regret"] is not None and entry["regret"] <= 0 for entry in external_models.values())
        rows = [[name, *(entry.get(key) for key in _EXTERNAL)] for name, entry in external_models.items()]
        body = table(
            "External models, on the rows with a prediction after the warm-up", ["model", *_EXTERNAL.values()], rows
        )
        body += "".join(
            _note(f"{name} was absent last because {entry['reason']}: {entry['mend']}")
            for name, entry in external_models.items() if entry.get("reason")
        )  # fmt: skip
        yield Section(
            "external_models", "External models", f"The ensemble was ahead of {ahead} of {len(external_models)}", body
        )
    if events := {title_of(kind): found for kind, found in history.events.items()}:
        totals = {title: sum(int(event[2]) for event in found) for title, found in events.items()}
        rows = [
            [title, totals[title], *(axis.text(row, time) for row, time, _ in (found[0], found[-1]))]
            for title, found in events.items()
        ]
        heading = "; ".join(f"{title}: {escaped(number)}" for title, number in list(totals.items())[:3])
        body = _places("events") + table("Events of this run", ["event", "number", "first", "last"], rows)
        yield Section("events", "Events", heading, body, {"events": figures.events(events, axis)})
    columns, inputs = _columns(summary.get("columns") or []), _inputs(summary.get("inputs") or [])
    body = columns + inputs + "".join(map(_note, summary.get("notes") or ()))
    heading = f"{len(summary['columns'])} columns became " if columns else ""
    body = body if columns else _note(f"Inputs: {', '.join(map(str, summary['features']))}.") + body
    yield Section("columns", "Columns", f"{heading}{len(summary['features'])} inputs", body)
    keys = ("device", "dtype", "seed", "block_size", "num_threads", "fit_seconds", "stream_seconds", "rows",
            "rows_this_run", "rows_scored", "time", "versions")  # fmt: skip
    groups = {"Run": {key: summary.get(key) for key in keys}, "Configuration": summary["config"]}
    body = "".join(
        f"<details><summary>{name}</summary><pre>"
        f"{escaped(yaml.safe_dump(group, sort_keys=False, allow_unicode=True))}</pre></details>"
        for name, group in groups.items()
    )
    version = summary["versions"].get("gp_ensembles", "")
    yield Section("settings", "Settings and versions", f"{summary['model']}, gp_ensembles {version}", body)


def _columns(columns: Sequence[Summary]) -> str:
    heads = list(dict.fromkeys(key for column in columns for key in column))
    titles = {"name": "column", "made": "encoding", "num_inputs": "inputs"}
    rows = [[_words(column.get(key)) for key in heads] for column in columns]
    return table("Columns of the table", [titles.get(head, str(head)) for head in heads], rows) if rows else ""


def _words(value: object) -> object:
    if isinstance(value, float):
        return _percent(value) if value else "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _inputs(inputs: Sequence[Summary]) -> str:
    heads = ["input", "imputed\nrows, warm-up included", "by\none row later", "indicator", "constant during warm-up"]
    rows = [
        [
            report["name"], report["num_imputed"],
            f"{100 * report['persistence']:.0f} % of the last value, the mean for the rest"
            if report["num_imputed"] else "–", report["has_indicator"],
            f"yes, until row {escaped(report['activated_at'])}"
            if report["activated_at"]
            else ("yes" if report["was_constant"] else "no"),
        ]
        for report in inputs if report["num_imputed"] or report["was_constant"]
    ]  # fmt: skip
    return table("Imputed inputs, and inputs constant during warm-up", heads, rows) if rows else ""


def _kept(summary: Summary) -> Mapping[str, Any] | None:
    """Coverage of 90 % intervals; ``None`` where there are none or no target."""
    kept: Mapping[str, Any] | None = (summary.get("intervals") or {}).get("0.9")
    return kept if kept is not None and kept["coverage"] is not None else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _note(text: str) -> str:
    return f'<p class="quiet">{escaped(text)}</p>'


def _places(*names: str) -> str:
    return "".join(f'<div class="plot" id="plot-{name}" role="figure" aria-label="{name}"></div>' for name in names)


def _button(text: str, *places: float) -> Markup:
    start, end = places or ("", "")
    return Markup(f'<button type="button" data-from="{start}" data-to="{end}">{escaped(text)}</button>')
