"""Pareto-smoothed importance sampling: numbers of another library, closed forms, tails, bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import genpareto

from gp_ensembles.numerics.pareto import smooth_weights
from gp_ensembles.papers.fusion.diagnostics import psis_loo
from tests.papers.fusion.cases import F64, normal


def test_numbers_of_arviz(archive):
    frozen = archive("fusion_psis")
    log_likelihood = frozen["log_lik"].mT
    log_prob, pareto_k = psis_loo(log_likelihood)
    torch.testing.assert_close(log_prob, frozen["loo_pointwise"], rtol=1e-11, atol=0.0)
    torch.testing.assert_close(pareto_k, frozen["pareto_k"], rtol=1e-11, atol=0.0)
    weights = smooth_weights(-log_likelihood)[0]
    torch.testing.assert_close(weights.mT, frozen["smoothed_log_weights"], rtol=1e-11, atol=0.0)
    assert psis_loo(log_likelihood.unflatten(0, (4, 500)))[0].sum(-1).shape == (4,)
    assert psis_loo(normal(50, 0))[0].shape == (0,)


def smoothed_by_hand(ratios, length):
    """Pareto smoothing of one column, draw by draw in numpy and scipy: log weights and k."""
    x = np.sort(ratios.numpy() - ratios.numpy().max())
    cutoff = math.exp(x[-length - 1])
    excess = np.exp(x[-length:]) - cutoff
    # Zhang and Stephens (2009): posterior mean of b = k / scale over a grid, whose weights are profile likelihoods.
    quartile, largest = excess[math.floor(length / 4 + 0.5) - 1], excess[-1]
    num_points = 30 + math.floor(math.sqrt(length))
    points = [1 / largest + (1 - math.sqrt(num_points / (i + 0.5))) / (3 * quartile) for i in range(num_points)]
    shapes = [float(np.mean(np.log1p(-b * excess))) for b in points]
    profiles = np.array([length * (math.log(-b / k) - k - 1) for b, k in zip(points, shapes, strict=True)])
    posterior = np.exp(profiles - profiles.max()) / np.exp(profiles - profiles.max()).sum()
    posterior = np.where(posterior < 10 * np.finfo(float).eps, 0.0, posterior)
    b = float(posterior @ np.array(points) / posterior.sum())
    k = float(np.mean(np.log1p(-b * excess)))
    scale, shrunk = -k / b, (length * k + 5) / (length + 10)
    tail = genpareto.ppf((np.arange(length) + 0.5) / length, shrunk, scale=scale)
    x[-length:] = np.minimum(np.log(tail + cutoff), 0.0)
    return x - np.log(np.exp(x).sum()), shrunk


# ceil(min(0.2 S, 3 sqrt(S))) by hand: a fifth of the draws up to S = 225, 3 sqrt(S) beyond.
def test_the_tail_of_few_draws_is_a_fifth_of_them():
    """The rule of Vehtari et al. (2024) and ArviZ; results are those of a plain loop, and only the tail changes."""
    for num_draws, length in {25: 5, 60: 12, 100: 20, 151: 31, 224: 45, 500: 68}.items():
        ratios = 1.5 * normal(num_draws, 1, seed=num_draws)
        weights, pareto_k = smooth_weights(ratios)
        expected, shape = smoothed_by_hand(ratios[:, 0], length)
        assert float(pareto_k) == pytest.approx(shape, rel=1e-9)
        order = ratios[:, 0].argsort()
        np.testing.assert_allclose(weights[order, 0].numpy(), expected, rtol=1e-9)
        moved = (weights - ratios)[order, 0]
        below, tail = moved[:-length], moved[-length:-1]  # the largest may have been cut to what it was
        assert float(below.max() - below.min()) < 1e-12
        assert bool(((tail - below[0]).abs() > 1e-9).all())


def test_bad_ratios_are_refused():
    for ratios, message in [
        (torch.tensor([[0.0], [math.nan]], dtype=F64), "finite"),
        (torch.tensor([[0.0], [math.inf]], dtype=F64), "finite"),
        (torch.full((5, 1), -math.inf, dtype=F64), "ratio of zero"),
        (torch.zeros(5, dtype=F64), "shape"),
        (torch.zeros(0, 5, dtype=F64), "shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            smooth_weights(ratios)
    with pytest.raises(ValueError, match="log likelihoods must be finite"):
        psis_loo(torch.tensor([[0.0], [-math.inf]], dtype=F64))
