"""Window experts: evidence, hyperparameters, copies, and their place in an ensemble."""

from dataclasses import replace

import gpytorch
import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch.autograd import gradcheck
from torch.func import functional_call

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto_for, doebe, e_doebe
from gp_ensembles.ensembles.targets import BinaryTarget, RealTarget
from gp_ensembles.experts import WindowExpert
from gp_ensembles.filters import RandomWalk
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.joint import joint_covariance
from tests.refusals import refused

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


def test_what_cannot_be_is_refused():
    refused(ValueError, "num_rows=0", lambda: WindowExpert(MaternKernel().double(), D, 0))
    refused(ValueError, "reduce num_rows", lambda: expert().with_transition(RandomWalk(0.1)))
    with pytest.raises(ValueError, match="batch shape"):
        WindowExpert(MaternKernel().double(), D, likelihood=gpytorch.likelihoods.GaussianLikelihood(batch_shape=[3]))
    refused(ValueError, "num_rows", lambda: WindowGP(num_rows=0))
    refused(TypeError, "lags of WindowGP must be True or False", lambda: WindowGP(lags=1))
    with pytest.raises(TypeError, match=r"extra_experts\[0\] must be a record such as WindowGP"):
        replace(doebe, extra_experts=(LinearBasis(),))
    with pytest.raises(TypeError, match=r"extra_experts must be a tuple such as \(WindowGP\(\),\)"):
        replace(doebe, extra_experts=WindowGP())
    refused(ValueError, "distinct names", lambda: replace(doebe, extra_experts=(WindowGP(30), WindowGP(60))))
    refused(ValueError, "differ in speed only", lambda: replace(e_doebe, extra_experts=(WindowGP(),)))


SPEC = replace(
    auto_for(RealTarget(), one_step=False),
    bases=(LinearBasis(),),
    random_walk_variances=(1e-3,),
    extra_experts=(WindowGP(num_rows=30), WindowGP(num_rows=60, nu=2.5, name="long")),
)


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


def test_what_was_bound_without_gradients_is_differentiable_in_rows():
    X, y = rows()
    made = expert(num_rows=16)
    state = made.update(made.init(), X[:40], y[:40])[0]
    with torch.no_grad():
        bound = made.bind()
    assert gradcheck(lambda Z: bound.predict(state, bound.features(Z)).mean, X[40:43].clone().requires_grad_())


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
