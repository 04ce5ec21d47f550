"""The file ``report.html``, self-contained: sections, tables and numbers in ``page.html``."""

import base64
import gzip
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any, NamedTuple

import numpy as np
import plotly.offline
import yaml

from gp_ensembles.calibration.levels import WINDOW
from gp_ensembles.cli.report import figures
from gp_ensembles.cli.report.figures import LIMITS, Axis
from gp_ensembles.cli.report.history import RECENT, RunHistory
from gp_ensembles.cli.summary import Summary, event_lines, external_lines
from gp_ensembles.files.replacing import finite

_NEUTRAL = ("coverage_90", "mean_squared_z")  # neither higher nor lower is better
_SCORES = {
    "log_score": ("log score", "nats per row, higher is better"),
    "log_loss": ("log loss", "nats per row, lower is better"),
    "error_rate": ("error rate", "lower is better"),
    "brier": ("Brier score", "lower is better"),
    "calibration_error": ("calibration error", "0 is calibrated"),
    "crps": ("CRPS", "units of the target, lower is better"),
    "mean_absolute_error": ("mean absolute error", "units of the target"),
    "nmse": ("NMSE", "squared error over the variance"),
    "coverage_90": ("coverage", "of 90 % intervals"),
    "mean_squared_z": ("mean squared z", "1 is calibrated"),
}


def escaped(value: object) -> str:
    """Text, a number or a list of them as HTML."""
    if isinstance(value, list):
        return ", ".join(map(escaped, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "–" if value is None else html.escape(str(value))
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ").replace("-", "−")
    is_plain = value == 0 or 5e-4 <= abs(value) < 1e5
    return (f"{value:.4f}" if is_plain else f"{value:.3e}").replace("-", "−")


def table(
    caption: str,
    entries: Sequence[Mapping[str, Any]],
    columns: Mapping[str, tuple[str, str]] | None = None,
    best: Mapping[str, float] = {},
) -> str:
    """A table of entries, a row each, with titles and notes of columns, by default all keys; the best are marked."""
    if columns is None:
        columns = {key: (key.replace("_", " ").removeprefix("num "), "") for entry in entries for key in entry}
    texts = {key for entry in entries for key, value in entry.items() if isinstance(value, str | bool | list)}
    kinds = ["" if key in texts else ' class="number"' for key in columns]
    rows = []
    for entry in entries:
        cells = {key: escaped(entry.get(key)) for key in columns}
        cells |= {key: f'<span class="best">{cells[key]}</span>' for key in best if entry.get(key) == best[key]}
        first, *rest = (f"{kind}>{cell}" for cell, kind in zip(cells.values(), kinds, strict=True))
        rows.append(f'<th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in rest))
    head = "".join(
        f'<th scope="col"{kind}>{escaped(title)}<small>{escaped(note)}</small></th>'
        for (title, note), kind in zip(columns.values(), kinds, strict=True)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )


class Section(NamedTuple):
    """A part of the page: its name, subject, heading, HTML, and the plots below."""

    name: str
    subject: str
    heading: str
    body: str
    plots: Mapping[str, Any] = {}


class Card(NamedTuple):
    """A number at the top: as text, what it is, and whether it is a warning."""

    value: str
    text: str
    is_warning: bool = False


def lead_of(summary: Summary, history: RunHistory) -> Card | None:
    """The log score compared with that of the best baseline, paired by row; ``None`` without any that was scored."""
    scored = {name: row["log_score"] for name, row in summary["baselines"].items() if row["log_score"] is not None}
    if not scored or summary["log_score"] is None:
        return None
    best = max(scored, key=lambda name: scored[name])
    error, count = math.inf, history.bins.grouped("count y", 50)
    if best in history.baselines and len(count) > 1:  # from 50 segments: differences of neighbors are correlated
        total = history.bins.grouped("sum log_prob", 50) - history.bins.grouped(f"sum baseline {best}", 50)
        error = float(np.sqrt(np.square(total - count * total.sum() / count.sum()).sum()) / count.sum())
    lead = summary["log_score"] - scored[best]
    side = "level with" if abs(lead) <= 2 * error else "ahead of" if lead > 0 else "behind"
    return Card(f"{abs(lead):.2f} nats", f"per row: {side} {best}, the best baseline", side == "behind")


def cards(summary: Summary, history: RunHistory) -> Iterator[Card]:
    """Numbers at the top."""
    lead, kept, baselines = lead_of(summary, history), _kept(summary), summary["baselines"].values()
    if lead is not None:
        yield lead
    if kept is not None:
        yield Card(_percent(kept["coverage"]), "of targets in 90 % intervals", abs(kept["coverage"] - 0.9) > 0.05)
    if (rate := summary.get("error_rate")) is not None:
        least = min((row["error_rate"] for row in baselines if row["error_rate"] is not None), default=1)
        yield Card(_percent(rate), f"error rate, {_percent(least)} for the best baseline", rate >= least)
    if (error := summary.get("mean_absolute_error")) is not None:
        yield Card(escaped(error), f"mean absolute error, in units of {summary['target']}")
    if (share := summary.get("nmse")) is not None:
        yield Card(_percent(1 - share), "of the variance explained", share >= 1)
    if time := summary.get("microseconds_per_row"):
        yield Card(escaped(round(1e6 / time)), "rows per second, predicted and learned")


def sections(summary: Summary, history: RunHistory, axis: Axis) -> Iterator[Section]:
    """All sections with content."""
    yield _predictions(history, axis)
    if summary["rows_scored"]:
        lead, kind = lead_of(summary, history), "probability" if history.is_class else "density"
        heading = "No baseline was scored" if lead is None else f"{lead.value} {lead.text}"
        note = _notes(f"Mean log {kind} of the targets over segments of the run.")
        yield Section("scores", "Score over time", heading, note, {"scores": figures.scores(history, axis)})
    if (kept := _kept(summary)) is not None and history.window_bins.num_rows:
        broken = f"{int(kept['windows'] - kept['windows_kept']) or 'none'} of {int(kept['windows'])}"
        heading = f"Intervals of 90 % covered {_percent(kept['coverage'])}; {broken} windows outside the limits"
        note = _notes(f"Share covered in windows of {WINDOW} targets; the limits are {LIMITS[0]:g} to {LIMITS[1]:g} %.")
        yield Section("coverage", "Coverage over time", heading, note, {"coverage": figures.coverage(history, axis)})
    if history.pit_counts.sum() or history.reliability.sum():
        heading, draw = "Probability integral transform, flat if calibrated", figures.pit_histogram
        if (error := summary.get("calibration_error")) is not None:
            heading, draw = f"Probabilities are off by {_percent(error)} on average", figures.reliability
        note = _notes("The shaded region contains 95 % of calibrated predictions of independent targets.")
        yield Section("calibration", "Calibration", heading, note, {"calibration": draw(history)})
    yield _scores(summary)
    if len(set(history.families)) > 1:
        largest = ", ".join(f"{name} ({100 * mean[0]:.0f} %)" for name, mean in list(history.weights(1).items())[:2])
        plots, note = {"weights": figures.weights(history, axis)}, _notes("Weights before each target.")
        yield Section("weights", "Weights of the experts", f"Largest on average: {largest}", note, plots)
    if found := summary.get("external_models"):
        ahead = sum(entry["regret"] is not None and entry["regret"] <= 0 for entry in found.values())
        heading = f"The ensemble was ahead of {ahead} of {len(found)}"
        yield Section("external_models", "External models", heading, _notes(*external_lines(summary)))
    if totals := [f"{kind}: {escaped(int(numbers.sum()))}" for kind, numbers in history.events.items()]:
        yield Section("events", "Events", "; ".join(totals), "", {"events": figures.events(history, axis)})
    if checks := summary.get("health"):
        wrong = "; ".join(check["meaning"] for check in checks if not check["ok"])
        heading = wrong or f"All {len(checks)} checks are within their limits"
        names = {"finding": "meaning", "value": "value", "limit": "limit", "within limit": "ok"}
        body = table("Checks at the end", [{name: check[key] for name, key in names.items()} for check in checks])
        yield Section("health", "Health", heading, _notes(*event_lines(summary)) + body)
    yield _columns(summary)
    groups = {"Configuration": summary["config"], "All of summary.json": summary}
    texts = {name: yaml.safe_dump(group, sort_keys=False, allow_unicode=True) for name, group in groups.items()}
    folded = [f"<details><summary>{name}</summary><pre>{escaped(text)}</pre></details>" for name, text in texts.items()]
    heading = f"{summary['model']}, gp_ensembles {summary['versions'].get('gp_ensembles', '')}"
    yield Section("settings", "Settings and versions", heading, "".join(folded))


def _predictions(history: RunHistory, axis: Axis) -> Section:
    windows, end = history.window_bins, history.last_row
    spans = {f"Last {escaped(num)} rows": (end + 1 - num, end) for num in (RECENT, 200) if num < history.num_rows}
    if windows.num_rows > 1:
        worst = np.nan_to_num(windows["least log_prob"], nan=-math.inf).argmin()
        spans["Worst window"] = windows["least first"][worst], windows["greatest last"][worst]
    buttons = _button("Whole run", "", "") + "".join(_button(text, *axis.at(span)) for text, span in spans.items())
    heading, draw = "Confidence and accuracy", figures.certainty
    note = "Drag to zoom, double-click for the whole run; all plots over time are linked."
    if not history.is_class:
        heading, draw = f"{history.target_name}: predicted and observed", figures.predictions
        if history.bins.width > 1:
            note += f" Each point is a range of rows; zoom in to see the last {escaped(RECENT)} individually."
        if windows["sum broken"].any():
            note += f" Shaded: windows of {WINDOW} targets whose coverage was outside the limits."
    intro = f'{_notes(note)}<div class="buttons">{buttons}</div>'
    return Section("predictions", "Predictions", heading, intro, {"predictions": draw(history, axis)})


def _scores(summary: Summary) -> Section:
    predictors = {summary["model"]: summary, **summary["baselines"]}
    entries = [{"predictor": name, **entry} for name, entry in predictors.items()]
    keys = [key for key in _SCORES if key in summary and not ("error_rate" in summary and key == "log_score")]
    ranked, best = [key for key in keys if key not in _NEUTRAL], dict[str, float]()
    for key in ranked:
        known = [entry for entry in entries if entry.get(key) is not None]
        if len(known) > 1:
            best[key] = (max if key == "log_score" else min)(entry[key] for entry in known)
    won = sum(entries[0].get(key) == value for key, value in best.items())
    heading = f"Best of {len(entries)} predictors on {won} of {len(ranked)} scores"
    columns = {"predictor": ("predictor", ""), **{key: _SCORES[key] for key in keys}}
    body = table(f"Scores of {summary['rows_scored']} targets; ★ marks the best", entries, columns, best)
    return Section("table", "Scores", heading, body)


def _columns(summary: Summary) -> Section:
    columns = summary.get("columns") or []
    inputs = [entry for entry in summary.get("inputs") or [] if entry["num_imputed"] or entry["was_constant"]]
    body = table("Columns of the table; missing is a share of the warm-up", columns) if columns else ""
    caption = "Inputs imputed (the last value and the mean, weighted by persistence) or constant during warm-up"
    body += table(caption, inputs) if inputs else ""
    heading = f"{len(columns)} columns became {len(summary['features'])} inputs"
    return Section("columns", "Columns", heading, _notes(*(summary.get("notes") or ())) + body)


def _kept(summary: Summary) -> Mapping[str, Any] | None:
    """Coverage of 90 % intervals."""
    kept: Mapping[str, Any] | None = (summary.get("intervals") or {}).get("0.9")
    return kept if kept is not None and kept["coverage"] is not None else None


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _notes(*texts: str) -> str:
    return "".join(f'<p class="quiet">{escaped(text)}</p>' for text in texts)


def _button(text: str, start: object, end: object) -> str:
    return f'<button type="button" data-from="{start}" data-to="{end}">{escaped(text)}</button>'


def report_html(summary: Mapping[str, Any], history: RunHistory) -> str:
    """The report of a run with at least one row, from its ``summary.json`` and its history."""
    plain = json.loads(json.dumps(finite(dict(summary))))
    axis = Axis.of(history, plain.get("time"))
    found = list(sections(plain, history, axis))
    plots = {f"plot-{name}": plot.to_plotly_json() for section in found for name, plot in section.plots.items()}
    verdict = [section.heading for section in found if section.name in ("scores", "coverage")]
    start, end = axis.places[[0, -1]].tolist()
    rows = f"rows {history.first_row} to {history.last_row} of the stream, after a warm-up of {plain['warmup']} rows"
    folder = resources.files(__package__)
    files = {name: (folder / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    return Template(files["html"]).substitute(
        style=files["css"],
        script=files["js"],
        title=escaped(f"{plain['target']} of {plain['data']}"),
        verdict=escaped(". ".join(verdict) or "No row had a target, so nothing could be scored") + ".",
        run=escaped(f"{plain['model']} with {plain['num_experts']} experts; {rows}."),
        cards="".join(
            f"<li{' class=bad' if card.is_warning else ''}><strong>{escaped(card.value)}</strong>"
            f"<span>{escaped(card.text)}</span></li>"
            for card in cards(plain, history)
        ),
        sections="\n".join(map(_html, found)),
        # Inside a script element no text may end it.
        summary=json.dumps(plain).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        figures=_packed(json.dumps({"extent": [start, end + (start == end)], "figures": plots}, allow_nan=False)),
        plotly=_packed(plotly.offline.get_plotlyjs()),
    )


def _html(section: Section) -> str:
    plots = (f'<div class="plot" id="plot-{name}" role="figure" aria-label="{name}"></div>' for name in section.plots)
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-heading"><p class="kicker">{section.subject}</p>'
        f'<h2 id="{section.name}-heading">{escaped(section.heading)}</h2>'
        f"{section.body}{''.join(plots)}</section>"
    )


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")
