"""Panels of curves: one legend, and one color for each name."""

from collections import Counter

import pytest

from studies.harness.panels import Curve, Panel, save_panels


def curve(name):
    return Curve(name, [1.0, 2.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0])


@pytest.fixture
def figures(monkeypatch):
    """Figures instead of files."""
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr("gp_ensembles.plots.save_figure", lambda figure, path: drawn.append(figure))
    return drawn


def test_a_curve_has_one_color_where_another_is_missing_and_one_legend_names_all(tmp_path, figures):
    whole, part = Panel("whole", [curve("a"), curve("b"), curve("bound")]), Panel("part", [curve("b"), curve("c")])
    save_panels([whole, part], tmp_path / "panels.png", "rows", "loss")
    (figure,) = figures
    (a, b, bound), (b_again, c) = (axis.lines for axis in figure.axes)
    assert b.get_color() == b_again.get_color()
    assert len({line.get_color() for line in (a, b, bound, c)}) == 4
    assert bound.get_linestyle() == "--"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "bound", "c"]
    assert all(axis.get_legend() is None for axis in figure.axes)


def test_a_short_logarithmic_axis_has_plain_numbers_and_a_long_one_powers_of_ten_alone(tmp_path, figures):
    panels = [
        Panel(name, [Curve("a", [1.0, 2.0], *[[0.04, top]] * 3)]) for name, top in (("short", 0.4), ("long", 4e3))
    ]
    save_panels(panels, tmp_path / "panels.png", "rows", "loss", linear_within=0)
    predicted = []
    for axis in figures[0].axes:
        low, high = axis.get_ylim()
        places = [*axis.yaxis.get_majorticklocs(), *axis.yaxis.get_minorticklocs()]
        labels = axis.yaxis.get_majorticklabels() + axis.yaxis.get_minorticklabels()
        predicted.append({label.get_text() for place, label in zip(places, labels, strict=True) if low < place < high})
    assert {"0.05", "0.1", "0.2"} <= predicted[0]
    assert {"0.1", "1000"} <= predicted[1]
    assert not {"0.2", "0.5"} & predicted[1]


def test_the_columns_of_a_legend_are_even_and_three_at_most_below_a_panel(tmp_path, figures):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    for num_curves, names in [(3, [1, 1, 1]), (4, [2, 2]), (7, [3, 2, 2])]:
        panel = Panel("one", [curve(f"c{i}") for i in range(num_curves)])
        save_panels([panel], tmp_path / "panels.png", "rows", "loss")
        FigureCanvasAgg(figures[-1]).draw()
        columns = Counter(round(text.get_window_extent().x0) for text in figures[-1].legends[0].get_texts())
        assert list(columns.values()) == names
