"""Tables of the papers' pages, of what studies have left in ``studies/results``.

Numbers are written with as many digits as they have there; words, bold letters and what a paper printed are left alone.
Which number is which stands in ``studies/page_tables.py``.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from studies.harness.comparison import estimate

RESULTS = Path(__file__).with_name("results")
_NUMBER = re.compile(r"[-+]?(?:\d+(?: \d{3})*(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?")
_PART = re.compile(rf"(\**)({_NUMBER.pattern})(\**)( ± )?({_NUMBER.pattern})?(\**)")


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
        found = estimate(values(kept, score, **where))
        return Number(found.mean, found.error)
    for line in lines_of(kept):
        if (where | {"score": score}).items() <= line.items():
            return Number(float(line["mean"]), float(line["standard_error"] or "nan"))
    raise ValueError(f"{kept} has no {score} where {where}")


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
    text = f"{value:+.{places}f}" if written.startswith("+") else f"{value:.{places}f}"
    whole, point, rest = text.partition(".")
    if len(whole.lstrip("+-")) > (3 if " " in written else 4):
        whole = f"{int(whole):,}".replace(",", " ")
    if bare and whole.lstrip("+-") == "0" and point:
        whole = whole.replace("0", "")
    return whole + point + rest


def rewritten(cell: str, numbers: Iterable[Number], bare: bool) -> str:
    """A cell with other numbers, and their errors where it has errors."""
    waiting = iter(numbers)

    def put(match: re.Match[str]) -> str:
        number = next(waiting, None)
        if number is None:
            return match[0]
        opening, mean, closing, sign, error, last = match.groups(default="")
        shown = like(error, number.error, bare) if error else ""
        return f"{opening}{like(mean, number.mean, bare)}{closing}{sign}{shown}{last}"

    return _PART.sub(put, cell)


def _rows(text: str, table: PageTable) -> Iterator[tuple[str, str]]:
    """Lines of a table as they stand and as they should."""
    start = text.index(table.begins)
    lines = text[start:].split("\n\n")[0].splitlines()[2:]
    bare = re.search(r"[ |*+-]\.\d", "\n".join(lines)) is not None
    for line in lines:
        name, *cells = line.strip("|").split("|")
        new = [
            rewritten(cell, table.cell(name.strip(), column), bare) if cell.strip() else cell
            for cell, column in zip(cells, table.columns, strict=True)
        ]
        yield line, f"|{'|'.join([name, *new])}|"


def with_numbers(text: str, table: PageTable) -> str:
    """The text of a page with the numbers of one of its tables anew."""
    for line, new in _rows(text, table):
        text = text.replace(line, new)
    return text
