"""External models: the schedule of training, what they are trained on, and their place in an ensemble."""

import copy
import math
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import Boosting
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.experts.adapters import ModelAdapter
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.external_row import HistogramBoosting
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.filters.rows import Rows
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.streaming import OnlineModel, StreamConfig

D = 2
TREES = 15  # few, for speed
NAN = float("nan")


class Counting(ModelAdapter):
    """Trees that tell how often they were trained, and on how many rows."""

    def __init__(self):
        self.inner, self.trained = HistogramBoosting(TREES), []

    def fit(self, rows):
        self.trained.append(rows.targets.shape[0])
        return self.inner.fit(rows)


def rows(num_rows, dtype=torch.float64, gaps=()):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, D, generator=g, dtype=torch.float32).double()
    y = (X[:, 0] > 0).double() + X[:, 1].sin() + 0.1 * (1 + (X[:, 1] > 0)) * torch.randn(num_rows, generator=g).double()
    y[list(gaps)] = NAN
    return X.to(dtype), y.to(dtype)


def expert(adapter=None, dtype=torch.float64, first=20, every=60, num_rows=100):
    features = InputFeatures(D, torch.ones((), dtype=dtype))
    return ExternalExpert(HistogramBoosting(TREES) if adapter is None else adapter, features, first, every, num_rows)


def trees(X, y, leaves=31, least=5, num=TREES, rate=0.125):
    size = {"max_iter": num, "learning_rate": rate, "max_leaf_nodes": leaves, "min_samples_leaf": least}
    model = HistGradientBoostingRegressor(**size, early_stopping=False, random_state=0)
    return model.fit(X, y)


def oracle(X, y, first=20, every=60, num_rows=100, shares=None):
    """Row by row, scikit-learn called directly."""
    X, y = X.double().numpy(), y.double().numpy()
    due, stored, mean_model, scale_model, size = first, [], None, None, None
    means, deviations = [], []
    for t in range(len(y)):
        mean, deviation = NAN, NAN
        if mean_model is not None:
            mean, deviation = mean_model.predict(X[t : t + 1])[0], size
            if scale_model is not None:
                deviation = max(math.exp(scale_model.predict(X[t : t + 1])[0] + 0.635181422730739), 1e-3)
        means.append(mean)
        deviations.append(deviation)
        if not math.isnan(y[t]):
            share = 1.0 if shares is None else shares[t]
            stored.append((X[t], y[t], share, y[t] - mean))
        if t + 1 == due:
            due += min(due, every)
            usual = [row for row in stored[-num_rows:] if row[2] >= 0.5]
            Z, targets, errors = (np.array([row[k] for row in usual]) for k in (0, 1, 3))
            mean_model = trees(Z, targets)
            known = np.flatnonzero(~np.isnan(errors))
            e = errors[known][-500:] if len(known) >= 10 else targets - np.mean(targets)
            size = max(math.sqrt(np.mean(e**2)), 1e-3)
            scale_model = None
            if len(known) >= 100:
                known = known[-4000:]
                logs = np.log(np.abs(errors[known]) + 1e-3 * math.sqrt(np.mean(errors[known] ** 2)))
                scale_model = trees(Z[known], logs, leaves=8, least=20, num=20, rate=0.2)
    return torch.tensor(means, dtype=torch.float64), torch.tensor(deviations, dtype=torch.float64)


def same(first, second):
    return torch.equal(first.nan_to_num(), second.nan_to_num()) and torch.equal(first.isnan(), second.isnan())


def beside_a_line(one, block_size=None, dtype=torch.float64):
    """An ensemble in which somebody speaks before the other is trained."""
    line = GaussianExpert(LinearFeatures(D, torch.ones((), dtype=dtype)))
    return OnlineEnsemble(Ensemble([line, one], FixedShare()), block_size=block_size)


@pytest.mark.parametrize("num_rows", [100, 1000])
def test_a_sequential_loop_gives_the_same_predictions(num_rows):
    X, y = rows(330, gaps=(3, 19, 20, 71, 200))
    one = expert(num_rows=num_rows)
    _, steps = one.update(one.init(), X, y)
    mean, deviation = oracle(X, y, num_rows=num_rows)
    torch.testing.assert_close(steps.mean, mean, rtol=0, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(steps.variance.sqrt(), deviation, rtol=1e-12, atol=0, equal_nan=True)
    predicted = torch.distributions.Normal(mean.nan_to_num(), deviation.nan_to_num(1.0)).log_prob(y.nan_to_num())
    want = torch.where(mean.isnan(), NAN, predicted)
    torch.testing.assert_close(steps.log_prob, torch.where(y.isnan(), NAN, want), equal_nan=True)


def test_outliers_that_count_less_than_half_are_left_out():
    X, y = rows(330, gaps=(40,))
    shares = torch.ones(330, dtype=torch.float64)
    shares[[50, 51, 52, 150]] = torch.tensor([0.01, 0.25, 0.7, 1e-6], dtype=torch.float64)
    one = expert()
    _, steps = one.bind().update_block(one.init(), one.features(X), Rows(y, shares))
    mean, deviation = oracle(X, y, shares=shares.tolist())
    torch.testing.assert_close(steps.mean, mean, rtol=0, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(steps.variance.sqrt(), deviation, rtol=1e-6, atol=0, equal_nan=True)


def test_a_state_goes_on_elsewhere_to_the_bit():
    """Models are no part of a state: where they are not known they are trained again."""
    X, y = rows(300, gaps=(5, 90))
    one = expert()
    state, _ = one.update(one.init(), X[:190], y[:190])
    want = one.update(state, X[190:], y[190:])
    other = expert(Counting())
    got = other.update(state, X[190:], y[190:])
    assert other.adapter.trained == [100, 100, 100]  # the one in force, and those at rows 200 and 260
    assert torch.equal(got[1].log_prob, want[1].log_prob)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(got[0], want[0], strict=True))
    assert torch.equal(other.predict(state, X)[0], one.predict(state, X)[0])


def test_copies_share_models_and_files_hold_none():
    X, y = rows(100)
    adapter = Counting()
    one = expert(adapter)
    state, _ = one.update(one.init(), X, y)
    one.predict(state, X)
    num = len(adapter.trained)
    other = copy.deepcopy(one)
    other.adapter = adapter
    other.predict(state, X)
    assert len(adapter.trained) == num
    loaded = pickle.loads(pickle.dumps(one))
    assert loaded.adapter.trained == adapter.trained
    assert torch.equal(loaded.predict(state, X)[0], one.predict(state, X)[0])
    assert len(loaded.adapter.trained) == num + 1
    assert len(pickle.dumps(one)) < 5000


def test_experts_of_a_batch_are_alike():
    X, y = rows(100)
    one = expert()
    state, want = one.update(one.init(), X, y)
    two = one.take(torch.tensor([0, 0]))
    other, got = two.update(two.init(), X, y)
    assert got.mean.shape == (2, 100)
    assert same(got.mean, want.mean.expand(2, -1))
    assert other.targets.shape == state.targets.shape
    torch.testing.assert_close(one.log_evidence(X, y), want.log_prob[20:].sum())
    assert one.with_transition(None).adapter is one.adapter
    with pytest.raises(ValueError, match="no time-varying weights"):
        one.with_transition(RandomWalk(0.1))
    for name in ("first", "every", "num_rows"):
        with pytest.raises(ValueError, match=name):
            expert(**{name: 0})


def test_in_single_precision_rows_are_kept_as_they_are():
    X, y = rows(200)
    online = beside_a_line(expert())
    single = copy.deepcopy(online).float()
    assert single.state.experts[1].targets.dtype == torch.float64
    got = single.observe(X.float(), y.float()).experts.mean[1]
    assert got.dtype == torch.float32
    double = online.observe(X, y.float().double()).experts.mean[1]
    torch.testing.assert_close(got.double(), double, rtol=1e-6, atol=1e-6, equal_nan=True)


SPEC = replace(
    auto_for(RealTarget(), one_step=False),
    bases=(LinearBasis(),),
    random_walk_variances=(1e-3,),
    extra_experts=(Boosting(TREES, every=60, num_rows=100), Boosting(TREES, every=60, lags=False, name="of inputs")),
    lags=TargetLags(lags=(1, 3), bases=()),
)


SCRIPT = """
import sys, torch
from gp_ensembles.streaming import OnlineModel
model = OnlineModel.load(sys.argv[1])
X, y = torch.load(sys.argv[2])
torch.save(model.observe(X, y).log_prob, sys.argv[3])
"""


@pytest.mark.slow
def test_a_model_goes_on_in_a_new_process_to_the_bit(tmp_path):
    X, y = rows(260)
    model = OnlineModel(StreamConfig(SPEC, warmup=80))
    model.observe(X[:170], y[:170])
    model.save(tmp_path / "model.pt")
    torch.save((X[170:], y[170:]), tmp_path / "rows.pt")
    paths = [str(tmp_path / name) for name in ("model.pt", "rows.pt", "out.pt")]
    subprocess.run([sys.executable, "-c", SCRIPT, *paths], check=True)
    assert torch.equal(torch.load(paths[2]), model.observe(X[170:], y[170:]).log_prob)
