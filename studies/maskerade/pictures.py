"""Pictures of the MASKERADE tables: scores by method."""

import math
from collections.abc import Sequence
from pathlib import Path

from studies.harness.comparison import read_printed
from studies.harness.parts import Results
from studies.maskerade.tables import PRINTED, Layout, Plan

_SHOWN = {
    "rmse_standardized": "RMSE, standardized targets",
    "log_prob_joint": "joint log density of the test rows, nats",
}


def draw_scores(layout: Layout, results: Results[Plan], own: Sequence[str], path: Path) -> None:
    """Two panels a set: error and joint log density, a dot a part, methods down, the paper's number as a line.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import ALARM, INK, SERIES, label, new_figure

    methods = [m for m in results.plan.methods if any(results.found(name, m) for name in results.plan.sets)]
    sets = [name for name in results.plan.sets if any(results.found(name, m) for m in methods)]
    figure, axes = new_figure(len(sets), len(_SHOWN), 11.0, (1.1 + 0.3 * len(methods)) * len(sets))
    panels = [(name, kind) for name in sets for kind in _SHOWN]
    for axis, (name, kind) in zip(axes, panels, strict=True):
        for place, method in enumerate(methods):
            values = results.known(kind, name, method)
            axis.plot(values, [place] * len(values), "o", color=SERIES[0], alpha=0.45, markersize=4)
            if values:
                axis.plot([results.mean(kind, name, method)], [place], "|", color=INK, markersize=13, markeredgewidth=2)
        paper = math.nan if name in own else _printed(layout, name, kind)
        if not math.isnan(paper):
            axis.axvline(paper, color=ALARM, linestyle="--", linewidth=1.2, label="paper")
            axis.legend(frameon=False, fontsize=8)
        label(axis, name, _SHOWN[kind], "")
        axis.set_yticks(range(len(methods)), methods)
        axis.set_ylim(len(methods) - 0.5, -0.5)
    save_figure(figure, path)


def _printed(layout: Layout, name: str, kind: str) -> float:
    """The number of the paper's own method, if it printed this score (the root of its MSE for the error)."""
    found = {p.score: p.value for p in read_printed(PRINTED, layout.name) if (p.set, p.method) == (name, "maskerade-i")}
    if kind == "rmse_standardized" and "mse_standardized" in found:
        return math.sqrt(found["mse_standardized"])
    return found.get(kind, math.nan)
