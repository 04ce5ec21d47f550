"""Joint predictions of experts at several points, and conditioning on more rows."""

from functools import singledispatch
from typing import NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.models import ExactGP
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gp_ensembles.bo.pointwise import PointwisePosterior
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics.display import record_text
from gp_ensembles.papers.fusion.experts import ExpertPredictions


class JointPredictions(NamedTuple):
    r"""Joint normal predictions of K experts at q points, the function and the noise separately.

    Attributes:
        mean: Means, shape (\*batch, K, q).
        covariance: Covariances of the function, shape (\*batch, K, q, q).
        noise: Noise variances of targets, shape (\*batch, K, q).
    """

    mean: Tensor
    covariance: Tensor
    noise: Tensor

    def __repr__(self) -> str:
        return record_text(self)


@singledispatch
def predict_jointly(expert: object, X: Tensor) -> JointPredictions:
    r"""Joint predictions of one expert at points (\*batch, q, D), with gradients; K is one.

    Raises:
        UnsupportedError: If the expert predicts one point at a time only.
    """
    raise UnsupportedError(
        f"a {type(expert).__name__} predicts one point at a time: ask for q = 1 and learn no rows, or take a BoTorch "
        f"model as expert (an EnsembleModel in place of an OnlineEnsemble)"
    )


@predict_jointly.register
def _(expert: Model, X: Tensor) -> JointPredictions:
    posterior, target = expert.posterior(X), expert.posterior(X, observation_noise=True)
    mean, covariance, variance = _moments(posterior)
    if mean.shape != X.shape[:-1]:
        raise ValueError(f"an expert must predict one output at each point, and its mean is {tuple(mean.shape)}")
    return _one(mean, covariance, _moments(target)[2] - variance)


@predict_jointly.register
def _(expert: ExactGP, X: Tensor) -> JointPredictions:
    latent = expert(X)
    return _one(latent.mean, latent.covariance_matrix, expert.likelihood(latent, [X]).variance - latent.variance)


@predict_jointly.register
def _(expert: tuple, X: Tensor) -> JointPredictions:  # type: ignore[type-arg]
    model, likelihood = expert
    latent = model(X)
    if isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError("an expert must predict one normal output")
    return _one(latent.mean, latent.covariance_matrix, likelihood(latent, [X]).variance - latent.variance)


def joined(parts: list[JointPredictions]) -> JointPredictions:
    """Experts side by side."""
    mean, covariance, noise = (
        torch.cat(columns, dim=axis) for columns, axis in zip(zip(*parts, strict=True), (-2, -3, -2), strict=True)
    )
    return JointPredictions(mean, covariance, noise)


def learn(before: JointPredictions, Y: Tensor, noise: Tensor | None) -> tuple[JointPredictions, ExpertPredictions]:
    r"""The experts at the last points after learning targets (\*y, q) at the first q, and their predictions of these.

    Each target is predicted given those before it, shapes (\*batch, K, q), its noise included in the variance.
    """
    q = Y.shape[-1]
    own = before.noise[..., :q] if noise is None else noise.unsqueeze(-2).expand_as(before.noise[..., :q])
    seen = before.covariance[..., :q, :q] + torch.diag_embed(own)
    scale = seen.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]  # jitter, if any, is relative to it
    factor: Tensor = psd_safe_cholesky(seen / scale) * scale.sqrt()
    gain = torch.linalg.solve_triangular(factor, before.covariance[..., :q, q:], upper=False)
    targets = Y.unsqueeze(-2)  # (*y, 1, q)
    residual = (targets - before.mean[..., :q]).unsqueeze(-1)
    wide = factor.expand(*torch.broadcast_shapes(factor.shape[:-2], residual.shape[:-2]), q, q)
    white = torch.linalg.solve_triangular(wide, residual.expand(*wide.shape[:-1], 1), upper=False)
    mean = before.mean[..., q:] + (gain.mT @ white).squeeze(-1)
    spread = wide.diagonal(dim1=-2, dim2=-1)
    mean_before = targets - spread * white.squeeze(-1)
    predicted = ExpertPredictions(mean_before, spread.square(), torch.zeros_like(mean_before))
    after = JointPredictions(mean, before.covariance[..., q:, q:] - gain.mT @ gain, before.noise[..., q:])
    return after, predicted


def pool_covariance(shares: Tensor, covariance: Tensor, variance: Tensor) -> Tensor:
    r"""Covariance of a log-linear pool at q points: its own variances, the correlation of :math:`\sum_k s_k(x) f_k(x)`.

    Shapes: ``shares`` (..., K, q), ``covariance`` (..., K, q, q), ``variance`` (..., q).
    """
    average = (shares.unsqueeze(-1) * shares.unsqueeze(-2) * covariance).sum(-3)
    own = average.diagonal(dim1=-2, dim2=-1)
    ratio = (variance / own).sqrt()
    pooled = ratio.unsqueeze(-1) * ratio.unsqueeze(-2) * average
    return pooled + torch.diag_embed(variance - pooled.diagonal(dim1=-2, dim2=-1))


def _one(mean: Tensor, covariance: Tensor, noise: Tensor) -> JointPredictions:
    # The noise is a difference: below zero by round-off where there is none.
    return JointPredictions(mean.unsqueeze(-2), covariance.unsqueeze(-3), noise.clamp_min(0.0).unsqueeze(-2))


def _moments(posterior: object) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (*batch, q), covariance (*batch, q, q) and variance (*batch, q) of a posterior of one output."""
    if isinstance(posterior, GaussianMixturePosterior):
        mean, covariance = posterior.mixture_mean.squeeze(-1), posterior.mixture_covariance_matrix
    elif isinstance(posterior, GPyTorchPosterior):
        mean, covariance = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    elif isinstance(posterior, MixturePosterior):
        mean, covariance = posterior.mean.squeeze(-1), posterior.covariance.squeeze(-3)
    elif isinstance(posterior, PointwisePosterior):
        mean, covariance = posterior.mean.squeeze(-1), posterior.covariance
    else:
        raise UnsupportedError(
            f"an expert whose posterior is a {type(posterior).__name__} has no covariance of several points; ask for "
            f"q = 1 and learn no rows"
        )
    return mean, covariance, covariance.diagonal(dim1=-2, dim2=-1)
