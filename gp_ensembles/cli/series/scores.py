"""Scores of each of many series, added up as rows come."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

from torch import Tensor


class Score(NamedTuple):
    """Sums over the rows of a series that were predicted and have a target.

    Attributes:
        rows: Their number.
        log_prob: Sum of their log densities.
        squares: Sum of their squared errors.
        covered: How many lie inside of their intervals.
    """

    rows: int = 0
    log_prob: float = 0.0
    squares: float = 0.0
    covered: float = 0.0

    def plus(self, other: "Score") -> Self:
        """Both together."""
        rows, log_prob = self.rows + other.rows, self.log_prob + other.log_prob
        return type(self)(rows, log_prob, self.squares + other.squares, self.covered + other.covered)

    def told(self, coverage: float | None) -> dict[str, float | int | None]:
        """Means, by name; ``None`` where there is no row."""
        num = self.rows or math.nan
        means = {"log_score": self.log_prob / num, "rmse": math.sqrt(self.squares / num)}
        if coverage is not None:
            means[f"coverage_{100 * coverage:g}"] = self.covered / num
        return {"rows": self.rows, **{name: value if self.rows else None for name, value in means.items()}}


class Scores:
    """Scores by series."""

    def __init__(self, known: Mapping[str, Sequence[float]] | None = None) -> None:
        self.of_each: dict[str, Score] = {name: Score(int(sums[0]), *sums[1:]) for name, sums in (known or {}).items()}

    def add(self, names: Iterable[str], log_prob: Tensor, error: Tensor, covered: Tensor) -> None:
        """Rows (N,) of series: log densities, errors and whether targets are covered; NaN where nothing was said."""
        for name, density, away, inside in zip(names, log_prob.tolist(), error.tolist(), covered.tolist(), strict=True):
            old = self.of_each.get(name, Score())
            self.of_each[name] = old if math.isnan(density) else old.plus(Score(1, density, away * away, inside))

    @property
    def whole(self) -> Score:
        """All series together."""
        total = Score()
        for score in self.of_each.values():
            total = total.plus(score)
        return total

    def to_plain(self) -> dict[str, list[float]]:
        """Sums by name, from which another is made."""
        return {name: list(score) for name, score in self.of_each.items()}
