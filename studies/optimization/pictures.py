"""Pictures of regret against evaluations, a panel for each problem."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from studies.harness.panels import Curve, Panel, save_panels
from studies.optimization.problems import Problem
from studies.optimization.tables import Interval, Summary


def draw_regrets(summaries: Sequence[Summary], problems: dict[str, Problem]) -> dict[str, Callable[[Path], object]]:
    """How to draw simple regret of problems that stand still and cumulative regret of those that move.

    Simple regret is drawn on a log scale: lines are geometric means over seeds, bands 95 % t-intervals of logarithms.

    Returns:
        By the end of the picture's name, for :func:`~studies.harness.report.write_report`.
    """
    standing = [_panel(summaries, name, True) for name, problem in problems.items() if not problem.moves]
    moving = [_panel(summaries, name, False) for name, problem in problems.items() if problem.moves]
    pictures = (
        ("_simple", "simple regret", [panel for panel in standing if panel.curves], 0.0),
        ("_cumulative", "cumulative regret", [panel for panel in moving if panel.curves], float("inf")),
    )
    return {
        end: partial(_draw, panels, y_label, linear_within)
        for end, y_label, panels, linear_within in pictures
        if panels
    }


def _draw(panels: Sequence[Panel], y_label: str, linear_within: float, path: Path) -> None:
    save_panels(panels, path, "evaluations", y_label, linear_within)


def _panel(summaries: Sequence[Summary], name: str, simple: bool) -> Panel:
    found = [summary for summary in summaries if summary.problem == name]
    return Panel(name, [_curve(s.method, s.simple_curve if simple else s.cumulative_curve, simple) for s in found])


def _curve(method: str, curve: Interval, is_log: bool) -> Curve:
    parts = Interval(*(10**part for part in curve)) if is_log else curve
    middle = parts.mean
    low, high = (edge.where(~edge.isnan(), middle) for edge in (parts.low, parts.high))  # one run has no interval
    places = [float(t) for t in range(1, middle.shape[0] + 1)]
    return Curve(method, places, middle.tolist(), low.tolist(), high.tolist())
