"""Counts whose log rate is the latent value."""

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Poisson


class LogRatePoisson(Poisson):
    """A Poisson distribution that keeps the logarithm of its rate, so that no rate is too small for its densities."""

    def __init__(self, log_rate: Tensor) -> None:
        self.log_rate = log_rate
        super().__init__(log_rate.exp(), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log probability of counts that broadcast with the rates."""
        return value * self.log_rate - self.rate - torch.lgamma(value + 1)

    def expand(
        self, batch_shape: torch.Size | list[int] | tuple[int, ...], _instance: object = None
    ) -> "LogRatePoisson":
        """The same distribution with a larger batch shape."""
        return LogRatePoisson(self.log_rate.expand(batch_shape))


class LogPoissonLikelihood(_OneDimensionalLikelihood):
    r"""Counts with the exponential link (Poisson regression, log-Gaussian Cox processes).

    .. math:: p(y \mid z) = \mathrm{Poisson}(y;\, e^z)

    GPyTorch's ``PoissonLikelihood`` takes the softplus of the latent value as the rate instead. There are no
    parameters.

    Example:
        >>> LogPoissonLikelihood()(torch.tensor([0.0, 2.0])).mean
        tensor([1.0000, 7.3891])
    """

    latent_dim = 1

    def forward(self, function_samples: Tensor, *inputs: object) -> LogRatePoisson:
        r"""Distributions of counts given latent values, any shape."""
        return LogRatePoisson(function_samples)

    def expected_log_prob(
        self, observations: Tensor, function_dist: MultivariateNormal, *args: object, **settings: object
    ) -> Tensor:
        r"""Expected log probability under normal latent values, in closed form, shape (\*batch, N).

        .. math:: E\, \log p(y \mid z) = y\, m - e^{m + v / 2} - \log y!, \qquad z \sim N(m, v)
        """
        mean: Tensor = function_dist.mean
        rate = (mean + 0.5 * function_dist.variance).exp()
        expected: Tensor = observations * mean - rate - torch.lgamma(observations + 1)
        return expected
