"""Score against cost: a mark for each method, its shape that of the family, with the name beside it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from studies.arena.contenders import METHODS
from studies.arena.tables import ArenaPlan, Summary, reference_of, summarize_methods
from studies.harness.parts import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = {"ours": "*", "baseline": "o", "boosting": "s", "river": "^", "GP": "D", "ondil": "P", "statsforecast": "X"}
_WORST = -2.5  # nats below the reference; methods further down stand at the edge, with their number
_WORST_RATIO = 10.0
_SIZE = (9.0, 5.2)  # inches, of a panel
_LETTER, _LINE, _GAP = 7.8, 13.0, 11.0  # pixels: width of a letter, height of a line, from a mark to its name


class Mark(NamedTuple):
    """A method in a panel.

    Attributes:
        name: What stands beside it.
        family: Whose it is.
        x: Microseconds per row.
        y: Its score relative to the reference's.
    """

    name: str
    family: str
    x: float
    y: float


class Panel(NamedTuple):
    """Score against cost, of all methods.

    Attributes:
        title: What it shows.
        score: What the vertical axis shows.
        marks: The methods.
    """

    title: str
    score: str
    marks: list[Mark]


def panels_of(results: Results[ArenaPlan]) -> list[Panel]:
    """Log score and CRPS on sets of numbers, log score on sets of classes, as far as there are such sets.

    All are relative to the reference and averaged over sets; higher is better in each.
    """
    numbers, classes = (summarize_methods(results, is_class) for is_class in (False, True))
    panels = []
    if numbers:
        reference = reference_of(list(numbers))
        below, ratio = (
            f"mean log score minus {reference}'s, nats per row",
            f"CRPS of {reference} relative to the method's",
        )
        panels.append(Panel("numbers: log score", below, _marks(numbers, "difference", _WORST)))
        panels.append(Panel("numbers: CRPS", ratio, _marks(numbers, "ratio", 1 / _WORST_RATIO)))
    if classes:
        below = f"mean log score minus {reference_of(list(classes))}'s, nats per row"
        panels.append(Panel("classes: log score", below, _marks(classes, "difference", _WORST)))
    return panels


def draw_arena(panels: Sequence[Panel], path: Path) -> None:
    """Panels over the cost of a row, one below the other.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, label, new_figure

    figure, axes = new_figure(len(panels), 1, _SIZE[0], _SIZE[1] * len(panels))
    for axis, (title, below, marks) in zip(axes, panels, strict=True):
        label(axis, f"{title} (higher is better)", "CPU microseconds per row", below)
        axis.set_xscale("log")
        _draw(axis, marks)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=7, frameon=False, fontsize=9, labelcolor=INK)
    figure.canvas.draw()
    for axis, (_, _, marks) in zip(axes, panels, strict=True):
        _name(axis, marks)
    save_figure(figure, path)


def _marks(summaries: dict[str, Summary], kind: str, worst: float) -> list[Mark]:
    """The methods of a panel; those below the worst at its edge."""
    most = max(found.num_sets for found in summaries.values())
    marks = []
    for name, found in summaries.items():
        y = found.difference if kind == "difference" else 1 / found.ratio
        if math.isnan(y):
            continue
        text = name if found.num_sets == most else f"{name} ({found.num_sets} sets)"
        text = text if y >= worst else f"{text}: {y:.2g}"
        marks.append(Mark(text, METHODS[name].family, max(found.microseconds, 0.1), max(y, worst)))
    return marks


def _draw(axis: "Axes", marks: Sequence[Mark]) -> None:
    from gp_ensembles.plots.canvas import FAINT, INK, SERIES

    for (family, shape), color in zip(_MARKS.items(), SERIES, strict=False):
        there = [mark for mark in marks if mark.family == family]
        if there:
            size = 160 if shape == "*" else 55
            x, y = [mark.x for mark in there], [mark.y for mark in there]
            axis.scatter(x, y, s=size, marker=shape, color=color, edgecolor=INK, linewidth=0.8, label=family, zorder=3)
    ours = [mark.y for mark in marks if mark.family == "ours"]
    if ours:
        axis.axhline(max(ours), color=FAINT, linestyle="--", linewidth=1.0)
    axis.margins(x=0.22, y=0.15)


def _name(axis: "Axes", marks: Sequence[Mark]) -> None:
    """Names beside the marks, inside the panel, where no other name or mark is."""
    from gp_ensembles.plots.canvas import INK

    places = [tuple(axis.transData.transform((mark.x, mark.y))) for mark in marks]
    taken = [(x - 8.0, y - 7.0, x + 8.0, y + 7.0) for x, y in places]
    for mark, (x, y) in zip(marks, places, strict=True):
        width = _LETTER * len(mark.name)
        best = None
        for step in range(12):
            for up in (step * _LINE * 0.6, -step * _LINE * 0.6):
                for side in (1, -1):
                    left = x + _GAP if side > 0 else x - _GAP - width
                    box = (left, y + up - _LINE / 2, left + width, y + up + _LINE / 2)
                    inside = axis.bbox.y0 <= box[1] and box[3] <= axis.bbox.y1
                    if best is None and inside and not any(_meet(box, other) for other in taken):
                        best = (side, up, box)
        side, up, box = best or (1, 0.0, (x + _GAP, y, x + _GAP + width, y))
        taken.append(box)
        points = 72 / axis.figure.dpi
        axis.annotate(
            mark.name,
            (mark.x, mark.y),
            (side * _GAP * points, up * points),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=7.5,
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},  # the line of the best passes behind
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.4} if abs(up) > _LINE else None,
        )


def _meet(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
