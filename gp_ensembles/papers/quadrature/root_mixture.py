"""The paper's predictions: mixtures of products of roots of the kernels' predictions."""

import math
from typing import NamedTuple

from torch import Tensor

_MISSING = 0.05  # largest share of the weights of products of roots that may be left out


class RootMixture(NamedTuple):
    r"""Products of roots of normal densities, point by point and normalized (Hamid et al., 2022, section 3.4).

    .. math:: p(y) \propto \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}
              = \sum_{ij} W_{ij} B_{ij} N(y; c_{ij}, V_{ij})

    with Bhattacharyya coefficients B. Points are treated separately, so predictions do not depend on one another.
    Weights may be negative; where the mass :math:`\sum W B` is far from one, a variance is negative, or kernels were
    left out whose weights the others have to cancel, ``usable`` is false and the mixture is not to be trusted.

    Args:
        weights: :math:`W_{ij} B_{ij}` over their sum, shape (P, M), pairs first.
        mean: Means c, shape (P, M).
        variance: Variances V, shape (P, M).
        mass: Sum of W B before normalization, shape (M,): one if the surrogate were exact (and alpha zero).
        complete: Whether the kept kernels' weights have the sum of all, shape ().

    Example:
        >>> import torch
        >>> means, variances = torch.tensor([[0.0], [2.0]]), torch.ones(2, 1)
        >>> mixture = root_mixture(torch.full((2, 2), 0.25), means, variances)
        >>> [round(float(moment), 3) for moment in mixture.moments()]
        [1.0, 1.622]
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

    Args:
        matrix: Weights W of the kept kernels, shape (R, R).
        mean: Their predictive means, shape (R, M).
        variance: Their predictive variances of the targets, noise included, shape (R, M).
        total_weight: Sum of the weights of all kernels, kept or not; of the kept ones if ``None``.

    Returns:
        The mixture of R^2 pairs.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> mixture = root_mixture(one, one, one)
        >>> mixture.moments(), float(mixture.mass)
        ((tensor([1.]), tensor([1.])), 1.0)
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
