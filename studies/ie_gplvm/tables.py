"""The scores of figure 7 as text and as rows of files."""

from gp_ensembles.cli.text_tables import aligned
from studies.ie_gplvm.methods import METHODS
from studies.ie_gplvm.scores import LatentScores, Spread, error_of


def table_text(scores: LatentScores) -> str:
    """The table for the eye: methods down within each set; errors in percent."""
    header = ["set", "method", "rows come", "error %", "lowest", "highest", "seconds", "of a CPU"]
    rows: list[list[object]] = []
    for name, method, error, *clocks in _spreads(scores):
        cells = [f"{100 * value:.1f}" for value in error]
        rows.append([name, method, _kind(method), *cells, *(f"{clock.median:.3g}" for clock in clocks)])
    return aligned(header, rows)


def long_rows(scores: LatentScores) -> tuple[list[str], list[list[object]]]:
    """Header and rows of the CSV file: a line for each set, method and draw."""
    kinds = ("seconds", "cpu_seconds", "start_seconds", "num_start", "columns", "dropped")
    header = ["set", "method", "rows_come", "draw", "seed", "error", *kinds]
    rows: list[list[object]] = []
    for name in scores.plan.tables:
        for method in scores.plan.methods:
            for draw, record in scores.found(name, method):
                error = record.scores[error_of(METHODS[method])]
                found = [record.scores.get(kind, "") for kind in kinds]
                rows.append([name, method, _kind(method), draw, scores.plan.seed + draw, error, *found])
    return header, rows


def summary_rows(scores: LatentScores) -> list[dict[str, object]]:
    """Medians and ranges over draws for the JSON file."""
    return [
        {
            "set": name,
            "method": method,
            "online": METHODS[method].online,
            "draws": len(scores.found(name, method)),
            **{f"error_{part}": value for part, value in error._asdict().items()},
            **{f"seconds_{part}": value for part, value in seconds._asdict().items()},
            **{f"cpu_seconds_{part}": value for part, value in cpu_seconds._asdict().items()},
        }
        for name, method, error, seconds, cpu_seconds in _spreads(scores)
    ]


def findings(scores: LatentScores) -> list[str]:
    """Lines on what was cut and what failed."""
    lines = []
    for name in scores.plan.tables:
        records = [record for (its, _, _), record in scores.records.items() if its == name]
        if records:
            start, rows = int(records[0].scores["num_start"]), records[0].settings["rows"]
            columns, dropped = ([int(record.scores[kind]) for record in records] for kind in ("columns", "dropped"))
            lines.append(
                f"{name}: online models started from {start} of {rows} rows; columns used by all methods: "
                f"{_range(columns)}, left out as constant in those first rows: {_range(dropped)}"
            )
    for (name, run, draw), reason in scores.failures.items():
        lines.append(f"{run} on {name}, draw {draw + 1} failed: {reason}")
    return lines


def _spreads(scores: LatentScores) -> list[tuple[str, str, Spread, Spread, Spread]]:
    """Set, method, error, seconds and seconds of the processor of what has a finished draw."""
    found = []
    for name in scores.plan.tables:
        for method in scores.plan.methods:
            kinds = (error_of(METHODS[method]), "seconds", "cpu_seconds")
            error, seconds, cpu_seconds = (scores.spread(name, method, kind) for kind in kinds)
            if error is not None and seconds is not None and cpu_seconds is not None:
                found.append((name, method, error, seconds, cpu_seconds))
    return found


def _kind(method: str) -> str:
    return "online" if METHODS[method].online else "all at once"


def _range(values: list[int]) -> str:
    lowest, highest = min(values), max(values)
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
