"""What the library promises on real streams. The data lie beside the repository; without them these tests skip."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gp_ensembles.data import load_folder
from gp_ensembles.ensembles import presets
from gp_ensembles.ensembles.bases import KernelDictionary
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.streaming.columns import Standardizer

pytestmark = pytest.mark.slow

WARMUP, FEATURES = 1000, 30


@pytest.fixture(scope="module")
def banana(shared: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs on the file's scale, and labels."""
    folder = shared / "data"
    if not (folder / "banana.csv.gz").is_file():
        pytest.skip("the banana set is not in the shared data folder")
    table = load_folder(folder, "banana")
    return table.X, table.y


def cumulative_error(preset, X, y, order):
    """Share of labels after the warm-up that are predicted wrongly one step ahead, and their log loss."""
    X, y = X[order], y[order]
    X = Standardizer.fit_inputs(X[:WARMUP], y).transform_inputs(X)
    generator = torch.Generator().manual_seed(0)
    spec = replace(preset, bases=(KernelDictionary(FEATURES),), target=BinaryTarget())
    online = spec.fit(X[:WARMUP], y[:WARMUP], generator=generator)
    predictions = online.observe(X[WARMUP:], y[WARMUP:])
    wrong = (predictions.mean > 0.5).double() != y[WARMUP:]
    return float(wrong.double().mean()), -float(predictions.log_prob.mean())


def test_incremental_ensemble_errs_on_at_most_eleven_percent_of_shuffled_banana(banana):
    X, y = banana
    order = torch.randperm(y.shape[0], generator=torch.Generator().manual_seed(0))
    error, _ = cumulative_error(presets.ie_gp, X, y, order)
    assert error <= 0.11


def test_a_dynamic_ensemble_beats_a_static_one_on_banana_in_the_order_of_an_input(banana):
    X, y = banana
    order = X[:, 0].argsort()
    static_error, static_loss = cumulative_error(presets.ie_gp, X, y, order)
    dynamic_error, dynamic_loss = cumulative_error(presets.die_gp, X, y, order)
    assert dynamic_error < static_error
    assert dynamic_loss < static_loss
