"""The embeddings of figure 7's first draw, a panel for each set and method."""

from pathlib import Path

from studies.harness.parts import Results
from studies.ie_gplvm.methods import METHODS
from studies.ie_gplvm.tables import LatentPlan, error_of

_ACROSS = 6  # most panels side by side


def draw_embeddings(results: Results[LatentPlan], path: Path, size: float = 2.4) -> None:
    """Scatter plots, colored by label: sets below one another, methods across; what was not run is an empty panel.

    Args:
        results: What was run.
        path: Where to write.
        size: Inches of a side of a panel.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

    plan = results.plan
    colors = (*SERIES, INK)  # ten, one for each digit
    across = min(len(plan.methods), _ACROSS)
    down = -(-len(plan.methods) // across)
    height = (size + 0.4) * down * len(plan.tables) + 0.3
    figure, axes = new_figure(down * len(plan.tables), across, max(size * across, 4.0), height)
    there: set[int] = set()
    for number, name in enumerate(plan.tables):
        panels = axes[number * down * across : (number + 1) * down * across]
        for axis in panels[len(plan.methods) :]:
            axis.set_axis_off()
        for axis, method in zip(panels, plan.methods, strict=False):
            axis.set_xticks([])
            axis.set_yticks([])
            record = results.records.get((name, METHODS[method].run, 0))
            if record is None:
                label(axis, f"{name}, {method}\nnot run", "", "")
                continue
            reading, labels = METHODS[method].reading, [int(value) for value in record.curves["label"]]
            there.update(labels)
            axis.scatter(
                record.curves[f"{reading}_x"],
                record.curves[f"{reading}_y"],
                c=[colors[value % len(colors)] for value in labels],
                s=90.0 / len(labels) ** 0.5,
                linewidths=0.0,
            )
            error = record.scores[error_of(METHODS[method])]
            label(axis, f"{name}, {method}\n{100 * error:.1f} % wrong", "", "")
    for value in sorted(there):
        axes[0].scatter([], [], color=colors[value % len(colors)], s=20.0, label=str(value))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=10, frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)
