"""The mixture that an ensemble predicts is a thin view of numerics.mixtures."""

import pytest
import torch

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.numerics import mixtures


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(1)
    log_weights = torch.randn(3, generator=generator, dtype=torch.float64).log_softmax(0)
    mean = torch.randn(3, 5, generator=generator, dtype=torch.float64)
    return log_weights, mean, torch.rand(3, 5, generator=generator, dtype=torch.float64) + 0.1


def test_shared_weights_equal_repeated_weights(parts):
    shared, repeated = Mixture(*parts), Mixture(parts[0].unsqueeze(1).expand(3, 5), *parts[1:])
    y = parts[1][0]
    for first, second in (
        (shared.mean, repeated.mean),
        (shared.variance, repeated.variance),
        (shared.log_prob(y), repeated.log_prob(y)),
        (shared.cdf(y), repeated.cdf(y)),
        (shared.quantile(0.3), repeated.quantile(0.3)),
    ):
        assert first.shape == (5,)
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(shared.stddev**2, shared.variance)


def test_quantiles_at_several_levels_and_samples(parts, generator):
    mixture = Mixture(*parts)
    levels = torch.tensor([[0.05], [0.5], [0.95]], dtype=torch.float64)
    quantiles = mixture.quantile(levels)
    assert quantiles.shape == (3, 5)
    torch.testing.assert_close((mixture.cdf(quantiles), quantiles[0]), (levels.expand(3, 5), mixture.quantile(0.05)))
    draws = mixture.sample(4, generator=generator)
    assert draws.shape == (4, 5)
    again = mixtures.rsample(parts[0][:, None], *parts[1:], 4, generator=torch.Generator().manual_seed(20240502))
    torch.testing.assert_close(draws, again)
    with pytest.raises(ValueError, match="between 0 and 1"):
        mixture.quantile(1.5)
