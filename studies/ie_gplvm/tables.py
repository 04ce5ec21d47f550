"""Plan of figure 7, and its scores as text and as rows of files."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gp_ensembles.data import Table
from studies.harness.parts import Results, Spread
from studies.harness.text import aligned
from studies.ie_gplvm.methods import METHODS, Effort, LatentMethod


class LatentPlan(NamedTuple):
    """What is to be run.

    Attributes:
        tables: The sets by name.
        methods: Names of the methods, in the order of the table.
        draws: Runs of each method.
        seed: Seed of the first draw; the next ones count on from it.
        max_rows: Most rows of a set; all if ``None``.
        effort: How hard methods try.
    """

    tables: Mapping[str, Table]
    methods: Sequence[str]
    draws: int
    seed: int
    max_rows: int | None
    effort: Effort


def error_of(method: LatentMethod) -> str:
    """Under which name the record of its run has the error of a method."""
    return f"error_{method.reading}"


def table_text(results: Results[LatentPlan]) -> str:
    """The table for the eye: methods down within each set; errors in percent."""
    header = ["set", "method", "rows come", "error %", "lowest", "highest", "seconds", "of a CPU"]
    rows: list[list[object]] = []
    for name, method, error, *clocks in _spreads(results):
        cells = [f"{100 * value:.1f}" for value in error]
        rows.append([name, method, _kind(method), *cells, *(f"{clock.median:.3g}" for clock in clocks)])
    return aligned(header, rows)


def long_rows(results: Results[LatentPlan]) -> tuple[list[str], list[list[object]]]:
    """Header and rows of the CSV file: a line for each set, method and draw."""
    kinds = ("seconds", "cpu_seconds", "start_seconds", "num_start", "columns", "dropped")
    header = ["set", "method", "rows_come", "draw", "seed", "error", *kinds]
    rows: list[list[object]] = []
    for name in results.plan.tables:
        for method in results.plan.methods:
            for draw, record in results.found(name, METHODS[method].run).items():
                error = record.scores[error_of(METHODS[method])]
                found = [record.scores.get(kind, "") for kind in kinds]
                rows.append([name, method, _kind(method), draw, results.plan.seed + draw, error, *found])
    return header, rows


def summary_rows(results: Results[LatentPlan]) -> list[dict[str, object]]:
    """Medians and ranges over draws for the JSON file."""
    return [
        {
            "set": name,
            "method": method,
            "online": METHODS[method].online,
            "draws": len(results.found(name, METHODS[method].run)),
            **{f"error_{part}": value for part, value in error._asdict().items()},
            **{f"seconds_{part}": value for part, value in seconds._asdict().items()},
            **{f"cpu_seconds_{part}": value for part, value in cpu_seconds._asdict().items()},
        }
        for name, method, error, seconds, cpu_seconds in _spreads(results)
    ]


def sizes(results: Results[LatentPlan]) -> list[str]:
    """A line for each set: rows to start from, columns used and left out."""
    lines = []
    for name in results.plan.tables:
        records = [record for (its, _, _), record in results.records.items() if its == name]
        if records:
            start, rows = int(records[0].scores["num_start"]), records[0].settings["rows"]
            columns, dropped = ([int(record.scores[kind]) for record in records] for kind in ("columns", "dropped"))
            lines.append(
                f"{name}: online models started from {start} of {rows} rows; columns used by all methods: "
                f"{_range(columns)}, left out as constant in those first rows: {_range(dropped)}"
            )
    return lines


def _spreads(results: Results[LatentPlan]) -> list[tuple[str, str, Spread, Spread, Spread]]:
    """Set, method, error, seconds and seconds of the processor of what has a finished draw."""
    found = []
    for name in results.plan.tables:
        for method in results.plan.methods:
            kinds = (error_of(METHODS[method]), "seconds", "cpu_seconds")
            error, seconds, cpu_seconds = (results.spread(kind, name, METHODS[method].run) for kind in kinds)
            if error is not None and seconds is not None and cpu_seconds is not None:
                found.append((name, method, error, seconds, cpu_seconds))
    return found


def _kind(method: str) -> str:
    return "online" if METHODS[method].online else "all at once"


def _range(values: list[int]) -> str:
    lowest, highest = min(values), max(values)
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"
