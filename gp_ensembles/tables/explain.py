"""Summaries of the encoding of each column of a table."""

from collections.abc import Sequence
from typing import NamedTuple

from gp_ensembles.tables.encoder import TableEncoder


class ColumnSummary(NamedTuple):
    """The encoding of a column."""

    name: str
    role: str  # ``input``, ``target``, ``time`` or ``time and input``
    kind: str
    made: str  # the encoding in words
    num_inputs: int
    missing: float  # share of the warm-up cells


def column_summaries(encoder: TableEncoder, header: Sequence[str], notes: Sequence[str]) -> tuple[ColumnSummary, ...]:
    """Summaries of all columns of a table that are read, in its order."""
    found, clock, target = dict[str, ColumnSummary](), encoder.clock, encoder.target
    if clock is not None:
        kind = "date" if clock.is_date else "number"
        found[clock.name] = ColumnSummary(clock.name, "time", kind, "orders the rows", 0, 0.0)
    for column in encoder.columns:
        role, missing = "time and input" if column.name in found else "input", encoder.missing.get(column.name, 0.0)
        made = column.describe()
        found[column.name] = ColumnSummary(column.name, role, column.kind, made, len(column.names), missing)
    kind, made = "number", "as it is"
    if target.classes:
        kind, made = "classes", f"classes 0 to {len(target.classes) - 1}: {', '.join(target.classes)}"
    found[target.name] = ColumnSummary(target.name, "target", kind, made, 0, 0.0)
    reports = []
    for name in header:
        if name in found:
            renamed = [note for note in notes if note.endswith(f" is {name}")]
            reports.append(found[name]._replace(made="; ".join([found[name].made, *renamed])))
    return tuple(reports)


def explain(encoder: TableEncoder, reports: Sequence[ColumnSummary]) -> str:
    """The summaries as an aligned table, with a line on the time.

    Args:
        encoder: What is made of the columns.
        reports: The summaries.

    Example:
        >>> from gp_ensembles.tables import open_rows
        >>> rows = open_rows([{"on": "yes", "load": 1.5}, {"on": "no", "load": 2.5}], "load", num_warm_up=2)
        >>> print(explain(rows.encoder, rows.columns))
        column   role     kind      inputs   missing   what was made of it
        on       input    boolean   1        -         1 for true, 0 for false
        load     target   number    -        -         as it is
    """
    lines = [("column", "role", "kind", "inputs", "missing", "what was made of it")]
    for report in reports:
        missing = f"{100 * report.missing:.3g} %" if report.missing else "-"
        lines.append((report.name, report.role, report.kind, str(report.num_inputs or "-"), missing, report.made))
    widths = [max(len(line[place]) for line in lines) for place in range(5)]
    table = ["   ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[5]]) for line in lines]
    notes = [*([] if encoder.clock is None else [encoder.clock.describe()]), *encoder.notes]
    return "\n".join([*table, *([""] if notes else []), *notes])
