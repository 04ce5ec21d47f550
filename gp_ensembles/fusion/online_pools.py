"""How latent values of a row become weights of experts, online."""

from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.ensembles import Mixture
from gp_ensembles.fusion.pools import LogLinearPool, linear_pool, log_linear_pool


class OnlinePool(ABC):
    """How latent values of a row become weights of the experts' predictions."""

    @abstractmethod
    def num_latent(self, num_experts: int) -> int:
        """Number of latent values L for K experts."""

    @abstractmethod
    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """From latent values (..., L) to log weights (..., K)."""

    @abstractmethod
    def mixture(self, log_weights: Tensor, shares: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """What is predicted.

        Args:
            log_weights: Log weights at S nodes of the latent values, shape (S, K, N).
            shares: Weights of the nodes, shape (S,).
            mean: The experts' means, shape (K, N).
            variance: The experts' variances, shape (K, N).
        """

    @abstractmethod
    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of a target y () with log weights (..., K) of experts' predictions (K,), shape (...).

        Up to an addend that the weights do not change.
        """


@final
class OnlineMixture(OnlinePool):
    """A mixture: weights are the softmax of K - 1 latent values and a zero (BHS, online).

    Example:
        >>> OnlineMixture().num_latent(3)
        2
    """

    def num_latent(self, num_experts: int) -> int:
        """One less than experts."""
        return num_experts - 1

    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """Softmax, the last latent value zero."""
        return pad(latent, (0, 1)).log_softmax(-1)

    def mixture(self, log_weights: Tensor, shares: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """The experts, with the average weights."""
        average = (log_weights + shares.log()[:, None, None]).logsumexp(0)
        return linear_pool(mean, variance, average)

    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of the mixture, relative to that of the best expert."""
        normal = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False)
        log_prob: Tensor = normal.log_prob(y)
        # Relative to the best expert, or round-off would swallow the weights where a target is far from all.
        return (log_weights + (log_prob - log_prob.amax(-1, keepdim=True))).logsumexp(-1)


@final
class OnlineProduct(OnlinePool):
    """A normalized product of powers: K latent values are logs of powers, less log K (P-BHS, online).

    Example:
        >>> OnlineProduct().num_latent(3)
        3
    """

    def num_latent(self, num_experts: int) -> int:
        """As many as experts."""
        return num_experts

    def log_weights(self, latent: Tensor, num_experts: int) -> Tensor:
        """Latent values with the prior median 1 / K."""
        return latent - torch.full_like(latent, num_experts).log()

    def mixture(self, log_weights: Tensor, shares: Tensor, mean: Tensor, variance: Tensor) -> Mixture:
        """A mixture of the products at the nodes."""
        product = log_linear_pool(mean, variance, log_weights)
        return Mixture(shares.log(), product.mean, product.variance)

    def log_prob(self, log_weights: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        """Log density of the product."""
        product = log_linear_pool(mean.unsqueeze(-1), variance.unsqueeze(-1), log_weights.unsqueeze(-1))
        normal = torch.distributions.Normal(product.mean, product.variance.sqrt(), validate_args=False)
        value: Tensor = normal.log_prob(y)
        return value.squeeze(-1)


def combine_log_linearly(mixture: Mixture) -> LogLinearPool:
    """What the experts of an online ensemble predict together as a product, in place of their mixture.

    Each expert's density counts to the power of its weight. Powers that are learned, and may depend on the input, are
    those of :class:`OnlineFusion` with :class:`OnlineProduct`.

    Args:
        mixture: The ensemble's prediction.

    Returns:
        One normal distribution for each row.

    Example:
        >>> import torch
        >>> half = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> mean = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        >>> combine_log_linearly(Mixture(half.log(), mean, torch.ones_like(mean))).variance
        tensor([1.], dtype=torch.float64)
    """
    return log_linear_pool(mixture.component_mean, mixture.component_variance, mixture.log_weights)
