"""The tables of scores: the model beside its baselines, and what became of models from outside."""

from collections.abc import Mapping, Sequence
from typing import Any

from gp_ensembles.cli.report.markup import Column, Markup, escaped, joined, number, table

Summary = Mapping[str, Any]
_REAL = (
    ("log_score", "log score", "nats a row, more is better"),
    ("crps", "CRPS", "units of the target, less is better"),
    ("mean_absolute_error", "mean absolute error", "units of the target"),
    ("nmse", "NMSE", "squared error over the variance"),
    ("coverage_90", "coverage", "of 90 % intervals"),
    ("mean_squared_z", "mean squared z", "1 is right"),
)
_CLASSES = (
    ("log_loss", "log loss", "nats a row, less is better"),
    ("error_rate", "error rate", "less is better"),
    ("brier", "Brier score", "less is better"),
    ("calibration_error", "calibration error", "0 is right"),
)
_MOST, _LEAST = (
    {"log_score"},
    {"crps", "mean_absolute_error", "nmse", "log_loss", "error_rate", "brier", "calibration_error"},
)


def score_table(summary: Summary) -> tuple[str, Markup]:
    """Heading and table of the scores of the model and its baselines; the best of a column is marked."""
    shown = _CLASSES if "error_rate" in summary else _REAL
    rows: dict[str, tuple[Mapping[str, Any], Sequence[str]]] = {str(summary["model"]): (summary, ())}
    rows |= {name: (entry, ("baselines", name)) for name, entry in summary["baselines"].items()}
    cells = []
    for name, (entry, path) in rows.items():
        cells.append([name, *(_cell(rows, key, entry, path) for key, _, _ in shown)])
    columns = [Column("predictor", is_number=False), *(Column(title, note) for _, title, note in shown)]
    won = [key for key, _, _ in shown if _is_best(rows, key, summary)]
    ranked = [key for key, _, _ in shown if key in _MOST | _LEAST]
    heading = f"Best of {len(rows)} predictors by {len(won)} of {len(ranked)} scores"
    caption = f"Scores of {summary['rows_scored']} targets, each predicted before it was seen; ★ is the best"
    return heading, table(caption, columns, cells)


def guest_table(summary: Summary) -> tuple[str, Markup] | None:
    """Heading and table of models from outside; ``None`` without any."""
    guests = summary.get("guests") or {}
    if not guests:
        return None
    columns = [
        Column("model", is_number=False), Column("answered", "rows"), Column("absent", "rows"),
        Column("log score", "its own, nats a row"), Column("the ensemble's", "on the same targets"),
        Column("behind it", "nats in all"), Column("at most", "whatever the targets"), Column("weight", "now"),
        Column("weight", "on average"),
    ]  # fmt: skip
    keys = ("num_answered", "num_absent", "log_score", "ensemble_log_score", "regret", "bound", "weight", "mean_weight")
    rows = [[name, *(number(entry.get(key), "guests", name, key) for key in keys)] for name, entry in guests.items()]
    told = [
        Markup(f'<p class="quiet">{escaped(name)} was absent the last time because {escaped(entry["reason"])}: ')
        + escaped(entry["mend"]) + "</p>"
        for name, entry in guests.items()
        if entry.get("reason")
    ]  # fmt: skip
    ahead = [name for name, entry in guests.items() if entry["regret"] is not None and entry["regret"] <= 0]
    heading = f"The ensemble was ahead of {len(ahead)} of {len(guests)}"
    body = table("Models from outside, on the rows that they answered after the warm-up", columns, rows)
    return heading, joined(body, *(Markup(part) for part in told))


def _cell(
    rows: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]], key: str, entry: Mapping[str, Any], path: Sequence[str]
) -> Markup:
    cell = number(entry.get(key), *path, key)
    return Markup(f'<span class="best">{cell}</span>') if _is_best(rows, key, entry) else cell


def _is_best(rows: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]], key: str, entry: Mapping[str, Any]) -> bool:
    values = [other[key] for other, _ in rows.values() if other.get(key) is not None]
    if key not in _MOST | _LEAST or entry.get(key) is None or len(values) < 2:
        return False
    return bool(entry[key] == (max(values) if key in _MOST else min(values)))
