"""Where first rows are embedded: principal components, and the batch objective, against dense algebra."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.papers.gplvm import first_rows
from gp_ensembles.papers.gplvm.first_rows import fit_batch, log_posterior, principal_components


def objective(omega, X, Y, prior_variance, noise, latent_variance):
    return log_posterior(omega, X, Y, Y.shape[1], prior_variance, noise, latent_variance)[0]


def normals(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_scores_are_whitened_and_in_a_sign_of_their_own(generator):
    Y = normals(generator, 30, 4) @ normals(generator, 4, 4)
    found, mean = principal_components(Y, 3)
    torch.testing.assert_close(mean, Y.mean(0))
    torch.testing.assert_close(found.mT @ found / 30, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(found.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    # Of all whitened scores of three columns these explain the most: the share of the three largest eigenvalues.
    loadings = Y.mT @ found / 30
    eigenvalues = torch.linalg.eigvalsh(torch.cov(Y.mT, correction=0)).flip(0)
    torch.testing.assert_close(loadings.square().sum(0), eigenvalues[:3])
    assert bool((loadings.gather(0, loadings.abs().argmax(0, keepdim=True)) > 0).all())
    torch.testing.assert_close(principal_components(Y.flip(0), 3)[0].flip(0), found)


def test_too_little_for_the_components_is_said():
    for Y, num_latent, words in [
        (torch.zeros(5, 3), 2, "vary in 0 directions"),
        (torch.arange(15.0).reshape(5, 3), 2, "vary in 1 directions"),
        (torch.ones(2, 3), 2, "2 rows"),
        (torch.ones(9, 1), 2, "1 columns"),
        (torch.ones(9, 1), 0, "num_latent=0"),
    ]:
        with pytest.raises(ValueError, match=words):
            principal_components(Y.double(), num_latent)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(4, 3), (12, 2), (3, 9)])
def test_the_objective_is_the_dense_one(generator, num_rows, num_columns):
    omega, X, Y = (normals(generator, *shape) for shape in ((2, 3, 2), (2, num_rows, 2), (num_rows, num_columns)))
    prior_variance, noise = torch.tensor([[0.7, 2.0], [0.3, 1e-3]], dtype=torch.float64)
    found = objective(omega, X, Y, prior_variance, noise, 1.7)
    for expert in range(2):
        angles = (X[expert] @ omega[expert].mT).numpy()
        Phi = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1) / math.sqrt(3)
        covariance = float(prior_variance[expert]) * Phi @ Phi.T + float(noise[expert]) * np.eye(num_rows)
        dense = multivariate_normal(cov=covariance).logpdf(Y.numpy().T).sum()
        dense += norm(scale=math.sqrt(1.7)).logpdf(X[expert].numpy()).sum()
        assert float(found[expert]) == pytest.approx(dense, rel=1e-10)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(4, 3), (12, 2), (3, 9)])
def test_the_closed_gradient_is_autograds(generator, num_rows, num_columns, monkeypatch):
    """What the search is given, at a point of its own: latent inputs and the logarithms of both variances."""
    omega, Y = normals(generator, 2, 3, 2), normals(generator, num_rows, num_columns)
    losses = []

    def minimizing(loss, point, **options):
        losses.append(loss)
        return minimize(loss, point, **options)

    monkeypatch.setattr(first_rows, "minimize", minimizing)
    fit_batch(omega, normals(generator, num_rows, 2), Y, 1.7, max_iterations=1)
    (loss,) = losses
    point = normals(generator, 2, 2 * num_rows + 2).requires_grad_()
    X, scales = point.split([2 * num_rows, 2], dim=-1)
    prior_variance, noise = scales.exp().unbind(-1)
    value = objective(omega, X.unflatten(-1, (num_rows, 2)), Y, prior_variance, noise + 1e-6, 1.7)
    (slope,) = torch.autograd.grad(value.sum(), point)
    with torch.no_grad():
        found = loss(point, torch.arange(2))
    torch.testing.assert_close(-found[0], value.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(-found[1], slope, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_columns", [3, 40])
def test_the_fit_is_stationary_and_better_than_its_start(generator, num_columns):
    omega = normals(generator, 3, 4, 1)
    t = torch.linspace(-1.5, 1.5, 15, dtype=torch.float64).unsqueeze(-1)
    Y = (t * normals(generator, num_columns)).sin() + 0.1 * normals(generator, 15, num_columns)
    fit = fit_batch(omega, t, Y, max_iterations=2000)
    start = objective(omega, t.expand(3, -1, -1), Y, *torch.tensor([[1.0], [0.1]]).double().expand(2, 3), 1.0)
    assert bool((fit.objective > start).all())
    assert bool(fit.converged.all())
    # The rows' root of fewer columns has changed nothing.
    again = objective(omega, fit.embedding, Y, fit.prior_variance, fit.noise, 1.0)
    torch.testing.assert_close(again, fit.objective)
    X = fit.embedding.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(omega, X, Y, fit.prior_variance, fit.noise, 1.0).sum(), X)
    assert float(gradient.abs().max()) < 0.05 * num_columns
