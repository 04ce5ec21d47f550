"""Pictures of experiments 1, 3, C and D: what each method loses on each set."""

from collections.abc import Sequence
from pathlib import Path

from studies.doebe.methods import Exchange, Method
from studies.doebe.scores import Scores


def draw_losses(scores: Scores, methods: Sequence[Method], path: Path) -> None:
    """Log score lost to the best method of each set, a dot a method; sets down.

    Where there are ensembles of several families, those of one count for the best but get no dot.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    figure, (axis,) = new_figure(1, 1, 9.0, 1.4 + 0.42 * len(scores.sets))
    places = list(range(len(scores.sets)))
    best = [max(scores.mean(name, method, "log_score") for method in methods) for name in scores.sets]
    shown = [method for method in methods if len(method.families) > 1] or list(methods)
    in_pairs = len(shown) > len(SERIES)  # static and dynamic in one color
    for number, method in enumerate(shown):
        losses = [top - scores.mean(name, method, "log_score") for name, top in zip(scores.sets, best, strict=True)]
        color = SERIES[number // 2 if in_pairs else number]
        shape = "^" if in_pairs and number % 2 else "o"
        axis.plot(losses, places, shape, color=color, markersize=6, alpha=0.85, label=method.name)
    label(axis, "log score lost to the best method of the set", "nats per row", "")
    axis.set_xscale("symlog", linthresh=0.1)
    axis.set_xlim(left=-0.01)
    axis.set_yticks(places, scores.sets)
    axis.invert_yaxis()
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_deltas(scores: Scores, methods: Sequence[Method], path: Path) -> None:
    """Log score against the probability of a switch, a line a set, each from its own best.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    deltas = [method.rule.delta for method in methods if isinstance(method.rule, Exchange)]
    figure, (axis,) = new_figure(1, 1, 8.0, 4.0)
    for number, name in enumerate(scores.sets):
        values = [scores.mean(name, method, "log_score") for method in methods]
        lost = [value - max(values) for value in values]
        axis.plot(deltas, lost, "o-", color=SERIES[number % len(SERIES)], markersize=4, linewidth=1.3, label=name)
    label(axis, "E-DOEBE: log score from the best of each set", "delta", "nats per row")
    axis.set_xscale("log")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_samples(scores: Scores, methods: Sequence[Method], path: Path) -> None:
    """Gain in log score by Laplace samples over the optimum alone, a dot a set; methods down.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import FAINT, SERIES, label, new_figure

    names = list(dict.fromkeys(method.name for method in methods))
    counts = sorted({method.num_samples for method in methods})
    by_name = {(method.name, method.num_samples): method for method in methods}
    figure, (axis,) = new_figure(1, 1, 9.0, 1.4 + 0.42 * len(names))
    for shift, count in enumerate(counts[1:]):
        gains, places = [], []
        for place, name in enumerate(names):
            for each in scores.sets:
                one = scores.mean(each, by_name[name, counts[0]], "log_score")
                gains.append(scores.mean(each, by_name[name, count], "log_score") - one)
                places.append(place + 0.25 * shift)
        color = SERIES[shift % len(SERIES)]
        axis.plot(gains, places, "o", color=color, markersize=5, alpha=0.8, label=f"S={count} over S={counts[0]}")
    label(axis, "gain in log score by sampled hyperparameters, a dot a set", "nats per row", "")
    axis.axvline(0.0, color=FAINT, linewidth=1.0)
    axis.set_xscale("symlog", linthresh=0.01)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    figure.legend(loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)
