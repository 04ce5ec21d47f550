"""The picture of an embedding: places, colors and weights are those given, and what does not fit is refused."""

import math

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex, to_rgba

from gp_ensembles.plots import plot_embedding, save_figure
from gp_ensembles.plots.canvas import REST, SERIES

X = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]], dtype=torch.float64)
LABELS = ["on", "off", "", "on"]


def legend(axis):
    return [text.get_text() for text in axis.get_legend().get_texts()]


def test_categories_have_a_color_of_their_own():
    figure = plot_embedding(X, LABELS, label_name="state", title="pump")
    figure.canvas.draw()
    (axis,) = figure.axes
    assert legend(axis) == ["no label", "off", "on"]
    assert axis.get_legend().get_title().get_text() == "state"
    rest, off, on = axis.collections
    np.testing.assert_array_equal(rest.get_offsets(), X[2:3])
    np.testing.assert_array_equal(off.get_offsets(), X[1:2])
    np.testing.assert_array_equal(on.get_offsets(), X[[0, 3]])
    colors = [to_hex(drawn.get_facecolor()[0]) for drawn in (rest, off, on)]
    assert colors == [REST, *SERIES[:2]]
    assert (axis.get_xlabel(), axis.get_ylabel(), axis.get_title(loc="left")) == ("x1", "x2", "pump")
    assert legend(plot_embedding(X, ["10", "9", "b", "10"]).axes[0]) == ["9", "10", "b"]  # numbers in their order


def test_many_categories_have_different_colors_and_the_legend_says_how_many_are_left_out(tmp_path):
    num_kinds = 30
    points = torch.arange(2.0 * num_kinds).reshape(-1, 2)
    figure = plot_embedding(points, [f"${kind:02d}$" for kind in range(num_kinds)])
    (axis,) = figure.axes
    colors = {to_rgba(drawn.get_facecolor()[0]) for drawn in axis.collections}
    assert len(colors) == num_kinds
    assert len(legend(axis)) == 24
    assert legend(axis)[0] == r"\$00\$"
    assert axis.get_legend().get_title().get_text() == "24 of 30"
    assert save_figure(figure, tmp_path / "many.png").stat().st_size > 0


@pytest.mark.parametrize("kind", ["tensor", "list"])
def test_numbers_are_a_quantity_with_a_bar(kind):
    values = [0.5, math.nan, 2.0, 1.0]
    figure = plot_embedding(X, torch.tensor(values) if kind == "tensor" else values, label_name="load")
    figure.canvas.draw()
    unknown, known = figure.axes[0].collections[:2]
    np.testing.assert_array_equal(unknown.get_offsets(), X[1:2])
    np.testing.assert_array_equal(known.get_offsets(), X[[0, 2, 3]])
    np.testing.assert_array_equal(known.get_array(), [0.5, 2.0, 1.0])
    assert figure.axes[1].get_ylabel() == "load"


def test_without_labels_the_color_is_time():
    figure = plot_embedding(X.requires_grad_(False).float())
    np.testing.assert_array_equal(figure.axes[0].collections[1].get_array(), [0, 1, 2, 3])
    assert figure.axes[1].get_ylabel() == "row"


def test_one_dimension_is_drawn_against_time_and_of_three_the_first_two():
    (axis, _) = plot_embedding(X[:, :1]).axes
    np.testing.assert_array_equal(axis.collections[1].get_offsets(), [[0, 0], [1, 2], [2, 4], [3, 6]])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("row", "x1")
    (axis, _) = plot_embedding(torch.cat([X, X[:, :1]], dim=-1), title="pump").axes
    np.testing.assert_array_equal(axis.collections[1].get_offsets(), X)
    assert axis.get_title(loc="left") == "pump, the first two of 3 dimensions"


def test_long_streams_are_thinned_by_a_stride():
    places = torch.arange(100_000.0, dtype=torch.float64).reshape(50_000, 2)
    (axis,) = plot_embedding(places, [str(row % 3) for row in range(50_000)]).axes
    drawn = np.concatenate([part.get_offsets() for part in axis.collections])
    assert sorted(drawn[:, 0].tolist()) == places[::3, 0].tolist()
    assert axis.get_title(loc="left") == "every 3. row"


def test_weights_stand_beside_stacked_to_one():
    weights = torch.tensor([[0.9, 0.2, 0.1, 0.1], [0.1, 0.8, 0.9, 0.9]], dtype=torch.float64)
    first, second = plot_embedding(X, LABELS, log_weights=weights.log(), names=["smooth", "rough"]).axes
    assert legend(second) == ["rough", "smooth"]  # the heaviest on average first
    heights = second.collections[0].get_paths()[0].vertices
    for row in range(4):
        found = heights[heights[:, 0] == row, 1]
        assert (found.min(), found.max()) == pytest.approx((0, float(weights[1, row])))
    top = second.collections[1].get_paths()[0].vertices
    assert top[:, 1].max() == pytest.approx(1)
    assert legend(first) == ["no label", "off", "on"]


def test_experts_without_a_color_are_one_and_a_single_row_is_drawn(tmp_path):
    log_weights = torch.full((12, 4), -math.log(12), dtype=torch.float64)
    second = plot_embedding(X, LABELS, log_weights=log_weights).axes[1]
    assert legend(second) == [*(str(number) for number in range(8)), "4 others"]
    one = plot_embedding(X[:1], ["on"], log_weights=torch.zeros(1, 1))
    assert save_figure(one, tmp_path / "one.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"X": torch.tensor([[0.0, math.nan]])}, "place of row 0 is not finite"),
        ({"X": torch.zeros(0, 2)}, "non-empty"),
        ({"X": torch.zeros(3)}, "2 axes"),
        ({"labels": ["on"]}, "4 rows and 1 labels"),
        ({"labels": torch.zeros(5)}, "4 rows and 5 labels"),
        ({"log_weights": torch.zeros(2, 3)}, "weights of 3"),
        ({"log_weights": torch.zeros(2, 4), "names": ["one"]}, "2 experts in log_weights but 1 names"),
    ],
)
def test_what_does_not_fit_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        plot_embedding(**{"X": X, **given})
