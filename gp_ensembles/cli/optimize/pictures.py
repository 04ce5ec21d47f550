"""Pictures of regret against evaluations, a panel for each problem."""

from collections.abc import Sequence
from pathlib import Path

from gp_ensembles.cli.drawing import Curve, Panel, save_panels
from gp_ensembles.cli.optimize.problems import Problem
from gp_ensembles.cli.optimize.tables import Interval, Summary


def draw_regrets(summaries: Sequence[Summary], problems: dict[str, Problem], out: Path) -> None:
    """Draw ``simple_regret.png`` for problems that stand still and ``cumulative_regret.png`` for those that move.

    Simple regret is drawn on a log scale: lines are geometric means over seeds, bands 95 % t-intervals of logarithms.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    standing = [_panel(summaries, name, True) for name, problem in problems.items() if not problem.moves]
    moving = [_panel(summaries, name, False) for name, problem in problems.items() if problem.moves]
    pictures = (
        ("simple_regret.png", "simple regret", [panel for panel in standing if panel.curves], 0.0),
        ("cumulative_regret.png", "cumulative regret", [panel for panel in moving if panel.curves], float("inf")),
    )
    for file, y_label, panels, linear_within in pictures:
        if panels:
            save_panels(panels, out / file, "evaluations", y_label, linear_within)


def _panel(summaries: Sequence[Summary], name: str, simple: bool) -> Panel:
    found = [summary for summary in summaries if summary.problem == name]
    return Panel(name, [_curve(s.method, s.simple_curve if simple else s.cumulative_curve, simple) for s in found])


def _curve(method: str, curve: Interval, is_log: bool) -> Curve:
    parts = Interval(*(10**part for part in curve)) if is_log else curve
    middle = parts.mean
    low, high = (edge.where(~edge.isnan(), middle) for edge in (parts.low, parts.high))  # one run has no interval
    places = [float(t) for t in range(1, middle.shape[0] + 1)]
    return Curve(method, places, middle.tolist(), low.tolist(), high.tolist())
