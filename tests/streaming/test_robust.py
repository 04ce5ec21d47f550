"""What one outlier does to a model on a stream, and what becomes of lags, innovations and limits on the way."""

import functools
from dataclasses import replace

import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis, PolynomialBasis
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.extra_experts import WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.warm_up_rows import far_from_others, outliers_in_warm_up

EXTRA = (
    WindowGP(num_rows=200, lags=True),
    WideFeatures(num_features=60),
    Boosting(num_trees=10, every=1000, lags=True),
)
SPEC = replace(auto, bases=(LinearBasis(), PolynomialBasis((2,))), random_walk_variances=(1e-3,), extra_experts=EXTRA)
CONFIG = StreamConfig(replace(SPEC, lags=TargetLags(bases=(LinearBasis(),))), warmup=100)
NUM_ROWS = 410
UNLIMITED_BASES = replace(CONFIG, ensemble=replace(CONFIG.ensemble, extra_experts=()), limit_inputs=False)


def rows(seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(500, 3, generator=generator, dtype=torch.float64)
    noise = torch.randn(500, generator=generator, dtype=torch.float64)
    y = 50 + 4 * X[:, 0] - 3 * X[:, 1] + 0.3 * noise
    y[1:] += 0.5 * (y[:-1] - 50)
    return X[:NUM_ROWS], y[:NUM_ROWS]


def error(X, y, config=CONFIG, clean=None):
    """Root mean squared error of rows 306 to 405, against targets without outliers, and the model."""
    model = OnlineModel(config)
    mean = torch.cat([model.observe(*block).mean for block in zip(X.split(50), y.split(50), strict=True)])
    off = mean[-NUM_ROWS + 306 :] - (y if clean is None else clean)[306:]
    return float(off[:100].square().mean().sqrt()), model


@functools.cache
def clean_error(config_name="all"):
    return error(*rows(), {"all": CONFIG, "bases": UNLIMITED_BASES}[config_name])[0]


@pytest.mark.parametrize("value", [-700.0, -4e6])
def test_one_wild_target_hardly_matters(value):
    X, y = rows()
    wild = y.clone()
    wild[300] = value
    assert error(X, wild, clean=y)[0] < 1.1 * clean_error()


@pytest.mark.parametrize("value", [20.0, 9e5])
def test_one_wild_input_hardly_matters(value):
    X, y = rows()
    X[300, 0] = value
    spoiled, model = error(X, y)
    assert spoiled < 1.1 * clean_error()
    assert model.anomaly_counts.inputs_moved == 1
    if abs(value) > 1e3:  # trees and windows bear it, bases do not
        assert error(X, y, UNLIMITED_BASES)[0] > 1.5 * clean_error("bases")


@pytest.mark.parametrize(("value", "on_bad_row"), [(2e3, "missing"), (-1e9, "refuse"), (-1e9, "missing")])
def test_one_wild_input_of_the_warm_up_hardly_matters(value, on_bad_row):
    X, y = rows()
    X[30, 1] = value
    is_bad = value == -1e9 and on_bad_row == "missing"
    spoiled, model = error(X, y, replace(CONFIG, on_bad_row=on_bad_row))
    assert spoiled < 1.1 * clean_error()
    assert (model.anomaly_counts.inputs_moved, model.anomaly_counts.bad_rows) == (not is_bad, is_bad)
    unlimited, model = error(X, y, replace(UNLIMITED_BASES, on_bad_row=on_bad_row))
    assert (unlimited > 1.5 * clean_error("bases")) != is_bad
    assert model.anomaly_counts.inputs_moved == 0


@pytest.mark.parametrize("value", [-9e3, 1e12])
def test_a_wild_target_of_the_warm_up_counts_as_missing(value, tmp_path):
    X, y = rows()
    X, y = X[:150], y[:150]
    y[40] = torch.nan
    missing = OnlineModel(CONFIG).observe(X, y)
    y[40] = value
    model = OnlineModel(CONFIG)
    with pytest.warns(UserWarning, match=r"1 target\(s\) of the warm-up are outliers") as warned:
        found = model.observe(X, y)
    assert [warning.filename for warning in warned] == [__file__]
    assert torch.equal(found.log_prob, missing.log_prob)
    assert model.anomaly_counts.targets_left_out == 1
    model.save(tmp_path / "model.pt")
    loaded = OnlineModel.load(tmp_path / "model.pt")
    assert loaded.anomaly_counts.targets_left_out == 1
    assert torch.equal(loaded.predict(X[:3]).mean, model.predict(X[:3]).mean)


def test_heavy_tails_and_steps_of_a_warm_up_are_no_mistakes():
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(2, 2000, generator=g, dtype=torch.float64)
    heavy = normal[0] / (normal[1].square() + 0.05).sqrt()
    assert not bool(outliers_in_warm_up(heavy).any())
    counts = torch.zeros(300, dtype=torch.float64)
    counts[::40] = torch.linspace(1, 900, 8, dtype=torch.float64)  # mostly zero: those that are not are compared
    assert not bool(outliers_in_warm_up(counts).any())
    counts[7] = 1e9
    assert outliers_in_warm_up(counts).nonzero().tolist() == [[7]]
    steps = torch.randn(300, generator=g, dtype=torch.float64)
    steps[-6:] += 1e4  # a new level, perhaps
    assert not bool(outliers_in_warm_up(steps).any())
    steps[-40:-20] += 1e4  # too many to be mistakes
    assert not bool(outliers_in_warm_up(steps).any())
    assert int(far_from_others(steps).sum()) == 26
    both = torch.stack([steps, torch.where(torch.arange(300) == 5, 1e9, steps[:300].clamp_max(9))], dim=-1)
    assert outliers_in_warm_up(both).nonzero().tolist() == [[5, 1]]


@pytest.mark.parametrize("num_rows", [200, 300, 1000])
@pytest.mark.parametrize("has_gap", [False, True])
def test_ten_outlying_numbers_in_a_row_of_a_warm_up_are_found(num_rows, has_gap):
    y = torch.randn(num_rows, generator=torch.Generator().manual_seed(num_rows), dtype=torch.float64)
    y[100:110] = 1e7
    if has_gap:
        y[20] = torch.nan
    most = 10 if num_rows - has_gap >= 200 else 9  # one in twenty of those that are observed
    expected = list(range(100, 110)) if most == 10 else []
    assert outliers_in_warm_up(y).nonzero().flatten().tolist() == expected
    assert far_from_others(y).nonzero().flatten().tolist() == list(range(100, 110))


def test_too_many_wild_targets_of_a_warm_up_are_learned_and_said():
    X, y = rows()
    y[50:80] = 1e6
    with pytest.warns(UserWarning, match="30 targets of the warm-up are outliers, but too many"):
        model = OnlineModel(replace(UNLIMITED_BASES, warmup=300)).fit(X[:300], y[:300])
    assert (model.anomaly_counts.targets_left_out, model.anomaly_counts.targets_far) == (0, 30)


def test_targets_that_count_less_are_counted():
    X, y = rows()
    X, y = X[:260], y[:260]
    y[250:253] = torch.tensor([500.0, torch.nan, -800.0])
    model = OnlineModel(CONFIG)
    model.observe(X, y)
    assert model.anomaly_counts.targets_discounted == 2
    plain = OnlineModel(replace(CONFIG, ensemble=replace(CONFIG.ensemble, outlier_threshold=None)))
    plain.observe(X, y)
    assert plain.anomaly_counts.targets_discounted == 0
