"""Recalibrated distributions against integrals over a fine grid of their own density."""

import numpy as np
import pytest
import torch

from gp_ensembles.calibration.recalibration import map_components
from gp_ensembles.distributions import Mixture, Recalibrated, StudentTMixture
from gp_ensembles.distributions.quadrature import at_nodes, cdf_by_pieces, crps_at_nodes, simplified
from gp_ensembles.metrics.scores import crps_mixture

M, N = 4, 5


def draws(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + len(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def base(kind):
    weights, mean, variance = draws(M).log_softmax(0), 0.5 * draws(M, N), 0.2 + draws(M, N).square()
    if kind == "normal":
        return Mixture(weights, mean, variance)
    df = torch.tensor([[3.0], [4.0], [8.0], [torch.inf]], dtype=torch.float64).expand(M, N)
    return StudentTMixture(draws(M, N).log_softmax(0), mean, variance, df)


def recalibrated(kind, share):
    """Maps that are random but for the identity, which has the rest of the weight."""
    components = map_components(torch.zeros(1))
    weights = share * (3 * draws(63, N, seed=1)).softmax(0)
    weights[0] += 1 - share
    return Recalibrated(base(kind), weights.log(), *components)


def fine_grid(distribution):
    t = torch.linspace(-14, 14, 20001, dtype=torch.float64).unsqueeze(-1)
    mean, scale = distribution.base.mean, 0.05 * distribution.base.stddev
    return mean + scale * t.sinh(), scale * t.cosh() * (t[1] - t[0])


CASES = pytest.mark.parametrize(("kind", "share"), [(k, s) for k in ("normal", "student") for s in (0.02, 1.0)])


@CASES
def test_density_distribution_function_and_moments_belong_together(kind, share):
    distribution = recalibrated(kind, share)
    y, length = fine_grid(distribution)
    mass = distribution.log_prob(y).exp() * length
    np.testing.assert_allclose(mass.sum(0), 1, atol=2e-5)  # the density jumps at normal scores of 5
    np.testing.assert_allclose(mass.cumsum(0)[10000], distribution.cdf(y[10000]) + mass[10000] / 2, atol=2e-5)
    mean = (y * mass).sum(0)
    variance = ((y - mean).square() * mass).sum(0)
    # Nodes are 0.06 deviations apart at the center and components as narrow as 0.2 of the base's.
    close = {0.02: 2e-4, 1.0: 4e-3}[share]
    got = distribution.moments()
    np.testing.assert_allclose((got[0] - mean) / distribution.base.stddev, 0, atol=close)
    # In heavy tails the kink at normal scores of 5 stands far out, between distant nodes: measured, up to 1.3 %.
    np.testing.assert_allclose(got[1], variance, rtol=5 * close if kind == "normal" else 0.02)
    torch.testing.assert_close((distribution.mean, distribution.stddev.square()), (got[0], distribution.variance))


@CASES
def test_quantiles_invert_the_distribution_function(kind, share):
    distribution = recalibrated(kind, share)
    p = torch.tensor([1e-6, 0.05, 0.5, 0.9, 0.999], dtype=torch.float64).unsqueeze(-1)
    x = distribution.quantile(p)
    torch.testing.assert_close(distribution.cdf(x), p.expand(-1, N), rtol=1e-9, atol=1e-12)
    assert bool((distribution.quantile(p * torch.tensor([0.0])) == -torch.inf).all())
    assert bool(torch.isposinf(distribution.quantile(1.0)).all())


@CASES
def test_crps_is_the_integral(kind, share):
    distribution = recalibrated(kind, share)
    y = 2 * draws(N, seed=5)
    plain = distribution.base
    grid, length = fine_grid(distribution)
    grid = grid - plain.mean + y  # the step stands at a node, which counts by half on either side
    step = torch.where(grid == y, 0.5, (grid > y).double())
    cdf = distribution.cdf(grid)
    want = ((cdf.square() * (1 - step) + (1 - cdf).square() * step) * length).sum(0)
    for own in (None, crps_mixture(*plain, y) if isinstance(plain, Mixture) else None):
        mean, variance, got = distribution.moments_and_crps(y, own)
        np.testing.assert_allclose((got - want) / plain.stddev, 0, atol=2e-3)
        assert torch.equal(torch.stack(distribution.moments()), torch.stack([mean, variance]))
    y[2] = torch.nan
    assert distribution.moments_and_crps(y)[2].isnan().nonzero().flatten().tolist() == [2]


def crps_by_quadrature(mixture, y):
    found = at_nodes(mixture)
    return crps_at_nodes(y, found, found.cdf, found.mean)


def test_crps_without_a_closed_form():
    normal, y = base("normal"), 3 * draws(N, seed=6)
    error = (crps_by_quadrature(normal, y) - crps_mixture(*normal, y)) / normal.stddev
    assert float(error.abs().max()) < 5e-4
    far = normal.mean + 1000 * normal.stddev
    torch.testing.assert_close(crps_by_quadrature(normal, far), crps_mixture(*normal, far), rtol=1e-5, atol=0)


def test_many_components_are_simplified():
    generator = torch.Generator().manual_seed(0)
    normals = torch.randn(4, 200, 40, generator=generator, dtype=torch.float64)
    weights, mean, variance = (2 * normals[0]).log_softmax(0), 0.5 * normals[1], (0.5 * normals[2]).exp()
    df = torch.where(normals[3] > 0, torch.inf, 4.0)
    many = StudentTMixture(weights, mean, variance, df)
    few = simplified(many)
    assert few.component_mean.shape == (66, 40)
    torch.testing.assert_close(few.moments(), many.moments())
    # The lightest have some 5 % of the weight.
    y = torch.linspace(-8, 8, 101, dtype=torch.float64).unsqueeze(-1).expand(-1, 40)
    assert float((few.cdf(y) - many.cdf(y)).abs().max()) < 3e-3
    found = at_nodes(many)
    exact = found._replace(cdf=many.cdf(found.y))
    target = 2 * normals[0, 0]
    scores = [crps_at_nodes(target, nodes, nodes.cdf, nodes.mean) for nodes in (found, exact)]
    assert float(((scores[0] - scores[1]) / many.stddev).abs().max()) < 1e-3
    assert torch.equal(cdf_by_pieces(many, target), many.cdf(target))
    # The bits of a row do not depend on the others, though rows are taken 32 at a time.
    part = StudentTMixture(*(values[:, 5:9] for values in many))
    assert torch.equal(at_nodes(part).cdf, at_nodes(many).cdf[:, 5:9])
