"""The preset to start with, the kinds of targets, and the checks that presets share."""

from dataclasses import replace

import pytest
import torch

from gp_ensembles.distributions import LatentMixture, StudentTMixture
from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles import FitSettings, presets, targets
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis, PolynomialBasis
from gp_ensembles.ensembles.presets import auto, default_rule
from gp_ensembles.experts import LBFGS, GaussianExpert, LaplaceExpert, RobustExpert, StudentTExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.meta_learners import BayesianModelAveraging

QUICK = FitSettings(num_samples=1, method=None)
FITTED = FitSettings(LBFGS(max_iterations=3), num_samples=1)
BASES = [LinearBasis(), FourierBasis(12, starts=(0.5,))]
TARGETS = {
    "real": (targets.RealTarget(), GaussianExpert),
    "unknown noise": (targets.UnknownNoiseTarget(0.99), StudentTExpert),
    "outliers": (targets.OutlierTarget(3.0), RobustExpert),
    "binary": (targets.BinaryTarget(), LaplaceExpert),
    "probit": (targets.BinaryTarget(is_probit=True), LaplaceExpert),
    "classes": (targets.ClassTarget(3), LaplaceExpert),
    "levels": (targets.LevelTarget(3), LaplaceExpert),
    "counts": (targets.CountTarget(), LaplaceExpert),
}


def rows(kind, num_rows=120):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 2, generator=g, dtype=torch.float64)
    f = torch.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    levels = torch.bucketize(f, torch.tensor([-0.5, 0.5], dtype=torch.float64)).double()
    y = {"classes": levels, "levels": levels, "counts": (2 + f).clamp_min(0).round()}.get(kind, f)
    y = (f > 0).double() if kind in ("binary", "probit") else y
    return X, y


@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_target_streams(kind):
    target, expert = TARGETS[kind]
    X, y = rows(kind)
    settings = {
        "bases": BASES,
        "static": True,
        "fit_settings": QUICK,
        "random_walk_variances": (1e-3,),
        "extra_experts": (),
    }
    spec = replace(auto, target=target, **settings)
    online = spec.fit(X[:60], y[:60])
    assert all(type(part) is expert for part in online.ensemble.experts)
    num_models = 1 + len(auto.innovations) if target.is_real else 1
    num_models = 3 if kind == "counts" else num_models  # one expert of each family
    assert online.ensemble.num_experts == 4 * num_models
    y[70] = torch.nan
    predictions = online.observe(X[60:], y[60:])
    assert torch.equal(torch.isfinite(predictions.log_prob), ~torch.isnan(y[60:]))
    mixture = online.predict(X[:3])
    if not target.is_real:
        assert isinstance(mixture, LatentMixture)
        if target.num_labels is not None:
            assert mixture.class_probabilities.shape == (3, target.num_labels)
    else:
        assert isinstance(mixture, StudentTMixture)


def test_auto_learns_which_rule_to_trust():
    X, y = rows("real", 300)
    online = replace(auto, bases=(*BASES, PolynomialBasis((2,))), extra_experts=()).fit(X[:100], y[:100])
    predictions = online.observe(X[100:], y[100:])
    best = predictions.experts.log_prob.sum(1).max()
    assert float(predictions.log_prob.sum()) > float(best) - 15
    assert type(online.ensemble.meta_learner) is type(default_rule())


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("binary", lambda y: y + 1, "2 in row"),
        ("counts", lambda y: y - 100, "in row 0"),
        ("real", lambda y: y * 0 + 3, "cannot be fitted"),
        ("levels", lambda y: y * 0 + 1, "cannot be fitted"),
    ],
)
def test_targets_that_cannot_be_fitted(kind, change, words):
    X, y = rows(kind)
    with pytest.raises(ValueError, match=words):
        replace(auto, bases=BASES, fit_settings=QUICK, target=TARGETS[kind][0]).fit(X, change(y))


@pytest.mark.parametrize("kind", ["binary", pytest.param("classes", marks=pytest.mark.slow)])
def test_labels_of_one_class_leave_hyperparameters_at_their_start(kind):
    X, y = rows(kind)
    spec = replace(auto, bases=BASES, fit_settings=FITTED, target=TARGETS[kind][0])
    y = torch.where(torch.arange(len(y)) < 5, torch.nan, 1.0).to(y)
    with pytest.warns(UserWarning, match="all labels of the warm-up are 1, which says nothing about the inputs"):
        online = spec.fit(X, y, generator=torch.Generator().manual_seed(0))
    unfitted = replace(spec, fit_settings=replace(FITTED, method=None))
    again = unfitted.fit(X, y, generator=torch.Generator().manual_seed(0))  # no search, and no warning
    torch.testing.assert_close(dict(online.named_parameters()), dict(again.named_parameters()), rtol=0, atol=0)
    torch.testing.assert_close(online.state, again.state, rtol=0, atol=0, equal_nan=True)
    predicted = online.predict(X).class_probabilities
    assert bool((predicted[:, 1] > 0.5).all())
    assert bool(torch.isfinite(predicted.log()).all())


def test_targets_far_from_standardized_are_warned_of():
    X, y = rows("real")
    with pytest.warns(UserWarning, match="ensembles expect standardized targets"):
        replace(presets.oebe, bases=(LinearBasis(),), fit_settings=QUICK).fit(X, 1e-6 * y)


def test_the_state_of_another_ensemble_is_refused_whole():
    def build(num_inputs):
        expert = GaussianExpert(LinearFeatures(num_inputs, torch.ones(2, dtype=torch.float64)))
        return OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))

    online, other = build(1), build(2)
    other.observe(torch.ones(3, 2, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    before = [value.clone() for value in online.state_dict().values()]
    with pytest.raises(RuntimeError, match="another ensemble"):
        online.load_state_dict(other.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(before, online.state_dict().values(), strict=True))
