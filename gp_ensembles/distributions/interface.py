"""The interface that all predictive distributions share."""

from typing import Protocol

import torch
from torch import Tensor


class Distribution(Protocol):
    """Predictive distributions of N rows, each by itself, in the units of the target.

    :class:`~gp_ensembles.distributions.Mixture`, :class:`~gp_ensembles.distributions.StudentTMixture`,
    :class:`~gp_ensembles.distributions.LatentMixture`, :class:`~gp_ensembles.distributions.Recalibrated` and
    :class:`~gp_ensembles.distributions.WithPointMass` are such.

    Example:
        >>> from gp_ensembles.distributions import Mixture
        >>> zero = torch.zeros(1, 2)
        >>> normal: Distribution = Mixture(zero[0, :1], zero, zero + 1)
        >>> normal.cdf(zero[0])
        tensor([0.5000, 0.5000])
    """

    @property
    def mean(self) -> Tensor:
        """Means, shape (N,); of several outputs (N, O), of unordered classes their probabilities (N, C)."""

    @property
    def variance(self) -> Tensor:
        """Variances, of the shape of the means."""

    @property
    def stddev(self) -> Tensor:
        """Standard deviations, of the shape of the means."""

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means and variances in one pass."""

    def log_prob(self, y: Tensor) -> Tensor:
        """Log densities or probabilities of targets (..., N), of that shape; NaN where y is."""

    def cdf(self, y: Tensor) -> Tensor:
        """Probabilities of a target up to y (..., N), of that shape."""

    def quantile(self, p: float | Tensor) -> Tensor:
        """Quantiles, shape (N,) or (..., N); p is one probability or broadcasts with (..., N)."""

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row, shape (S, N)."""
