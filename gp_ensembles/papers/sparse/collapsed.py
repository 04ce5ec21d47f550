r"""Collapsed objectives of sparse Gaussian processes with normal noise, all in O(N K^2).

A :class:`Projection` has the data's covariances given the knots, :func:`condition` gives the knots' posterior, and an
:class:`Approximation` defines objective and predictions: ``VFE``, ``FITC`` and their relatives.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.autograd import gram
from gp_ensembles.numerics.cholesky import cholesky


class Projection(NamedTuple):
    """The data's covariances given K knots."""

    lower: Tensor  # Cholesky factor L of the knots' covariance, shape (K, K)
    projected: Tensor  # V = L^-1 K_uf, shape (K, N), so that Q = V' V
    explained: Tensor  # diagonal q of Q, shape (N,)
    prior: Tensor  # prior variances of the function at the data, shape (N,)
    residual: Tensor  # targets minus their prior mean, shape (N,)
    noise: Tensor  # noise variance, shape (), or per row, shape (N,)
    nugget: Tensor | float = 0.0  # part of the prior variances that is independent between rows, shape ()

    @property
    def unexplained(self) -> Tensor:
        """Prior variances not explained by the knots, at least zero, shape (N,)."""
        return (self.prior - self.explained).clamp_min(0.0)


class KnotsPosterior(NamedTuple):
    """The knots' posterior, whitened by their prior: u = L w, with L the factor of the prior."""

    lower: Tensor  # Cholesky factor L of the knots' prior covariance, shape (K, K)
    factor: Tensor  # Cholesky factor L_B of the precision of w, which is B = I + V D^-1 V', shape (K, K)
    mean: Tensor  # L_B' E[w] = L_B^-1 V D^-1 r, shape (K,)

    def whiten(self, cross: Tensor) -> Tensor:
        """Covariances (K, M) of knots and points, whitened by L."""
        whitened: Tensor = torch.linalg.solve_triangular(self.lower, cross, upper=False)
        return whitened


def project(knots: Tensor, cross: Tensor, prior: Tensor, residual: Tensor, noise: Tensor) -> Projection:
    """The data's covariances given knots.

    Shapes: ``knots`` (K, K), ``cross`` (K, N), ``prior`` (N,), ``residual`` (N,), ``noise`` () or (N,).
    """
    lower = cholesky(knots, "the covariance of the knots")
    projected = torch.linalg.solve_triangular(lower, cross, upper=False)
    return Projection(lower, projected, (projected * projected).sum(0), prior, residual, noise)


def condition(projection: Projection, diagonal: Tensor) -> KnotsPosterior:
    """The knots' posterior under independent noise of variances (N,)."""
    scaled = projection.projected * diagonal.rsqrt()
    identity = torch.diag_embed(torch.ones_like(projection.lower[0]))
    factor = cholesky(identity + gram(scaled.mT), "the precision of the knots")
    weighted = projection.projected @ (projection.residual / diagonal)
    mean = torch.linalg.solve_triangular(factor, weighted.unsqueeze(-1), upper=False).squeeze(-1)
    return KnotsPosterior(projection.lower, factor, mean)


def log_density(projection: Projection, diagonal: Tensor) -> Tensor:
    r"""Log density of the residuals, :math:`\log N(r;\, 0,\, Q + D)`, in O(N K^2). Shapes: ``diagonal`` (N,)."""
    posterior = condition(projection, diagonal)
    constant = projection.residual.shape[-1] * math.log(2.0 * math.pi)
    quadratic = (projection.residual.square() / diagonal).sum() - posterior.mean.square().sum()
    log_determinant = diagonal.log().sum() + 2.0 * posterior.factor.diagonal().log().sum()
    return -0.5 * (constant + log_determinant + quadratic)


@final
@dataclass(frozen=True)
class Approximation:
    r"""A sparse approximation: its objective and its predictions.

    .. math:: \log N\big(r; 0, Q + \tau^2 I + \alpha\, \mathrm{diag}(k - q)\big) - \mathrm{penalty}

    ========  ======================================================================================================
    ``VFE``   Variational free energy (Titsias, 2009): a lower bound on the log evidence.
    ``DTC``   Deterministic training conditional (Seeger et al., 2003): no penalty, no bound; knots may overfit.
    ``DIC``   Deterministic inducing conditional, or subset of regressors (Silverman, 1985): predictions from the knots
              alone, whose variances collapse away from them.
    ``FITC``  Fully independent training conditional (Snelson and Ghahramani, 2006): exact variances at the data.
    ``FIC``   Fully independent conditional: FITC with test points that are also independent given the knots.
    ========  ======================================================================================================

    Args:
        name: Its name.
        alpha: Share of the unexplained variances that counts as noise at the data.
        has_trace: Whether the unexplained variances, divided by twice the noise, are a penalty.
        conditional: Covariance of test points given the knots: all that is unexplained by these, its diagonal, or
            zero.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])
        >>> [round(float(kind.objective(projection)), 4) for kind in (VFE, DTC, FITC)]
        [-1.4055, -1.0305, -1.2655]
    """

    name: str
    alpha: float = 0.0
    has_trace: bool = False
    conditional: Literal["full", "diagonal", "zero"] = "full"

    def objective(self, projection: Projection) -> Tensor:
        """The objective in nats, shape (): log density of the residuals minus the penalty."""
        return log_density(projection, self.diagonal(projection)) - self.penalty(projection)

    def diagonal(self, projection: Projection) -> Tensor:
        """Variances D of the independent noise in the knots' posterior, shape (N,)."""
        if self.alpha == 0.0:
            return projection.noise.expand_as(projection.residual)
        return projection.noise + self.alpha * projection.unexplained

    def penalty(self, projection: Projection) -> Tensor:
        r"""Penalty, subtracted from :math:`\log N(r; 0, Q + D)`, shape ()."""
        if not self.has_trace:
            return projection.residual.new_zeros(())
        if projection.noise.ndim:
            return 0.5 * (projection.unexplained / projection.noise).sum()
        return projection.unexplained.sum() / (2.0 * projection.noise)

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        r"""Covariance of test points given the knots, (\*batch, q, q), from the prior and its explained part."""
        if self.conditional == "zero":
            return torch.zeros_like(prior)
        unexplained = prior - explained
        if self.conditional == "full":
            return unexplained
        return torch.diag_embed(unexplained.diagonal(dim1=-2, dim2=-1))


VFE = Approximation("VFE", has_trace=True)
DTC = Approximation("DTC")
DIC = Approximation("DIC", conditional="zero")
FITC = Approximation("FITC", alpha=1.0)
FIC = Approximation("FIC", alpha=1.0, conditional="diagonal")


def upper_bound(projection: Projection) -> Tensor:
    r"""Upper bound on the log evidence (Titsias, 2014), in O(N K^2).

    .. math:: -\tfrac12 \log |2 \pi (Q + \tau^2 I)|
              - \tfrac12 r^\top \big(Q + (\tau^2 + \mathrm{tr}(K - Q)) I\big)^{-1} r
    """
    noise = projection.noise.expand_as(projection.residual) + projection.nugget
    wide = noise + (projection.unexplained - projection.nugget).clamp_min(0.0).sum()
    zero = projection._replace(residual=torch.zeros_like(projection.residual))
    return log_density(zero, noise) + log_density(projection, wide) - log_density(zero, wide)
