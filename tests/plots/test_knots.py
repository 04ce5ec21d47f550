"""Pictures of knots: what is drawn equals the numbers, in the order of the inputs, and what does not fit is refused."""

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgba

from gp_ensembles.plots import (
    KnotFit,
    plot_growth,
    plot_knots,
    plot_new_knot,
    plot_refinement,
    save_figure,
)
from gp_ensembles.plots.canvas import ALARM
from gp_ensembles.plots.knots import plot_knot_moves

POINTS = torch.tensor([[2.0], [0.0], [1.0]], dtype=torch.float64)
FIT = KnotFit(torch.tensor([[0.5], [1.5]]), POINTS[:, 0] ** 2, POINTS[:, 0] - 1, POINTS[:, 0] + 3)
SEEN = (torch.tensor([[0.2], [0.9], [1.1]]), torch.tensor([5.0, 6.0, 7.0]))


def lines(axis):
    axis.figure.canvas.draw()
    return {line.get_label(): line for line in axis.lines}


def test_one_input_is_a_function_with_its_band_rows_and_knots():
    (axis,) = plot_knots(POINTS, FIT, seen=SEEN, names=("hour", "load"), title="pump").axes
    drawn = lines(axis)
    np.testing.assert_array_equal(drawn["predictive mean"].get_data(), [[0, 1, 2], [0, 1, 4]])
    np.testing.assert_allclose(drawn["rows"].get_data(), [SEEN[0][:, 0], SEEN[1]])
    np.testing.assert_array_equal(drawn["knots"].get_xdata(), [0.5, 1.5])
    heights = axis.collections[0].get_paths()[0].vertices
    for x, low, high in ((0, -1, 3), (1, 0, 4), (2, 1, 5)):
        found = heights[heights[:, 0] == x, 1]
        assert (found.min(), found.max()) == (low, high)
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title(loc="left")) == ("hour", "load", "pump")


def test_two_inputs_are_maps_of_the_mean_and_the_band_s_width():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    mean = torch.tensor([0.0, 1.0, 2.0, 3.0])
    fit = KnotFit(torch.tensor([[0.25, 0.5]]), mean, mean - 1, mean + torch.tensor([1.0, 2.0, 3.0, 4.0]))
    figure = plot_knots(points, fit, seen=(points[:2], mean[:2]), title="pump")
    figure.canvas.draw()
    surfaces = [axis.collections[0].get_array() for axis in figure.axes[:2]]
    np.testing.assert_array_equal(surfaces, [[0, 1, 2, 3], [2, 3, 4, 5]])
    for axis in figure.axes[:2]:
        drawn = lines(axis)
        np.testing.assert_array_equal(drawn["knots"].get_data(), [[0.25], [0.5]])
        np.testing.assert_array_equal(drawn["rows"].get_data(), [[0, 1], [0, 0]])
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("x1", "x2")
    assert figure.axes[0].get_title(loc="left") == "mean of y"


def test_the_objective_stands_at_its_places_beside_the_knots():
    places = torch.tensor([2.0, 0.0, 1.0], requires_grad=True)
    curves = {"VFE": -places, "FIC": [1.0, 2.0, 3.0]}
    figure = plot_new_knot(places, curves, knots=[[0.5], [1.5]], seen=SEEN, chosen={"VFE": 0.25})
    above, first, second = figure.axes
    np.testing.assert_array_equal(lines(above)["knots"].get_xdata(), [0.5, 1.5])
    np.testing.assert_allclose(lines(above)["rows"].get_ydata(), SEEN[1])
    np.testing.assert_array_equal(lines(first)["VFE"].get_data(), [[0, 1, 2], [0, -1, -2]])
    np.testing.assert_array_equal(lines(second)["FIC"].get_data(), [[0, 1, 2], [2, 3, 1]])
    assert list(lines(first)["chosen"].get_xdata()) == [0.25, 0.25]
    assert "chosen" not in lines(second)
    assert second.get_xlabel() == "place of the further knot"


def test_the_fit_so_far_stands_above_and_the_level_without_the_knot_is_dashed():
    curves = {"VFE": [-2.0, -1.0]}
    figure = plot_new_knot(
        [0.0, 1.0], curves, knots=FIT.knots, seen=SEEN, without={"VFE": -3.0}, fit=(POINTS, FIT)
    )  # fmt: skip
    above, below = figure.axes
    np.testing.assert_array_equal(lines(above)["predictive mean"].get_ydata(), FIT.mean[[1, 2, 0]])
    assert list(lines(below)["without it"].get_ydata()) == [-3, -3]
    assert lines(below)["without it"].get_linestyle() == "--"


def test_moves_show_knots_at_the_end_below_and_at_the_start_above():
    starts = {"one": [[0.25]], "two": [[0.5], [0.75]]}
    fits = {"one": FIT, "two": FIT._replace(knots=torch.tensor([[0.1], [0.2], [0.3]]))}
    figure = plot_knot_moves(POINTS, fits, starts=starts, seen=SEEN)
    for axis, (name, fit) in zip(figure.axes, fits.items(), strict=True):
        drawn = lines(axis)
        np.testing.assert_array_equal(drawn["knots at the end"].get_xdata(), np.asarray(fit.knots)[:, 0])
        np.testing.assert_array_equal(drawn["knots at the start"].get_xdata(), np.asarray(starts[name])[:, 0])
        assert axis.get_title(loc="left") == name


def test_a_refinement_shows_both_fits_and_the_new_knot_in_red():
    after = FIT._replace(knots=torch.tensor([[0.5], [1.25]]), mean=FIT.mean + 10)
    for axis, fit in zip(plot_refinement(POINTS, FIT, after, seen=SEEN).axes, (FIT, after), strict=True):
        drawn = lines(axis)
        np.testing.assert_array_equal(drawn["predictive mean"].get_ydata(), fit.mean[[1, 2, 0]])
        np.testing.assert_array_equal(drawn["knots"].get_xdata(), [0.5])
        np.testing.assert_array_equal(drawn["new knot"].get_xdata(), fit.knots[-1])
        assert to_rgba(drawn["new knot"].get_color()) == to_rgba(ALARM)
    alone = FIT._replace(knots=[[0.5]])  # the first knot of all
    assert "knots" not in lines(plot_refinement(POINTS, alone, alone, seen=SEEN).axes[0])


def test_growth_has_a_line_and_a_bound_for_each_selection_and_the_evidence():
    histories = {"a": ([5, 10], [-20.0, -12.0], torch.tensor([-9.0, -11.0])), "b": ([5], [-15.0], [-10.0])}
    (axis,) = plot_growth(histories, evidence=-11.5, title="boston").axes
    drawn = lines(axis)
    np.testing.assert_array_equal(drawn["a"].get_data(), [[5, 10], [-20, -12]])
    np.testing.assert_array_equal(drawn["a, upper bound"].get_ydata(), [-9, -11])
    assert list(drawn["exact model"].get_ydata()) == [-11.5, -11.5]
    assert drawn["a"].get_color() == drawn["a, upper bound"].get_color() != drawn["b"].get_color()
    assert axis.get_title(loc="left").startswith("boston")
    assert axis.get_ylim()[0] < -20 < -9 < axis.get_ylim()[1]


def test_far_upper_bounds_do_not_squeeze_the_objectives():
    (axis,) = plot_growth({"a": ([5, 10], [-20.0, -12.0], [9e6, -11.0])}).axes
    assert axis.get_ylim() == pytest.approx((-20.4, -4.0))
    assert len(axis.lines) == 2
    assert "a, upper bound" in lines(axis)
    far, near = ([5, 10], [-20.0, -12.0], [9e6, 9e6]), ([5, 10], [-20.0, -12.0], [-9.0, -11.0])
    (axis,) = plot_growth({"a": far, "b": near}).axes
    assert {"a, upper bound (above the picture)", "b, upper bound"} < set(lines(axis))
    (axis,) = plot_growth({"a": ([5], [-20.0], [9e6])}).axes  # nothing to measure by
    assert axis.get_ylim()[1] > 9e6 > -20 > axis.get_ylim()[0]


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plot_knots(torch.zeros(4, 3), FIT, seen=SEEN), "one input or two, got 3"),
        (lambda: plot_knots(POINTS, FIT, seen=SEEN, names=("x",)), "need 2 names"),
        (lambda: plot_knots(POINTS[:2], FIT, seen=SEEN), "for 2 points"),
        (lambda: plot_knots(POINTS, FIT._replace(knots=[[0.0, 1.0]]), seen=SEEN), "have 2 columns, the points 1"),
        (lambda: plot_knots(POINTS, FIT, seen=(SEEN[0][:2], SEEN[1])), "and 3 targets"),
        (lambda: plot_knots([[0.0, 1.0]], KnotFit([[0.0, 1.0]], [0.0], [0.0], [0.0]), seen=([[0, 1]], [1])), "three"),
        (lambda: plot_new_knot([0.0], {}, knots=[[0.0]], seen=SEEN), "no objective"),
        (lambda: plot_new_knot([0.0], {"VFE": [1.0, 2.0]}, knots=[[0.0]], seen=SEEN), "VFE has 2 values for 1"),
        (lambda: plot_new_knot([0.0], {"VFE": [1.0]}, knots=[[0.0, 1.0]], seen=SEEN), "2 columns"),
        (lambda: plot_new_knot([0.0], {"VFE": [1.0]}, knots=[[0.0]], seen=SEEN, chosen={"FIC": 1.0}), "for FIC"),
        (lambda: plot_refinement(torch.zeros(3, 2), FIT, FIT, seen=SEEN), "fit before have 1 columns, the points 2"),
        (
            lambda: plot_new_knot([0.0], {"VFE": [1.0]}, knots=[[0.0]], seen=SEEN, without={"FIC": 1.0}),
            "level is given",
        ),
        (lambda: plot_knot_moves(POINTS, {"a": FIT}, starts={"b": FIT.knots}, seen=SEEN), "fits of a and starts of b"),
        (
            lambda: plot_knot_moves(torch.zeros(3, 2), {"a": FIT}, starts={"a": FIT.knots}, seen=SEEN),
            "one input, got 2",
        ),
        (lambda: plot_growth({}), "from 1 to 9"),
        (lambda: plot_growth({"a": ([1], [1.0, 2.0], [1.0])}), "a: 1 numbers of knots, 2 objectives"),
    ],
)
def test_what_does_not_fit_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()


@pytest.mark.parametrize("name", ["knots", "new_knot", "moves", "refinement", "growth"])
def test_pictures_can_be_saved(name, tmp_path):
    figures = {
        "knots": lambda: plot_knots(POINTS, FIT, seen=SEEN),
        "new_knot": lambda: plot_new_knot([0.0, 1.0], {"VFE": [math.nan, 1.0]}, knots=[[0.5]], seen=SEEN),
        "moves": lambda: plot_knot_moves(POINTS, {"a": FIT}, starts={"a": FIT.knots}, seen=SEEN),
        "refinement": lambda: plot_refinement(POINTS, FIT, FIT, seen=SEEN),
        "growth": lambda: plot_growth({"a": ([1, 2], [0.0, 1.0], [3.0, 2.0])}),
    }
    assert save_figure(figures[name](), tmp_path / f"{name}.png").stat().st_size > 5000
