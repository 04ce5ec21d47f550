"""Joint normal predictions through knots: what every sparse model's ``posterior`` does."""

from typing import NamedTuple

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor


class KnotsPosterior(NamedTuple):
    r"""The knots' posterior as predictions need it.

    Args:
        lower: Cholesky factor L of the knots' prior covariance, shape (K, K).
        factor: Cholesky factor :math:`L_B` of their precision in units of the prior, shape (K, K).
        mean: Their mean c in the same units, shape (K,).
    """

    lower: Tensor
    factor: Tensor
    mean: Tensor


class Seen(NamedTuple):
    r"""Points seen through the knots.

    Args:
        mean: What the knots say about the mean, shape (\*batch, q).
        explained: Prior covariance that the knots explain, shape (\*batch, q, q).
        learned: What of it is left after the data, shape (\*batch, q, q).
    """

    mean: Tensor
    explained: Tensor
    learned: Tensor


def see(knots: KnotsPosterior, cross: Tensor, shape: torch.Size) -> Seen:
    r"""Points through the knots' posterior, all batches by one solve.

    Args:
        knots: The knots' posterior.
        cross: Prior covariances of knots and points, shape (K, \*batch * q).
        shape: (\*batch, q).

    Returns:
        Their moments.
    """
    loadings = torch.linalg.solve_triangular(knots.lower, cross, upper=False)
    learned = torch.linalg.solve_triangular(knots.factor, loadings, upper=False)
    mean = (knots.mean @ learned).reshape(shape)
    loadings, learned = (part.unflatten(-1, tuple(shape)).movedim(0, -2) for part in (loadings, learned))
    return Seen(mean, loadings.mT @ loadings, learned.mT @ learned)


def check_query(X: Tensor, num_inputs: int, output_indices: list[int] | None) -> None:
    """Refuse points that a model of one output cannot predict.

    Raises:
        ValueError: If X has another number of inputs, or another output is asked for.

    Example:
        >>> import torch
        >>> check_query(torch.zeros(3, 2), 1, None)
        Traceback (most recent call last):
        ...
        ValueError: inputs must have shape (..., q, 1), got (3, 2)
    """
    if output_indices not in (None, [0]):
        raise ValueError(f"the model has one output, asked for {output_indices}")
    if X.shape[-1] != num_inputs or X.ndim < 2:
        raise ValueError(f"inputs must have shape (..., q, {num_inputs}), got {tuple(X.shape)}")


def normal_posterior(
    mean: Tensor,
    covariance: Tensor,
    noise: Tensor,
    observation_noise: bool | Tensor,
    posterior_transform: PosteriorTransform | None,
) -> Posterior:
    """A BoTorch posterior from joint moments of the function.

    Args:
        mean: Means, shape (..., q).
        covariance: Covariances, shape (..., q, q).
        noise: The model's noise variance, of one element.
        observation_noise: Whether to add it, or other variances, shape (..., q, 1).
        posterior_transform: As in BoTorch.
    """
    if isinstance(observation_noise, Tensor):
        covariance = covariance + torch.diag_embed(observation_noise.squeeze(-1).expand_as(mean))
    elif observation_noise:
        covariance = covariance + torch.diag_embed(noise.expand_as(mean))
    posterior: Posterior = GPyTorchPosterior(joint_normal(mean, covariance))
    return posterior if posterior_transform is None else posterior_transform(posterior)


def joint_normal(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    """A joint normal distribution, factorized when a sample is drawn only, with jitter where points are close."""
    return MultivariateNormal(mean, to_linear_operator(covariance))


def unchanged(kept: list[Tensor], now: list[Tensor]) -> bool:
    """Whether tensors have the values they had: GPyTorch's setters leave no trace of a version."""
    return len(kept) == len(now) and all(map(torch.equal, kept, now))
