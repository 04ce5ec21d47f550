"""Pictures of fusions: what is drawn equals the numbers, by the order of the inputs; what does not fit is refused."""

import numpy as np
import pytest
import torch

from gp_ensembles.plots.canvas import SERIES
from gp_ensembles.plots.fusion import Band, FusionView, plot_fusion

X = torch.tensor([2.0, 0.0, 1.0], dtype=torch.float64)
MEAN = torch.stack([X**2, -X])
EXPERTS = Band(MEAN, MEAN - 1, MEAN + 3)
WEIGHTS = Band(torch.tensor([[0.9, 0.1, 0.5], [0.1, 0.9, 0.5]]), torch.zeros(2, 3), torch.ones(2, 3))
FUSED = Band(X, X - 2, X + 2)
VIEW = FusionView(X, EXPERTS, WEIGHTS, FUSED)
ALONE = FusionView([0.0], *[Band(*[[[1.0]]] * 3)] * 2, Band(*[[1.0]] * 3))
SEEN = (torch.tensor([0.2, 0.9, 1.1]), torch.tensor([5.0, 6.0, 7.0]))


def lines(axis):
    axis.figure.canvas.draw()
    return [np.asarray(line.get_data()) for line in axis.lines]


def edges(collection, x):
    heights = collection.get_paths()[0].vertices
    found = heights[heights[:, 0] == x, 1]
    return found.min(), found.max()


def test_experts_weights_and_the_fused_stand_in_the_order_of_the_inputs():
    figure = plot_fusion(VIEW, seen=SEEN, expert_names=["left", "right"], names=("hour", "load"))
    experts, weights, fused = figure.axes
    first, second, rows = lines(experts)
    np.testing.assert_array_equal(first, [[0, 1, 2], [0, 1, 4]])
    np.testing.assert_array_equal(second, [[0, 1, 2], [0, -1, -2]])
    np.testing.assert_allclose(rows, [SEEN[0], SEEN[1]])
    assert [edges(experts.collections[0], x) for x in (0, 1, 2)] == [(-1, 3), (0, 4), (3, 7)]
    first, second = lines(weights)
    np.testing.assert_allclose(first, [[0, 1, 2], [0.1, 0.5, 0.9]])
    np.testing.assert_allclose(second[1], [0.9, 0.5, 0.1])
    assert weights.get_ylim()[0] == 0
    np.testing.assert_array_equal(lines(fused)[0], [[0, 1, 2], [0, 1, 2]])
    assert [edges(fused.collections[0], x) for x in (0, 1, 2)] == [(-2, 2), (-1, 3), (0, 4)]
    assert (fused.get_xlabel(), fused.get_ylabel(), experts.get_xlabel()) == ("hour", "load", "")
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"left", "right", "band", "fused", "rows"}


def test_a_density_is_a_shade_with_the_edges_of_the_band_on_it():
    targets = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    log_prob = -0.5 * (targets.unsqueeze(-1) - X).square()
    axis = plot_fusion(VIEW._replace(density=(targets, log_prob))).axes[2]
    axis.figure.canvas.draw()
    (shade,) = axis.collections
    np.testing.assert_allclose(np.asarray(shade.get_array()).reshape(4, 3), log_prob[:, [1, 2, 0]])
    assert axis.get_ylim() == (-1, 2)
    np.testing.assert_array_equal([line[1] for line in lines(axis)], [[-2, -1, 0], [2, 3, 4], [0, 1, 2]])


def test_colors_tell_the_experts_apart_in_both_panels():
    experts, weights, _ = plot_fusion(VIEW).axes
    assert [line.get_color() for line in experts.lines] == [line.get_color() for line in weights.lines]
    assert [line.get_color() for line in experts.lines] == list(SERIES[:2])


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"weights": Band(X, X, X)}, {}, "weights must be a non-empty array with 2 axes"),
        ({"weights": Band(*(part[:1] for part in WEIGHTS))}, {}, r"weights must have shape \(2, 3\).*got \(1, 3\)"),
        ({"fused": Band(X[:2], X[:2], X[:2])}, {}, r"fused must have shape \(3,\)"),
        ({"experts": EXPERTS._replace(lower=MEAN[:1])}, {}, "the lines and edges of experts"),
        ({"density": ([0.0, 1.0], torch.zeros(2, 2))}, {}, "two rising targets"),
        ({"density": ([1.0, 0.0], torch.zeros(2, 3))}, {}, "two rising targets"),
        ({}, {"expert_names": ["one"]}, "2 experts but 1 names"),
        ({}, {"seen": ([1.0, 2.0], [1.0])}, "2 inputs and 1 targets"),
        (
            dict(zip(VIEW._fields, ([0.0], *[Band(*[[[1.0]]] * 3)] * 2, Band(*[[1.0]] * 3)), strict=False)),
            {},
            "two inputs",
        ),
        (dict.fromkeys(("experts", "weights"), Band(*[torch.zeros(10, 3)] * 3)), {}, "up to 9 experts"),
    ],
)
def test_what_does_not_fit_is_refused(change, options, words):
    with pytest.raises(ValueError, match=words):
        plot_fusion(VIEW._replace(**change), **options)
