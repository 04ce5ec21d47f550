"""Which sparse approximation: what is maximized, and what is predicted."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gp_ensembles.sparse.collapsed import Projection, log_density


class Approximation(ABC):
    """An approximation of a Gaussian process by knots: the noise under which knots are learned, and a penalty."""

    def objective(self, projection: Projection) -> Tensor:
        """What is maximized, in nats, shape (): log density of the residuals less the penalty."""
        return log_density(projection, self.diagonal(projection)) - self.penalty(projection)

    @abstractmethod
    def diagonal(self, projection: Projection) -> Tensor:
        """Variances D of the independent noise under which the knots' posterior is taken, shape (N,)."""

    @abstractmethod
    def penalty(self, projection: Projection) -> Tensor:
        r"""What the objective has beside :math:`\log N(r; 0, Q + D)`, taken from it, shape ()."""

    @abstractmethod
    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        r"""What test points have beside the knots' posterior, (\*batch, q, q), of the prior and the explained part."""


def _noise(projection: Projection) -> Tensor:
    return projection.noise.expand_as(projection.residual)


def _nothing(projection: Projection) -> Tensor:
    return torch.zeros_like(projection.noise)


class VFE(Approximation):
    r"""Variational free energy (Titsias, 2009): a lower bound of the log evidence.

    .. math:: \log N(r; 0, Q + \tau^2 I) - \frac{1}{2 \tau^2} \sum_i (k_{ii} - q_{ii})

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(float(VFE().objective(project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0]))), 4)
        -1.4055
    """

    def penalty(self, projection: Projection) -> Tensor:
        """The trace of what knots leave open, over twice the noise."""
        return projection.unexplained.sum() / (2.0 * projection.noise)

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise."""
        return _noise(projection)

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained


class TightVFE(Approximation):
    r"""The tighter collapsed bound (Titsias, 2025; Bui et al., 2025): the trace becomes a sum of logarithms.

    .. math:: \log N(r; 0, Q + \tau^2 I) - \frac12 \sum_i \log\big(1 + (k_{ii} - q_{ii}) / \tau^2\big)

    It lies between :class:`VFE` and the log evidence; predictions are those of :class:`VFE`.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(TightVFE().objective(projection)), 4)
        -1.3103
    """

    def penalty(self, projection: Projection) -> Tensor:
        """The sum of logarithms."""
        return 0.5 * torch.log1p(projection.unexplained / projection.noise).sum()

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise."""
        return _noise(projection)

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained


class DTC(Approximation):
    """Deterministic training conditional (Seeger et al., 2003): the density of :class:`VFE` without its trace.

    No bound: adding knots may overfit.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(DTC().objective(projection)), 4)
        -1.0305
    """

    def penalty(self, projection: Projection) -> Tensor:
        """None."""
        return _nothing(projection)

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise."""
        return _noise(projection)

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained


class DIC(Approximation):
    """Deterministic inducing conditional, or subset of regressors (Silverman, 1985): predictions of the knots alone.

    Its variances collapse away from the knots.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(DIC().objective(projection)), 4)
        -1.0305
    """

    def penalty(self, projection: Projection) -> Tensor:
        """None."""
        return _nothing(projection)

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise."""
        return _noise(projection)

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """Nothing."""
        return torch.zeros_like(prior)


class FITC(Approximation):
    r"""Fully independent training conditional (Snelson and Ghahramani, 2006): exact variances at the data.

    .. math:: \log N\big(r; 0, Q + \mathrm{diag}(k - q) + \tau^2 I\big)

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(FITC().objective(projection)), 4)
        -1.2655
    """

    def penalty(self, projection: Projection) -> Tensor:
        """None."""
        return _nothing(projection)

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise and what knots leave open."""
        return projection.noise + projection.unexplained

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained


class FIC(Approximation):
    """Fully independent conditional: :class:`FITC` whose test points are independent given the knots, too.

    Marginals are those of FITC; jointly, test points are correlated through the knots only.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(FIC().objective(projection)), 4)
        -1.2655
    """

    def penalty(self, projection: Projection) -> Tensor:
        """None."""
        return _nothing(projection)

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise and what knots leave open."""
        return projection.noise + projection.unexplained

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """The diagonal."""
        return torch.diag_embed((prior - explained).diagonal(dim1=-2, dim2=-1))


class PowerEP(Approximation):
    r"""Power expectation propagation (Bui, Yan and Turner, 2017), between VFE (alpha to 0) and FITC (alpha = 1).

    .. math:: \log N\big(r; 0, Q + \tau^2 I + \alpha\, \mathrm{diag}(k - q)\big)
              - \frac{1 - \alpha}{2 \alpha} \sum_i \log\big(1 + \alpha (k_{ii} - q_{ii}) / \tau^2\big)

    Args:
        alpha: The power, in (0, 1].

    Raises:
        ValueError: If the power is not in (0, 1].

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], 0.0 * one[0], one[0, 0])  # a quarter of the variance explained
        >>> round(float(PowerEP(0.5).objective(projection)), 4)
        -1.3209
    """

    def __init__(self, alpha: float) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"the power must be in (0, 1], got {alpha}; VFE is its limit at 0")
        self.alpha = alpha

    def penalty(self, projection: Projection) -> Tensor:
        """The sum of logarithms, weighed by the power."""
        logarithms = torch.log1p(self.alpha * projection.unexplained / projection.noise).sum()
        return (1.0 - self.alpha) / (2.0 * self.alpha) * logarithms

    def diagonal(self, projection: Projection) -> Tensor:
        """The noise and a share of what knots leave open."""
        return projection.noise + self.alpha * projection.unexplained

    def predictive(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained


def upper_bound(projection: Projection) -> Tensor:
    r"""Upper bound of the log evidence (Titsias, 2014), in O(N K^2).

    .. math:: -\tfrac12 \log |2 \pi (Q + \tau^2 I)|
              - \tfrac12 r^\top \big(Q + (\tau^2 + \mathrm{tr}(K - Q)) I\big)^{-1} r

    A nugget counts as noise here: as a part of K it would spoil the trace, N times over.

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> bool(upper_bound(projection) >= VFE().objective(projection))
        True
    """
    noise = _noise(projection) + projection.nugget
    wide = noise + (projection.unexplained - projection.nugget).clamp_min(0.0).sum()
    silent = projection._replace(residual=torch.zeros_like(projection.residual))
    return log_density(silent, noise) + log_density(projection, wide) - log_density(silent, wide)
