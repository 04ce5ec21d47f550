"""Windows of any kernel and prior mean against GPyTorch's exact Gaussian process of the same rows."""

import copy
from dataclasses import replace

import gpytorch
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.extra_experts import WarmUp, WindowGP
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.experts import WindowExpert, fit_empirical_bayes
from gp_ensembles.experts.empirical_bayes import get_vectors
from gp_ensembles.experts.window import Refit
from gp_ensembles.filters.rows import Rows
from gp_ensembles.numerics import NumericalError

D = 2


def _linear_mean():
    mean = LinearMean(D)
    with torch.no_grad():
        mean.weights.copy_(torch.tensor([[0.5], [-1.0]]))
        mean.bias.fill_(0.3)
    return mean


def _constant_mean():
    mean = ConstantMean()
    mean.constant = 0.7
    return mean


KERNELS = {
    "matern and linear": lambda: ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D)) + LinearKernel(),
    "periodic product": lambda: ScaleKernel(PeriodicKernel(ard_num_dims=D) * RBFKernel(ard_num_dims=D)),
    "rational quadratic": lambda: ScaleKernel(RQKernel(ard_num_dims=D)),
    "rough": lambda: ScaleKernel(MaternKernel(nu=0.5, ard_num_dims=D)),
}
MEANS = {"zero": lambda: None, "constant": _constant_mean, "linear": _linear_mean}


def rows(num_rows, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, D, generator=g, dtype=torch.float64) * 4 - 2
    y = (2 * X[:, 0]).sin() * X[:, 1] + 0.3 + 0.1 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X.to(dtype), y.to(dtype)


def expert(kernel, mean, num_rows, refit=None):
    prior = MEANS[mean]()
    prior = None if prior is None else prior.double()
    made = WindowExpert(KERNELS[kernel]().double(), D, num_rows, mean=prior, refit=refit)
    made.likelihood.noise = torch.tensor([0.05], dtype=torch.float64)
    return made


class Reference(gpytorch.models.ExactGP):
    """GPyTorch's own, with the expert's kernel, mean and likelihood."""

    def __init__(self, X, y, one):
        one = copy.deepcopy(one)
        super().__init__(X, y, one.likelihood)
        self.mean_module = gpytorch.means.ZeroMean() if one.mean is None else one.mean
        self.covar_module = one.kernel

    def forward(self, X):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(X), self.covar_module(X))

    @torch.no_grad()
    def moments(self, X):
        self.eval()
        with gpytorch.settings.fast_computations(False, False, False), gpytorch.settings.max_cholesky_size(10_000):
            found = self.likelihood(self(X))
            return found.mean, found.variance


@torch.no_grad()
def stream(one, X, y, size):
    """The runner's state after all rows, in blocks of one size, and the predictions."""
    bound, state = one.bind(), one.init()
    state = type(state)(*(field.clone() for field in state))
    runner, parts, features = bound.runner(state), [], bound.features(X)
    for start in range(0, len(y), size):
        parts.append(runner.stage(features[start : start + size], Rows(y[start : start + size]), False))
        runner.commit()
    return state, type(parts[0])(*(torch.cat(fields, dim=-1) for fields in zip(*parts, strict=True)))


def check(one, X, y, split, size, tolerance=1e-8):
    """After ``split`` rows in blocks, the next ones against GPyTorch's process of the rows that the window holds."""
    state, _ = stream(one, X[:split], y[:split], size)
    held = int(state.num_used)
    model = Reference(X[split - held : split], y[split - held : split], one)
    mean, variance = model.moments(X[split:])
    got_mean, got_variance = one.predict(state, X[split:])
    torch.testing.assert_close((got_mean, got_variance), (mean, variance), rtol=tolerance, atol=tolerance)
    length = min(max(1, state.targets.shape[-1] - int(state.num_used.max()) - 1), len(y) - split)
    _, steps = one.update(state, X[split : split + length], y[split : split + length])
    for t in (0, length // 2, length - 1):  # one step ahead inside a block
        rows_known = slice(split - held, split + t)
        mean, variance = Reference(X[rows_known], y[rows_known], one).moments(X[split + t : split + t + 1])
        torch.testing.assert_close(steps.mean[t : t + 1], mean, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(steps.variance[t : t + 1], variance, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_windows_are_exact_processes_of_their_rows(kernel, mean):
    X, y = rows(460)
    check(expert(kernel, mean, 30), X, y, 437, 19)


@pytest.mark.parametrize("kernel", ["matern and linear"])
def test_ten_thousand_appends_and_drops_leave_no_trace(kernel):
    X, y = rows(10_060)
    check(expert(kernel, "linear", 24), X, y, 10_013, 23)


@pytest.mark.slow
@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.broad), 64, 211])
@pytest.mark.parametrize("kernel", KERNELS)
def test_ten_thousand_rows_of_a_longer_window(kernel, size):
    X, y = rows(10_080)
    check(expert(kernel, "linear", 300), X, y, 10_040, size)


@pytest.mark.parametrize("mean", MEANS)
def test_evidence_and_its_gradient_are_those_of_gpytorch(mean):
    X, y = rows(60)
    one = expert("matern and linear", mean, 60)
    model = Reference(X, y, one)
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    with gpytorch.settings.fast_computations(False, False, False):
        want = 60 * loss(model(X), y)
    got = one.log_evidence(X, y)
    torch.testing.assert_close(got, want)
    _, steps = one.update(one.init(), X, y)
    torch.testing.assert_close(steps.log_prob.sum(-1), got)  # the chain rule
    slopes, wanted = (
        torch.autograd.grad(value, [p for part in parts if part is not None for p in part.parameters()])
        for value, parts in (
            (got, (one.kernel, one.likelihood, one.mean)),
            (want, (model.covar_module, model.likelihood, model.mean_module)),
        )
    )
    torch.testing.assert_close(slopes, wanted)
    before = get_vectors(one)
    fit = fit_empirical_bayes(one, X, y)
    assert float(fit.log_evidence) > float(got.detach())
    assert bool((get_vectors(one) != before).all())


def test_parameters_of_the_mean_are_refitted_and_copied():
    X, y = rows(200)
    one = expert("rational quadratic", "linear", 60, Refit(every=50))
    state, _ = stream(one, X, y + 3.0, 32)
    fixed, _ = stream(expert("rational quadratic", "linear", 60), X, y + 3.0, 32)
    assert state.hyperparameters.shape == (1 + D + 1 + 1 + D + 1,)
    far = torch.full((1, D), 50.0, dtype=torch.float64)
    moved = one.predict(state, far)[0] - expert("rational quadratic", "linear", 60).predict(fixed, far)[0]
    assert float(moved.detach().abs()) > 1.0
    pair = one.take(torch.tensor([0, 0]))
    two, steps = stream_of_batch(pair, X, y + 3.0)
    torch.testing.assert_close(two.hyperparameters[1], state.hyperparameters, rtol=1e-5, atol=1e-5)
    assert steps.mean.shape == (2, 200)


def stream_of_batch(one, X, y):
    with torch.no_grad():
        return one.update(one.init(), X, y)


@pytest.mark.parametrize("kernel", KERNELS)
def test_single_precision_rows_are_as_good_as_their_digits(kernel):
    X, y = rows(300)
    _, want = stream(expert(kernel, "linear", 30), X, y, 32)
    _, got = stream(expert(kernel, "linear", 30).float(), X.float(), y.float(), 32)
    assert got.mean.dtype == torch.float32
    torch.testing.assert_close(got.mean.double(), want.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got.variance.double(), want.variance, rtol=1e-3, atol=1e-3)


def test_duplicated_rows_and_tiny_noise():
    X, y = rows(20)
    X, y = X.repeat(20, 1), y.repeat(20)
    one = expert("matern and linear", "zero", 60)
    one.likelihood.noise_covar.register_constraint("raw_noise", gpytorch.constraints.Positive())
    one.likelihood.noise = torch.tensor([1e-7], dtype=torch.float64)
    _, steps = stream(one, X, y, 16)
    assert bool(torch.isfinite(steps.log_prob).all())
    assert bool((steps.variance[20:] < 1e-5).all())
    one.likelihood.noise = torch.tensor([1e-19], dtype=torch.float64)
    with pytest.raises(NumericalError, match=r"covariance of the targets is not positive definite.*larger noise"):
        stream(one, X, y, 16)


def test_windows_shorter_than_their_inputs_are_refused():
    with pytest.raises(ValueError, match="num_rows=5 rows is shorter than the 8 inputs"):
        WindowExpert(MaternKernel().double(), 8, 5)
    X, y = rows(30)
    wide = X.repeat(1, 4) + 0.01 * torch.arange(8, dtype=torch.float64) * X[:, :1]
    with pytest.warns(UserWarning, match="its 6 rows are fewer than its 8 columns"):
        assert WindowGP(num_rows=6).build(WarmUp(wide, y, wide, oebe.fit_settings)) == []


@pytest.mark.parametrize("nu", [1.5, 2.5])
def test_smoothness_is_found_and_kept_with_the_state(nu):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(90, 1, generator=g, dtype=torch.float64)
    kernel = MaternKernel(nu=nu).double()
    kernel.lengthscale = 0.3
    root = torch.linalg.cholesky(kernel(X).to_dense().detach() + 1e-6 * torch.eye(90))
    y = root @ torch.randn(90, generator=g, dtype=torch.float64)
    spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(WindowGP(),), rank_on_warm_up=True)
    online = spec.fit(X, y)
    empty = replace(spec, fit_settings=replace(spec.fit_settings, method=None)).fit(X, y)
    window = online.ensemble.experts[-1]
    assert window.kernel.base_kernel.nu == nu
    empty.load_state_dict(online.state_dict())
    torch.testing.assert_close(empty.predict(X[:9]).mean, online.predict(X[:9]).mean, rtol=0, atol=0)
