"""Recalibrated distributions: a monotone map of the distribution function of others."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.quadrature import AtNodes, at_nodes, crps_at_nodes, integral_from
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.numerics import normal_scores
from gp_ensembles.numerics.display import counted
from gp_ensembles.numerics.draws import uniform_draws
from gp_ensembles.numerics.reductions import sum_over_experts

_NOTHING = 1e-13


class Recalibrated(NamedTuple):
    r"""The distributions of N rows with distribution function :math:`G(F(y))` and density :math:`f(y)\, g(F(y))`.

    F is that of the base, and G a mixture of K maps of the normal score, see
    :mod:`gp_ensembles.numerics.normal_scores`. Quantiles are :math:`F^{-1}(G^{-1}(p))`, draws the same at uniform
    probabilities. Mean and variance are the base's and the integrals

    .. math::

        E_G[Y] - E_F[Y] = \int (F - G)\, dy, \qquad
        E_G[(Y - c)^2] - E_F[(Y - c)^2] = 2 \int (y - c) (F - G)\, dy

    by the trapezoidal rule after :math:`y = c + 0.3\, d \sinh(t + t^3 / 40)` with the base's mean c and deviation d,
    when asked for. On random mixtures of normal and Student-t distributions they are within 1e-4 deviations and 0.5 %
    of the variance where the identity has 98 % of G, within 2e-3 and 1.5 % where it has none. Of more than 66
    components the lightest count as one or two for this, which can move the variance by some per cent where a wide one
    among them makes the tails.

    Attributes:
        base: Distributions of N rows.
        map_log_weights: Log weights of the maps, shape (K,), or (K, N) where each row has its own.
        map_shift: Their shifts, shape (K,).
        map_scale: Their scales, shape (K,).

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> base = Mixture(0 * one[0], 0 * one, one)
        >>> wider = Recalibrated(base, 0 * one[0], 0 * one[0], 1.5 * one[0])
        >>> wider.stddev.round(decimals=2), wider.quantile(0.975)
        (tensor([1.5000], dtype=torch.float64), tensor([2.9399], dtype=torch.float64))
    """

    base: Mixture | StudentTMixture
    map_log_weights: Tensor
    map_shift: Tensor
    map_scale: Tensor

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
        found = at_nodes(self.base)
        return self._moments(found, self._map_at(found))

    def moments_and_crps(self, y: Tensor, base_crps: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        r"""Mean and variance of each row, and continuous ranked probability scores of targets (N,), in one pass.

        Scores are found at the nodes of the moments, or from the exact ones of the base by

        .. math:: \int G^2 - F^2\, dz - 2 \int_y^\infty G - F\, dz.

        Args:
            y: Targets, shape (N,); NaN where missing.
            base_crps: Scores of the base, shape (N,), if they are known.
        """
        found = at_nodes(self.base)
        after = self._map_at(found)
        mean, variance = self._moments(found, after)
        if base_crps is None:
            return mean, variance, crps_at_nodes(y, found, after, mean)
        squares = sum_over_experts((after.square() - found.cdf.square()) * found.length)
        beyond = integral_from(y, (after - found.cdf) * found.length, found.mean, found.variance)
        return mean, variance, base_crps + squares - 2 * beyond

    def typical_width(self) -> Tensor:
        r"""A width of each row, (N,): the base's times :math:`\sqrt{\sum_k w_k (s_k^2 + m_k^2)}` with the K maps."""
        log_weights, shift, scale = self._columns()
        spread = sum_over_experts(log_weights.exp() * (scale.square() + shift.square()).unsqueeze(-1)).sqrt()
        return self.base.typical_width() * spread

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of targets (..., N), shape (..., N); NaN where y is."""
        u = self.base.cdf(y)
        return self.base.log_prob(y) + normal_scores.log_density(u, *self._columns())

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), shape (..., N)."""
        return normal_scores.transform(self.base.cdf(y), *self._columns())

    def quantile(self, p: float | Tensor) -> Tensor:
        """Quantiles at p, one probability or a tensor that broadcasts with (..., N).

        Raises:
            ValueError: If a probability is not in [0, 1].
        """
        level = p if isinstance(p, Tensor) else self.map_shift.new_tensor(p)
        return self.base.quantile(normal_scores.inverse(level, *self._columns()))

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row, shape (S, N)."""
        if num < 1:
            raise ValueError(f"the number of draws must be at least one, got {num}")
        rows = self.base.component_mean
        shape = (num, rows.shape[1])
        uniform = uniform_draws(shape, rows.double(), generator)
        return self.quantile(uniform.clamp(2.0**-54, 1 - 2.0**-53))

    def __repr__(self) -> str:
        num, rows = self.base.component_mean.shape
        return distribution_text(
            f"Recalibrated {type(self.base).__name__} of {counted((num, 'component'), (rows, 'row'))}", self
        )

    def rescale(self, shift: Tensor, scale: Tensor) -> "Recalibrated":
        """The distribution of ``scale`` times the target plus ``shift``, both scalars."""
        return self._replace(base=self.base.rescale(shift, scale))

    def _map_at(self, found: AtNodes) -> Tensor:
        """Distribution functions at the nodes, (J, N)."""
        after = normal_scores.tabulated(found.cdf, *self._columns())
        # Farther out both are 0 or 1 but for round-off, which distances of 1e5 deviations would make large.
        return torch.where((found.cdf > _NOTHING) & (found.cdf < 1 - _NOTHING), after, found.cdf)

    def _moments(self, found: AtNodes, after: Tensor) -> tuple[Tensor, Tensor]:
        change = (found.cdf - after) * found.length
        first = sum_over_experts(change)
        second = 2 * sum_over_experts((found.y - found.mean) * change)
        return found.mean + first, found.variance + second - first.square()

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K, N), shifts and scales of the maps."""
        log_weights = self.map_log_weights
        if log_weights.ndim == 1:
            log_weights = log_weights.unsqueeze(-1).expand(-1, self.base.component_mean.shape[1])
        return log_weights, self.map_shift, self.map_scale
