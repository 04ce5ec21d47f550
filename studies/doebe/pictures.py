"""Pictures of the experiments: scores with error bars, curves with bands, gains over trials."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.doebe.methods import Exchange
from studies.doebe.study import Plan
from studies.doebe.tables import KIND_TITLES, estimates, finished_sets, sample_pairs, shown_kinds
from studies.harness.comparison import paired
from studies.harness.parts import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = {"nmse": "nMSE", "error": "share of wrong classes"}
_COLUMNS = 4


def draw_scores(results: Results[Plan], path: Path) -> None:
    """Log score from the best of each set and nMSE, methods side by side, means with standard errors over trials.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    is_classes = not any("nmse" in key for record in results.records.values() for key in record.scores)
    kinds = shown_kinds(results, is_classes)[:2]
    sets, methods = finished_sets(results), results.plan.methods
    families = list(dict.fromkeys(method.families for method in methods))
    height = 1.6 + 0.11 * len(sets) * (len(methods) + 1)
    figure, axes = new_figure(1, 2, 11.0, max(3.0, height))
    for axis, kind in zip(axes, kinds, strict=True):
        is_log = kind.startswith("log")
        top = {name: max(estimates(results, name, m.name, kind).mean for m in methods) for name in sets}
        for number, method in enumerate(methods):
            found = [estimates(results, name, method.name, kind) for name in sets]
            values = [top[name] - one.mean if is_log else one.mean for name, one in zip(sets, found, strict=True)]
            errors = [0.0 if math.isnan(one.error) else one.error for one in found]
            places = np.arange(len(sets)) + 0.8 * ((number + 0.5) / len(methods) - 0.5)
            color = SERIES[families.index(method.families) % len(SERIES)]
            if len(method.families) > 1:
                color = SERIES[(len(families) - 1 + number) % len(SERIES)]
            filled = "none" if method.has_static and not method.has_dynamic else color
            axis.errorbar(
                values, places, xerr=errors, fmt="o" if len(method.families) == 1 else "D", color=color,
                markerfacecolor=filled, markersize=4, elinewidth=1.0, capsize=2, label=method.name,
            )  # fmt: skip
        for line in range(len(sets) - 1):
            axis.axhline(line + 0.5, color="#d5dae0", linewidth=0.8)
        title = "log score lost to the best of the set" if is_log else _UNITS.get(kind.split("_")[0], kind)
        title += ", as the authors compute it" if kind.endswith("published") else ""
        label(axis, title, "nats per row" if is_log else _UNITS.get(kind.split("_")[0], kind), "")
        if is_log:
            left, right = axis.dataLim.intervalx  # of the dots and of their error bars
            axis.set_xscale("symlog", linthresh=0.1, linscale=2.0)
            axis.set_xlim(min(-0.01, 1.3 * left), 1.5 * right)
        elif not is_classes:
            axis.set_xscale("log")
        axis.set_yticks(range(len(sets)), sets)
        axis.set_ylim(len(sets) - 0.5, -0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_deltas(results: Results[Plan], path: Path) -> None:
    """Log score and nMSE against the probability of a switch, a line a set, with standard errors over trials.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    found = [(method.rule.delta, method) for method in results.plan.methods if isinstance(method.rule, Exchange)]
    figure, axes = new_figure(1, 2, 10.0, 4.0)
    for axis, kind in zip(axes, shown_kinds(results)[:2], strict=True):
        for number, name in enumerate(finished_sets(results)):
            every = [estimates(results, name, method.name, kind) for _, method in found]
            values = np.array([one.mean for one in every])
            values = values - values.max() if kind.startswith("log") else values / values.min()
            errors = np.nan_to_num([one.error for one in every])
            if not kind.startswith("log"):
                errors = errors / min(one.mean for one in every)
            deltas = [delta * 1.03**number for delta, _ in found]  # side by side
            color = SERIES[number % len(SERIES)]
            axis.errorbar(
                deltas, values, yerr=errors, fmt="o-", color=color, markersize=4, linewidth=1.2, capsize=2, label=name
            )
        is_log = kind.startswith("log")
        what = "log score less the best of the set" if is_log else "nMSE over the best of the set"
        label(axis, f"E-DOEBE: {what}", "probability of a switch, delta", "nats per row" if is_log else "ratio")
        axis.set_xscale("log")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def draw_samples(results: Results[Plan], path: Path) -> None:
    """What samples of hyperparameters gain over the optimum alone: a dot a trial, and their mean and its error.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import FAINT, SERIES, label, new_figure

    pairs = sample_pairs(results.plan.methods)
    sets = finished_sets(results)
    figure, axes = new_figure(1, 2, 10.0, 1.4 + 0.4 * len(sets) * len(pairs))
    for axis, kind in zip(axes, shown_kinds(results)[:2], strict=True):
        ticks = []
        for number, (stem, one, more) in enumerate(pairs):
            for place, name in enumerate(sets):
                y = place * (len(pairs) + 0.5) + number
                first, second = (np.array(results.values(f"{method}; {kind}", name)) for method in (more, one))
                gains = (first - second)[~np.isnan(first - second)]
                jitter = np.linspace(-0.2, 0.2, len(gains)) if len(gains) > 1 else np.zeros(len(gains))
                axis.plot(gains, y + jitter, ".", color=SERIES[number], alpha=0.4, markersize=5)
                error = float(np.std(gains, ddof=1) / math.sqrt(len(gains))) if len(gains) > 1 else 0.0
                mean = paired(first.tolist(), second.tolist()).mean
                axis.errorbar(mean, y, xerr=error, fmt="D", color=SERIES[number], markersize=5, capsize=3)
                ticks.append((y, f"{name}, {stem}"))
        label(axis, f"gain by samples: {KIND_TITLES[kind].split(' (')[0]}", "samples less the optimum alone", "")
        axis.axvline(0.0, color=FAINT, linewidth=1.0)
        ticks.sort()
        axis.set_yticks([place for place, _ in ticks], [name for _, name in ticks])
        axis.invert_yaxis()
    save_figure(figure, path)


def draw_nmse_curves(results: Results[Plan], path: Path) -> None:
    """Squared errors so far along the stream, a panel a set; means over trials and bands of one standard deviation.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    _draw_curves(results, path, "nmse", "nMSE so far")


def draw_log_score_curves(results: Results[Plan], path: Path) -> None:
    """Mean log score so far along the stream, a panel a set; means over trials and bands of one standard deviation.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    _draw_curves(results, path, "log_score", "mean log score so far, nats per row")


def draw_error_curves(results: Results[Plan], path: Path) -> None:
    """Share of wrong classes so far along the stream, a panel a set.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    _draw_curves(results, path, "error", "share of wrong classes so far")


def _draw_curves(results: Results[Plan], path: Path, kind: str, what: str) -> None:
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import SERIES, label, new_figure

    sets, methods = finished_sets(results), results.plan.methods
    families = list(dict.fromkeys(method.families for method in methods))
    columns = min(_COLUMNS, len(sets))
    num_rows = math.ceil(len(sets) / columns)
    figure, axes = new_figure(num_rows, columns, 1.6 + 3.0 * columns, 2.8 * num_rows)
    for axis, name in zip(axes, sets, strict=False):
        records = list(results.found(name).values())
        x = np.array(records[0].curves["rows"])
        ends = []
        for method in methods:
            curves = np.array([record.curves[f"{method.name}; {kind}"] for record in records])
            mean, spread = curves.mean(0), curves.std(0)
            color = SERIES[families.index(method.families) % len(SERIES)]
            style = "--" if method.has_static and not method.has_dynamic else "-"
            width = 2.0 if len(method.families) > 1 else 1.1
            axis.plot(x, mean, style, color=color, linewidth=width, label=method.name)
            axis.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
            ends += (mean + spread if kind == "error" else mean[len(mean) // 10 :]).tolist()
        label(axis, name, "rows seen after the warm-up", what)
        axis.locator_params("x", nbins=4)
        _limit(axis, ends, kind)
    for axis in axes[len(sets) :]:
        axis.set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False, fontsize=8)
    save_figure(figure, path)


def _limit(axis: "Axes", values: list[float], kind: str) -> None:
    """Leave out what stands before a tenth of the stream, where curves are steep, and the worst of what comes after.

    Squared errors of good and bad methods lie decades apart: their axis is logarithmic, and nothing after is left out.
    Of shares of wrong classes the bands are shown, from the first row.
    """
    known = np.array([value for value in values if math.isfinite(value)])
    lowest, highest, middle = float(known.min()), float(known.max()), float(np.quantile(known, 0.5))
    if kind == "nmse" and lowest > 0:
        axis.set_yscale("log")
        axis.set_ylim(lowest / 1.3, highest * 1.3)
    elif kind == "log_score":
        lowest = max(lowest, middle - 4 * (highest - middle + 0.05))
        margin = 0.05 * (highest - lowest) + 1e-6
        axis.set_ylim(lowest - margin, highest + margin)
    else:
        axis.set_ylim(0.0, 1.05 * min(highest, 4 * middle) + 1e-6)
