"""The box plots of the fusion paper's Figure 3: scores over splits, by setting and model."""

from pathlib import Path

from studies.fusion.methods import METHODS
from studies.fusion.tables import FusionScores, Setting

_MOST = 9  # models that a picture can tell apart


def draw_boxes(scores: FusionScores, path: Path) -> None:
    """A panel for each range of the inputs, a group of boxes for each setting, a dashed line at the true mixture.

    The models with learned weights are drawn and the stacked constant weights with them; if none of those was run,
    the first nine methods.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, label, new_figure
    from gp_ensembles.plots.fusion import draw_score_boxes

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
        draw_score_boxes(axis, boxes, groups)
        truth = [scores.truth[width, split] for split in range(plan.splits)]
        axis.axhline(sum(truth) / len(truth), color=INK, linestyle="--", linewidth=1.0, label="true mixture")
        label(axis, f"inputs on [-{width:g}, {width:g}]", "", "negative log predictive density, nats")
        axis.set_xticks(range(len(groups)), groups)
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)


def _group(setting: Setting, settings: list[Setting]) -> str:
    """What is special about a setting among the others."""
    if len({one.num_frequencies for one in settings}) > 1:
        return f"M = {setting.num_frequencies}"
    return f"K = {setting.num_experts}"
