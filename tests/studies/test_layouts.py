"""Layouts of single papers' figures: what is drawn equals the numbers."""

import math

import numpy as np
import pytest
import torch

from gp_ensembles.plots.canvas import new_figure
from studies.fusion.pictures import draw_score_boxes
from studies.knots.drawing import KnotFit, plot_growth, plot_knot_moves, plot_new_knot

POINTS = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
FIT = KnotFit(torch.tensor([[0.5], [1.5]]), POINTS[:, 0] ** 2, POINTS[:, 0] - 1, POINTS[:, 0] + 3)
SEEN = (torch.tensor([[0.2], [0.9], [1.1]]), torch.tensor([5.0, 6.0, 7.0]))


def lines(axis):
    axis.figure.canvas.draw()
    return {line.get_label(): line for line in axis.lines}


def test_the_bound_stands_at_its_places_below_the_fit():
    places, bound = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([-1.0, math.nan, -3.0])
    figure = plot_new_knot(places, bound, without=-3.0, chosen=0.25, fit=(POINTS, FIT), seen=SEEN)
    above, below = (lines(axis) for axis in figure.axes)
    np.testing.assert_array_equal(above["knots"].get_xdata(), [0.5, 1.5])
    np.testing.assert_array_equal(above["predictive mean"].get_ydata(), FIT.mean)
    np.testing.assert_allclose(above["rows"].get_ydata(), SEEN[1])
    np.testing.assert_array_equal(below["bound"].get_data(), [places, bound])
    assert list(below["chosen"].get_xdata()) == [0.25, 0.25]
    assert list(below["without it"].get_ydata()) == [-3, -3]


def test_moves_show_knots_at_the_end_below_and_at_the_start_above():
    starts = {"one": torch.tensor([[0.25]]), "two": torch.tensor([[0.5], [0.75]])}
    fits = {"one": FIT, "two": FIT._replace(knots=torch.tensor([[0.1], [0.2], [0.3]]))}
    figure = plot_knot_moves(POINTS, fits, starts=starts, seen=SEEN)
    for axis, (name, fit) in zip(figure.axes, fits.items(), strict=True):
        drawn = lines(axis)
        np.testing.assert_array_equal(drawn["knots at the end"].get_xdata(), np.asarray(fit.knots)[:, 0])
        np.testing.assert_array_equal(drawn["knots at the start"].get_xdata(), np.asarray(starts[name])[:, 0])
        assert axis.get_title(loc="left") == name


def test_growth_has_a_line_and_a_bound_for_each_selection_and_the_evidence():
    histories = {"a": ([5, 10], [-20.0, -12.0], [-9.0, -11.0]), "b": ([5], [-15.0], [-10.0])}
    (axis,) = plot_growth(histories, evidence=-11.5, title="boston").axes
    drawn = lines(axis)
    np.testing.assert_array_equal(drawn["a"].get_data(), [[5, 10], [-20, -12]])
    np.testing.assert_array_equal(drawn["a, upper bound"].get_ydata(), [-9, -11])
    assert list(drawn["exact model"].get_ydata()) == [-11.5, -11.5]
    assert drawn["a"].get_color() == drawn["a, upper bound"].get_color() != drawn["b"].get_color()
    assert axis.get_ylim()[0] < -20 < -9 < axis.get_ylim()[1]


def test_far_upper_bounds_do_not_squeeze_the_objectives():
    far, near = ([5, 10], [-20.0, -12.0], [9e6, 9e6]), ([5, 10], [-20.0, -12.0], [-9.0, -11.0])
    (axis,) = plot_growth({"a": far, "b": near}, evidence=None, title="boston").axes
    assert axis.get_ylim() == pytest.approx((-20.4, -4.0))
    assert {"a, upper bound (above the picture)", "b, upper bound"} < set(lines(axis))
    (axis,) = plot_growth({"a": ([5], [-20.0], [9e6])}, evidence=None, title="boston").axes  # nothing to measure by
    assert axis.get_ylim()[1] > 9e6 > -20 > axis.get_ylim()[0]


def test_boxes_are_the_quartiles_of_the_splits():
    scores = {"MoGPE": [[3.0, 1.0, 2.0, 5.0, 4.0], [7.0, math.nan]], "BHS": [[1.5, 1.4], []]}
    figure, (axis,) = new_figure(1, 1, 6.0, 4.0)
    draw_score_boxes(axis, scores, 2)
    figure.canvas.draw()
    boxes = [patch.get_path().vertices[:, 1] for patch in axis.patches]
    assert [(box.min(), box.max()) for box in boxes] == [(2, 4), (7, 7), (pytest.approx(1.425), pytest.approx(1.475))]
    dots = [line.get_ydata() for line in axis.lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(np.concatenate(dots), [3, 1, 2, 5, 4, 7, 1.5, 1.4])
    places = [line.get_xdata()[0] for line in axis.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(places, [-0.2, 0.8, 0.2])
