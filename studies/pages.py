"""Tables of the papers' pages, of what studies have left in ``studies/results``.

Numbers are written with as many digits as they have there; words, bold letters and what a paper printed are left alone.
``studies/page_tables`` maps cells to numbers.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from studies.harness.comparison import estimate

RESULTS = Path(__file__).with_name("results")
_NUMBER = re.compile(r"[-+]?(?:\d+(?: \d{3})*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?")
_PART = re.compile(rf"(\**)({_NUMBER.pattern})(\**)(?:( ± )({_NUMBER.pattern}))?(\**)")


class Number(NamedTuple):
    """A mean and its standard error, which is not a number where there was one trial."""

    mean: float
    error: float = float("nan")


class PageTable(NamedTuple):
    """A table of a page.

    Attributes:
        page: Name of the page.
        begins: What the line of its header begins with; the first such table of the page.
        number: The numbers of a cell in the order in which they stand there, by what stands for its row and column.
        columns: What stands for each column but the first; ``None`` where numbers are not ours.
        rows: What stands for a row that is called otherwise on the page, by its name; ``None`` where it is not ours.
    """

    page: str
    begins: str
    number: Callable[[str, str], Sequence[Number]]
    columns: Sequence[str | None]
    rows: Mapping[str, str | None] = {}

    def cell(self, name: str, column: str | None) -> Sequence[Number]:
        """The numbers of a cell; none where they are not ours."""
        row = self.rows.get(name, name)
        return () if row is None or column is None else self.number(row, column)


@cache
def lines_of(kept: str) -> tuple[dict[str, str], ...]:
    """The lines of a file of results, by its name in ``studies/results``; of a report in JSON a line for each run."""
    with (RESULTS / kept).open(encoding="utf-8", newline="") as file:
        if kept.endswith(".csv"):
            return tuple(csv.DictReader(file))
        runs = json.load(file)["runs"]
    return tuple(
        {"set": name, "method": method} | {score: repr(value) for score, value in run.items()}
        for name, methods in runs.items()
        for method, trials in methods.items()
        for run in trials
    )


def values(kept: str, score: str, **where: str) -> list[float]:
    """A score of the lines that have these values in these columns, trial by trial.

    Raises:
        ValueError: If there is none.
    """
    found = [line[score] for line in lines_of(kept) if where.items() <= line.items()]
    if not any(found):
        raise ValueError(f"{kept} has no {score} where {where}")
    return [float(one) for one in found if one]


def mean(kept: str, score: str, **where: str) -> Number:
    """The mean of a score over trials; of a file that holds means, that mean.

    Raises:
        ValueError: If there is none.
    """
    if "standard_error" not in lines_of(kept)[0]:
        return Number(*estimate(values(kept, score, **where))[:2])
    for line in lines_of(kept):
        if (where | {"score": score}).items() <= line.items():
            return Number(float(line["mean"]), float(line["standard_error"] or "nan"))
    raise ValueError(f"{kept} has no {score} where {where}")


def mean_of_parts(kept: str, score: str, num_parts: int, **where: str) -> Number:
    """The mean over the first parts of those that there are."""
    parts = {str(part) for part in range(num_parts)}
    lines = (line for line in lines_of(kept) if line["part"] in parts and where.items() <= line.items())
    return Number(*estimate([float(line[score]) for line in lines if line[score]])[:2])


def like(written: str, value: float, bare: bool) -> str:
    """A number with the digits that another one is written with.

    Args:
        written: The other one.
        value: The number.
        bare: Whether there is no zero before a point.

    Example:
        >>> like("-.69", -0.7349, bare=True), like("3e-5", 0.00012, bare=False), like("-17 840", 20481.7, bare=False)
        ('-.73', '1e-4', '20 482')
    """
    digits, power, _ = written.partition("e")
    places = len(digits.partition(".")[2])
    if power:
        head, _, exponent = f"{value:.{places}e}".partition("e")
        return f"{head}e{int(exponent)}"
    sign = "+" if written.startswith("+") else ""
    grouped = "," if " " in written or abs(value) >= 10_000 else ""
    text = f"{value:{sign}{grouped}.{places}f}".replace(",", " ")
    return re.sub(r"^([-+]?)0\.", r"\1.", text) if bare else text


def rewritten(cell: str, numbers: Sequence[Number], bare: bool) -> str:
    """A cell with other numbers, and their errors where it has errors.

    Raises:
        ValueError: If the cell has fewer numbers, or the error of what was measured once.
    """
    waiting = list(numbers)

    def put(match: re.Match[str]) -> str:
        if not waiting:
            return match[0]
        number = waiting.pop(0)
        opening, mean, closing, sign, error, last = match.groups(default="")
        if error and math.isnan(number.error):
            raise ValueError(f"{cell} has an error, and there is one trial")
        shown = like(error, number.error, bare) if error else ""
        return f"{opening}{like(mean, number.mean, bare)}{closing}{sign}{shown}{last}"

    found = _PART.sub(put, cell)
    if waiting:
        raise ValueError(f"{cell} has fewer than {len(numbers)} numbers")
    return found


def _row(line: str, table: PageTable, bare: bool) -> str:
    name, *cells = line.strip("|").split("|")
    new = [
        rewritten(cell, table.cell(name.strip(), column), bare) if cell.strip() else cell
        for cell, column in zip(cells, table.columns, strict=True)
    ]
    return f"|{'|'.join([name, *new])}|"


def with_numbers(text: str, table: PageTable) -> str:
    """The text of a page with the numbers of one of its tables updated."""
    start = text.index(table.begins)
    whole = text[start:].partition("\n\n")[0]
    head, line, *rows = whole.splitlines()
    bare = re.search(r"[ |*+-]\.\d", "\n".join(rows)) is not None
    new = [head, line, *(_row(one, table, bare) for one in rows)]
    return text[:start] + "\n".join(new) + text[start + len(whole) :]
