"""Mixtures of normal distributions: predictions of an ensemble, one for each row."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.display import counted


class Mixture(NamedTuple):
    """Mixture of the experts' normal predictions, for each of N rows by itself.

    With several outputs everything is per output: shapes end in (N, O) where (N,) stands below.

    Attributes:
        log_weights: Log weights, summing to one over the experts, shape (M,), or (M, N) where each row has
            its own.
        component_mean: The experts' means, shape (M, N).
        component_variance: The experts' variances, observation noise included, shape (M, N).

    Example:
        >>> half = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> mean = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        >>> mixture = Mixture(half.log(), mean, torch.ones_like(mean))
        >>> mixture.mean, mixture.variance
        (tensor([0.], dtype=torch.float64), tensor([2.], dtype=torch.float64))
        >>> mixture.quantile(0.5).abs() < 1e-12
        tensor([True])
    """

    log_weights: Tensor
    component_mean: Tensor
    component_variance: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of each row, shape (N,)."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance of each row, the experts' disagreement included, shape (N,)."""
        return self.moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of each row, shape (N,)."""
        return self.variance.sqrt()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row in one pass, each of shape (N,)."""
        mean, variance = mixtures.moments(*self._columns())
        return self._unflatten(mean), self._unflatten(variance)

    def typical_width(self) -> Tensor:
        r"""A width of each row, (N,), that is robust to a few far components.

        With the components' moments it is :math:`(\sum_m w_m (v_m + (\mu_m - \mu)^2)^{1/4})^2`.
        """
        return self._unflatten(mixtures.typical_width(*self._columns()))

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of targets (..., N), shape (..., N); NaN where y is."""
        return self._unflatten(mixtures.log_prob(*self._columns(), self._flatten(y)))

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), shape (..., N)."""
        return self._unflatten(mixtures.cdf(*self._columns(), self._flatten(y)))

    def quantile(self, p: float | Tensor) -> Tensor:
        """Quantiles at p, one probability or a tensor that broadcasts with (..., N), such as (K, 1).

        Raises:
            ValueError: If a probability is not in [0, 1].
        """
        level = p if isinstance(p, Tensor) else self.component_mean.new_tensor(p)
        return self._unflatten(mixtures.icdf(*self._columns(), self._flatten(level)))

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row, shape (S, N), reparametrized in means and variances."""
        return self._unflatten(mixtures.rsample(*self._columns(), num, generator=generator))

    def __repr__(self) -> str:
        num, rows = self.component_mean.shape[:2]
        return distribution_text(f"Mixture of {counted((num, 'component'), (rows, 'row'))}", self)

    def rescale(self, shift: Tensor, scale: Tensor) -> "Mixture":
        """The distribution of ``scale`` times the target plus ``shift``, both scalars or one for each output (O,)."""
        return self._replace(
            component_mean=self.component_mean * scale + shift, component_variance=self.component_variance * scale**2
        )

    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (M, 1) or (M, K), means and variances (M, K) of K = N or N O mixtures."""
        mean, log_weights = self.component_mean, self.log_weights
        if log_weights.ndim == 1:
            log_weights = log_weights.unsqueeze(-1)
        elif mean.ndim == 3:
            log_weights = log_weights.unsqueeze(-1).expand_as(mean).flatten(1)
        return log_weights, mean.flatten(1), self.component_variance.flatten(1)

    def _flatten(self, values: Tensor) -> Tensor:
        """Values (..., N, O) as (..., N O); a number and values (..., 1) stay."""
        if self.component_mean.ndim == 2 or values.ndim == 0:
            return values
        shape = self.component_mean.shape[1:]
        values = values.expand(torch.broadcast_shapes(values.shape, shape))
        return values.flatten(-2)

    def _unflatten(self, values: Tensor) -> Tensor:
        """Results (..., K) in the shape of the rows."""
        return values.unflatten(-1, self.component_mean.shape[1:]) if self.component_mean.ndim == 3 else values
