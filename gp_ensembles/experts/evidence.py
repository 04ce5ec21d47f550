"""Evidence of Bayesian linear models in weight space, for a batch of experts at once."""

import math

import torch
from torch import Tensor

from gp_ensembles.numerics.autograd import gram
from gp_ensembles.numerics.cholesky import NumericalError, cholesky


def log_evidence(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    r"""Log marginal likelihood of targets under :math:`N(0, \sigma_\theta^2 \Phi \Phi^\top + \sigma^2 I)`.

    .. math::
        \log p(y) = -\tfrac12 \Big( \frac{y^\top y - (\sigma_\theta^2 / \sigma^2)
        \|L^{-1} \Phi^\top y\|^2}{\sigma^2} + N \log 2 \pi \sigma^2 \Big) - \sum_i \log L_{ii}

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,), ``prior_variance`` (\*batch), ``noise`` (\*batch); returns
    (\*batch).

    Raises:
        NumericalError: If a matrix is not positive definite to working precision.
    """
    quadratic, half_log_determinant = whitened_statistics(Phi, y, prior_variance / noise)
    normalizer = y.shape[0] * (math.log(2 * math.pi) + noise.log())
    return -0.5 * (quadratic / noise + normalizer) - half_log_determinant


def whitened_statistics(Phi: Tensor, y: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    r"""Terms of every Gaussian evidence, with :math:`K = I + r \Phi \Phi^\top`.

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,), ``ratio`` (\*batch); returns (\*batch).
    """
    num_rows, num_features = Phi.shape[-2:]
    columns = y.unsqueeze(-1) if y.ndim == 1 else y
    scale = ratio[..., None, None]
    if num_features < num_rows:
        factor = cholesky(_add_identity(scale * gram(Phi)), "the posterior precision of the weights")
        projected = torch.linalg.solve_triangular(factor, Phi.mT @ columns, upper=False)
        quadratic: Tensor = columns.square().sum((-2, -1)) - ratio * projected.square().sum((-2, -1))
    else:
        factor = cholesky(_add_identity(scale * (Phi @ Phi.mT)), "the covariance of the targets")
        targets = columns.expand(*Phi.shape[:-1], columns.shape[-1])
        quadratic = torch.linalg.solve_triangular(factor, targets, upper=False).square().sum((-2, -1))
    half_log_determinant: Tensor = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return quadratic, half_log_determinant


def batched_log_evidence(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    """Like :func:`log_evidence`, with NaN for experts of a batch for which it cannot be computed."""
    try:
        return log_evidence(Phi, y, prior_variance, noise)
    except NumericalError:
        batch_shape = prior_variance.shape
        if not batch_shape:
            return (prior_variance + noise) * torch.nan
        parts = zip(Phi.flatten(0, -3), prior_variance.reshape(-1), noise.reshape(-1), strict=True)
        return torch.stack([batched_log_evidence(P, y, p, n) for P, p, n in parts]).reshape(batch_shape)


def _add_identity(matrix: Tensor) -> Tensor:
    return matrix + torch.diag_embed(matrix.new_ones(matrix.shape[:-1]))
