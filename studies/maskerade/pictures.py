"""Pictures of the MASKERADE tables: scores by method, or evidence against evaluations."""

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from studies.harness.parts import Results
from studies.maskerade.tables import Layout, Plan

_SHOWN = {
    "rmse_standardized": "RMSE, standardized targets",
    "log_prob_joint": "joint log density of the test rows, nats",
}


def draw_scores(layout: Layout, results: Results[Plan], path: Path) -> None:
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
        paper = _printed(layout, name, kind)
        if not math.isnan(paper):
            axis.axvline(paper, color=ALARM, linestyle="--", linewidth=1.2, label="paper")
            axis.legend(frameon=False, fontsize=8)
        label(axis, name, _SHOWN[kind], "")
        axis.set_yticks(range(len(methods)), methods)
        axis.invert_yaxis()
    save_figure(figure, path)


def draw_evidence(results: Results[Plan], path: Path) -> None:
    """Evidence against evaluations for each method that has one, the first part of each set.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import plot_evidence, save_figure

    for name in results.plan.sets:
        found = {method: results.records.get((name, method, 0)) for method in results.plan.methods}
        known = {m: record.curves for m, record in found.items() if record is not None and record.curves}
        if known:
            columns: Sequence[str] = ("evaluations", "log_evidence", "log_evidence_sd")
            tensors = {
                m: tuple(torch.tensor(curves[c], dtype=torch.float64, device="cpu") for c in columns)
                for m, curves in known.items()
            }
            figure = plot_evidence({m: (a, b, c) for m, (a, b, c) in tensors.items()}, title=name)
            save_figure(figure, path)


def _printed(layout: Layout, name: str, kind: str) -> float:
    """The number of the paper's own method, if it printed this score (the root of its MSE for the error)."""
    own = layout.sets[name][0].scores if layout.sets[name] else {}
    if kind == "rmse_standardized" and "mse_standardized" in own:
        return math.sqrt(own["mse_standardized"])
    return own.get(kind, math.nan)
