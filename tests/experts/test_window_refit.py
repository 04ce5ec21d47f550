"""Windows whose hyperparameters keep learning: when, from what, and that nothing else changes."""

import copy

import numpy as np
import pytest
import torch
from gpytorch.constraints import Interval
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import LinearMean
from gpytorch.priors import GammaPrior

from gp_ensembles.ensembles.extra_experts import WindowGP
from gp_ensembles.experts import WindowExpert, window
from gp_ensembles.experts.empirical_bayes import get_vectors, set_vectors_
from gp_ensembles.experts.window import Refit
from gp_ensembles.numerics import NumericalError
from gp_ensembles.numerics.minimize import minimize
from tests.filters.oracles import in_blocks

N, D = 150, 2
REFIT = Refit(every=30, first=20, num_rows=25)
DUE = [20, 40, 70, 100, 130, 160]  # twice as many, then thirty more


def rows(num_rows=N):
    """A function that becomes rougher and noisier half-way."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(num_rows, D, generator=g, dtype=torch.float64) * 4 - 2
    late = (torch.arange(num_rows) >= num_rows // 2).double()
    y = ((1 + 2 * late) * X[:, 0]).sin() + (0.05 + 0.2 * late) * torch.randn(num_rows, generator=g, dtype=torch.float64)
    return X, y


def expert(batch=(2,), refit=REFIT, num_rows=40, mean=False):
    shape = torch.Size(batch)
    base = MaternKernel(nu=2.5, ard_num_dims=D, batch_shape=shape, lengthscale_prior=GammaPrior(3.0, 2.0))
    kernel = ScaleKernel(base, batch_shape=shape).double()
    likelihood = GaussianLikelihood(batch_shape=shape).double()
    with torch.no_grad():
        base.lengthscale = torch.linspace(0.7, 1.5, shape.numel() * D, dtype=torch.float64).reshape(*shape, 1, D)
        likelihood.noise = torch.full((*shape, 1), 0.1, dtype=torch.float64)
    linear = None
    if mean:
        linear = LinearMean(D, batch_shape=shape).double()
        for value in linear.parameters():
            torch.nn.init.zeros_(value)
    return WindowExpert(kernel, D, num_rows, likelihood, linear, refit)


def run(one, X, y, sizes):
    return in_blocks(lambda state, rows: one.update(state, X[rows], y[rows]), one.init(), sizes)


def by_hand(one, X, y, entry):
    """Every prediction by conditioning on the rows held then; at due rows a search on some of them by autograd."""
    one = copy.deepcopy(one.take(torch.tensor([entry])))
    held, found, vectors = [], [], []
    for t in range(len(y)):
        noise = one.likelihood.noise.detach()[0]
        with torch.no_grad():
            index = [*held, t]
            cov = one.kernel(X[index], X[index]).to_dense()[0] + noise * torch.eye(len(index), dtype=torch.float64)
            prior = torch.zeros(len(index), dtype=torch.float64) if one.mean is None else one.mean(X[index])[0]
            gain = torch.linalg.solve(cov[:-1, :-1], cov[:-1, -1])
            mean = prior[-1] + gain @ (y[held] - prior[:-1])
            variance = cov[-1, -1] - gain @ cov[:-1, -1]
            log_prob = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(y[t])
        found.append(torch.stack([mean, variance, log_prob]))
        if not torch.isnan(y[t]):
            held.append(t)
        if len(held) == 2 * one.num_rows:
            held = held[-one.num_rows :]
        if t + 1 in DUE:
            doubling = t + 1 < 2 * one.refit.every
            size, most = min(len(held), (2 if doubling else 1) * one.refit.num_rows), 30 if doubling else 3
            last = [held[round(float(i))] for i in np.linspace(0, len(held) - 1, size)]
            start = get_vectors(one)

            def evidence(vectors, rows):
                set_vectors_(one, vectors)
                cov = one.kernel(X[rows], X[rows]).to_dense() + one.likelihood.noise * torch.eye(len(rows)).double()
                prior = torch.zeros(1, len(rows)).double() if one.mean is None else one.mean(X[rows])
                return torch.distributions.MultivariateNormal(prior, cov).log_prob(y[rows])

            def loss(points, _, last=last, start=start, evidence=evidence):
                size = len(last)
                value = evidence(points, last)
                value = value + GammaPrior(3.0, 2.0).log_prob(one.kernel.base_kernel.lengthscale).sum()
                values = [p for p in one.parameters() if p.requires_grad]
                slopes = torch.cat([g.flatten() for g in torch.autograd.grad(value, values)])
                step = points - start
                value = value.detach() - 0.25 * step.square().sum(-1)
                return -value / size, -(slopes - 0.5 * step) / size

            end = minimize(loss, start, max_iterations=most, loss_tolerance=1e-5).point
            is_better = evidence(end, held).item() > evidence(start, held).item() + start.shape[1]
            vectors.append(end[0] if is_better else start[0])
            set_vectors_(one, vectors[-1].unsqueeze(0))
    return torch.stack(found, dim=-1), vectors


def close(got, want, tolerance=1e-8):
    torch.testing.assert_close(tuple(got), tuple(want), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.processor
@pytest.mark.parametrize("mean", [False, True])
def test_every_prediction_is_that_of_conditioning_and_searching_by_hand(mean):
    X, y = rows()
    y[[5, 19, 60]] = torch.nan
    one = expert(mean=mean)
    state, steps = run(one, X, y, (N,))
    for entry in range(2):
        want, vectors = by_hand(one, X, y, entry)
        close([field[entry] for field in steps], want, 1e-4)
        torch.testing.assert_close(state.hyperparameters[entry], vectors[-1], rtol=1e-4, atol=1e-4)
    assert (state.num_rows.tolist(), state.due.tolist()) == ([N, N], [160, 160])


def test_the_schedule_doubles_and_then_is_regular():
    X, y = rows()
    one, due, changes = expert(batch=()), [20], []
    state = one.init()
    for t in range(N):
        before = state
        state, _ = one.update(state, X[t : t + 1], y[t : t + 1])
        if not torch.equal(before.due, state.due):
            due.append(int(state.due))
        if not torch.equal(before.hyperparameters, state.hyperparameters):
            changes.append(t + 1)
    assert (due, changes[0]) == (DUE, DUE[0])
    assert len(changes) > 1
    assert set(changes) <= set(DUE)


def test_refits_follow_what_changes():
    X, y = rows(600)
    refits = (Refit(every=50), None)
    learned, fixed = (run(expert((), refit, num_rows=100), X, y, (600,)) for refit in refits)
    gain = (learned[1].log_prob - fixed[1].log_prob).detach()
    assert gain[100:300].mean() > 1.0
    assert gain[450:].mean() > 0.05
    assert fixed[0].hyperparameters.shape == (0,)


def test_the_expert_keeps_its_own_hyperparameters():
    X, y = rows()
    one = expert()
    before = get_vectors(one)
    run(one, X, y, (N,))
    assert torch.equal(get_vectors(one), before)
    assert all(value.grad is None for value in one.parameters())


@pytest.mark.parametrize("kernel", [RQKernel, PeriodicKernel, RBFKernel])
def test_any_kernel_is_refitted(kernel):
    X, y = rows()
    one = WindowExpert(ScaleKernel(kernel()).double(), D, 40, refit=REFIT)
    state, steps = run(one, X, y, (N,))
    assert bool(torch.isfinite(steps.log_prob).all())
    assert not torch.equal(state.hyperparameters, one.init().hyperparameters)


class Breaking(RBFKernel):
    """Raises, or computes no number, once its length scale is not the one that it had at first."""

    raises = True

    def forward(self, x1, x2, diag=False, **params):
        value = super().forward(x1, x2, diag=diag, **params)
        if float(self.lengthscale.detach().flatten()[0]) == 1.0:
            return value
        if self.raises:
            raise NumericalError("out of numbers")
        return value * torch.nan


@pytest.mark.parametrize("raises", [True, False])
def test_a_refit_that_fails_changes_nothing(raises):
    X, y = rows()
    kernel = Breaking(lengthscale_constraint=Interval(0.0, 2.0)).double()
    kernel.lengthscale = 1.0
    kernel.raises = raises
    one = WindowExpert(kernel, D, 40, refit=REFIT)
    state, got = run(one, X, y, (N,))
    kernel.raises = False
    _, want = run(WindowExpert(kernel, D, 40, one.likelihood), X, y, (N,))
    close(got, want, 1e-12)
    assert torch.equal(state.hyperparameters, one.init().hyperparameters)
    assert int(state.due) == 160


def test_a_factor_that_cannot_be_computed_keeps_what_was(monkeypatch):
    X, y = rows()
    one = expert(batch=())

    def refuse(*_):
        raise NumericalError("no factor")

    with monkeypatch.context() as patch:
        patch.setattr(window, "refactored", refuse)
        state, _ = run(one, X[:40], y[:40], (40,))
    assert torch.equal(state.hyperparameters, one.init().hyperparameters)
    assert int(state.num_used) == 40


def test_what_is_better_on_some_rows_only_is_not_taken():
    """One row says nothing of the others."""
    X, y = rows(90)
    y[::2] = torch.randn(45, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = expert((), Refit(every=90, num_rows=1), num_rows=90)
    before, _ = run(one, X[:89], y[:89], (89,))
    after, _ = one.update(before, X[89:], y[89:])
    vectors = after.hyperparameters.detach()
    fixed = expert((), None, num_rows=90)
    changed = copy.deepcopy(fixed)
    set_vectors_(changed, vectors.unsqueeze(0))
    assert float((changed.log_evidence(X, y) - fixed.log_evidence(X, y)).detach()) >= 0.0
    assert torch.equal(vectors, one.init().hyperparameters)


def test_hyperparameters_that_are_frozen_stay():
    X, y = rows()
    one = expert(batch=())
    one.likelihood.requires_grad_(False)
    state, _ = run(one, X, y, (N,))
    assert state.hyperparameters.shape == (3,)
    with pytest.raises(ValueError, match="no trainable"):
        WindowExpert(one.kernel.requires_grad_(False), D, 40, one.likelihood, refit=REFIT)


def test_settings_that_cannot_be():
    with pytest.raises(ValueError, match="every of Refit must be at least 1"):
        Refit(every=0)
    with pytest.raises(ValueError, match="refit_every of WindowGP must be at least 1"):
        WindowGP(refit_every=0)
    with pytest.raises(TypeError, match="refit_every of WindowGP must be a whole number"):
        WindowGP(refit_every=2.5)
