"""Window experts: evidence, hyperparameters, copies, and their place in an ensemble."""

import copy
from dataclasses import replace

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch.autograd import gradcheck
from torch.func import functional_call

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto_for, doebe, e_doebe
from gp_ensembles.ensembles.targets import BinaryTarget, RealTarget
from gp_ensembles.experts import GaussianExpert, WindowExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.joint import joint_covariance

N, D = 80, 2


def rows(dtype=torch.float64, num_rows=N):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, D, generator=g, dtype=torch.float64)
    y = (2 * X[:, 0]).sin() * X[:, 1] + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X.to(dtype), ((y - y.mean()) / y.std()).to(dtype)


def expert(dtype=torch.float64, batch=2, num_rows=50):
    shape = torch.Size([batch])
    base = MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=shape)
    made = WindowExpert(ScaleKernel(base, batch_shape=shape).to(dtype), D, num_rows)
    with torch.no_grad():
        base.lengthscale = torch.linspace(0.6, 1.9, batch * D, dtype=dtype).reshape(batch, 1, D)
        made.likelihood.noise = torch.linspace(0.05, 0.3, batch, dtype=dtype).reshape(batch, 1)
    return made


def test_an_evidence_that_cannot_be_computed_is_nan_for_its_expert_only():
    made = expert()
    X, y = rows()
    with torch.no_grad():
        made.kernel.raw_outputscale[1] = torch.nan
    value = made.log_evidence(X, y)
    assert bool(torch.isfinite(value[0]))
    assert bool(torch.isnan(value[1]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_copies_of_some_experts_predict_alike(dtype):
    X, y = rows(dtype)
    made = expert(dtype)
    want = made.update(made.init(), X, y)[1]
    got = made.take(torch.tensor([1, 0]))
    found = got.update(got.init(), X, y)[1]
    torch.testing.assert_close(found.mean, want.mean[[1, 0]])
    assert found.mean.dtype == dtype
    double = expert()
    exact = double.update(double.init(), *rows())[1]
    torch.testing.assert_close(want.log_prob.double(), exact.log_prob, rtol=1e-3, atol=1e-3)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="num_rows=0"):
        WindowExpert(MaternKernel().double(), D, 0)
    with pytest.raises(ValueError, match="shorter window"):
        expert().with_transition(RandomWalk(0.1))
    with pytest.raises(ValueError, match="batch shape"):
        WindowExpert(MaternKernel().double(), D, likelihood=gpytorch.likelihoods.GaussianLikelihood(batch_shape=[3]))
    with pytest.raises(ValueError, match="num_rows"):
        WindowGP(num_rows=0)
    with pytest.raises(TypeError, match="lags of WindowGP must be True or False"):
        WindowGP(lags=1)
    with pytest.raises(TypeError, match=r"extra_experts\[0\] must be a record such as WindowGP"):
        replace(doebe, extra_experts=(LinearBasis(),))
    with pytest.raises(TypeError, match=r"extra_experts must be a tuple such as \(WindowGP\(\),\)"):
        replace(doebe, extra_experts=WindowGP())
    with pytest.raises(ValueError, match="distinct names"):
        replace(doebe, extra_experts=(WindowGP(30), WindowGP(60)))
    with pytest.raises(ValueError, match="differ in speed only"):
        replace(e_doebe, extra_experts=(WindowGP(),))


SPEC = replace(
    auto_for(RealTarget(), one_step=False),
    bases=(LinearBasis(),),
    random_walk_variances=(1e-3,),
    extra_experts=(WindowGP(num_rows=30), WindowGP(num_rows=60, nu=2.5, starts=(0.3, 1.0), name="long")),
)


def test_an_ensemble_with_windows_learns_any_blocks_alike_and_loads_what_it_saved():
    X, y = rows(num_rows=160)
    y = y.clone()
    y[[70, 71, 120]] = torch.nan
    y[90] = 1e6  # an outlier counts less in windows, too
    online = SPEC.fit(X[:60], y[:60])
    assert online.ensemble.expert_names[-3:] == ("window/0", "long/0", "long/1")
    whole, single = copy.deepcopy(online), copy.deepcopy(online)
    want = whole.observe(X[60:], y[60:])
    got = [single.observe(X[t : t + 1], y[t : t + 1]) for t in range(60, 160)]
    found = torch.cat([g.log_prob for g in got])
    torch.testing.assert_close(found, want.log_prob, rtol=1e-7, atol=1e-7, equal_nan=True)
    loaded = SPEC.unfitted(X[:60], y[:60])
    loaded.load_state_dict(whole.state_dict())
    assert torch.equal(loaded.predict(X).mean, whole.predict(X).mean)
    assert torch.equal(loaded.observe(X, y).log_prob.nan_to_num(), whole.observe(X, y).log_prob.nan_to_num())


def test_windows_see_inputs_and_not_lags():
    g = torch.Generator().manual_seed(2)
    X = torch.randn(200, D, generator=g, dtype=torch.float64)
    y = torch.randn(200, generator=g, dtype=torch.float64).cumsum(0) / 10
    spec = replace(SPEC, lags=TargetLags(lags=(1, 3), bases=()))
    online = spec.fit(X[:60], y[:60])
    plain = SPEC.fit(X[:60], y[:60])
    names = online.ensemble.expert_names
    at, of = names.index("window/0") * 3, plain.ensemble.expert_names.index("window/0") * 3
    seen, other = online.predict(X[60:]), plain.predict(X[60:])
    torch.testing.assert_close(seen.component_mean[at], other.component_mean[of])


def test_windows_that_see_lags_predict_what_follows_from_the_past():
    g = torch.Generator().manual_seed(3)
    X = torch.randn(260, D, generator=g, dtype=torch.float64)
    y = (0.2 * torch.arange(260, dtype=torch.float64)).sin() + 0.1 * torch.randn(260, generator=g, dtype=torch.float64)
    blind, seeing = WindowGP(num_rows=60), WindowGP(num_rows=60, lags=True, name="seeing")
    spec = replace(SPEC, lags=TargetLags(lags=(1, 3), bases=()), extra_experts=(blind, seeing))
    online = spec.fit(X[:100], y[:100])
    steps = online.observe(X[100:], y[100:])
    names = online.ensemble.expert_names
    errors = [(steps.experts.mean[names.index(name) * 3] - y[100:]).square().mean() for name in names[-2:]]
    assert names[-2:] == ("window/0", "seeing/0")
    assert errors[1] < 0.2 * errors[0]
    alone = replace(SPEC, lags=None, extra_experts=(replace(seeing, name="window"),)).fit(X[:100], y[:100])
    plain = replace(SPEC, lags=None, extra_experts=(blind,)).fit(X[:100], y[:100])
    assert torch.equal(alone.predict(X[100:]).mean, plain.predict(X[100:]).mean)  # nothing is remembered


def test_the_pure_update_is_that_of_the_shell():
    X, y = rows()
    linear = GaussianExpert(LinearFeatures(D, torch.ones(1, dtype=torch.float64)))
    ensemble = Ensemble([linear, expert(num_rows=20)], FixedShare(0.02), outlier_threshold=5.0)
    _, want = ensemble.update(ensemble.init(), X, y)
    got = OnlineEnsemble(ensemble, block_size=7).observe(X, y)
    torch.testing.assert_close(got.log_prob, want.log_prob)


def test_experts_that_die_leave_the_others_as_they_are():
    """Dead and living windows of one batch have the same rows, in calls of one block and of many."""
    X, y = rows(num_rows=90)
    weights = torch.tensor([0.0, 1.0], dtype=torch.float64)
    both = OnlineEnsemble(Ensemble([expert(num_rows=20)], BayesianModelAveraging(weights)), block_size=4)
    one = expert(num_rows=20).take(torch.tensor([1]))
    alone = OnlineEnsemble(Ensemble([one], BayesianModelAveraging()), block_size=4)
    start = 0
    for stop in (1, 2, 8, 12, 24, 41, 44, 47, 80, 81, 90):
        found, want = (online.observe(X[start:stop], y[start:stop]) for online in (both, alone))
        torch.testing.assert_close(found.log_prob, want.log_prob)
        start = stop
    torch.testing.assert_close(both.predict(X).mean, alone.predict(X).mean)
    assert len(set(both.state.experts[0].num_used.tolist())) == 1


@pytest.mark.parametrize("num_rows", [10, 24, 40])
def test_predictions_are_differentiable_in_kernel_and_noise(num_rows):
    X, y = rows()
    made = expert(num_rows=16)

    def total(lengthscale, noise):
        state = {"kernel.base_kernel.raw_lengthscale": lengthscale, "likelihood.noise_covar.raw_noise": noise}
        given = {f"expert.{name}": value for name, value in state.items()}
        return functional_call(Stepping(made), given, (X[:num_rows], y[:num_rows]))

    inner = (made.kernel.base_kernel.raw_lengthscale, made.likelihood.noise_covar.raw_noise)
    assert gradcheck(total, tuple(value.detach().clone().requires_grad_() for value in inner))


class Stepping(torch.nn.Module):
    def __init__(self, expert):
        super().__init__()
        self.expert = expert

    def forward(self, X, y):
        state, steps = self.expert.update(self.expert.init(), X, y)
        return steps.log_prob.sum() + self.expert.predict(state, X[:3])[0].sum()


def test_classes_have_no_windows():
    X, y = rows()
    spec = replace(doebe, bases=(LinearBasis(),), extra_experts=(WindowGP(),), target=BinaryTarget())
    online = spec.fit(X, (y > 0).double())
    assert not any("window" in name for name in online.ensemble.expert_names)


def test_joint_covariance_holds_the_windows_own():
    X, y = rows()
    model = OnlineModel(StreamConfig(SPEC, warmup=60)).fit(X[:60], y[:60])
    covariance = joint_covariance(model, X[60:66])
    torch.testing.assert_close(covariance.diagonal(), model.predict(X[60:66]).variance)
    assert bool((torch.linalg.eigvalsh(covariance) > 0).all())


def test_a_window_keeps_its_digits_in_an_ensemble_of_single_precision():
    X, y = rows()
    online = OnlineEnsemble(Ensemble([expert()], FixedShare()))
    online.observe(X[:60], y[:60])
    single = copy.deepcopy(online).float()
    assert single.state.experts[0].factor.dtype == torch.float64
    got = single.observe(X[60:].float(), y[60:].float())
    assert got.mean.dtype == torch.float32
    torch.testing.assert_close(got.mean.double(), online.observe(X[60:], y[60:]).mean, rtol=1e-4, atol=1e-4)


def test_what_was_saved_in_double_precision_loads_into_a_model_of_single_precision():
    X, y = rows()
    models = {dtype: OnlineModel(StreamConfig(e_doebe, warmup=50, dtype=dtype)) for dtype in ("float64", "float32")}
    for model in models.values():
        model.fit(X[:50], y[:50])
    double, single = (model.online for model in models.values())
    single.load_state_dict(double.state_dict())
    got = single.observe(X[50:].float(), y[50:].float())
    torch.testing.assert_close(got.mean.double(), double.observe(X[50:], y[50:]).mean, rtol=1e-3, atol=1e-3)
