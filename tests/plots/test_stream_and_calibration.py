"""Pictures: they hold the numbers they were given, for one row, many rows and missing rows."""

import math

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection, PolyCollection
from matplotlib.figure import Figure

from gp_ensembles.plots import plot_bands, plot_calibration, plot_score, plot_weights, save_figure


def stream(num_rows: int, missing: tuple[int, ...] = ()) -> tuple[torch.Tensor, ...]:
    mean = torch.linspace(0.0, 3.0, num_rows, dtype=torch.float64).sin()
    y = mean + 0.1 * torch.cos(torch.arange(num_rows, dtype=torch.float64))
    y[list(missing)] = math.nan
    return y, mean, mean - 0.3, mean + 0.3


def line(axis, text):
    (found,) = (item for item in axis.lines if item.get_label() == text)
    return found


def labels(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def drawn(figure: Figure) -> Figure:
    figure.canvas.draw()
    return figure


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bands_hold_the_targets_and_the_means(dtype):
    y, mean, lower, upper = (values.to(dtype) for values in stream(50, missing=(3, 4)))
    figure = drawn(plot_bands(y, mean.requires_grad_(), lower, upper, target_name="flow", first_row=10))
    (axis,) = figure.axes
    np.testing.assert_array_equal(line(axis, "target").get_ydata(), y.double())
    np.testing.assert_array_equal(line(axis, "target").get_xdata(), np.arange(10, 60))
    np.testing.assert_array_equal(line(axis, "predictive mean").get_ydata(), mean.detach().double())
    np.testing.assert_array_equal(line(axis, "target missing").get_xdata(), [13, 14])
    assert axis.get_ylabel() == "flow"
    (band,) = [item for item in axis.collections if isinstance(item, PolyCollection)]
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((float(lower.min()), float(upper.max())))


def test_bands_of_one_row_and_of_a_row_without_target():
    for y in (0.2, math.nan):
        figure = drawn(plot_bands([y], [0.1], [-0.4], [0.6]))
        assert len(figure.axes) == 1
        assert "mean and 90 % band" in labels(figure)


def test_long_streams_get_a_second_panel_with_the_last_rows():
    figure = drawn(plot_bands(*stream(1500)))
    whole, last = figure.axes
    assert len(line(whole, "target").get_xdata()) == 1500
    np.testing.assert_array_equal(line(last, "target").get_xdata(), np.arange(1300, 1500))


def test_thinned_streams_lose_no_outlier():
    y, mean, lower, upper = stream(12_345, missing=(700,))
    y[5_000] = 40.0
    figure = drawn(plot_bands(y, mean, lower, upper))
    whole = figure.axes[0]
    assert len(line(whole, "predictive mean").get_xdata()) == 1000
    assert len(line(whole, "target missing").get_xdata()) == 1
    reach = max(path.vertices[:, 1].max() for item in whole.collections for path in item.get_paths())
    assert reach == 40.0
    assert not any(isinstance(item, PathCollection) for item in whole.collections)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plot_bands([1.0, 2.0], [1.0], [0.0], [2.0]), "same length"),
        (lambda: plot_bands([], [], [], []), "non-empty"),
        (lambda: plot_bands([[1.0]], [1.0], [0.0], [2.0]), "y must be a non-empty array with 1 axes"),
        (lambda: plot_weights([[0.0]], ["a", "b"]), "1 experts in log_weights but 2 names"),
        (lambda: plot_weights([[0.0, 0.0], [-math.inf, 0.0]], ["a", "b"]), "row 1 sum to 2"),
        (lambda: plot_weights([[0.0, math.nan]], ["a"]), "row 1 sum to nan"),
        (lambda: plot_calibration([0.5, 1.5]), r"got 1\.5"),
        (lambda: plot_score({"a": [0.0], "b": [0.0, 1.0]}), "same length"),
        (lambda: plot_score({}), "1 to 9 models"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()


def weights_of(num_experts: int, num_rows: int) -> torch.Tensor:
    slopes = torch.linspace(0.0, 3.0, num_experts, dtype=torch.float64).unsqueeze(-1)
    return (slopes * torch.linspace(0.0, 1.0, num_rows, dtype=torch.float64)).log_softmax(0)


@pytest.mark.parametrize("num_rows", [1, 2, 300, 5000])
def test_weights_stack_to_one_with_the_best_expert_first(num_rows):
    names = [f"expert {m}" for m in range(20)]
    figure = drawn(plot_weights(weights_of(20, num_rows), names))
    (axis,) = figure.axes
    tops = [item.get_paths()[0].vertices[:, 1].max() for item in axis.collections]
    assert len(tops) == 9
    assert tops[-1] == pytest.approx(1.0)
    assert labels(figure)[-1] == "12 others"
    assert num_rows == 1 or labels(figure)[0] == "expert 19"
    few = torch.tensor([[0.0, 0.0], [-math.inf, -math.inf]], dtype=torch.float64)
    assert labels(drawn(plot_weights(few, ["alive", "dead"]))) == ["alive", "dead"]


def test_calibration_of_uniform_values_is_the_diagonal():
    figure = drawn(plot_calibration((np.arange(1000) + 0.5) / 1000))
    left, right = figure.axes
    curve = line(left, "these predictions")
    np.testing.assert_allclose(curve.get_ydata(), curve.get_xdata(), atol=1.1e-3)
    np.testing.assert_allclose([bar.get_height() for bar in right.patches if bar.get_width() < 0.5], 1.0)


def test_calibration_drops_missing_rows_and_counts_the_edge_as_inside():
    figure = drawn(plot_calibration([0.05, 0.95, 0.5, math.nan]))
    left, right = figure.axes
    assert line(left, "these predictions").get_ydata()[90] == 1.0
    assert line(left, "these predictions").get_ydata()[89] == pytest.approx(1 / 3)
    assert right.get_title(loc="left") == "PIT of 3 targets"


def test_score_shows_running_means_and_leads():
    model, naive = torch.tensor([-1.0, math.nan, -3.0]), torch.tensor([-2.0, math.nan, -2.5])
    figure = drawn(plot_score({"model": model, "naive": naive}, first_row=5))
    upper, lower = figure.axes
    np.testing.assert_allclose(line(upper, "model  (-2.000)").get_ydata(), [-1.0, -1.0, -2.0])
    np.testing.assert_allclose(line(upper, "naive  (-2.250)").get_xdata(), [5, 6, 7])
    np.testing.assert_allclose(line(lower, "over naive").get_ydata(), [1.0, 1.0, 0.5])


def test_saving_rejects_unknown_formats_and_missing_folders(tmp_path):
    with pytest.raises(ValueError, match=r"\.png, \.pdf or \.svg"):
        save_figure(Figure(), tmp_path / "weights.docx")
    with pytest.raises(FileNotFoundError):
        save_figure(Figure(), tmp_path / "nowhere" / "weights.png")


def test_without_matplotlib_the_door_says_how_to_get_it(monkeypatch):
    import importlib
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gp_ensembles.plots")
    with pytest.raises(ImportError, match=r"pip install 'gp_ensembles\[plots\]'"):
        importlib.import_module("gp_ensembles.plots")
