"""Rows that a run has already read, at the start of a table that it is resumed with."""

import torch

from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.tables import RowStream
from gp_ensembles.tables.rows import Rows

NUM_FIRST = 20  # rows by which the start of a table is recognized


def skip_seen_rows(stream: ScoredStream, rows: RowStream, skip: bool | None) -> None:
    """Skip the rows that a stream has read, or refuse a table that starts with them."""
    starts_anew = _starts_as(stream, rows)
    if skip is None and starts_anew:
        raise ValueError(
            f"{rows.name} starts with the first rows of the stream; give --skip-seen to skip the rows that it has "
            f"read, or --skip-seen=false to learn them again"
        )
    clock = rows.encoder.clock
    first = rows.first_time if clock is not None else None
    is_late = clock is not None and first is not None and first < clock.last
    if clock is not None and is_late and not skip:
        here, there = clock.format([first if first is not None else clock.last, clock.last])
        raise ValueError(
            f"{rows.name} starts at {here}, and the stream has read up to {there}; give later rows only, or "
            f"--skip-seen to skip those before"
        )
    if skip and clock is not None and not starts_anew:
        rows.skip_until(clock.last)
    elif skip:
        last = stream.progress.last_row
        row = Rows(last[:-1].unsqueeze(0), last[-1:], None, None, stream.num_read, None)
        skip_rows(rows, stream.num_read, as_cells(row)[0])


def _starts_as(stream: ScoredStream, rows: RowStream) -> bool:
    """Whether the first rows of a table are those of the stream's warm-up."""
    X, y = stream.model.warm_X, stream.model.warm_y
    if X is None or y is None or not rows.has_target:
        return False
    try:
        first = rows.peek(min(NUM_FIRST, X.shape[0]))
    except ValueError:
        return False
    num_rows = first.num_rows
    return num_rows > 0 and _same(first.X, X[:num_rows]) and _same(first.y, y[:num_rows])


def _same(found: torch.Tensor, known: torch.Tensor) -> bool:
    """Whether numbers are the same where both are known; outliers of the warm-up are missing there."""
    known = known.to(found)
    return bool(((found == known) | found.isnan() | known.isnan()).all()) and bool((found == known).any())


def as_cells(rows: Rows) -> list[list[str]]:
    """Rows as plain cells for later comparison: series, inputs and target."""
    series = [""] * rows.num_rows if rows.series is None else [str(name) for name in rows.series]
    return [
        [name, *map(repr, inputs), repr(target)]
        for name, inputs, target in zip(series, rows.X.tolist(), rows.y.tolist(), strict=True)
    ]


def starts_with(rows: RowStream, first: list[list[str]]) -> bool:
    """Whether a table starts with the first rows of another, as far as both go."""
    try:
        found = as_cells(rows.peek(len(first)))
    except ValueError:  # a malformed cell is reported when its row is read
        return False
    return bool(found) and found == first[: len(found)]


def skip_rows(rows: RowStream, num_rows: int, last: list[str]) -> None:
    """Skip rows that were read before."""
    found = rows.skip(num_rows)
    if num_rows and not found.num_rows:
        raise ValueError(
            f"{rows.name} has fewer rows than the {num_rows} that the run has read; give the table that it was reading"
        )
    if num_rows and last and as_cells(found)[-1] != last:
        raise ValueError(
            f"row {num_rows} of {rows.name} differs from row {num_rows} of the run; give the table that it was reading"
        )
