"""Where a new row lies in each expert's latent space: a damped Newton search for all experts and rows at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.gplvm.fourier import contract_curvature, feature_jacobian, latent_features
from gp_ensembles.gplvm.posterior import WeightPosterior

_DAMPING = (1e-3, 1e-9, 1e12)  # of the first step, the least and the most, as shares of the largest curvature
_GROW, _SHRINK = 4.0, 0.2


class LatentModel(NamedTuple):
    r"""What an embedding is made with.

    Attributes:
        omega: Angular frequencies, shape (M, R, d).
        posterior: Posterior of the weights.
        noise: Observation noise variance, shape (M,).
        latent_variance: Prior variance of a latent coordinate.
    """

    omega: Tensor
    posterior: WeightPosterior
    noise: Tensor
    latent_variance: float


class RowEmbedding(NamedTuple):
    """Embeddings of rows under each expert.

    Attributes:
        point: Embeddings, shape (M, B, d).
        log_prob: Log density of what was observed of each row, at its embedding, shape (M, B).
        log_latent: Log prior density of the embedding, shape (M, B).
        gradient: Largest derivative of the sum of the two in absolute value, shape (M, B).
        converged: Whether the search ended before its budget, shape (M, B), boolean.
    """

    point: Tensor
    log_prob: Tensor
    log_latent: Tensor
    gradient: Tensor
    converged: Tensor


def embedding_density(model: LatentModel, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    r"""Log density of rows given where they lie, and of where they lie.

    .. math:: \sum_{j \text{ seen}} \log N(y_j; \hat\theta_j^\top \phi(x), \phi(x)^\top \Sigma \phi(x) + \sigma_n^2),
              \qquad \log N(x; 0, \sigma_x^2 I)

    (Lu et al. 2022, section 6.)

    Args:
        model: Frequencies, posterior and noise of each expert.
        X: Latent inputs, shape (M, B, d).
        Y: Rows, shape (B, D); NaN where an entry was not observed, which is left out.

    Returns:
        The two densities, each of shape (M, B), differentiable in X.

    Example:
        >>> import torch
        >>> from gp_ensembles.gplvm.posterior import weight_prior
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> model = LatentModel(one, weight_prior(one[0, 0], 2, 1), one[0, 0], 1.0)
        >>> embedding_density(model, 0 * one, 0 * one[0])  # variances 2 and 1
        (tensor([[-1.2655]], dtype=torch.float64), tensor([[-0.9189]], dtype=torch.float64))
    """
    Phi = latent_features(model.omega, X)
    whitened = Phi @ model.posterior.root.mT
    variance = model.noise.unsqueeze(-1) * (1 + whitened.square().sum(-1))
    seen = ~torch.isnan(Y)
    error = torch.where(seen, Y - Phi @ model.posterior.mean, 0.0)
    count = seen.sum(-1).to(variance)
    rows = -0.5 * (count * (variance.log() + math.log(2 * math.pi)) + error.square().sum(-1) / variance)
    return rows, _log_latent(X, model.latent_variance)


def embedding_derivatives(model: LatentModel, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Value (M, B), gradient (M, B, d) and Hessian (M, B, d, d) in X of both densities' sum, in closed form.

    Arguments as in :func:`embedding_density`.

    Example:
        >>> import torch
        >>> from gp_ensembles.gplvm.posterior import weight_prior
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> model = LatentModel(one, weight_prior(one[0, 0], 2, 1), one[0, 0], 1.0)
        >>> value, gradient, hessian = embedding_derivatives(model, one, 0 * one[0])
        >>> gradient.item(), hessian.item()  # features say nothing yet: the prior's
        (-1.0, -1.0)
    """
    omega, posterior = model.omega, model.posterior
    Phi = latent_features(omega, X)
    stack = torch.cat([Phi.unsqueeze(-2), feature_jacobian(omega, Phi)], dim=-2)  # (M, B, 1 + d, F)
    flat = stack.flatten(-3, -2)
    white = (flat @ posterior.root.mT).unflatten(-2, stack.shape[-3:-1])
    outputs = (flat @ posterior.mean).unflatten(-2, stack.shape[-3:-1])
    seen = ~torch.isnan(Y)
    outputs = torch.where(seen.unsqueeze(-2), outputs, 0.0)
    error = torch.where(seen, Y, 0.0) - outputs[..., 0, :]
    count = seen.sum(-1).to(Phi)
    noise = model.noise.unsqueeze(-1)
    variance = noise * (1 + white[..., 0, :].square().sum(-1))
    squares = error.square().sum(-1)

    # Derivatives of the variance and of the squared error, first by the features, then by x.
    by_feature_v = 2 * noise.unsqueeze(-1) * (white[..., 0, :] @ posterior.root)
    by_feature_q = -2 * error @ posterior.mean.mT
    slopes, moved = white[..., 1:, :], outputs[..., 1:, :]
    first_v = 2 * noise.unsqueeze(-1) * (slopes @ white[..., 0, :, None]).squeeze(-1)
    first_q = -2 * (moved @ error.unsqueeze(-1)).squeeze(-1)
    second_v = 2 * noise[..., None, None] * (slopes @ slopes.mT) + contract_curvature(omega, Phi, by_feature_v)
    second_q = 2 * moved @ moved.mT + contract_curvature(omega, Phi, by_feature_q)

    v, q, n = variance[..., None], squares[..., None], count[..., None]
    spread = model.latent_variance
    rows = -0.5 * (count * (variance.log() + math.log(2 * math.pi)) + squares / variance)
    value = rows + _log_latent(X, spread)
    gradient = -0.5 * ((n / v - q / v.square()) * first_v + first_q / v) - X / spread
    v, q, n = v.unsqueeze(-1), q.unsqueeze(-1), n.unsqueeze(-1)
    outer_v = first_v.unsqueeze(-1) * first_v.unsqueeze(-2)
    cross = first_q.unsqueeze(-1) * first_v.unsqueeze(-2)
    hessian = -0.5 * (
        (n / v - q / v.square()) * second_v
        + (2 * q / v.pow(3) - n / v.square()) * outer_v
        + second_q / v
        - (cross + cross.mT) / v.square()
    )
    hessian.diagonal(dim1=-2, dim2=-1).sub_(1 / spread)
    return value, gradient, hessian


def embed_rows(
    model: LatentModel, start: Tensor, Y: Tensor, *, max_iterations: int = 60, tolerance: float = 1e-9
) -> RowEmbedding:
    """Climb from given points to where rows lie, for all experts and rows at once.

    Steps are Newton's with the curvatures' absolute values, damped (Levenberg-Marquardt): a step that loses height is
    not made, so the end is at least as high as the start. Searches do not see one another.

    Args:
        model: Frequencies, posterior and noise of each expert.
        start: Points to start from, shape (M, B, d).
        Y: Rows, shape (B, D); NaN where an entry was not observed, which is left out.
        max_iterations: Most iterations.
        tolerance: A search ends where an undamped step promises less than this many nats.

    Example:
        >>> import torch
        >>> from gp_ensembles.gplvm.posterior import weight_prior
        >>> one = torch.ones(1, 1, 1, dtype=torch.float64)
        >>> model = LatentModel(one, weight_prior(one[0, 0], 2, 1), one[0, 0], 1.0)
        >>> bool(embed_rows(model, one, 0 * one[0]).point.abs() < 1e-4)  # nothing known: the prior's mode
        True
    """
    first, least, most = _DAMPING
    point = start
    value, gradient, hessian = embedding_derivatives(model, point, Y)
    damping = value.new_full(value.shape, first)
    done = ~value.isfinite()
    for _ in range(max_iterations):
        curvature, axes = _decompose(hessian)
        slope = (axes.mT @ gradient.unsqueeze(-1)).squeeze(-1)
        promised = 0.5 * (slope.square() / curvature).sum(-1)
        done = done | (promised < tolerance) | (damping >= most)
        if bool(done.all()):
            break
        damped = curvature + damping.unsqueeze(-1) * curvature.amax(-1, keepdim=True)
        step = (axes @ (slope / damped).unsqueeze(-1)).squeeze(-1)
        trial = torch.where(done.unsqueeze(-1), point, point + step)
        new_value, new_gradient, new_hessian = embedding_derivatives(model, trial, Y)
        better = (new_value > value) & ~done
        point = torch.where(better.unsqueeze(-1), trial, point)
        value = torch.where(better, new_value, value)
        gradient = torch.where(better.unsqueeze(-1), new_gradient, gradient)
        hessian = torch.where(better[..., None, None], new_hessian, hessian)
        damping = torch.where(better, damping * _SHRINK, damping * _GROW).clamp(least, most)
    latent = _log_latent(point, model.latent_variance)
    return RowEmbedding(point, value - latent, latent, gradient.abs().amax(-1), done)


def _decompose(hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Curvatures in absolute value, none below a small share of the largest, and their axes."""
    finite = hessian.isfinite().all(-1).all(-1)
    sound = torch.where(finite[..., None, None], hessian, 0.0)  # a failed search is told of by its value
    values, axes = torch.linalg.eigh(sound)
    values = values.abs()
    floor = values.amax(-1, keepdim=True) * 1e-8 + torch.finfo(values.dtype).tiny
    return torch.maximum(values, floor), axes


def _log_latent(X: Tensor, spread: float) -> Tensor:
    return -0.5 * (X.square().sum(-1) / spread + X.shape[-1] * math.log(2 * math.pi * spread))
