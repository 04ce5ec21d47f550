"""Lines of a CSV file as the lines of JSON that they stand for."""

import json
from collections.abc import Iterator

from gp_ensembles.tables import TableOptions
from gp_ensembles.tables.dialect import find_dialect, split_rows
from gp_ensembles.tables.numbers import is_missing, number_in
from gp_ensembles.tables.raw import unique_names


def records_of_csv(lines: Iterator[str], options: TableOptions) -> Iterator[str]:
    """The same rows as JSON; the first line holds the names, and a row of another length stays as it is."""
    head = next(lines, None)
    first = next(lines, None)
    if head is None or first is None:
        return
    dialect = find_dialect(head.rstrip("\n") + "\n" + first, "utf-8", options)
    names, _ = unique_names(split_rows([head.strip().lstrip("\ufeff")], dialect.delimiter)[0])

    def record(line: str) -> str:
        cells = split_rows([line.strip()], dialect.delimiter)
        if len(cells) != 1 or len(cells[0]) != len(names):
            return line
        return json.dumps(dict(zip(names, (_value(cell, dialect.decimal) for cell in cells[0]), strict=True)))

    yield record(first)
    for line in lines:
        yield record(line)


def _value(cell: str, decimal: str) -> float | str | None:
    """A number where it is one, nothing where it is missing, else the text."""
    if is_missing(cell):
        return None
    number = number_in(cell, decimal)
    return cell.strip() if number is None else number
