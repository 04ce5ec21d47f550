"""Runs by an id: rows in a folder are a checkpoint's own only if both are of one run.

A run writes its rows into a partial table that carries its id, its checkpoint knows the id, and the summary that is put
beside the whole table carries it too. What another run left in the folder is never taken for this one's.
"""

import json
import uuid
from contextlib import suppress
from pathlib import Path

from gp_ensembles.files.operations import remove_if_possible
from gp_ensembles.files.replacing import PARTIAL
from gp_ensembles.tables import Rows, RowStream

NUM_FIRST = 20  # rows by which a table is known again


def new_id() -> str:
    """An id that no other run has."""
    return uuid.uuid4().hex[:12]


def partial_table(table: Path, run_id: str) -> Path:
    """Where the rows of a run stand until it is complete."""
    return table.with_name(f"{table.stem}.{run_id}{table.suffix}{PARTIAL}")


def drop_other_partials(table: Path, run_id: str) -> None:
    """Remove the partial tables of all runs but one."""
    mine = partial_table(table, run_id)
    for path in table.parent.glob(f"{table.stem}.*{table.suffix}{PARTIAL}"):
        if path != mine:
            remove_if_possible(path)


def is_of_run(summary: Path, run_id: str) -> bool:
    """Whether the whole tables beside a summary are those of a run."""
    with suppress(OSError, ValueError, AttributeError):
        return bool(json.loads(summary.read_text(encoding="utf-8")).get("run_id") == run_id)
    return False


def as_cells(rows: Rows) -> list[list[str]]:
    """Rows as plain cells, by which they are known again: series, inputs and target."""
    series = [""] * rows.num_rows if rows.series is None else [str(name) for name in rows.series]
    return [
        [name, *map(repr, inputs), repr(target)]
        for name, inputs, target in zip(series, rows.X.tolist(), rows.y.tolist(), strict=True)
    ]


def starts_with(rows: RowStream, first: list[list[str]]) -> bool:
    """Whether a table starts with the first rows of another one, as far as both go."""
    try:
        found = as_cells(rows.peek(len(first)))
    except ValueError:  # a malformed cell is told when its row is read
        return False
    return bool(found) and found == first[: len(found)]


def pass_over(rows: RowStream, num_rows: int, last: list[str]) -> None:
    """Pass over rows that were read before.

    Raises:
        ValueError: If there are fewer, or another row stands in the place of the last one.
    """
    found = rows.skip(num_rows)
    if num_rows and not found.num_rows:
        raise ValueError(
            f"{rows.name} has fewer rows than the {num_rows} that the run has read of its table; give the table that "
            f"the run was reading"
        )
    if num_rows and last and as_cells(found)[-1] != last:
        raise ValueError(
            f"row {num_rows} of {rows.name} is not the row {num_rows} that the run has read; give the table that the "
            f"run was reading"
        )
