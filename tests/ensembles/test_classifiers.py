"""Classifiers as experts: calibrated out of sample, and weighed with experts of other kinds."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.tree import DecisionTreeClassifier

from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, LevelTarget, RealTarget
from gp_ensembles.experts.adapters import RegressorAdapter, TrainingRows
from gp_ensembles.experts.classifiers import ClassifierAdapter
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.refusals import refused

TARGETS = {2: BinaryTarget(), 3: ClassTarget(3)}
every_target = pytest.mark.parametrize("num", TARGETS)


def rows(num, num_rows=200):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float32).double()
    y = ((X[:, 0] > 0).double() + (X[:, 1] > 0).double()).clamp_max(num - 1)
    return X, torch.where(torch.rand(num_rows, generator=g) < 0.2, y.flip(0), y)


def training(X, y, num):
    return TrainingRows(X, y, torch.full_like(y, torch.nan), num)


def spec(num, *records, basis=None):
    return replace(
        auto_for(TARGETS[num]), bases=(basis or LinearBasis(),), random_walk_variances=(), extra_experts=records
    )


def test_the_exponent_is_the_best_one_on_the_last_fifth():
    X, y = rows(3)
    found = ClassifierAdapter(DecisionTreeClassifier(random_state=0)).fit(training(X, y, 3))(X)[0]
    before, last = (DecisionTreeClassifier(random_state=0).fit(X[:n], y[:n]) for n in (160, 200))
    counts = np.bincount(y.numpy().astype(int)) + 1 / 3
    rest = 1e-3 * counts / counts.sum()

    def tempered(model, exponent, inputs):
        shares = np.maximum(model.predict_proba(inputs), 1e-9) ** exponent
        shares = shares / shares.sum(1, keepdims=True) + rest
        return shares / shares.sum(1, keepdims=True)

    def loss(exponent):
        return -np.log(tempered(before, exponent, X[160:])[range(40), y[160:].int()]).sum()

    best = min(np.logspace(-1, 0.2, 25), key=loss)
    assert best < 0.5
    np.testing.assert_allclose(found.exp(), tempered(last, best, X), rtol=1e-7)


def test_classes_that_were_not_seen_stay_possible():
    X, y = rows(2)
    adapter = ClassifierAdapter(LogisticRegression())
    for labels in (y, torch.ones_like(y)):
        found = adapter.fit(training(X, labels, 3))(X)[0].exp()
        torch.testing.assert_close(found.sum(-1), torch.ones_like(y))
        assert bool((found[:, 2] > 0).all())
        assert bool((found[:, 2] < 1e-5).all())


@every_target
def test_rows_are_predicted_by_the_model_of_the_rows_before(num):
    """With nothing to learn for the other expert, whose weight is small, up to the schedule of training."""
    X, y = rows(num)
    y[150] = torch.nan
    online = spec(num, ExternalModel(ClassifierAdapter(KNeighborsClassifier(9)), every=40)).fit(X[:80], y[:80])
    steps = online.observe(X[80:], y[80:])
    place = [name.split("/")[0] for name in online.names].index("external")
    inputs, start = X.float().double(), 80
    for stop in (120, 160, 200):
        seen = ~y[:start].isnan()
        known = ClassifierAdapter(KNeighborsClassifier(9)).fit(training(inputs[:start][seen], y[:start][seen], num))
        want = known(inputs[start:stop])[0].exp()
        got = steps.experts.mean[place, start - 80 : stop - 80]
        torch.testing.assert_close(got, want if num > 2 else want[:, 1], rtol=1e-9, atol=1e-9)
        label = y[start:stop].nan_to_num().long().unsqueeze(-1)
        log_prob = torch.where(y[start:stop].isnan(), torch.nan, want.gather(-1, label).squeeze(-1).log())
        got = steps.experts.log_prob[place, start - 80 : stop - 80]
        torch.testing.assert_close(got, log_prob, rtol=1e-9, atol=1e-9, equal_nan=True)
        start = stop


@every_target
def test_a_stream_with_trees_goes_on_from_a_file_and_in_any_blocks(num, tmp_path):
    X, y = rows(num)
    model = OnlineModel(StreamConfig(spec(num, Boosting(10, every=50)), warmup=60))
    first = model.observe(X[:130], y[:130])
    assert model.weights["boosting/0"] > 0
    model.save(tmp_path / "model.pt")
    again = OnlineModel.load(tmp_path / "model.pt")
    whole = copy.deepcopy(model).observe(X[130:], y[130:]).log_prob
    assert torch.equal(again.observe(X[130:], y[130:]).log_prob, whole)
    parts = [model.observe(X[t : t + 7], y[t : t + 7]).log_prob for t in range(130, 200, 7)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-9, atol=1e-9)
    assert bool(torch.isfinite(first.log_prob).all())


@every_target
def test_recalibration_has_learned_the_warm_up(num):
    """Else the label chain, which knows nothing here, would have a fifth of the first rows' mixture."""
    X, _ = rows(num)
    y = ((X[:, 0] > 0).double() + (X[:, 1] > 0).double()).clamp_max(num - 1)
    model = OnlineModel(StreamConfig(spec(num, basis=FourierBasis(60, starts=(0.7,))), warmup=150))
    model.observe(X[:150], y[:150])
    sure = model.predict(X[:50]).class_probabilities.amax(-1)
    assert float(sure.max()) > 0.97


def test_what_does_not_fit_is_refused():
    classifier = ExternalModel(ClassifierAdapter(LogisticRegression()))
    regressor = ExternalModel(RegressorAdapter(LogisticRegression()))
    for target, record, words in [
        (RealTarget(), classifier, "'external' predicts classes without an order, the target is RealTarget"),
        (LevelTarget(3), classifier, "'external' predicts classes without an order, the target is LevelTarget"),
        (ClassTarget(3), regressor, "'external' predicts one real number, the target is ClassTarget"),
    ]:
        refused(ValueError, words, lambda t=target, r=record: replace(auto_for(t), extra_experts=(r,)))
    refused(TypeError, "instantiate it", lambda: ClassifierAdapter(LogisticRegression))
