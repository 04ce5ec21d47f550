"""The paper's predictions: mixtures of products of roots of the kernels' predictions."""

import math
from typing import NamedTuple

from torch import Tensor

_MISSING = 0.05  # largest share of the weights of products of roots that may be left out


class RootMixture(NamedTuple):
    r"""Products of roots of normal densities, point by point and normalized (Hamid et al., 2022, section 3.4).

    .. math:: p(y) \propto \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}
              = \sum_{ij} W_{ij} B_{ij} N(y; c_{ij}, V_{ij})

    Args:
        weights: :math:`W_{ij} B_{ij}` over their sum, shape (P, M), pairs first.
        mean: Means c, shape (P, M).
        variance: Variances V, shape (P, M).
        mass: Sum of W B before normalization, shape (M,): one if the surrogate were exact (and alpha zero).
        complete: Whether the kept kernels' weights have the sum of all, shape ().
    """

    weights: Tensor
    mean: Tensor
    variance: Tensor
    mass: Tensor
    complete: Tensor

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance at each point, shapes (M,)."""
        mean = (self.weights * self.mean).sum(0)
        return mean, (self.weights * (self.variance + (self.mean - mean).square())).sum(0)

    def density(self, y: Tensor) -> Tensor:
        r"""Density at values (\*sample, M); it integrates to one, and may be negative where weights are."""
        z = (y.unsqueeze(-2) - self.mean).square() / self.variance
        each = (-0.5 * z).exp() / (2.0 * math.pi * self.variance).sqrt()
        return (self.weights * each).sum(-2)

    @property
    def usable(self) -> Tensor:
        """Where mass is between one half and two and variance positive, and no kernel is missing, shape (M,)."""
        return self.complete & (self.mass >= 0.5) & (self.mass <= 2.0) & (self.moments()[1] > 0)


def root_mixture(matrix: Tensor, mean: Tensor, variance: Tensor, total_weight: Tensor | None = None) -> RootMixture:
    """The mixture of products of roots at each of M points.

    Shapes: ``matrix`` (R, R), ``mean`` (R, M), ``variance`` (R, M).
    """
    total = variance.unsqueeze(0) + variance.unsqueeze(1)
    product = variance.unsqueeze(0) * variance.unsqueeze(1)
    gap = mean.unsqueeze(0) - mean.unsqueeze(1)
    coefficient = (2.0 * product.sqrt() / total).sqrt() * (-0.25 * gap.square() / total).exp()
    spread = 2.0 * product / total
    center = (variance.unsqueeze(1) * mean.unsqueeze(0) + variance.unsqueeze(0) * mean.unsqueeze(1)) / total
    weighted = (matrix.unsqueeze(-1) * coefficient).flatten(0, 1)
    mass = weighted.sum(0)
    total_weight = matrix.sum() if total_weight is None else total_weight
    complete = (matrix.sum() - total_weight).abs() <= _MISSING * total_weight.abs()
    return RootMixture(weighted / mass, center.flatten(0, 1), spread.flatten(0, 1), mass, complete)
