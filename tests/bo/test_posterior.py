"""The mixture posterior against brute force: moments, quantiles, densities, draws."""

import math

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import IIDNormalSampler, SobolQMCNormalSampler
from linear_operator.utils.warnings import NumericalWarning
from scipy import optimize, stats
from torch import Size
from torch.testing import assert_close

from gp_ensembles.bo import MixturePosterior
from gp_ensembles.bo.posterior import covariance_factors

F64 = torch.float64
M, Q = 4, 3
WEIGHTS = {"even": (0.4, 0.3, 0.2, 0.1), "one": (0.97, 0.01, 0.01, 0.01), "dead": (0.0, 0.6, 0.0, 0.4)}


def posterior(weights=WEIGHTS["even"], batch=(), num_outputs=1, seed=0, dtype=F64):
    g = torch.Generator().manual_seed(seed)
    mean = 2 * torch.randn(*batch, M, Q, num_outputs, generator=g, dtype=F64)
    factor = torch.randn(*batch, M, num_outputs, Q, Q, generator=g, dtype=F64)
    covariance = factor @ factor.mT + 0.1 * torch.diag_embed(torch.ones(Q, dtype=F64))
    log_weights = torch.tensor(weights, dtype=F64).log()
    return MixturePosterior(log_weights.to(dtype), mean.to(dtype), covariance.to(dtype))


def numpy_draws(p, num, seed=0):
    """Draws of all points of a posterior without batch, (num, Q, O): expert by expert."""
    rng = np.random.default_rng(seed)
    weights = p.log_weights.exp().double().numpy()
    counts = rng.multinomial(num, weights / weights.sum())
    outputs = range(p.component_mean.shape[-1])
    moments = p.component_mean.double().numpy(), p.component_covariance.double().numpy()
    parts = [
        np.stack([rng.multivariate_normal(mean[:, o], covariance[o], count) for o in outputs], axis=-1)
        for mean, covariance, count in zip(*moments, counts, strict=True)
    ]
    return np.concatenate(parts)


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
    if num_outputs == 2:  # outputs are linked through the experts' means
        full = p.distribution.covariance_matrix.unflatten(0, (2, Q)).unflatten(-1, (2, Q))
        cross = np.cov(draws[..., 0].T, draws[..., 1].T)[:Q, Q:]
        np.testing.assert_allclose(full[0, :, 1, :], cross, atol=0.02 * draws.var())


def test_quantiles_and_cdf_are_those_of_each_point():
    p = posterior(batch=(2,), num_outputs=2)
    levels = torch.tensor([0.01, 0.5, 0.99], dtype=F64)
    quantiles = p.quantile(levels)
    assert (quantiles.shape, p.quantile(torch.tensor(0.5)).shape) == ((3, 2, Q, 2), (2, Q, 2))
    weights = p.log_weights.exp().numpy()
    for index in np.ndindex(2, Q, 2):
        b, q, o = index
        mean, sd = p.component_mean[b, :, q, o].numpy(), p.component_variance[b, :, q, o].sqrt().numpy()

        def cdf(x, mean=mean, sd=sd):
            return float((weights * stats.norm.cdf(x, mean, sd)).sum())

        for k, level in enumerate(levels.tolist()):
            expected = optimize.brentq(lambda x, cdf=cdf, level=level: cdf(x) - level, -60, 60, xtol=1e-12)
            assert float(quantiles[(k, *index)]) == pytest.approx(expected, abs=1e-8)
    assert_close(p.cdf(quantiles), levels.reshape(-1, 1, 1, 1).expand(3, 2, Q, 2))
    density = p.density(torch.zeros(2, Q, 2, dtype=F64))
    mean, sd = p.component_mean, p.component_variance.sqrt()
    expected = (torch.as_tensor(weights)[:, None, None] * torch.as_tensor(stats.norm.pdf(0, mean, sd))).sum(-3)
    assert_close(density, expected)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_joint_density(num_outputs):
    p = posterior(num_outputs=num_outputs)
    value = torch.randn(5, Q, num_outputs, generator=torch.Generator().manual_seed(3), dtype=F64)
    for s in range(5):
        terms = p.log_weights.tolist()
        for m, o in np.ndindex(M, num_outputs):
            normal = stats.multivariate_normal(p.component_mean[m, :, o], p.component_covariance[m, o])
            terms[m] += normal.logpdf(value[s, :, o])
        assert float(p.log_prob(value)[s]) == pytest.approx(np.logaddexp.reduce(terms), rel=1e-10)


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
        uniform = p.cdf(draws)
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


def test_affine_transforms_of_outputs_are_exact():
    p = posterior(num_outputs=2, batch=(3,))
    weights = torch.tensor([0.5, -2.0], dtype=F64)
    transform = ScalarizedPosteriorTransform(weights, offset=1.5)
    scalar = p.map_components(lambda normal: transform(normal))
    assert_close(scalar.mean, 1.5 + (p.mean @ weights).unsqueeze(-1))
    first, second = p.component_covariance.unbind(-3)
    assert_close(scalar.component_covariance.squeeze(-3), 0.25 * first + 4 * second)
    part = p.select_outputs([1])
    assert_close(part.mean, p.mean[..., [1]])


def test_what_does_not_fit_is_said():
    p = posterior()
    with pytest.raises(ValueError, match="do not fit"):
        MixturePosterior(p.log_weights[:2], p.component_mean, p.component_covariance)
    with pytest.raises(ValueError, match="base samples must have shape"):
        p.rsample_from_base_samples(Size([2]), torch.zeros(2, Q, dtype=F64))


def test_outputs_with_weights_of_their_own():
    """Each is the mixture of it alone; together they are the mixture of all choices of an expert by each of them."""
    alone = [posterior(WEIGHTS[name], seed=seed) for seed, name in enumerate(("even", "one"))]
    mean = torch.cat([p.component_mean for p in alone], -1)
    covariance = torch.cat([p.component_covariance for p in alone], -3)
    weights = torch.stack([p.log_weights for p in alone])
    both = MixturePosterior(weights, mean, covariance, independent_outputs=True)
    joined, levels = both.joined(), torch.tensor([0.1, 0.9], dtype=F64)
    value = torch.randn(5, Q, 2, generator=torch.Generator().manual_seed(3), dtype=F64)
    for p in (both, joined):
        for name in ("mean", "variance", "quantile", "cdf", "density"):
            parts = [getattr(q, name) if name in ("mean", "variance") else None for q in alone]
            if name in ("mean", "variance"):
                assert_close(getattr(p, name), torch.cat(parts, -1))
        assert_close(p.quantile(levels), torch.cat([q.quantile(levels) for q in alone], -1))
        assert_close(p.cdf(value), torch.cat([q.cdf(value[..., [o]]) for o, q in enumerate(alone)], -1))
        assert_close(p.log_prob(value), sum(q.log_prob(value[..., [o]]) for o, q in enumerate(alone)))
        assert_close(p.covariance, torch.cat([q.covariance for q in alone]))
    assert_close(both.distribution.covariance_matrix, joined.distribution.covariance_matrix, rtol=1e-9, atol=1e-9)
    draws = get_sampler(both, Size([2**15]), seed=0)(both)
    assert_close(draws.mean(0), both.mean, rtol=0, atol=0.02)
    for o in range(2):
        assert_close(draws[..., o].mT.cov(), both.covariance[o], rtol=0.02, atol=0.1)
        assert float(torch.corrcoef(draws[:, 0].mT)[0, 1].abs()) < 0.02
    assert_close(both.select_outputs([1]).quantile(levels), alone[1].quantile(levels))
    many = both.members(400)
    assert_close(many.mixture_mean, both.mean, rtol=0, atol=0.02)
    assert_close(many.mixture_variance, both.variance, rtol=0.02, atol=0.02)


def test_a_covariance_that_is_zero_has_a_factor():
    """At rows that are known without noise; in a batch beside others, which are as they are alone."""
    known = torch.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=F64)
    with pytest.warns(NumericalWarning, match="jitter"):
        factors = covariance_factors(torch.stack([known, torch.zeros_like(known)]))
    assert_close(factors[0] @ factors[0].mT, known, rtol=0, atol=1e-6)
    assert float(factors[1].abs().max()) < 1e-3
