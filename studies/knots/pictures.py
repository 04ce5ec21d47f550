"""Pictures of the knot-selection tables: scores with a line for each run, and what further knots brought."""

import math
from collections.abc import Sequence
from pathlib import Path

from studies.harness.comparison import estimate
from studies.harness.parts import Plan, Results
from studies.knots.tables import BESIDE, EXACT

_SHOWN = {
    "srmse": "SRMSE",
    "mnlp": "MNLP (median), nats",
    "aukl_f": "AUKL of f, nats",
    "knots": "knots",
    "seconds": "seconds of the processor",
}
_ON_LOG_AXES = ("aukl_f", "knots", "seconds")
_COLUMNS = 3


def draw_runs(results: Results[Plan], methods: Sequence[str], title: str, path: Path) -> None:
    """Figures 3 to 5 of the paper: a panel a score, methods across, a line for each split, bars of two standard errors.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

    methods = [method for method in methods if results.found(method)]
    shown = [kind for kind in _SHOWN if any(results.known(kind, method) for method in methods)]
    num_rows = -(-len(shown) // _COLUMNS)
    figure, axes = new_figure(num_rows, _COLUMNS, (1.0 + 0.3 * len(methods)) * _COLUMNS, 3.3 * num_rows)
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    for axis, kind in zip(axes, shown, strict=False):
        values = [results.values(kind, method) for method in methods]
        if kind == "aukl_f":
            values = [
                [value if value > 0 and method not in BESIDE else math.nan for value in line]
                for method, line in zip(methods, values, strict=True)
            ]
        places = range(len(methods))
        for split, run in enumerate(zip(*values, strict=True)):
            color = SERIES[split % len(SERIES)]
            axis.plot(places, run, "o-", color=color, alpha=0.55, markersize=3, linewidth=1.0)
        means = [estimate(line) for line in values]
        errors = [0.0 if math.isnan(one.error) else 2.0 * one.error for one in means]
        axis.errorbar(
            places, [one.mean for one in means], errors, fmt="_", color=INK, markersize=9, elinewidth=1.4, capsize=2.5
        )
        label(axis, "", "", _SHOWN[kind])
        if kind in _ON_LOG_AXES:
            axis.set_yscale("log")
        axis.set_xticks(places, methods, rotation=90)
    figure.suptitle(title, fontsize=10, color=INK)
    save_figure(figure, path)


def draw_growth(results: Results[Plan], methods: Sequence[str], dataset: str, path: Path) -> bool:
    """Objective and upper bound against the number of knots, on the first split, lower bounds only.

    Returns:
        Whether there was a selection with at least two steps to draw.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from studies.knots.drawing import plot_growth

    histories = {}
    for method in methods:
        record = results.records.get((method, 0))
        # FIC is no bound, and its upper bound would be that of other hyperparameters' evidence; nor is the default's.
        is_bound = method not in ("OBFk", *BESIDE)
        if record is not None and is_bound and len(set(record.curves.get("history_knots", []))) > 1:
            names = ("history_knots", "history_objective", "history_upper_bound")
            knots, objective, upper = (record.curves[name] for name in names)
            histories[method] = (knots, objective, upper)
    if not histories:
        return False
    exact = results.records.get((EXACT, 0))
    evidence = None if exact is None else exact.scores["objective"]
    save_figure(plot_growth(histories, evidence=evidence, title=dataset), path)
    return True
