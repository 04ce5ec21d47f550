"""Pictures of knots: what is drawn equals the numbers, in the order of the inputs, and what does not fit is refused."""

import numpy as np
import pytest
import torch

from gp_ensembles.plots import plot_knots
from gp_ensembles.plots.knots import KnotFit

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


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda: plot_knots(torch.zeros(4, 3), FIT, seen=SEEN), "one input or two, got 3"),
        (lambda: plot_knots(POINTS, FIT, seen=SEEN, names=("x",)), "need 2 names"),
        (lambda: plot_knots(POINTS[:2], FIT, seen=SEEN), "for 2 points"),
        (lambda: plot_knots(POINTS, FIT._replace(knots=[[0.0, 1.0]]), seen=SEEN), "have 2 columns, the points 1"),
        (lambda: plot_knots(POINTS, FIT, seen=(SEEN[0][:2], SEEN[1])), "and 3 targets"),
        (lambda: plot_knots([[0.0, 1.0]], KnotFit([[0.0, 1.0]], [0.0], [0.0], [0.0]), seen=([[0, 1]], [1])), "three"),
    ],
)
def test_what_does_not_fit_is_refused(draw, words):
    with pytest.raises(ValueError, match=words):
        draw()
