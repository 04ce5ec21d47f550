"""Two classes with the logistic link."""

import torch
from gpytorch.likelihoods import _OneDimensionalLikelihood
from torch import Tensor
from torch.distributions import Bernoulli

from gp_ensembles.likelihoods.support import check_support


class _LogitBernoulli(Bernoulli):
    """A Bernoulli distribution whose log probability has derivatives of a third of the operations."""

    def log_prob(self, value: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((2 * value - 1) * self.logits)


class LogisticLikelihood(_OneDimensionalLikelihood):
    r"""Labels 0 and 1 with log odds that are the latent value (logistic regression).

    .. math:: p(y = 1 \mid z) = 1 / (1 + e^{-z})

    GPyTorch's ``BernoulliLikelihood`` has the probit link instead. There are no parameters.

    Example:
        >>> import torch
        >>> LogisticLikelihood()(torch.tensor([0.0, 2.0])).probs
        tensor([0.5000, 0.8808])
    """

    latent_dim = 1

    def forward(self, function_samples: Tensor, *inputs: object) -> Bernoulli:
        r"""Distributions of labels given latent values, any shape."""
        return _LogitBernoulli(logits=function_samples, validate_args=False)

    def check_targets(self, y: Tensor) -> None:
        """Raise a ValueError that names value and row unless each label (N,) is 0, 1 or NaN (missing)."""
        check_support(self, y)
