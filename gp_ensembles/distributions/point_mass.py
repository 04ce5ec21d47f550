"""Distributions with a point mass: a target equals one value with some probability, and is continuous otherwise."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.recalibrated import Recalibrated
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.distributions.table import distribution_text, shape_of
from gp_ensembles.numerics.display import counted
from gp_ensembles.numerics.draws import uniform_draws


class WithPointMass(NamedTuple):
    r"""Distributions of N rows that give one value its own probability.

    With the point a, its probability :math:`\pi` and the distribution function F of all other targets,

    .. math:: P(Y \le y) = \pi\, [y \ge a] + (1 - \pi) F(y).

    :meth:`log_prob` is :math:`\log \pi` at the point and :math:`\log (1 - \pi) f(y)` elsewhere: a probability there, a
    density here, as the log score of a hurdle model counts them (Cragg 1971).

    Attributes:
        base: Distributions of the targets that are not at the point, of N rows.
        at: The point of each row, shape (1, N); NaN where there is none, and its probability zero.
        log_share: Log probabilities of the point, shape (1, N).

    Example:
        >>> row = torch.zeros(1, 1, dtype=torch.float64)
        >>> sales = Mixture(row[0], row + 7, row + 4)
        >>> demand = WithPointMass(sales, row, row + torch.tensor(0.9).log())
        >>> demand.mean.round(decimals=2), demand.quantile(0.99).round(decimals=2)
        (tensor([0.7000], dtype=torch.float64), tensor([9.5600], dtype=torch.float64))
    """

    base: Mixture | StudentTMixture | Recalibrated
    at: Tensor
    log_share: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of each row, shape (N,)."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance of each row, shape (N,)."""
        return self.moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of each row, shape (N,)."""
        return self.variance.sqrt()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row, each (N,)."""
        return self.mixed_moments(*self.base.moments())

    def mixed_moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row, from those of the other targets, (N,) each."""
        share = self.log_share[0].exp()
        at = torch.where(self.at[0].isnan(), mean, self.at[0])
        return torch.lerp(mean, at, share), (1 - share) * (variance + share * (mean - at).square())

    def crps(self, y: Tensor, at_y: Tensor, at_point: Tensor) -> Tensor:
        r"""Continuous ranked probability scores of targets (N,), from those of the base at y and at the point.

        .. math:: \pi |y - a| + (1 - \pi)\, C(y) - \pi (1 - \pi)\, C(a)
        """
        share = self.log_share[0].exp()
        mixed = share * (y - self.at[0]).abs() + (1 - share) * (at_y - share * at_point)
        return torch.where(self.at[0].isnan(), at_y, mixed)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log probability at the point, log density of other targets (..., N), shape (..., N); NaN where y is."""
        return self.mixed_log_prob(y, self.base.log_prob(y))

    def mixed_log_prob(self, y: Tensor, others: Tensor) -> Tensor:
        """The same from log densities of the base at these targets."""
        return torch.where(y == self.at[0], self.log_share[0], self._log_rest() + others)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), shape (..., N)."""
        return self._log_rest().exp() * self.base.cdf(y) + torch.where(y >= self.at[0], self.log_share[0].exp(), 0.0)

    def quantile(self, p: float | Tensor) -> Tensor:
        """Quantiles at p, one probability or a tensor that broadcasts with (..., N).

        Raises:
            ValueError: If a probability is not in [0, 1].
        """
        share, rest, at = self.log_share[0].exp(), self._log_rest().exp(), self.at[0]
        level = p if isinstance(p, Tensor) else share.new_tensor(p)
        if not bool(((level >= 0) & (level <= 1) | level.isnan()).all()):
            raise ValueError(f"probabilities must lie between 0 and 1, got {level.tolist()}")
        below = torch.where(at.isnan(), torch.inf, rest * self.base.cdf(at))
        is_above = level > below + share
        inner = (torch.where(is_above, level - share, torch.minimum(level, below)) / rest).clamp(0, 1)
        found = self.base.quantile(inner)
        return torch.where((level >= below) & ~is_above, at, found)

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row, shape (S, N)."""
        others, share = self.base.sample(num, generator=generator), self.log_share[0].exp()
        return torch.where(uniform_draws(tuple(others.shape), others, generator) < share, self.at[0], others)

    def rescale(self, shift: Tensor, scale: Tensor) -> "WithPointMass":
        """The distribution of ``scale`` times the target plus ``shift``, both scalars."""
        return self._replace(base=self.base.rescale(shift, scale), at=self.at * scale + shift)

    def __repr__(self) -> str:
        kind = "Recalibrated" if isinstance(self.base, Recalibrated) else type(self.base).__name__
        head = f"{kind} with a point mass at {float(self.at[0, :1].mean()):g}, {counted((shape_of(self)[0], 'row'))}"
        return distribution_text(head, self)

    def _log_rest(self) -> Tensor:
        """Log probability of all other targets, (N,)."""
        return torch.log1p(-self.log_share[0].exp().clamp_max(1 - 1e-12))
