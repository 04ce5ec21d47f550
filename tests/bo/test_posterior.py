"""The mixture posterior against brute force: moments, quantiles, densities, draws."""

import math

import numpy as np
import pytest
import torch
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from linear_operator.utils.warnings import NumericalWarning
from scipy import optimize, stats
from torch import Size
from torch.testing import assert_close

from gp_ensembles.bo import MixturePosterior
from gp_ensembles.bo.posterior import covariance_factors
from tests.bo.contract_cases import numpy_draws

F64 = torch.float64
M, Q = 4, 3
WEIGHTS = {"even": (0.4, 0.3, 0.2, 0.1), "one": (0.97, 0.01, 0.01, 0.01), "dead": (0.0, 0.6, 0.0, 0.4)}


def posterior(weights=WEIGHTS["even"], batch=(), num_outputs=1, seed=0, dtype=F64):
    g = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(*batch, M, Q, num_outputs, generator=g, dtype=F64)
    factor = torch.randn(*batch, M, num_outputs, Q, Q, generator=g, dtype=F64)
    covariance = factor @ factor.mT + 0.1 * torch.diag_embed(torch.ones(Q, dtype=F64))
    own = torch.tensor(weights, dtype=F64).log()
    log_weights = own if num_outputs == 1 else torch.stack([own.roll(o) for o in range(num_outputs)])
    return MixturePosterior(log_weights.to(dtype), mean.to(dtype), covariance.to(dtype))


@pytest.mark.parametrize(("weights", "num_outputs"), [("even", 2), ("one", 1), ("dead", 2)])
def test_moments_are_those_of_draws(weights, num_outputs):
    p = posterior(WEIGHTS[weights], num_outputs=num_outputs)
    draws = numpy_draws(p, 200_000)
    error = 5 / math.sqrt(len(draws))
    np.testing.assert_allclose(p.mean, draws.mean(0), atol=error * draws.std())
    np.testing.assert_allclose(p.variance, draws.var(0), rtol=0.02)
    for o in range(num_outputs):
        np.testing.assert_allclose(p.covariance[o], np.cov(draws[..., o].T), atol=0.02 * draws.var())
    np.testing.assert_allclose(p.distribution.mean.reshape(p.mean.shape), p.mean)
    np.testing.assert_allclose(p.distribution.variance.reshape(p.mean.shape), p.variance)
    sampled = get_sampler(p, Size([2**15]), seed=0)(p)
    np.testing.assert_allclose(sampled.mean(0), p.mean, atol=0.02 * draws.std())
    if num_outputs == 2:
        assert float(torch.corrcoef(sampled[:, 0].mT)[0, 1].abs()) < 0.02


def test_quantiles_and_cdf_are_those_of_each_point():
    p = posterior(batch=(2,), num_outputs=2)
    levels = torch.tensor([0.01, 0.5, 0.99], dtype=F64)
    quantiles = p.quantile(levels)
    assert (quantiles.shape, p.quantile(torch.tensor(0.5)).shape) == ((3, 2, Q, 2), (2, Q, 2))
    every = p.own_log_weights.exp().numpy()
    for index in np.ndindex(2, Q, 2):
        b, q, o = index
        weights = every[o]
        mean, sd = p.component_mean[b, :, q, o].numpy(), p.component_variance[b, :, q, o].sqrt().numpy()

        def cdf(x, mean=mean, sd=sd, weights=weights):
            return float((weights * stats.norm.cdf(x, mean, sd)).sum())

        for k, level in enumerate(levels.tolist()):
            expected = optimize.brentq(lambda x, cdf=cdf, level=level: cdf(x) - level, -60, 60, xtol=1e-12)
            assert float(quantiles[(k, *index)]) == pytest.approx(expected, abs=1e-8)
    assert_close(p.marginals.cdf(quantiles.flatten(1)), levels.unsqueeze(-1).expand(3, 4 * Q))
    density = p.density(torch.zeros(2, Q, 2, dtype=F64))
    mean, sd = p.component_mean, p.component_variance.sqrt()
    expected = (torch.as_tensor(every).mT.unsqueeze(-2) * torch.as_tensor(stats.norm.pdf(0, mean, sd))).sum(-3)
    assert_close(density, expected)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_joint_density(num_outputs):
    p = posterior(num_outputs=num_outputs)
    value = torch.randn(5, Q, num_outputs, generator=torch.Generator().manual_seed(3), dtype=F64)
    for s in range(5):
        terms = p.own_log_weights.numpy().copy()
        for m, o in np.ndindex(M, num_outputs):
            normal = stats.multivariate_normal(p.component_mean[m, :, o], p.component_covariance[m, o])
            terms[o, m] += normal.logpdf(value[s, :, o])
        assert float(p.log_prob(value)[s]) == pytest.approx(np.logaddexp.reduce(terms, 1).sum(), rel=1e-10)


@pytest.mark.parametrize(
    ("weights", "batch", "dtype"),
    [("even", (), torch.float32), ("even", (2, 3), F64), ("one", (2, 3), torch.float32), ("dead", (), F64)],
)
def test_draws_have_the_mixtures_law(weights, batch, dtype):
    """Every point against its exact distribution function, pairs of points against their covariance."""
    p = posterior(WEIGHTS[weights], batch, dtype=dtype)
    for sampler in (IIDNormalSampler(Size([20_000]), seed=0), get_sampler(p, Size([8192]), seed=1)):
        draws = sampler(p)
        assert (draws.dtype, draws.shape) == (dtype, (*sampler.sample_shape, *batch, Q, 1))
        uniform = p.marginals.cdf(draws.flatten(1))
        levels = torch.linspace(0.02, 0.98, 25, dtype=dtype)
        shares = (uniform.unsqueeze(-1) <= levels).to(dtype).mean(0)
        assert float((shares - levels).abs().max()) < 4.5 * 0.5 / math.sqrt(len(draws))
        centered = (draws - draws.mean(0)).squeeze(-1)
        covariance = torch.einsum("s...i,s...j->...ij", centered, centered) / len(draws)
        assert_close(covariance, p.covariance.squeeze(-3), rtol=0.1, atol=0.3)


def test_weights_of_each_batch_entry_select_its_experts():
    """The same moments with weights of their own: the path that fantasies take."""
    p = posterior()
    log_weights = torch.stack([torch.tensor(w, dtype=F64).log() for w in WEIGHTS.values()])
    many = MixturePosterior(log_weights, p.component_mean.expand(3, M, Q, 1), p.component_covariance)
    draws = SobolQMCNormalSampler(Size([256]), seed=4)(many)
    for b, weights in enumerate(log_weights):
        alone = MixturePosterior(weights, p.component_mean, p.component_covariance)
        expected = SobolQMCNormalSampler(Size([256]), seed=4)(alone)
        assert_close(draws[:, b], expected, rtol=1e-12, atol=1e-12)


def test_the_first_points_of_a_longer_batch_are_drawn_alike():
    """Sequential greedy batches lean on it: base normals run point by point behind the one that selects the expert."""
    p = posterior()
    fewer = MixturePosterior(p.log_weights, p.component_mean[:, :2], p.component_covariance[..., :2, :2])
    base = torch.randn(50, 1 + Q, generator=torch.Generator().manual_seed(5), dtype=F64)
    long = p.rsample_from_base_samples(Size([50]), base)
    short = fewer.rsample_from_base_samples(Size([50]), base[:, :3])
    assert_close(long[:, :2], short)


def test_what_does_not_fit_is_said():
    p = posterior()
    with pytest.raises(ValueError, match="do not match"):
        MixturePosterior(p.log_weights[:2], p.component_mean, p.component_covariance)
    with pytest.raises(ValueError, match="base samples must have shape"):
        p.rsample_from_base_samples(Size([2]), torch.zeros(2, Q, dtype=F64))


def test_a_covariance_that_is_zero_has_a_factor():
    """At rows that are known without noise; in a batch beside others, which are as they are alone."""
    known = torch.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=F64)
    with pytest.warns(NumericalWarning, match="jitter"):
        factors = covariance_factors(torch.stack([known, torch.zeros_like(known)]))
    assert_close(factors[0] @ factors[0].mT, known, rtol=0, atol=1e-6)
    assert float(factors[1].abs().max()) < 1e-3
    close_by = torch.ones_like(known)
    with pytest.warns(NumericalWarning, match="jitter"):
        small, large = covariance_factors(torch.stack([1e-16 * close_by, 1e16 * close_by]))
    assert_close(1e16 * small, large)  # jitter is relative
