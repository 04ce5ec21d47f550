"""Pictures of the knot-selection table: scores by method, and what further knots brought on the first split."""

from collections.abc import Sequence
from pathlib import Path

from studies.harness.parts import Plan, Results
from studies.knots.tables import EXACT

_SHOWN = {
    "srmse": "SRMSE",
    "mnlp": "MNLP (median), nats",
    "aukl_f": "AUKL of f, nats",
    "knots": "knots",
    "seconds": "seconds",
}
_ON_LOG_AXES = ("aukl_f", "seconds")


def draw_scores(results: Results[Plan], methods: Sequence[str], dataset: str, path: Path) -> None:
    """A panel a score, methods down, a dot a split and a bar at the mean.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

    methods = [method for method in methods if results.found(method)]
    shown = [kind for kind in _SHOWN if any(results.known(kind, method) for method in methods)]
    figure, axes = new_figure(1, len(shown), 2.6 * len(shown), 1.2 + 0.32 * len(methods))
    for axis, kind in zip(axes, shown, strict=True):
        for place, method in enumerate(methods):
            values = [value for value in results.known(kind, method) if value > 0 or kind not in _ON_LOG_AXES]
            axis.plot(values, [place] * len(values), "o", color=SERIES[0], alpha=0.45, markersize=4)
            if values:
                middle = sum(values) / len(values)
                axis.plot([middle], [place], "|", color=INK, markersize=13, markeredgewidth=2)
        label(axis, "", _SHOWN[kind], "")
        if kind in _ON_LOG_AXES:
            axis.set_xscale("log")
        axis.set_yticks(range(len(methods)), methods if axis is axes[0] else [""] * len(methods))
        axis.set_ylim(len(methods) - 0.5, -0.5)
    figure.suptitle(dataset, fontsize=10, color=INK)
    save_figure(figure, path)


def draw_growth(results: Results[Plan], methods: Sequence[str], dataset: str, path: Path) -> bool:
    """Objective and upper bound against the number of knots, on the first split, lower bounds only.

    Returns:
        Whether there was a selection with at least two steps to draw.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import plot_growth, save_figure

    histories = {}
    for method in methods:
        record = results.records.get((method, 0))
        # FIC is no bound, and its upper bound would be that of other hyperparameters' evidence.
        if record is not None and method != "OBFk" and len(set(record.curves.get("history_knots", []))) > 1:
            names = ("history_knots", "history_objective", "history_upper_bound")
            knots, objective, upper = (record.curves[name] for name in names)
            histories[method] = (knots, objective, upper)
    if not histories:
        return False
    exact = results.records.get((EXACT, 0))
    evidence = None if exact is None else exact.scores["objective"]
    save_figure(plot_growth(histories, evidence=evidence, title=dataset), path)
    return True
