"""What every collapsed objective of a sparse Gaussian process is made of."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.gram import gram


class Projection(NamedTuple):
    r"""The data's covariances seen through K knots.

    Args:
        lower: Cholesky factor L of the knots' covariance, shape (K, K).
        projected: :math:`V = L^{-1} K_{uf}`, shape (K, N), so that :math:`Q = V^\top V`.
        explained: Diagonal q of Q, shape (N,).
        prior: Prior variances of the function at the data, shape (N,).
        residual: Targets less their prior mean, shape (N,).
        noise: Noise variance, shape ().
        nugget: The part of the prior variances that is no covariance between rows, shape ().
    """

    lower: Tensor
    projected: Tensor
    explained: Tensor
    prior: Tensor
    residual: Tensor
    noise: Tensor
    nugget: Tensor | float = 0.0

    @property
    def unexplained(self) -> Tensor:
        """Prior variances that the knots leave open, at least zero, shape (N,)."""
        return (self.prior - self.explained).clamp_min(0.0)


def project(knots: Tensor, cross: Tensor, prior: Tensor, residual: Tensor, noise: Tensor) -> Projection:
    """Project data on knots.

    Args:
        knots: Covariance of the knots, any nugget included, shape (K, K).
        cross: Covariance of knots and data, shape (K, N).
        prior: Prior variances at the data, shape (N,).
        residual: Targets less their prior mean, shape (N,).
        noise: Noise variance, shape ().

    Raises:
        NumericalError: If the knots' covariance is not positive definite: knots coincide, or the nugget is too small.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> float(project(one, one, one[0], one[0], one[0, 0]).unexplained)
        0.0
    """
    lower = cholesky(knots, "the covariance of the knots")
    projected = torch.linalg.solve_triangular(lower, cross, upper=False)
    return Projection(lower, projected, (projected * projected).sum(0), prior, residual, noise)


class Conditional(NamedTuple):
    r"""The knots' posterior under independent noise of variances D.

    Args:
        factor: Cholesky factor of :math:`B = I + V D^{-1} V^\top`, shape (K, K).
        mean: :math:`c = L_B^{-1} V D^{-1} r`, shape (K,).
    """

    factor: Tensor
    mean: Tensor


def condition(projection: Projection, diagonal: Tensor) -> Conditional:
    """The knots' posterior under noise variances (N,)."""
    scaled = projection.projected * diagonal.rsqrt()
    identity = torch.diag_embed(torch.ones_like(projection.lower[0]))
    factor = cholesky(identity + gram(scaled.mT), "the precision of the knots")
    weighted = projection.projected @ (projection.residual / diagonal)
    return Conditional(factor, torch.linalg.solve_triangular(factor, weighted.unsqueeze(-1), upper=False).squeeze(-1))


def log_density(projection: Projection, diagonal: Tensor) -> Tensor:
    r"""Log density of the residuals, :math:`\log N(r;\, 0,\, Q + D)`, in O(N K^2).

    Args:
        projection: The data seen through the knots.
        diagonal: Diagonal of D, shape (N,).

    Returns:
        Shape ().

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, one, one[0], 0.0 * one[0], one[0, 0])
        >>> round(float(log_density(projection, one[0])), 4)  # N(0; 0, 2)
        -1.2655
    """
    posterior = condition(projection, diagonal)
    constant = projection.residual.shape[-1] * math.log(2.0 * math.pi)
    quadratic = (projection.residual.square() / diagonal).sum() - posterior.mean.square().sum()
    log_determinant = diagonal.log().sum() + 2.0 * posterior.factor.diagonal().log().sum()
    return -0.5 * (constant + log_determinant + quadratic)
