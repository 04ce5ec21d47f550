"""What recursive Bayes carries from one block to the next, and what it says before each target."""

from typing import NamedTuple

import torch
from torch import Tensor


class GaussianState(NamedTuple):
    r"""Posterior of the weights in covariance form.

    Covariance and mean lie side by side in one tensor, so that one matrix product reads both and one
    updates both.

    Attributes:
        moments: [covariance | mean], shape (\*batch, F, F + 1).
    """

    moments: Tensor

    @property
    def mean(self) -> Tensor:
        r"""Posterior mean of the weights, shape (\*batch, F)."""
        return self.moments[..., -1]

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.moments[..., :-1]


class SquareRootState(NamedTuple):
    r"""Posterior of the weights in square-root form; the choice for float32 and tiny noise.

    Attributes:
        mean: Posterior mean of the weights, shape (\*batch, F).
        factor: A square root A of the covariance, A Aᵀ, not triangular, shape (\*batch, F, F).
    """

    mean: Tensor
    factor: Tensor

    @property
    def covariance(self) -> Tensor:
        r"""Posterior covariance of the weights, shape (\*batch, F, F)."""
        return self.factor @ self.factor.mT


FilterState = GaussianState | SquareRootState


class StepPredictions(NamedTuple):
    r"""One-step-ahead predictions, each made before its target was seen.

    Attributes:
        mean: Predictive mean, shape (\*batch, B).
        variance: Predictive variance, observation noise included, shape (\*batch, B).
        log_prob: Log predictive density of the target, shape (\*batch, B); zero where it is missing.
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor


def gaussian_state(prior_variance: Tensor, num_features: int) -> GaussianState:
    r"""State before any data: mean zero, covariance ``prior_variance`` I.

    Args:
        prior_variance: Prior variance of each weight, shape (\*batch).
        num_features: Number of features F.

    Example:
        >>> import torch
        >>> gaussian_state(torch.tensor(2.0), 2).moments
        tensor([[2., 0., 0.],
                [0., 2., 0.]])
    """
    diagonal = prior_variance.unsqueeze(-1).expand(*prior_variance.shape, num_features)
    mean = diagonal.new_zeros(diagonal.shape)
    return GaussianState(torch.cat([torch.diag_embed(diagonal), mean.unsqueeze(-1)], dim=-1))


def square_root_state(prior_variance: Tensor, num_features: int) -> SquareRootState:
    """State before any data in square-root form; arguments as in :func:`gaussian_state`.

    Example:
        >>> import torch
        >>> square_root_state(torch.tensor(4.0), 1).factor
        tensor([[2.]])
    """
    diagonal = prior_variance.unsqueeze(-1).expand(*prior_variance.shape, num_features)
    return SquareRootState(diagonal.new_zeros(diagonal.shape), torch.diag_embed(diagonal.sqrt()))
