"""Counts whose logarithmic rate is the function."""

import torch
from gpytorch.likelihoods.likelihood import _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Poisson


class _LogRatePoisson(Poisson):
    """A Poisson distribution made from its log rate, so that no rate need be taken the logarithm of."""

    def __init__(self, log_rate: Tensor) -> None:
        super().__init__(log_rate.exp(), validate_args=False)
        self.log_rate = log_rate

    def log_prob(self, value: Tensor) -> Tensor:
        return value * self.log_rate - self.rate - torch.lgamma(value + 1)


class LogPoissonLikelihood(_OneDimensionalLikelihood):
    r"""Counts with :math:`y \mid f \sim \mathrm{Poisson}(e^f)`.

    The canonical link; GPyTorch's ``PoissonLikelihood`` has the rate :math:`\log(1 + e^f)`. The log probability is
    computed as :math:`y f - e^f - \log y!`, which stays finite where the rate underflows.

    Example:
        >>> import torch
        >>> LogPoissonLikelihood()(torch.tensor([-800.0])).log_prob(torch.tensor([1.0]))
        tensor([-800.])
    """

    def forward(self, function_samples: Tensor, *args: object, **kwargs: object) -> Poisson:
        """The distribution of targets given function values, of any shape."""
        return _LogRatePoisson(function_samples)
