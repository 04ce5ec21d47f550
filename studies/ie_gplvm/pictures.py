"""The embeddings of figure 7's first draw, a panel for each set and method."""

import textwrap
from pathlib import Path

import numpy as np

from studies.harness.parts import Results
from studies.ie_gplvm.methods import LABELS, METHODS
from studies.ie_gplvm.tables import LatentPlan, error_of

_ACROSS = 6  # most panels side by side
_INNER = (0.005, 0.995)  # quantiles of each coordinate: the limits, beyond which a twentieth is left as margin


def draw_embeddings(results: Results[LatentPlan], path: Path, size: float = 2.4) -> None:
    """Scatter plots, colored by label: sets below one another, methods across; what was not run is an empty panel.

    A few rows lie far from all others, in the embeddings of ensembles above all: limits are quantiles.

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
    height = (size + 0.6) * down * len(plan.tables) + 0.3
    figure, axes = new_figure(down * len(plan.tables), across, max(size * across, 4.0), height)
    there: set[int] = set()
    for number, name in enumerate(plan.tables):
        panels = axes[number * down * across : (number + 1) * down * across]
        for axis in panels[len(plan.methods) :]:
            axis.set_axis_off()
        for axis, method in zip(panels, plan.methods, strict=False):
            axis.set_xticks([])
            axis.set_yticks([])
            title = "\n".join(textwrap.fill(part, 24) for part in LABELS[method].split(", "))
            record = results.records.get((name, METHODS[method].run, 0))
            if record is None:
                label(axis, f"{title}\n{name}, not run", "", "")
                continue
            reading, labels = METHODS[method].reading, [int(value) for value in record.curves["label"]]
            there.update(labels)
            x, y = (np.array(record.curves[f"{reading}_{one}"]) for one in "xy")
            axis.scatter(
                x,
                y,
                c=[colors[value % len(colors)] for value in labels],
                s=90.0 / len(labels) ** 0.5,
                linewidths=0.0,
            )
            for places, set_limits in ((x, axis.set_xlim), (y, axis.set_ylim)):
                low, high = np.quantile(places, _INNER)
                set_limits(low - 0.05 * (high - low), high + 0.05 * (high - low))
            error = record.scores[error_of(METHODS[method])]
            label(axis, f"{title}\n{name}, {100 * error:.1f} % wrong", "", "")
    for value in sorted(there):
        axes[0].scatter([], [], color=colors[value % len(colors)], s=20.0, label=str(value))
    handles = axes[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=10, frameon=False, fontsize=9, labelcolor=INK)
    save_figure(figure, path)
