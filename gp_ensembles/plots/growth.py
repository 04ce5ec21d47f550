"""What further knots bring: the objective and the upper bound of the log evidence against their number."""

from collections.abc import Mapping

from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from torch import Tensor

from gp_ensembles.plots.canvas import INK, SERIES, as_array, label, new_figure

_Growth = tuple[Tensor | ArrayLike, Tensor | ArrayLike, Tensor | ArrayLike]


def plot_growth(histories: Mapping[str, _Growth], *, evidence: float | None = None, title: str = "") -> Figure:
    """Objectives (lines) and upper bounds of the log evidence (dashes) against the number of knots.

    Args:
        histories: By name, up to nine selections: numbers of knots, objectives and upper bounds, each of shape (S,), in
            the order of the steps; the bounds in nats.
        evidence: The exact model's log evidence, drawn as a level line.
        title: What the selections were made on.

    Returns:
        The figure. Where upper bounds would squeeze the objectives into a corner, the picture is cut above: it reaches
        as far above the best objective as the objectives reach down.

    Raises:
        ValueError: If there is no selection, there are more than nine, or lengths do not fit.

    Example:
        >>> figure = plot_growth({"greedy": ([5, 10], [-20.0, -12.0], [-9.0, -11.0])}, evidence=-11.5)
        >>> [line.get_label() for line in figure.axes[0].lines]
        ['greedy', 'greedy, upper bound', 'exact model']
    """
    if not 1 <= len(histories) <= len(SERIES):
        raise ValueError(f"from 1 to {len(SERIES)} selections can be drawn, got {len(histories)}")
    figure, (axis,) = new_figure(1, 1, 9.0, 4.2)
    lowest, highest, most = [], [], []
    for color, (name, history) in zip(SERIES, histories.items(), strict=False):
        what = ("numbers of knots", "objectives", "upper bounds")
        knots, objective, upper = (as_array(v, 1, f"{name}: {w}") for v, w in zip(history, what, strict=True))
        if not len(knots) == len(objective) == len(upper):
            lengths = f"{len(knots)} numbers of knots, {len(objective)} objectives and {len(upper)} upper bounds"
            raise ValueError(f"{name}: {lengths}; give one of each for every step")
        axis.plot(knots, objective, color=color, linewidth=1.5, marker="o", markersize=2.5, label=name)
        axis.plot(knots, upper, color=color, linewidth=1.0, linestyle="--", label=f"{name}, upper bound")
        lowest.append(float(objective.min()))
        highest.append(float(objective.max()))
        most.append(float(upper.max()))
    if evidence is not None:
        axis.axhline(evidence, color=INK, linewidth=1.0, linestyle=":", label="exact model")
        highest.append(evidence)
    reach = max(highest) - min(lowest)
    if reach > 0 and max(most) > max(highest) + reach:
        axis.set_ylim(min(lowest) - 0.05 * reach, max(highest) + reach)
    label(axis, f"{title}: objective and upper bound" if title else "objective and upper bound", "knots", "nats")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    return figure
