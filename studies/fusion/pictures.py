"""The fusion paper's pictures: the generating model, and box plots of scores over splits."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from torch import Tensor

from gp_ensembles.distributions import Mixture
from studies.fusion.methods import METHODS
from studies.fusion.tables import FusionScores, Setting
from studies.harness.parts import mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST = 9  # models that a picture can tell apart
_WIDEST = 60.0  # area of a dot of weight one


class GeneratingModel(NamedTuple):
    """What the figure shows.

    Attributes:
        x: Points, rising, shape (P,).
        mixture: Densities of targets there.
        rows: Inputs (N,) and targets (N,), all of them.
        origin: The component that each row most likely comes from, shape (N,).
        predictions: By method, point predictions at the points, shape (P,).
    """

    x: Tensor
    mixture: Mixture
    rows: tuple[Tensor, Tensor]
    origin: Tensor
    predictions: dict[str, Tensor]


def draw_generating_model(shown: GeneratingModel, path: Path) -> None:
    """Figure 2: component means, the thicker the larger their weights; weights; weighted draws; point predictions.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import FAINT, INK, SERIES, label, new_figure

    figure, axes = new_figure(2, 2, 13.0, 7.6)
    x, (row_x, row_y) = shown.x.numpy(), (part.numpy() for part in shown.rows)
    origin, weights = shown.origin.numpy(), shown.mixture.log_weights.exp().numpy()
    for number, (mean, weight) in enumerate(zip(shown.mixture.component_mean.numpy(), weights, strict=True)):
        color, name = SERIES[number], f"component {number + 1}"
        axes[0].plot(x, mean, color=color, linewidth=0.7)
        axes[0].scatter(x, mean, s=_WIDEST * weight, color=color, linewidth=0)
        axes[1].plot(x, weight, color=color, linewidth=1.5, label=name)
        drawn = origin == number
        axes[2].plot(row_x[drawn], row_y[drawn], "o", color=color, markersize=2.5)
    axes[2].plot(x, shown.mixture.mean.numpy(), color=INK, linewidth=1.6)
    axes[3].plot(row_x, row_y, "o", color=FAINT, markersize=2, alpha=0.6)
    axes[3].plot(x, shown.mixture.mean.numpy(), color=INK, linewidth=2.2, label="mean of the mixture")
    for number, (name, prediction) in enumerate(shown.predictions.items()):
        style = "-" if number < len(SERIES) else "--"
        axes[3].plot(x, prediction.numpy(), style, color=SERIES[number % len(SERIES)], linewidth=1.1, label=name)
    titles = (
        "means of the components, as thick as their weights", "weights", "draws, by their likeliest component",
        "the same rows and point predictions",
    )  # fmt: skip
    for axis, title, height in zip(axes, titles, ("y", "weight", "y", "y"), strict=True):
        label(axis, title, "x", height)
        axis.set_xlim(x[0], x[-1])
    axes[1].legend(frameon=False, fontsize=9, labelcolor=INK)
    handles = axes[3].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)


def draw_boxes(scores: FusionScores, path: Path) -> None:
    """A panel for each range of the inputs, a group of boxes for each setting, a dashed line at the true mixture.

    The models with learned weights are drawn and the stacked constant weights with them; if none of those was run,
    the first nine methods.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, label, new_figure

    plan = scores.plan
    learned = [name for name in plan.methods if "frequencies" in METHODS[name].uses or name == "stacking"]
    methods = (learned or list(plan.methods))[:_MOST]
    widths = list(dict.fromkeys(setting.half_width for setting in plan.settings))
    by_width = {width: [one for one in plan.settings if one.half_width == width] for width in widths}
    most = max(len(settings) for settings in by_width.values())
    size = (max(6.0, 1.5 + 0.32 * len(methods) * most), 3.8)
    figure, axes = new_figure(len(widths), 1, size[0], size[1] * len(widths))
    for axis, (width, settings) in zip(axes, by_width.items(), strict=True):
        boxes = {name: [scores.results.values("nlpd", name, setting) for setting in settings] for name in methods}
        groups = [_group(setting, settings) for setting in settings]
        draw_score_boxes(axis, boxes, len(groups))
        truth = mean_of([scores.truth[width, split] for split in range(plan.splits)])
        if not math.isnan(truth):
            axis.axhline(truth, color=INK, linestyle="--", linewidth=1.0, label="true mixture")
        label(axis, f"inputs on [-{width:g}, {width:g}]", "", "negative log predictive density, nats")
        axis.set_xticks(range(len(groups)), groups)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)


def draw_score_boxes(axis: "Axes", scores: Mapping[str, Sequence[Sequence[float]]], num_groups: int) -> None:
    """Boxes of scores over splits by model and group, group g at g, with a dot for each split; NaN is missing."""
    from gp_ensembles.plots.canvas import FAINT, SERIES

    width = 0.8 / len(scores)
    for number, ((name, by_group), color) in enumerate(zip(scores.items(), SERIES, strict=False)):
        offset = width * (number - (len(scores) - 1) / 2)
        for group, values in enumerate(by_group):
            found, place = [value for value in values if math.isfinite(value)], group + offset
            if not found:
                continue
            parts = axis.boxplot(
                found, positions=[place], widths=0.8 * width, patch_artist=True, showfliers=False, manage_ticks=False
            )
            for box in parts["boxes"]:
                box.set(facecolor=color, alpha=0.35, edgecolor=color)
            for kind in ("whiskers", "caps", "medians"):
                for line in parts[kind]:
                    line.set(color=color, linewidth=1.2)
            axis.plot(np.full(len(found), place), found, "o", color=color, markersize=2.5, alpha=0.8)
        axis.plot([], [], "s", color=color, label=name)
    for edge in range(1, num_groups):
        axis.axvline(edge - 0.5, color=FAINT, linewidth=0.6, alpha=0.5)
    axis.set_xlim(-0.5, num_groups - 0.5)


def _group(setting: Setting, settings: list[Setting]) -> str:
    """What is special about a setting among the others."""
    if len({one.num_frequencies for one in settings}) > 1:
        return f"M = {setting.num_frequencies}"
    return f"K = {setting.num_experts}"
