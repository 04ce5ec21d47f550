"""All predictive distributions keep one contract, whatever their components are."""

import pytest
import torch

from gp_ensembles.calibration.recalibration import map_components
from gp_ensembles.distributions import (
    Distribution,
    LatentMixture,
    Mixture,
    Recalibrated,
    StudentTMixture,
    WithPointMass,
)
from gp_ensembles.distributions.latent_mixture import Response
from gp_ensembles.likelihoods import LogPoissonLikelihood, MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.classification import LogisticLikelihood, Probit
from gp_ensembles.likelihoods.predictive import GaussHermite

M, N = 3, 4


def draws(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def latent(likelihood, num_latent=None):
    shape = (M, N) if num_latent is None else (M, N, num_latent)
    variance = torch.full((M, N), 0.3, dtype=torch.float64)
    if num_latent is not None:
        variance = 0.3 * torch.eye(num_latent, dtype=torch.float64).expand(M, N, num_latent, num_latent)
    response = Response(likelihood.double().requires_grad_(False), GaussHermite(), M, torch.Size([M]))
    return LatentMixture(draws(M).log_softmax(0), draws(*shape), variance, (response,))


def instances() -> dict[str, Distribution]:
    weights = draws(M).log_softmax(0)
    normal = Mixture(weights, draws(M, N), 1 + draws(M, N).square())
    maps = draws(63, N).log_softmax(0), *map_components(weights)
    return {
        "normal": Mixture(weights, draws(M, N), 1 + draws(M, N).square()),
        "normal, weights by row": Mixture(draws(M, N).log_softmax(0), draws(M, N), 1 + draws(M, N).square()),
        "normal, two outputs": Mixture(weights, draws(M, N, 2), 1 + draws(M, N, 2).square()),
        "student": StudentTMixture(weights, draws(M, N), 1 + draws(M, N).square(), 2.5 + draws(M, N).square()),
        "recalibrated": Recalibrated(normal, *maps),
        "recalibrated, one map": Recalibrated(normal, maps[0][:, 0], *maps[1:]),
        "point mass": WithPointMass(Recalibrated(normal, *maps), draws(1, N), -draws(1, N).abs()),
        "binary": latent(LogisticLikelihood()),
        "levels": latent(OrdinalLikelihood(4, Probit())),
        "counts": latent(LogPoissonLikelihood()),
        "classes": latent(MulticlassLikelihood(3), 3),
    }


CASES = pytest.mark.parametrize("name", instances())
ORDERED = [name for name in instances() if name != "classes"]


@CASES
def test_shapes(name):
    distribution = instances()[name]
    mean, variance = distribution.moments()
    rows = (N, 2) if "outputs" in name else (N,)
    assert mean.shape == variance.shape == ((N, 3) if name == "classes" else rows)
    assert torch.equal(distribution.mean, mean)
    assert torch.equal(distribution.variance, variance)
    torch.testing.assert_close(distribution.stddev.square(), variance)
    y = torch.ones(5, *rows, dtype=torch.float64)
    y[0, 0] = torch.nan
    assert distribution.log_prob(y).shape == distribution.cdf(y).shape == (5, *rows)
    assert torch.equal(distribution.log_prob(y).isnan(), y.isnan())
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64).reshape(3, *[1] * len(rows))
    assert (distribution.quantile(levels).shape, distribution.quantile(0.5).shape) == ((3, *rows), rows)
    generator = torch.Generator().manual_seed(0)
    assert distribution.sample(7, generator=generator).shape == (7, *rows)
    with pytest.raises(ValueError, match="between 0 and 1"):
        distribution.quantile(1.5)
    with pytest.raises(ValueError, match="at least one"):
        distribution.sample(0)


@pytest.mark.parametrize("name", ORDERED)
def test_quantiles_invert_the_distribution_function(name):
    distribution = instances()[name]
    levels = torch.linspace(0.005, 0.995, 50, dtype=torch.float64).reshape(50, *[1] * distribution.mean.ndim)
    x = distribution.quantile(levels)
    if isinstance(distribution, LatentMixture | WithPointMass):  # the smallest value that reaches the level
        assert bool((distribution.cdf(x) >= levels - 1e-9).all())
        below = x - (1 if isinstance(distribution, LatentMixture) else 1e-6)
        assert bool((distribution.cdf(below) < levels).all())
    else:
        torch.testing.assert_close(distribution.cdf(x), levels.expand(x.shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ORDERED)
def test_draws_have_the_moments_and_the_distribution_function(name):
    distribution = instances()[name]
    sample = distribution.sample(10_000, generator=torch.Generator().manual_seed(1))
    error = 5 * (distribution.variance / 10_000).sqrt()
    assert bool(((sample.mean(0) - distribution.mean).abs() < error).all())
    at = distribution.quantile(0.7)
    share = (sample <= at).double().mean(0)
    assert bool(((share - distribution.cdf(at)).abs() < 0.03).all())


@pytest.mark.parametrize("name", ["normal", "student", "normal, two outputs", "recalibrated"])
def test_a_change_of_units_changes_nothing_else(name):
    distribution = instances()[name]
    shift, scale = draws(2)[: 2 if "outputs" in name else 1], draws(2)[: 2 if "outputs" in name else 1].exp()
    if "outputs" not in name:
        shift, scale = shift[0], scale[0]
    other = distribution.rescale(shift, scale)
    y = draws(*distribution.mean.shape)
    torch.testing.assert_close(other.mean, shift + scale * distribution.mean)
    torch.testing.assert_close(other.stddev, scale * distribution.stddev)
    torch.testing.assert_close(other.log_prob(shift + scale * y), distribution.log_prob(y) - scale.log())
    torch.testing.assert_close(other.quantile(0.2), shift + scale * distribution.quantile(0.2))
