"""Pictures of curves over time with their range over draws, a panel for each stream."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

_DECADES = 2.5  # a logarithmic axis with numbers between powers of ten is shorter


class Curve(NamedTuple):
    """A line and the band around it.

    Attributes:
        name: Its name in the legend; a bound is drawn dashed if its name starts with it.
        x: Places.
        middle: Heights of the line.
        low: Lower edge of the band.
        high: Upper edge of the band.
    """

    name: str
    x: list[float]
    middle: list[float]
    low: list[float]
    high: list[float]


class Panel(NamedTuple):
    """Curves under a title."""

    title: str
    curves: list[Curve]


def panels_table(panels: Sequence[Panel], names: Sequence[str]) -> tuple[list[str], list[list[object]]]:
    """Header and rows of one table of all curves of all panels, a row for each point.

    Args:
        panels: The panels.
        names: Names of the columns for the panel's title, the curve's name and the place.

    Example:
        >>> header, rows = panels_table([Panel("a", [Curve("c", [1.0], [2.0], [1.5], [2.5])])], ["panel", "curve", "x"])
        >>> rows
        [['a', 'c', 1, 1.5, 2.0, 2.5]]
    """
    rows: list[list[object]] = [
        [panel.title, curve.name, int(x), *heights]
        for panel in panels
        for curve in panel.curves
        for x, *heights in zip(curve.x, curve.low, curve.middle, curve.high, strict=True)
    ]
    return [*names, "lowest", "median", "highest"], rows


def save_panels(
    panels: Sequence[Panel], path: Path, x_label: str, y_label: str, linear_within: float = math.inf
) -> None:
    """Draw panels side by side, two in a row, and save the picture.

    Args:
        panels: The panels; curves of one name have one color in all of them, and one legend below names them.
        path: Where to write.
        x_label: Label of the horizontal axes.
        y_label: Label of the vertical axes.
        linear_within: The vertical axes are linear up to this distance from zero and logarithmic beyond, if
            curves reach twice as far: everywhere linear by default, everywhere logarithmic for 0.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    from gp_ensembles.plots import save_figure
    from gp_ensembles.plots.canvas import INK, SERIES, label, new_figure

    num_columns = min(2, len(panels))
    num_rows = -(-len(panels) // num_columns)
    figure, axes = new_figure(num_rows, num_columns, 5.5 * num_columns, 3.4 * num_rows)
    for spare in axes[len(panels) :]:
        spare.set_visible(False)
    names = list(dict.fromkeys(curve.name for panel in panels for curve in panel.curves))
    plain = [name for name in names if not name.startswith("bound")]
    colors = {name: SERIES[number % len(SERIES)] for number, name in enumerate(plain)}
    handles = {}
    for axis, panel in zip(axes, panels, strict=False):
        label(axis, panel.title, x_label, y_label)
        for curve in panel.curves:
            color, style = (colors[curve.name], "-") if curve.name in colors else (INK, "--")
            (handles[curve.name],) = axis.plot(curve.x, curve.middle, color=color, linestyle=style, linewidth=1.5)
            if curve.low != curve.high:
                axis.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        if linear_within == 0:
            _make_logarithmic(axis)
        elif max(abs(height) for curve in panel.curves for height in curve.middle) > 2 * linear_within:
            axis.axhline(0.0, color=INK, linewidth=0.6)
            axis.set_yscale("symlog", linthresh=linear_within)
    lines = -(-len(handles) // (3 * num_columns))  # of the legend: three names fit below a panel
    ncols = -(-len(handles) // lines)
    shown, names = list(handles.values()), list(handles)
    figure.legend(shown, names, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9)
    save_figure(figure, path)


def _make_logarithmic(axis: Any) -> None:
    """A logarithmic vertical axis with plain numbers, of a short one also at twice and five times a power of ten."""
    from matplotlib.ticker import LogLocator

    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.yaxis.set_major_formatter("{x:g}")
    if high < 10**_DECADES * low:
        axis.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.tick_params(which="minor", labelsize=9)
