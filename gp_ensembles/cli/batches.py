"""Rows of a table in batches, and when what was learned of them is due to be saved."""

import time
from collections.abc import Iterator

from gp_ensembles.tables import Rows, RowStream


def in_batches(rows: RowStream, num_rows: int, seconds: float) -> Iterator[tuple[Rows, bool]]:
    """Batches of so many rows, the last one shorter, and whether a save is due after one."""
    saved = time.monotonic()
    while (part := rows.take(num_rows)).num_rows:
        is_due = part.num_rows == num_rows and time.monotonic() - saved >= seconds
        yield part, is_due
        if is_due:
            saved = time.monotonic()


def num_to_come(rows: RowStream) -> int | None:
    """How many rows are left; ``None`` where that is not known."""
    return None if rows.num_rows is None else rows.num_rows - rows.num_given
