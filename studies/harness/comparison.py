"""Means over trials with their standard errors, paired tests, and our numbers compared with a paper's."""

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import stats

from studies.harness.text import aligned


class Estimate(NamedTuple):
    """A mean over trials.

    Attributes:
        mean: The mean; NaN if there is no trial.
        error: Its standard error; NaN for fewer than two trials.
        num: How many trials there are.
    """

    mean: float
    error: float
    num: int

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if math.isnan(self.error) else f"{self.mean:.4g} ± {self.error:.2g}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of the numbers that there are, NaN left out.

    Example:
        >>> estimate([1.0, 2.0, 3.0, math.nan])
        Estimate(mean=2.0, error=0.5773502691896258, num=3)
        >>> print(estimate([1.0, 2.0, 3.0]), estimate([1.0]))
        2 ± 0.58 1
    """
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return Estimate(math.nan, math.nan, 0)
    error = float(np.std(known, ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else math.nan
    return Estimate(float(np.mean(known)), error, len(known))


class Paired(NamedTuple):
    """A score of one method less that of another, trial by trial or set by set.

    Attributes:
        mean: Mean difference.
        median: Median difference.
        num_larger: Pairs in which the first is larger.
        num: Pairs.
        t_p_value: Two-sided p-value of the paired t-test; NaN for fewer than two pairs or equal differences.
        wilcoxon_p_value: That of Wilcoxon's signed-rank test; NaN if there is no difference at all.
    """

    mean: float
    median: float
    num_larger: int
    num: int
    t_p_value: float
    wilcoxon_p_value: float


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compare two methods on the pairs in which both have a score.

    Example:
        >>> found = paired([1.0, 2.0, 3.0], [0.5, 1.0, 1.0])
        >>> found.median, found.num_larger, round(found.t_p_value, 3), found.wilcoxon_p_value
        (1.0, 3, 0.118, 0.25)
    """
    gains = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    gains = gains[~np.isnan(gains)]
    if not len(gains):
        return Paired(math.nan, math.nan, 0, 0, math.nan, math.nan)
    t_p_value = float(stats.ttest_1samp(gains, 0.0).pvalue) if len(gains) > 1 and np.ptp(gains) > 0 else math.nan
    wilcoxon = float(stats.wilcoxon(gains).pvalue) if bool(gains.any()) else math.nan
    larger = int((gains > 0).sum())
    return Paired(float(gains.mean()), float(np.median(gains)), larger, len(gains), t_p_value, wilcoxon)


class Printed(NamedTuple):
    """A number that a paper printed.

    Attributes:
        experiment: Name of the experiment here.
        set: Name of the set here.
        method: Name of the method here, or the paper's where we do not run it; empty for a size or a setting.
        score: Name of the score here.
        value: The number.
        spread: What it printed behind a plus-minus; NaN if nothing.
        where: Where it stands: ``table 2, row R, column C``, ``figure 3, caption``, ``section 5.2, text``.
    """

    experiment: str
    set: str
    method: str
    score: str
    value: float
    spread: float
    where: str


def read_printed(path: Path, experiment: str) -> list[Printed]:
    """The printed numbers of an experiment, from a table with the fields of :class:`Printed` as columns.

    Raises:
        OSError: If it cannot be read.
        ValueError: If a column is missing or a number malformed.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and set(rows[0]) != set(Printed._fields):
        raise ValueError(f"{path} must have the columns {', '.join(Printed._fields)}, got {', '.join(rows[0])}")
    return [
        Printed(
            row["experiment"],
            row["set"],
            row["method"],
            row["score"],
            float(row["value"]),
            float(row["spread"] or "nan"),
            row["where"],
        )
        for row in rows
        if row["experiment"] == experiment
    ]


def beside_printed(printed: Sequence[Printed], ours: Callable[[str, str, str], Estimate | None]) -> str:
    """Our numbers and the printed ones as a table, without sizes and settings (no method); empty if none is left.

    Args:
        printed: The paper's numbers.
        ours: Our estimate for a set, method and score; ``None`` where we have none.

    Example:
        >>> there = [Printed("table-1", "pump", "exact", "rmse", 0.5, math.nan, "table 1")]
        >>> print(beside_printed(there, lambda *key: Estimate(0.4, 0.01, 5)))
        set   method  score        ours  trials  printed  where
        pump  exact   rmse   0.4 ± 0.01       5      0.5  table 1
    """
    rows: list[list[object]] = []
    for entry in printed:
        if not entry.method:
            continue
        found = ours(entry.set, entry.method, entry.score)
        text = f"{entry.value:.4g}" if math.isnan(entry.spread) else f"{entry.value:.4g} ± {entry.spread:.2g}"
        mine: tuple[object, object] = ("not run", 0) if found is None or not found.num else (str(found), found.num)
        rows.append([entry.set, entry.method, entry.score, *mine, text, entry.where])
    return aligned(["set", "method", "score", "ours", "trials", "printed", "where"], rows) if rows else ""
