"""Presets: what they build, that they are fitted and conditioned, and that they fail clearly."""

from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.engine import OnlineEnsemble
from gp_ensembles.ensembles import bases
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.ensembles.spec import SpeedSwitching
from gp_ensembles.experts import LBFGS
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming import OnlineModel, StreamConfig

BASES = (
    bases.FourierBasis(num_features=20, starts=(0.5, 2.0)),
    bases.HilbertBasis(num_frequencies=4, nu=1.5, starts=(0.5,)),
    bases.RadialBasis(num_centers=12, starts=(0.5,)),
    bases.PolynomialBasis((2, 3)),
    bases.LinearBasis(),
    bases.SplineBasis(num_intervals=3),
)
QUICK = FitSettings(LBFGS(max_iterations=8), num_samples=2)
NUM_EXPERTS = 2 * (2 + 1 + 1 + 2 + 1 + 1)


def stream(num_rows=260, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 3, generator=g, dtype=torch.float64)
    y = torch.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    return X.to(dtype), y.to(dtype)


def build(name, X, y, **options):
    own = {"bases": (bases.KernelDictionary(20),)} if "ie_gp" in name else {"bases": BASES, "fit_settings": QUICK}
    spec = replace(PRESETS[name], **{**own, **options})
    return spec.fit(X, y, generator=torch.Generator().manual_seed(1))


COUNTS = {
    "oebe": NUM_EXPERTS,
    "doebe": 3 * NUM_EXPERTS,
    "soebe": NUM_EXPERTS,
    "sdoebe": 3 * NUM_EXPERTS,
    "e_doebe": 3 * NUM_EXPERTS,
    "ie_gp": 11,
    "sie_gp": 11,
    "die_gp": 11,
    "dsie_gp": 11,
}


FAST = ("soebe", "e_doebe", "die_gp")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in COUNTS])
def test_every_preset_is_ready_to_stream(name):
    X, y = stream()
    y[[5, 120]] = torch.nan
    online = build(name, X[:100], y[:100])
    assert isinstance(online, OnlineEnsemble)
    assert online.ensemble.num_experts == len(set(online.names)) == COUNTS[name]
    torch.testing.assert_close(online.log_weights.exp().sum(), torch.ones((), dtype=torch.float64))
    if not PRESETS[name].rank_on_warm_up:  # the protocol of Waxman and Djuric
        assert float(online.log_weights.exp().max()) == pytest.approx(1 / COUNTS[name])
    predictions = online.observe(X[100:], y[100:])
    observed = ~torch.isnan(y[100:])
    assert float(predictions.log_prob[observed].mean()) > -1.0  # a standard normal scores -1.42
    assert all(("dynamic" in n) == (e.transition is not None) for n, e in by_name(online))


def by_name(online):
    names = iter(online.names)
    for expert in online.ensemble.experts:
        for _ in range(expert.num_experts):
            yield next(names), expert


def test_weights_after_a_fit_are_those_that_the_rows_have_earned():
    """Bayes' rule: in proportion to the marginal density of the warm-up under each kernel, here from dense algebra."""
    X, y = stream()
    X, y = X[:30], y[:30]
    online = build("ie_gp", X, y)
    (expert,) = online.ensemble.experts
    Phi, prior = expert.features(X), expert.features.prior_variance[:, None, None]
    covariance = prior * Phi @ Phi.mT + expert.likelihood.noise.reshape(-1, 1, 1) * torch.eye(30, dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    torch.testing.assert_close(online.log_weights, evidence.log_softmax(0).detach(), rtol=1e-6, atol=1e-6)
    assert online.log_weights.exp().max() > 0.5


def test_predictions_before_any_weights_are_earned_warn():
    X, y = stream()
    online = build("oebe", X[:100], y[:100])
    with pytest.warns(UserWarning, match="weighted equally.*rank_on_warm_up=True"):
        online.predict(X[:2])
    online.observe(X[100:101], y[100:101])
    online.predict(X[:2])
    build("oebe", X[:100], y[:100], rank_on_warm_up=True).predict(X[:2])


def test_the_papers_walk_of_weights_starts_from_the_prior():
    """A row after the fit, nothing learned: mean zero, variance of prior, one step and noise, by hand."""
    X, y = stream()
    settings = {"rank_on_warm_up": False, "weights_walk": True, "learns_warm_up": False}
    online = build("die_gp", X[:100], y[:100], **settings)
    found, (expert,) = online.observe(X[100:101], y[100:101]).experts, online.ensemble.experts
    Phi, prior = expert.features(X[100:101]), expert.features.prior_variance
    variance = (prior + 1e-3) * Phi[:, 0].square().sum(-1) + expert.likelihood.noise.flatten()
    torch.testing.assert_close(found.mean[:, 0], torch.zeros_like(prior))
    torch.testing.assert_close(found.variance[:, 0], variance.detach())
    with pytest.warns(UserWarning, match="weighted equally"):
        build("die_gp", X[:100], y[:100], **settings).predict(X[:2])
    with pytest.raises(ValueError, match="rank_on_warm_up=True requires learns_warm_up=True"):
        replace(PRESETS["ie_gp"], learns_warm_up=False)
    with pytest.raises(ValueError, match="a fleet learns the warm-up rows of its series"):
        Fleet(replace(PRESETS["ie_gp"], **settings))


def test_a_warm_up_that_is_not_learned_is_remembered_and_tells_what_inputs_do():
    X, y = stream()
    y = (6 * X[:, 0]).sin() + (torch.arange(len(y)) * (2 * torch.pi / 12)).sin()
    spec = replace(PRESETS["light"], bases=(bases.LinearBasis(),), extra_experts=(), rank_on_warm_up=False)
    config = StreamConfig(replace(spec, lags=TargetLags(lags=(1, 12), bases=())), warmup=100)
    model, learned = (
        OnlineModel(replace(config, ensemble=replace(config.ensemble, learns_warm_up=flag))).fit(X[:100], y[:100])
        for flag in (False, True)
    )
    torch.testing.assert_close(model.online.state.history, learned.online.state.history)
    hole = torch.tensor([[torch.nan, 0.0, 0.0]], dtype=torch.float64)
    whole = hole.nan_to_num(0.0)
    assert model.predict(hole).variance > model.predict(whole).variance


def test_twins_share_features_and_noise_and_exchange_weight():
    X, y = stream()
    online = build("e_doebe", X[:100], y[:100], rule=SpeedSwitching(0.2), random_walk_variances=(1e-4,))
    static, dynamic = online.ensemble.experts[:7], online.ensemble.experts[7:]
    for one, other in zip(static, dynamic, strict=True):
        assert one.features is other.features
        assert one.likelihood is other.likelihood
        size = one.features(X[:100]).square().sum(-1).mean(-1)
        torch.testing.assert_close(other.transition.variance.squeeze(-1) * size, torch.full_like(size, 1e-4))
    transition = online.ensemble.meta_learner.transition
    identity = torch.eye(NUM_EXPERTS, dtype=torch.float64)
    want = torch.cat([torch.cat([0.8 * identity, 0.2 * identity]), torch.cat([0.2 * identity, 0.8 * identity])], dim=1)
    torch.testing.assert_close(transition, want)


def test_the_dictionary_is_the_papers():
    X, y = stream()
    online = build("ie_gp", X[:100], y[:100])
    (expert,) = online.ensemble.experts
    squared = expert.features.kernel.base_kernel.lengthscale.detach().flatten().square()
    torch.testing.assert_close(squared.log10(), torch.arange(-4.0, 7.0, dtype=torch.float64))
    assert expert.features.num_features == 20
    (walking,) = build("die_gp", X[:100], y[:100]).ensemble.experts
    torch.testing.assert_close(walking.transition.variance, torch.full((11, 1), 1e-3, dtype=torch.float64))


def test_bad_warm_up_rows():
    X, y = stream()
    X, y = X[:50], y[:50]
    holed = X.clone()
    holed[3, 2] = torch.nan
    for name, error, words, rows, options in (
        ("oebe", ValueError, "at least 10", (X[:8], y[:8]), {}),
        ("oebe", ValueError, "at least 10", (X, y * torch.nan), {}),
        ("oebe", ValueError, "all columns of X are constant", (0 * X, y), {}),
        ("ie_gp", ValueError, "same N", (X, y[:40]), {}),
        ("ie_gp", TypeError, "they must agree", (X, y.float()), {}),
        ("oebe", ValueError, "row 3, column 2", (holed, y), {}),
        ("doebe", ValueError, "positive", (X, y), {"random_walk_variances": (1e-3, 0.0)}),
        ("oebe", ValueError, "distinct", (X, y), {"bases": (bases.LinearBasis(), bases.LinearBasis())}),
        ("oebe", ValueError, "needs bases", (X, y), {"bases": ()}),
        ("oebe", ValueError, "needs random_walk_variances", (X, y), {"static": False}),
        ("oebe", TypeError, "rule must be a weight rule", (X, y), {"rule": 0.99}),
    ):
        with pytest.raises(error, match=words):
            build(name, *rows, **options)


def test_functions_of_time_are_not_fast_where_past_targets_tell_them(generator):
    X, start = torch.linspace(0, 1, 120, dtype=torch.float64).unsqueeze(-1), bases.FourierBasis(starts=(0.7,))
    for lags, is_fast in ((TargetLags(bases=()), False), (None, True)):
        online = replace(PRESETS["oebe"], bases=(start,), lags=lags).fit(X, (70 * X[:, 0]).sin(), generator=generator)
        (scales,) = (part.lengthscale for part in online.ensemble.experts[0].modules() if isinstance(part, RBFKernel))
        assert bool((scales < 0.15).all()) == is_fast


@pytest.mark.parametrize("speed", [75, 80, 120])
def test_random_features_find_fast_functions(speed):
    # The exact process has length scales whose spectrum hardly reaches the frequency: few draws of it do not.
    X = torch.linspace(0, 1, 120, dtype=torch.float64).unsqueeze(-1)
    spec = replace(PRESETS["oebe"], bases=(bases.FourierBasis(starts=(0.2, 0.7)),), rank_on_warm_up=True)
    found = spec.fit(X, (speed * X[:, 0]).sin(), generator=torch.Generator().manual_seed(0))
    between = (X[:-1] + X[1:]) / 2
    assert float((found.predict(between).mean - (speed * between[:, 0]).sin()).square().mean()) < 0.01
