"""A distribution seen through a monotone map of its distribution function."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.distributions.quadrature import integral_from, nodes
from gp_ensembles.distributions.student_t_mixture import StudentTMixture
from gp_ensembles.numerics import normal_scores
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
    of the variance where the identity has 98 % of G, within 2e-3 and 1.5 % where it has none.

    Attributes:
        base: Distributions of N rows.
        map_log_weights: Log weights of the maps, shape (K,), or (K, N) where each row has its own.
        map_shift: Their shifts, shape (K,).
        map_scale: Their scales, shape (K,).

    Example:
        >>> import torch
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
        mean, variance = self.base.moments()
        y, spacing, before, after = self._at_nodes(mean, variance)
        change = (before - after) * spacing
        first = sum_over_experts(change)
        second = 2 * sum_over_experts((y - mean) * change)
        return mean + first, variance + second - first.square()

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of targets (..., N), shape (..., N); NaN where y is."""
        u = self.base.cdf(y)
        return self.base.log_prob(y) + normal_scores.log_density(u, *self._columns())

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), shape (..., N)."""
        return self._transform(self.base.cdf(y))

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
        uniform = torch.empty(shape, dtype=torch.float64, device=rows.device).uniform_(generator=generator)
        return self.quantile(uniform.clamp(2.0**-54, 1 - 2.0**-53))

    def rescale(self, shift: Tensor, scale: Tensor) -> "Recalibrated":
        """The distribution of ``scale`` times the target plus ``shift``, both scalars."""
        return self._replace(base=self.base.rescale(shift, scale))

    def crps(self, y: Tensor, base_crps: Tensor) -> Tensor:
        r"""Continuous ranked probability scores of targets, from those of the base.

        .. math:: \int (G - 1[z \ge y])^2 - (F - 1[z \ge y])^2\, dz = \int G^2 - F^2\, dz - 2 \int_y^\infty G - F\, dz

        at the nodes of the moments.

        Args:
            y: Targets, shape (N,).
            base_crps: Scores of the base, shape (N,).

        Returns:
            Scores, shape (N,); NaN where y is.
        """
        mean, variance = self.base.moments()
        _, spacing, before, after = self._at_nodes(mean, variance)
        squares = sum_over_experts((after.square() - before.square()) * spacing)
        return base_crps + squares - 2 * integral_from(y, (after - before) * spacing, mean, variance)

    def _at_nodes(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Nodes, what each stands for, and both distribution functions there, (J, N) each."""
        y, spacing = nodes(mean, variance)
        before = self.base.cdf(y)
        after = normal_scores.tabulated(before, *self._columns())
        # Farther out both are 0 or 1 but for round-off, which distances of 1e5 deviations would make large.
        return y, spacing, before, torch.where((before > _NOTHING) & (before < 1 - _NOTHING), after, before)

    def _transform(self, u: Tensor) -> Tensor:
        return normal_scores.transform(u, *self._columns())

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K, N), shifts and scales of the maps."""
        log_weights = self.map_log_weights
        if log_weights.ndim == 1:
            log_weights = log_weights.unsqueeze(-1).expand(-1, self.base.component_mean.shape[1])
        return log_weights, self.map_shift, self.map_scale
