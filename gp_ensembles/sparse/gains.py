"""What a further knot would add to the evidence lower bound, exactly and for many candidates at once."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.sparse.collapsed import Projection, condition

NEARLY_EXPLAINED = 1e-9  # share of the prior variance below which a candidate is a knot already


class Candidates(NamedTuple):
    r"""M candidates given the knots so far.

    With :math:`v` the new row of V and :math:`\Sigma = V^\top V + \tau^2 I`, a candidate adds

    .. math:: \frac{|v|^2}{2 \tau^2} - \frac12 \log t^2 + \frac12 \frac{(v^\top \Sigma^{-1} r)^2}{t^2}, \qquad
              t^2 = 1 + v^\top \Sigma^{-1} v

    to the bound of :class:`~gp_ensembles.sparse.approximations.VFE` at fixed hyperparameters. The two tables of
    candidates and data are changed in place: to make new ones takes several times as long as the arithmetic.

    Args:
        covariance: Covariances of candidates and data that the knots leave open, :math:`s v`, shape (M, N).
        weighted: The same times :math:`\Sigma^{-1}`, shape (M, N).
        variance: Variances s^2 of the candidates that the knots leave open, nugget included, shape (M,).
        residual: Targets less their prior mean, shape (N,).
        noise: Noise variance, shape ().
        floor: Variance below which a candidate adds nothing, shape ().
        scale: What the data's covariances were multiplied with, row by row, shape (N,); nothing if ``None``.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> float(measure_candidates(projection, one, 0.5 * one, one[0]).gains())  # the knot itself
        0.0
    """

    covariance: Tensor
    weighted: Tensor
    variance: Tensor
    residual: Tensor
    noise: Tensor
    floor: Tensor
    scale: Tensor | None = None

    def gains(self) -> Tensor:
        """What each candidate adds to the bound, shape (M,); zero for one that is a knot already."""
        variance = self.variance.clamp_min(self.floor)
        length = torch.linalg.vector_norm(self.covariance, dim=-1).square() / variance
        product = torch.einsum("mn,mn->m", self.covariance, self.weighted)
        stretch = 1.0 + (product / variance).clamp_min(0.0)
        fit = (self.weighted @ self.residual).square() / variance
        gain = 0.5 * (length / self.noise - stretch.log() + fit / stretch)
        return torch.where(self.variance > self.floor, gain, 0.0)

    def take(self, index: int, places: Tensor) -> None:
        r"""Make candidate ``index`` a knot, in O(M N), where candidate i stands at row ``places[i]`` of the data.

        Covariances lose a rank, :math:`R' = R - a v^\top` with a the candidates' covariances with the new knot over s,
        :math:`R' \Sigma'^{-1} = R \Sigma^{-1} - (R \Sigma^{-1} v + a) g^\top / t^2` with :math:`g = \Sigma^{-1} v`.
        """
        deviation = self.variance[index].sqrt()
        v = self.covariance[index] / deviation
        g = self.weighted[index] / deviation
        # Covariances with the knot itself know nothing of its row's scale.
        unit = deviation if self.scale is None else deviation * self.scale[places[index]]
        with_knot = self.covariance[:, places[index]] / unit
        self.weighted.addr_(self.weighted @ v + with_knot, g / (1.0 + v @ g), alpha=-1.0)
        self.covariance.addr_(with_knot, v, alpha=-1.0)
        self.variance.sub_(with_knot.square()).clamp_min_(0.0)[index] = 0.0


def measure_candidates(
    projection: Projection, knots_with_candidates: Tensor, candidates_with_data: Tensor, prior: Tensor
) -> Candidates:
    """M candidates given the knots of a projection, in O(M N K): two matrix products.

    Args:
        projection: The data seen through the knots so far.
        knots_with_candidates: Covariances, shape (K, M).
        candidates_with_data: Covariances, shape (M, N).
        prior: Prior variances of the candidates, any nugget included, shape (M,).

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> candidates = measure_candidates(projection, 0.0 * one, one, one[0])  # as good as the row
        >>> bool(candidates.gains() > 0.3)
        True
    """
    loadings = torch.linalg.solve_triangular(projection.lower, knots_with_candidates, upper=False)  # (K, M)
    covariance = candidates_with_data - loadings.mT @ projection.projected
    posterior = condition(projection, projection.noise.expand_as(projection.residual))
    # Sigma^{-1} = (I - V^T B^{-1} V / tau^2) / tau^2
    white = torch.linalg.solve_triangular(posterior.factor, projection.projected, upper=False)  # (K, N)
    weighted = (covariance - (covariance @ white.mT) @ white / projection.noise) / projection.noise
    variance = (prior - loadings.square().sum(0)).clamp_min(0.0)
    return Candidates(
        covariance, weighted, variance, projection.residual, projection.noise, NEARLY_EXPLAINED * prior.max()
    )
