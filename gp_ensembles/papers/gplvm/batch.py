"""The first rows: embeddings and hyperparameters of all experts at once, by maximizing the posterior."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.numerics.minimize import minimize

_LEAST_NOISE = 1e-6  # in units of the rows' mean square: keeps the factorizations of a perfect fit sound
_FIRST_NOISE = 0.1


class BatchFit(NamedTuple):
    """Embeddings and hyperparameters of the first rows.

    Attributes:
        embedding: Latent inputs of each expert, shape (M, N, d).
        prior_variance: Prior variance of the weights, shape (M,), in squared units of the rows.
        noise: Observation noise variance, shape (M,), in the same units; at least 1e-6.
        objective: Log posterior density at the end, shape (M,).
        converged: Whether each expert's search had ended before its budget, shape (M,), boolean.
    """

    embedding: Tensor
    prior_variance: Tensor
    noise: Tensor
    objective: Tensor
    converged: Tensor


def log_posterior(
    omega: Tensor, X: Tensor, Y: Tensor, prior_variance: Tensor, noise: Tensor, latent_variance: float
) -> Tensor:
    r"""Log density of rows and latent inputs, for all experts at once.

    .. math:: \sum_{j=1}^{D} \log N(y^{(j)}; 0, \sigma_\theta^2 \Phi \Phi^\top + \sigma_n^2 I)
              + \log N(\operatorname{vec} X; 0, \sigma_x^2 I)

    Shapes: ``omega`` (M, R, d), ``X`` (M, N, d), ``Y`` (N, D), ``prior_variance`` (M,), ``noise`` (M,); returns
    (M,).
    """
    return _pieces(omega, X, (Y, Y.shape[1]), (prior_variance, noise), latent_variance).value


def fit_batch(
    omega: Tensor, X: Tensor, Y: Tensor, latent_variance: float = 1.0, *, max_iterations: int = 200
) -> BatchFit:
    """Embed rows and learn the two variances of every expert by maximizing :func:`log_posterior`.

    Shapes: ``omega`` (M, R, d), ``X`` (N, d), ``Y`` (N, D).

    Raises:
        ValueError: If the objective is not finite at the start.
    """
    num_experts = omega.shape[0]
    start, frequencies = X.expand(num_experts, *X.shape[-2:]).double(), omega.double()
    size, rows = start[0].numel(), (_shortened(Y.double()), Y.shape[1])

    def unpack(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent, scales = point.split([size, 2], dim=-1)
        variances = scales.exp()
        return latent.unflatten(-1, start.shape[-2:]), variances[:, 0], variances[:, 1] + _LEAST_NOISE

    def loss(point: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
        latent, prior_variance, noise = unpack(point)
        own, variances = frequencies[experts], (prior_variance, noise)
        pieces = _pieces(own, latent, rows, variances, latent_variance)
        by_latent, by_prior, by_noise = _gradient(pieces, own, latent, rows, variances, latent_variance)
        by_scales = torch.stack([by_prior * prior_variance, by_noise * (noise - _LEAST_NOISE)], dim=-1)
        return -pieces.value, -torch.cat([by_latent.flatten(1), by_scales], dim=-1)

    scales = start.new_tensor([1.0, _FIRST_NOISE]).log().expand(num_experts, 2)
    point = torch.cat([start.flatten(1), scales], dim=-1)
    found = minimize(loss, point, max_iterations=max_iterations, loss_tolerance=1e-8)
    latent, prior_variance, noise = (part.to(Y.dtype) for part in unpack(found.point))
    return BatchFit(latent, prior_variance, noise, -found.value.to(Y.dtype), found.converged)


_Rows = tuple[Tensor, int]  # any root of Y Yᵀ and the number of columns: nothing else of the rows matters


class _Pieces(NamedTuple):
    """The objective (M,), the features (M, N, F), the Cholesky factor of A (M, F, F), and its solve of Φᵀ root."""

    value: Tensor
    Phi: Tensor
    lower: Tensor
    whitened: Tensor


def _pieces(omega: Tensor, X: Tensor, rows: _Rows, variances: tuple[Tensor, Tensor], latent_variance: float) -> _Pieces:
    (root, num_columns), (prior_variance, noise) = rows, variances
    num_rows, num_features = len(root), 2 * omega.shape[-2]
    Phi = fourier_features(omega, X)
    ratio = noise / prior_variance
    lower, info = torch.linalg.cholesky_ex(
        Phi.mT @ Phi + torch.diag_embed(ratio.unsqueeze(-1).expand(-1, num_features))
    )
    lower = torch.where((info != 0)[:, None, None], torch.nan, lower)
    log_determinant = (
        2 * lower.diagonal(dim1=-2, dim2=-1).log().sum(-1) - num_features * ratio.log() + num_rows * noise.log()
    )
    whitened = torch.linalg.solve_triangular(lower, Phi.mT @ root, upper=False)
    quadratic = (root.square().sum() - whitened.square().sum((-2, -1))) / noise
    density = -0.5 * (num_columns * (log_determinant + num_rows * math.log(2 * math.pi)) + quadratic)
    latent = X.square().sum((-2, -1)) / latent_variance
    value = density - 0.5 * (latent + X[0].numel() * math.log(2 * math.pi * latent_variance))
    return _Pieces(value, Phi, lower, whitened)


def _gradient(
    pieces: _Pieces,
    omega: Tensor,
    X: Tensor,
    rows: _Rows,
    variances: tuple[Tensor, Tensor],
    latent_variance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """By the latent inputs, the prior variance and the noise, in closed form: half the price of autograd's."""
    (root, num_columns), (prior_variance, noise) = rows, variances
    _, Phi, lower, whitened = pieces
    ratio, wide = noise / prior_variance, noise[:, None, None]
    weights = torch.linalg.solve_triangular(lower.mT, whitened, upper=True)
    inverse = torch.cholesky_inverse(lower)
    by_features = (root - Phi @ weights) @ weights.mT / wide - num_columns * Phi @ inverse
    by_sine, by_cosine = by_features.chunk(2, dim=-1)
    sine, cosine = Phi.chunk(2, dim=-1)
    by_latent = (by_sine * cosine - by_cosine * sine) @ omega - X / latent_variance

    trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
    by_ratio = -0.5 * (num_columns * (trace - Phi.shape[-1] / ratio) + weights.square().sum((-2, -1)) / noise)
    left = (root.square().sum() - whitened.square().sum((-2, -1))) / noise
    by_noise = 0.5 * (left - num_columns * len(root)) / noise + by_ratio / prior_variance
    return by_latent, -by_ratio * ratio / prior_variance, by_noise


def _shortened(Y: Tensor) -> Tensor:
    """A root of Y Yᵀ with no more columns than rows."""
    if Y.shape[1] <= Y.shape[0]:
        return Y
    left, singular, _ = torch.linalg.svd(Y, full_matrices=False)
    root: Tensor = left * singular
    return root
