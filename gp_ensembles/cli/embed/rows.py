"""Rows to be embedded, gaps and all, and where each of them stands."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gp_ensembles.cli.embed.labels import Labels


class Rows(NamedTuple):
    """Rows in the order of time.

    Attributes:
        Y: Entries, float64, shape (N, D); NaN where nothing was observed.
        names: Names of the D columns.
        labels: What the rows are, if anybody knows.
        name: What the rows are a table of.
        is_array: They came from an array file, whose columns share one unit.
        lines: Line of the file of each row, counted from 1, shape (N,); ``None`` if they came from no text file.
    """

    Y: Tensor
    names: tuple[str, ...]
    labels: Labels | None
    name: str
    is_array: bool
    lines: Tensor | None = None

    def where(self, row: int, column: int | None = None) -> str:
        """A row or a cell, counted from zero, for a message that counts from one.

        Example:
            >>> import torch
            >>> Rows(torch.zeros(3, 2), ("a", "b"), None, "pump", False).where(2, 1)
            'pump, data row 3, column b'
        """
        line = "" if self.lines is None else f" (line {int(self.lines[row])})"
        return f"{self.name}, data row {row + 1}{line}" + ("" if column is None else f", column {self.names[column]}")


def select(rows: Rows, columns: Sequence[int]) -> Rows:
    """The rows with some of their columns only.

    Example:
        >>> import torch
        >>> select(Rows(torch.zeros(3, 2), ("a", "b"), None, "pump", False), [1]).names
        ('b',)
    """
    return rows._replace(Y=rows.Y[:, list(columns)], names=tuple(rows.names[column] for column in columns))
