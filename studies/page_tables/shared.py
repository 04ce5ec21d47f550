"""Lookup of a cell's number: a score of a file, by a value of one column or of two."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from studies.pages import Number, mean

Numbers: TypeAlias = Callable[[str, str], Sequence[Number]]


def scores(kept: str, by: str = "method", **where: str) -> Numbers:
    """A row for each value of a column of a file, a column for each score; of the lines that have these values."""
    return lambda row, score: [mean(kept, score, **{by: row}, **where)]


def lines(kept: str, *scores: str, down: str = "set", across: str = "method") -> Numbers:
    """A row and a column for values of two columns of a file; some scores in each cell."""
    return lambda row, column: [mean(kept, score, **{down: row, across: column}) for score in scores]
