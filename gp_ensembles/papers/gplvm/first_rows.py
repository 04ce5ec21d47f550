"""The first rows: principal components, then latent inputs and variances of all experts at once."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.features.fourier import fourier_features
from gp_ensembles.numerics.minimize import minimize

_LEAST_NOISE = 1e-6  # in units of the rows' mean square: keeps the factorizations of a perfect fit sound
_FIRST_NOISE = 0.1


def principal_components(Y: Tensor, num_latent: int) -> tuple[Tensor, Tensor]:
    """Scores (N, d) of rows on their principal components, of mean zero and mean square one, and the rows' mean (D,).

    The sign is that in which the largest loading of a component is positive. Shapes: ``Y`` (N, D).
    """
    num_rows, num_columns = Y.shape
    if not 1 <= num_latent <= min(num_rows - 1, num_columns):
        raise ValueError(
            f"num_latent={num_latent} components need at least as many columns and one more row, got {num_rows} rows "
            f"of {num_columns} columns; lower num_latent or give more rows"
        )
    exact = Y.double()
    mean = exact.mean(0)
    left, singular, right = torch.linalg.svd(exact - mean, full_matrices=False)
    negligible = max(Y.shape) * torch.finfo(Y.dtype).eps * torch.maximum(singular[0], Y.abs().max())
    if not bool(singular[num_latent - 1] > negligible):
        varying = int((singular > negligible).sum())
        raise ValueError(
            f"the rows vary in {varying} directions only, too few for num_latent={num_latent}; lower num_latent or "
            f"give rows that differ more"
        )
    axes = right[:num_latent].mT
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True)).squeeze(0)
    sign = torch.where(largest < 0, -1.0, 1.0).to(exact)
    embedding = left[:, :num_latent] * sign * num_rows**0.5
    return embedding.to(Y.dtype), mean.to(Y.dtype)


def filled_from_nearest(Y: Tensor) -> Tensor:
    """Rows (N, D) with the gaps of each filled from the nearest row that has a value there, by what both have."""
    seen = ~torch.isnan(Y)
    if bool(seen.all()):
        return Y
    weight, number = seen.to(Y), seen.sum(0)
    mean = Y.nan_to_num().sum(0) / number
    apart = (Y - mean).nan_to_num()
    spread = (apart.square().sum(0) / number).sqrt()
    scaled = apart / torch.where(spread > 0, spread, 1.0)
    both = scaled.square() @ weight.mT
    distance = (both + both.mT - 2 * scaled @ scaled.mT) / (weight @ weight.mT)
    distance = distance.nan_to_num(nan=torch.inf)  # nothing in common
    filled = Y.clone()
    for column in (number < len(Y)).nonzero().flatten().tolist():
        rows, others = (~seen[:, column]).nonzero().flatten(), seen[:, column].nonzero().flatten()
        filled[rows, column] = Y[others[distance[rows][:, others].argmin(-1)], column]
    return filled


class BatchFit(NamedTuple):
    """Embeddings and hyperparameters of the first rows."""

    embedding: Tensor  # latent inputs of each expert, (M, N, d)
    prior_variance: Tensor  # prior variance of the weights, (M,), in squared units of the rows
    noise: Tensor  # observation noise variance, (M,), in the same units; at least 1e-6
    objective: Tensor  # log posterior density at the end, (M,)
    converged: Tensor  # whether each expert's search had ended before its budget, (M,), boolean


def log_posterior(
    omega: Tensor,
    X: Tensor,
    root: Tensor,
    num_columns: int,
    prior_variance: Tensor,
    noise: Tensor,
    latent_variance: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Log density of rows and latent inputs, for all experts at once, and its gradient in closed form.

    .. math:: \sum_{j=1}^{D} \log N(y^{(j)}; 0, \sigma_\theta^2 \Phi \Phi^\top + \sigma_n^2 I)
              + \log N(\operatorname{vec} X; 0, \sigma_x^2 I)

    Nothing of the N rows of D columns matters but any root of Y Yᵀ. The gradient, by the latent inputs, the prior
    variance and the noise, costs half of autograd's. Shapes: ``omega`` (M, R, d), ``X`` (M, N, d), ``root`` (N, C),
    ``prior_variance`` (M,), ``noise`` (M,); returns (M,), (M, N, d), (M,) and (M,).
    """
    num_rows, num_features = len(root), 2 * omega.shape[-2]
    Phi = fourier_features(omega, X)
    ratio, wide = noise / prior_variance, noise[:, None, None]
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

    weights = torch.linalg.solve_triangular(lower.mT, whitened, upper=True)
    inverse = torch.cholesky_inverse(lower)
    by_features = (root - Phi @ weights) @ weights.mT / wide - num_columns * Phi @ inverse
    by_sine, by_cosine = by_features.chunk(2, dim=-1)
    sine, cosine = Phi.chunk(2, dim=-1)
    by_latent = (by_sine * cosine - by_cosine * sine) @ omega - X / latent_variance
    trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
    by_ratio = -0.5 * (num_columns * (trace - num_features / ratio) + weights.square().sum((-2, -1)) / noise)
    by_noise = 0.5 * (quadratic - num_columns * num_rows) / noise + by_ratio / prior_variance
    return value, by_latent, -by_ratio * ratio / prior_variance, by_noise


def fit_batch(
    omega: Tensor, X: Tensor, Y: Tensor, latent_variance: float = 1.0, *, max_iterations: int = 200
) -> BatchFit:
    """Embed rows and learn the two variances of every expert by maximizing :func:`log_posterior`.

    Shapes: ``omega`` (M, R, d), ``X`` (N, d), ``Y`` (N, D).
    """
    num_experts = omega.shape[0]
    start, frequencies = X.expand(num_experts, *X.shape[-2:]).double(), omega.double()
    size, root = start[0].numel(), _shortened(Y.double())

    def unpack(point: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        latent, scales = point.split([size, 2], dim=-1)
        variances = scales.exp()
        return latent.unflatten(-1, start.shape[-2:]), variances[:, 0], variances[:, 1] + _LEAST_NOISE

    def loss(point: Tensor, experts: Tensor) -> tuple[Tensor, Tensor]:
        latent, prior_variance, noise = unpack(point)
        value, by_latent, by_prior, by_noise = log_posterior(
            frequencies[experts], latent, root, Y.shape[1], prior_variance, noise, latent_variance
        )
        by_scales = torch.stack([by_prior * prior_variance, by_noise * (noise - _LEAST_NOISE)], dim=-1)
        return -value, -torch.cat([by_latent.flatten(1), by_scales], dim=-1)

    scales = start.new_tensor([1.0, _FIRST_NOISE]).log().expand(num_experts, 2)
    point = torch.cat([start.flatten(1), scales], dim=-1)
    found = minimize(loss, point, max_iterations=max_iterations, loss_tolerance=1e-8)
    latent, prior_variance, noise = (part.to(Y.dtype) for part in unpack(found.point))
    return BatchFit(latent, prior_variance, noise, -found.value.to(Y.dtype), found.converged)


def _shortened(Y: Tensor) -> Tensor:
    """A root of Y Yᵀ with no more columns than rows."""
    if Y.shape[1] <= Y.shape[0]:
        return Y
    left, singular, _ = torch.linalg.svd(Y, full_matrices=False)
    root: Tensor = left * singular
    return root
