"""Rows of a table as tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Rows(NamedTuple):
    """Consecutive rows of a table as numbers.

    Attributes:
        X: Inputs, shape (B, D), float64; NaN where missing.
        y: Targets, shape (B,), float64; NaN where missing; classes are 0, 1, ...
        time: Times, shape (B,), float64: seconds since 1970 in UTC, or the numbers of a time column; ``None`` without
            one.
        steps: Time since the previous row in usual steps, shape (B,), float64; 1 for the very first row.
        first_row: Number of the first row, counted from 1.
        lines: Line of each row in the file, shape (B,); ``None`` without a file.
        series: Name of the series of each row, B names; ``None`` for a single series.
        is_skipped: Which rows had a wrong time, shape (B,): theirs is that of the row before, their steps are zero and
            their targets missing; ``None`` where no time was wrong.

    Example:
        >>> zero = torch.zeros(3, 1, dtype=torch.float64)
        >>> Rows(zero, zero[:, 0], None, None, 1, None).part(slice(1, 3)).first_row
        2
    """

    X: Tensor
    y: Tensor
    time: Tensor | None
    steps: Tensor | None
    first_row: int
    lines: Tensor | None
    series: tuple[str, ...] | None = None
    is_skipped: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows B."""
        return self.y.shape[0]

    def part(self, rows: slice) -> "Rows":
        """A part of the rows."""
        first_row = self.first_row + rows.indices(self.num_rows)[0]
        kept = {name: part[rows] for name, part in self._asdict().items() if name != "first_row" and part is not None}
        return self._replace(first_row=first_row, **kept)

    @classmethod
    def join(cls, parts: Sequence["Rows"]) -> "Rows":
        """Consecutive parts as one."""
        if len(parts) == 1:
            return parts[0]
        X, y = torch.cat([part.X for part in parts]), torch.cat([part.y for part in parts])
        times, steps = _joined([part.time for part in parts]), _joined([part.steps for part in parts])
        lines, skipped = _joined([part.lines for part in parts]), None
        if any(part.is_skipped is not None for part in parts):
            none = [torch.zeros_like(part.y, dtype=torch.bool) for part in parts]
            skipped = torch.cat(
                [no if part.is_skipped is None else part.is_skipped for no, part in zip(none, parts, strict=True)]
            )
        series = None if parts[0].series is None else tuple(name for part in parts for name in part.series or ())
        return cls(X, y, times, steps, parts[0].first_row, lines, series, skipped)


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if len(there) == len(parts) else None
