"""Streaming sparse processes: exact where all rows are inducing points, the batch bound where no point moves."""

import math
from functools import partial

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean

from gp_ensembles.numerics.gauss_hermite import normal_nodes
from gp_ensembles.papers.sparse import VFE, SparseGP
from studies.ie_gp.ssgp import Kernel, Old, Settings, StreamingSparseGP, absorb, refit
from studies.ie_gp.ssgp_classes import Sites, StreamingSparseClassifier, absorb_labels, expected, settled

NOISE, VARIANCE, SCALES = 0.04, 1.7, (0.3, 0.6)


def kernel():
    like = torch.zeros((), dtype=torch.float64)
    return Kernel(like.new_tensor(SCALES).log(), like + math.log(VARIANCE), like + math.log(NOISE))


def rows(num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = 2 * torch.rand(num_rows, 2, generator=generator, dtype=torch.float64)
    y = (3 * X[:, 0]).sin() + X[:, 1] + 0.2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, y - y.mean()


def dense(X, y, X_new):
    """Log evidence, and mean and variance of the function at new rows, of the exact process."""
    scales = X.new_tensor(SCALES)

    def covariance(A, B):
        return VARIANCE * (-0.5 * ((A[:, None] - B[None]) / scales).square().sum(-1)).exp()

    total = covariance(X, X) + NOISE * torch.eye(len(X), dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(y), total).log_prob(y)
    across = covariance(X_new, X)
    solved = torch.linalg.solve(total, across.mT)
    return evidence, solved.mT @ y, VARIANCE - (across * solved.mT).sum(-1)


def posterior(old, X_new):
    """Mean and variance of the function at new rows, by inverses."""
    projected = torch.linalg.solve(old.factor, kernel().covariance(old.knots, X_new))
    precision = old.precision + torch.eye(len(old.knots), dtype=torch.float64)
    mean = projected.mT @ torch.linalg.solve(precision, old.shift)
    variance = VARIANCE - projected.square().sum(0) + (projected * torch.linalg.solve(precision, projected)).sum(0)
    return mean, variance


def test_with_all_rows_inducing_it_is_the_exact_process():
    (X, y), (X_new, _) = rows(25), rows(6, seed=1)
    old, total = Old.nothing(X), 0.0
    for end in (10, 17, 25):
        start = len(old.knots)
        bound, old = absorb(kernel(), X[:end], X[start:end], y[start:end], old, 0.0)
        total = total + bound
        evidence, mean, variance = dense(X[:end], y[:end], X_new)
        torch.testing.assert_close(total, evidence, rtol=0, atol=1e-6)
        for ours, exact in zip(posterior(old, X_new), (mean, variance), strict=True):
            torch.testing.assert_close(ours, exact, rtol=0, atol=1e-6)


def test_one_batch_has_the_collapsed_bound_of_the_batch_method():
    X, y = rows(60)
    knots = X[::6].clone()
    covariance = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
    covariance.outputscale, covariance.base_kernel.lengthscale = VARIANCE, X.new_tensor(SCALES)
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE
    model = SparseGP(X, y, knots, covariance, likelihood, ZeroMean(), approximation=VFE, nugget=0.0)
    bound, _ = absorb(kernel(), knots, X, y, Old.nothing(X), 0.0)
    torch.testing.assert_close(bound, model.objective().detach(), rtol=1e-6, atol=0)


def test_with_nothing_moving_many_batches_say_what_one_says():
    (X, y), (X_new, _) = rows(80), rows(6, seed=1)
    knots = X[::8].clone()
    together, after = absorb(kernel(), knots, X, y, Old.nothing(X), 0.0)
    old, total = Old.nothing(X), 0.0
    for part, targets in zip(X.split(23), y.split(23), strict=True):
        bound, old = absorb(kernel(), knots, part, targets, old, 0.0)
        total = total + bound
    torch.testing.assert_close(total, together, rtol=0, atol=1e-6)
    torch.testing.assert_close(posterior(old, X_new), posterior(after, X_new), rtol=0, atol=1e-7)


def test_the_bound_stays_below_the_evidence_when_points_move():
    X, y = rows(60)
    first, old = absorb(kernel(), X[:20:2], X[:30], y[:30], Old.nothing(X))
    second, _ = absorb(kernel(), X[30:50:2], X[30:], y[30:], old)
    evidence, _, _ = dense(X, y, X[:1])
    assert float(first + second) < float(evidence)


def test_gradients_are_those_of_differences():
    X, y = rows(40)
    _, old = absorb(kernel(), X[:8], X[:20], y[:20], Old.nothing(X))
    own = kernel()

    def bound(lengthscale, variance, noise, knots):
        return absorb(Kernel(lengthscale, variance, noise), knots, X[20:], y[20:], old)[0]

    inputs = [part.clone().requires_grad_() for part in (*own, X[18:26])]
    assert torch.autograd.gradcheck(bound, inputs, atol=1e-5, rtol=1e-4)


def test_refitting_climbs_and_the_stream_predicts_one_row_ahead():
    X, y = rows(300)
    start, knots = kernel(), X[:15]
    before, _ = absorb(start, knots, X[:100], y[:100], Old.nothing(X))
    own, old = refit(start, knots, partial(absorb, X=X[:100], y=y[:100], old=Old.nothing(X)), 100, 20)
    after, _ = absorb(own, old.knots, X[:100], y[:100], Old.nothing(X))
    assert float(after) > float(before) + 1
    settings = Settings(15, batch=60, first_iterations=20, iterations=5)
    model = StreamingSparseGP.fit(X[:100], y[:100], settings, torch.Generator().manual_seed(0))
    targets = y[100:].clone()
    targets[7] = math.nan
    mean, log_prob = model.observe(X[100:], targets)
    assert bool((log_prob.isnan() == targets.isnan()).all())
    seen = ~targets.isnan()
    assert float((mean - targets)[seen].square().mean()) < 0.1 * float(y.var())
    assert float(log_prob[seen].mean()) == pytest.approx(-0.5 * math.log(2 * math.pi * math.e * 0.04), abs=0.4)


def known(X, y, old, knots=None):
    """The sites of labels, and what is known after them."""
    return settled(kernel(), X if knots is None else knots, X, y, old, Sites.of(0 * y, 0 * y, y))


def test_the_bound_of_labels_is_at_its_top_and_just_below_the_evidence():
    """With all rows inducing, of three rows: the evidence by quadrature on a grid."""
    X, y = rows(3)[0], torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    sites, found = known(X, y, Old.nothing(X))
    for factor in (0.9, 1.1):
        other = Sites(sites.precision * factor, sites.shift / factor)
        assert absorb_labels(kernel(), X, X, y, Old.nothing(X), other).bound < found.bound
    nodes, weights = normal_nodes(40, 3, X, most_nodes=40**3)
    f = nodes @ torch.linalg.cholesky(kernel().covariance(X, X)).mT
    evidence = (weights * ((2 * y - 1) * f).sigmoid().prod(-1)).sum().log()
    assert 0 < float(evidence - found.bound) < 0.02


def test_a_label_between_refits_is_absorbed_as_a_batch_of_one():
    X, _ = rows(40)
    y = (X.sum(-1) > 2).to(X)
    _, first = known(X[:30], y[:30], Old.nothing(X), X)
    _, one = known(X[30:31], y[30:31], first.old, X)
    model = StreamingSparseClassifier(kernel(), first.old, Settings(40), None)
    model.observe(X[30:31], y[30:31])
    chance, _ = model.observe(X[30:31], y[30:31])
    torch.testing.assert_close(chance, expected(torch.sigmoid, one.mean, one.variance), rtol=0, atol=1e-4)
