r"""Gaussian sites: the likelihood of one target as a Gaussian factor of its latent value or vector.

A target y with density :math:`p(y \mid z)`, :math:`z = \phi^\top \theta`, is replaced by a *site*, a Gaussian in z with
precision h and shift b (its precision times its mean). With z normal before the target, mean m and variance s, it is
normal afterwards:

.. math:: s' = s / (1 + h s), \qquad m' = (m + s b) / (1 + h s)

The weights follow by linear regression, at the cost of a Gaussian target: no system of F equations is solved.
"""

import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.plain_sites import Quadrature, softmax_site
from gp_ensembles.numerics.derivatives import Differentiator, KnownDerivatives, KnownVectorDerivatives, LogDensity

_NEWTON_STEPS = 8  # plain Newton steps before damping is paid for
_UNCHECKED, _UNDAMPED = 2, 40  # steps from one side before the first is checked, and at most
_CAP = 100
_HALVINGS, _VECTOR_HALVINGS = 60, 40
_NUDGE = 0.1  # in prior standard deviations
_REFINEMENTS = 4  # of the nodes of a quadrature
_NARROWEST = 0.05  # share of the last width to which one refinement may shrink
_CLOSER = 0.05  # the same for vectors
_FURTHER = 0.1  # share of the last move to which it may
_WIDER = 1.2  # times the posterior's own width, for nodes of equal weight, lest a few of them bear its tails alone


class ConvergenceWarning(UserWarning):
    """An iteration hit its cap; the message names the expert and how far it was from done."""


class Sites(NamedTuple):
    r"""Gaussian factors, one for each target.

    Attributes:
        precision: h, shape (\*batch, B).
        shift: b, shape (\*batch, B).
        point: Where the factor was matched: the latent value's new mean, shape (\*batch, B).
    """

    precision: Tensor
    shift: Tensor
    point: Tensor


class SiteRule(ABC):
    """A rule that approximates the likelihood of a target by a Gaussian site."""

    @abstractmethod
    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        r"""The sites of targets y (B,), by the moments of each latent value before its target, (\*batch, B) each."""


class LaplaceRule(SiteRule):
    r"""The site that has the curvature of the log density at the mode of the latent value.

    .. math:: \hat z = m + s\, \ell'(\hat z), \qquad h = -\ell''(\hat z), \qquad b = \ell'(\hat z) + h \hat z

    with :math:`\ell(z) = \log p(y \mid z)`. Newton's method finds the mode in a few steps where :math:`\ell` is
    concave; elsewhere it is damped, and goes to the mode that it climbs to from m.

    Args:
        log_density: Elementwise log density of latent values and targets.
        known: Its derivatives, if it is concave and they are known in closed form; else by automatic differentiation.

    Example:
        >>> import torch
        >>> rule = LaplaceRule(lambda z, y: -0.5 * (y - z).square() / 0.5)
        >>> zero, one = torch.zeros(1).double(), torch.ones(1).double()
        >>> sites = rule.solve(zero, one, one)
        >>> sites.precision, sites.point
        (tensor([2.], dtype=torch.float64), tensor([0.6667], dtype=torch.float64))
    """

    def __init__(self, log_density: LogDensity, known: KnownDerivatives | None = None) -> None:
        self._log_density = log_density
        self._known = known
        self._derivatives = Differentiator(log_density)
        self.is_logistic: bool = known is not None and known.is_logistic

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Newton's method, damped where it must be; see :meth:`SiteRule.solve`."""
        if self._known is not None:
            sites = _from_one_side(self._known, mean, variance, y)
            if sites is not None:
                return sites
        tolerance = _tolerance(mean)
        point = mean
        for _ in range(_NEWTON_STEPS):
            sites, concave = self._step(point, mean, variance, y)
            distance = (sites.point - point).abs() - tolerance * (1 + point.abs())
            if not bool((concave & torch.isfinite(distance)).all()):
                break
            if bool((distance <= 0).all()):
                return sites
            point = sites.point
        return self._damped(mean, variance, y)

    def _step(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> tuple[Sites, Tensor]:
        first, second = self._derivatives(point, y)
        precision = -second
        shift = first + precision * point
        return Sites(precision, shift, (mean + variance * shift) / (1 + precision * variance)), precision >= 0

    def _damped(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        tolerance = _tolerance(mean)
        lost = ~(torch.isfinite(mean) & torch.isfinite(variance))  # of an expert that failed: there is no mode to find
        point = mean
        height = self._height(point, mean, variance, y)
        for index in range(_CAP):
            first, second = self._derivatives(point, y)
            slope = first - (point - mean) / variance
            # Where the log density is convex its curvature is left out: then the step goes up all the same.
            step = slope * variance / (1 - second.clamp_max(0.0) * variance)
            settled = (step.abs() <= tolerance * (1 + point.abs())) | lost
            is_peak = (second * variance < 1) | lost
            if bool((settled & is_peak).all()):
                return self._at(point + step, y)
            # Level ground that is no peak: step off it, to either side in turn.
            step = torch.where(settled & ~is_peak, (-1) ** index * _NUDGE * variance.sqrt(), step)
            step = torch.where(lost, 0.0, step)
            point, height = self._backtrack(point, height, step, slope, (mean, variance, y))
        worst = int(step.abs().reshape(step.shape[0] if step.ndim > 1 else 1, -1).amax(-1).argmax())
        warnings.warn(
            f"the mode of a target was not found in {_CAP} damped Newton steps for expert {worst}: the last step was "
            f"{float(step.abs().max()):.2g}; going on from there",
            ConvergenceWarning,
            stacklevel=2,
        )
        sites = self._at(point, y)
        precision = sites.precision.clamp_min(0.0)  # off the mode a curvature may be negative beyond all bounds
        return sites._replace(precision=precision, shift=sites.shift + (precision - sites.precision) * point)

    def _at(self, point: Tensor, y: Tensor) -> Sites:
        first, second = self._derivatives(point, y)
        return Sites(-second, first - second * point, point)

    def _height(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Tensor:
        return self._log_density(point, y) - 0.5 * (point - mean).square() / variance

    def _backtrack(
        self, point: Tensor, height: Tensor, step: Tensor, slope: Tensor, moments: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The longest of the step and its halves that climbs, for every latent value by itself."""
        share = torch.ones_like(step)
        for _ in range(_HALVINGS):
            candidate = point + share * step
            reached = self._height(candidate, *moments)
            # NaN is low; of no step there is nothing to halve.
            low = (step != 0) & ~(reached >= height + 1e-4 * share * step * slope - 1e-12 * (1 + height.abs()))
            if not bool(low.any()):
                break
            share = torch.where(low, 0.5 * share, share)
        return torch.where(low, point, candidate), torch.where(low, height, reached)


class MomentMatchingRule(SiteRule):
    r"""The site after which the latent value has the mean and variance of its exact posterior.

    Assumed-density filtering (Opper 1998; Minka 2001): with :math:`q(z) \propto N(z; m, s)\, p(y \mid z)` by
    quadrature, the site is that which takes (m, s) to the moments of q.

    Args:
        log_density: Elementwise log density of latent values and targets.
        nodes: Nodes for the standard normal distribution, shape (K,).
        weights: Their weights, which sum to one, shape (K,).
        is_logistic: Whether targets are two classes under the logistic link, which blocks take on plain arrays.

    Example:
        >>> import torch
        >>> from gp_ensembles.numerics.gauss_hermite import gauss_hermite
        >>> zero, one = torch.zeros(1).double(), torch.ones(1).double()
        >>> rule = MomentMatchingRule(
        ...     lambda z, y: -0.5 * (y - z).square() / 0.5, *gauss_hermite(32, one)
        ... )
        >>> rule.solve(zero, one, one).point
        tensor([0.6667], dtype=torch.float64)
    """

    def __init__(self, log_density: LogDensity, nodes: Tensor, weights: Tensor, *, is_logistic: bool = False) -> None:
        self._log_density = log_density
        self._nodes = nodes
        self._log_weights = weights.log()
        self.is_logistic = is_logistic

    @property
    def quadrature(self) -> Quadrature:
        """The same on plain arrays."""
        nodes, log_weights = self._nodes.reshape(-1).numpy(), self._log_weights.reshape(-1).numpy()
        return Quadrature(nodes, log_weights, _REFINEMENTS, _NARROWEST)

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Quadrature; see :meth:`SiteRule.solve`."""
        stddev = variance.sqrt()
        nodes = self._nodes.reshape(-1, *[1] * mean.ndim)
        log_weights = self._log_weights.reshape(nodes.shape)
        center, spread = torch.zeros_like(mean), torch.ones_like(mean)  # in standard deviations from the mean
        for _ in range(_REFINEMENTS):  # nodes move to where the posterior is, which may be narrow and far away
            place = center + spread * nodes
            joint = self._log_density(mean + stddev * place, y) + log_weights + 0.5 * (nodes.square() - place.square())
            shares = (joint - joint.amax(0)).exp()
            shares = shares / shares.sum(0)
            center = (shares * place).sum(0)
            narrow = (shares * (place - center).square()).sum(0).sqrt()
            spread = torch.maximum(narrow, _NARROWEST * spread)  # all the mass on one node: look closer, not blindly
        precision = (1 / spread.square() - 1) / variance
        point = mean + stddev * center
        return Sites(precision, point / (spread.square() * variance) - mean / variance, point)


class RobustRule(SiteRule):
    r"""A Gaussian site that counts less the further the target lies from its prediction.

    The weighted-observation-likelihood filter with the inverse multiquadric weight (Duran-Martin et al. 2024):

    .. math:: h = w^2 / \sigma^2, \qquad w^2 = \Big( 1 + \frac{(y - m)^2}{c^2 \sigma_y^2} \Big)^{-1}

    with the predictive variance :math:`\sigma_y^2 = s + \sigma^2` (a residual is gross relative to what was expected),
    whose influence is bounded: a target however gross moves the posterior by a limited amount.

    Args:
        noise: Observation noise variance, shape (\*batch).
        threshold: c in standard deviations: a residual of that size counts half.

    Example:
        >>> import torch
        >>> one, y = torch.ones(1).double(), torch.tensor([1.0, 1e3]).double()
        >>> RobustRule(one[0], 4 * one[0]).solve(one, one, y).precision
        tensor([1.0000e+00, 3.2063e-05], dtype=torch.float64)
    """

    def __init__(self, noise: Tensor, threshold: Tensor) -> None:
        self._noise = noise
        self._threshold = threshold

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """In closed form; see :meth:`SiteRule.solve`."""
        noise = self._noise.unsqueeze(-1)
        scale = noise + variance
        weight = 1 / (1 + (y - mean).square() / (self._threshold.square().unsqueeze(-1) * scale))
        precision = weight / noise
        shift = precision * y
        return Sites(precision, shift, (mean + variance * shift) / (1 + precision * variance))


class VectorSite(NamedTuple):
    r"""A Gaussian site of a latent vector, as the update of its moments.

    Attributes:
        gradient: a, shape (\*batch, C): the latent mean moves by S a.
        curvature: W, shape (\*batch, C, C): the latent covariance falls by S W S.
    """

    gradient: Tensor
    curvature: Tensor


class VectorRule(ABC):
    """A rule that approximates the likelihood of a target by a Gaussian site of its latent vector."""

    @abstractmethod
    def solve(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite:
        r"""The site of a scalar target, by mean (\*batch, C) and covariance (\*batch, C, C) of the latent vector."""


class VectorLaplaceRule(VectorRule):
    r"""Mode and curvature of the latent vector's posterior.

    Newton's method in :math:`a = S^{-1} (z - m)`, which needs no inverse of S:

    .. math:: a \leftarrow (I + H S)^{-1} (\nabla \ell(z) + H (z - m)), \qquad H = -\nabla^2 \ell(z), \qquad
              W = (I + H S)^{-1} H

    Args:
        log_density: Log density of latent vectors (..., C) and targets (...), concave in the latent vector.
        derivatives: Its gradients and Hessians, if they are known in closed form.

    Example:
        >>> import torch
        >>> rule = VectorLaplaceRule(
        ...     lambda z, y: -0.5 * (z - y.unsqueeze(-1)).square().sum(-1)
        ... )
        >>> zero, one = torch.zeros(2).double(), torch.ones(()).double()
        >>> rule.solve(zero, torch.diag_embed(zero + 1), one).gradient
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, log_density: LogDensity, derivatives: KnownVectorDerivatives | None = None) -> None:
        self._log_density = log_density
        self._is_softmax = derivatives is not None and derivatives.is_softmax
        self._derivatives = derivatives.at if derivatives is not None else Differentiator(log_density, is_vector=True)

    def solve(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite:
        """Damped Newton; see :meth:`VectorRule.solve`."""
        site = self._on_arrays(mean, covariance, y) if self._is_softmax else None
        if site is not None:
            return site
        target = y.expand(mean.shape[:-1])
        identity = torch.diag_embed(torch.ones_like(mean))
        tolerance = float(0.1 * torch.finfo(mean.dtype).eps ** 0.5)
        gradient = torch.zeros_like(mean)
        point = mean
        for _ in range(_CAP):
            first, second = self._derivatives(point, target)
            system = identity - second @ covariance
            right = first - (second @ (point - mean).unsqueeze(-1)).squeeze(-1)
            proposal = torch.linalg.solve(system, right.unsqueeze(-1)).squeeze(-1)
            moved = (covariance @ proposal.unsqueeze(-1)).squeeze(-1) + mean
            settled = (moved - point).abs() <= tolerance * (1 + point.abs())
            if bool(settled.all()):
                curvature = -torch.linalg.solve(system, second)
                return VectorSite(proposal, 0.5 * (curvature + curvature.mT))
            gradient = self._climb(gradient, proposal, mean, covariance, target)
            point = (covariance @ gradient.unsqueeze(-1)).squeeze(-1) + mean
        distance = (moved - point).abs().amax(-1).reshape(-1)
        warnings.warn(
            f"the mode of a target was not found in {_CAP} damped Newton steps for expert {int(distance.argmax())}: "
            f"the last step was {float(distance.max()):.2g}; going on from there",
            ConvergenceWarning,
            stacklevel=2,
        )
        # Off the mode the curvature of a density that is not concave may be negative; that part is left out.
        values, axes = torch.linalg.eigh(0.5 * (second + second.mT))
        second = (axes * values.clamp_max(0.0).unsqueeze(-2)) @ axes.mT
        curvature = -torch.linalg.solve(identity - second @ covariance, second)
        return VectorSite(gradient, 0.5 * (curvature + curvature.mT))

    def _on_arrays(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite | None:
        """The same on plain arrays; ``None`` unless numbers are double, in memory and not recorded."""
        is_plain = mean.ndim == 2 and y.ndim == 0 and mean.is_cpu and mean.dtype == torch.float64
        if not is_plain or torch.is_grad_enabled():
            return None
        try:
            found = softmax_site(mean.numpy(), covariance.numpy(), int(y))
        except RuntimeError:  # inside vmap
            return None
        return None if found is None else VectorSite(*(torch.from_numpy(part) for part in found))

    def _climb(self, old: Tensor, new: Tensor, mean: Tensor, covariance: Tensor, target: Tensor) -> Tensor:
        """From old towards new, as far as the log posterior climbs, for every vector by itself."""
        start = self._height(old, mean, covariance, target)
        share = torch.ones_like(start)
        for _ in range(_VECTOR_HALVINGS):
            candidate = old + share.unsqueeze(-1) * (new - old)
            low = ~(self._height(candidate, mean, covariance, target) >= start - 1e-12 * (1 + start.abs()))
            if not bool(low.any()):
                return candidate
            share = torch.where(low, 0.5 * share, share)
        return torch.where(low.unsqueeze(-1), old, candidate)

    def _height(self, gradient: Tensor, mean: Tensor, covariance: Tensor, target: Tensor) -> Tensor:
        step = (covariance @ gradient.unsqueeze(-1)).squeeze(-1)
        return self._log_density(mean + step, target) - 0.5 * (gradient * step).sum(-1)


class VectorMomentMatchingRule(VectorRule):
    r"""Moment matching: mean and covariance of the exact posterior, by quadrature whose nodes move to it.

    With the softmax and the nodes of :class:`~gp_ensembles.experts.latent_update.MomentMatchingUpdate`, posterior means
    are wrong by up to these shares of a prior standard deviation, and covariances of a prior variance:

    ======= =============== ================ ================ =================
    classes nodes           prior variance 1 prior variance 4 prior variance 25
    ======= =============== ================ ================ =================
    2       32 on each axis 1e-12            1e-7             3e-4
    3       10 on each axis 1e-6             1e-5             4e-3
    5       1024 Sobol      2e-2             2e-2             2e-2
    ======= =============== ================ ================ =================

    A class that the prior took to be out of reach (three of its standard deviations behind, at a prior variance of 25)
    is wrong by 7e-2 where there are five.

    Args:
        log_density: Log density of latent vectors (..., C) and targets (...).
        nodes: Nodes for the standard normal distribution in C dimensions, shape (K, C).
        weights: Their weights, which sum to one, shape (K,).

    Example:
        >>> import torch
        >>> from gp_ensembles.numerics.gauss_hermite import normal_nodes
        >>> zero, one = torch.zeros(2).double(), torch.ones(()).double()
        >>> nodes, weights = normal_nodes(16, 2, zero, 1024)
        >>> rule = VectorMomentMatchingRule(
        ...     lambda z, y: -0.5 * (z - y.unsqueeze(-1)).square().sum(-1), nodes, weights
        ... )
        >>> rule.solve(zero, torch.diag_embed(zero + 1), one).gradient
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(self, log_density: LogDensity, nodes: Tensor, weights: Tensor) -> None:
        self._log_density = log_density
        self._nodes = nodes
        self._log_weights = weights.log()
        self._widening = _WIDER if bool((weights == weights[0]).all()) else 1.0

    def solve(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite:
        """Quadrature in whitened coordinates; see :meth:`VectorRule.solve`."""
        factor = torch.linalg.cholesky(covariance)
        axes = (1,) * (mean.ndim - 1)
        nodes = self._nodes.reshape(-1, *axes, mean.shape[-1])
        log_weights = self._log_weights.reshape(-1, *axes)
        identity = torch.diag_embed(torch.ones_like(mean))
        center, width, root = torch.zeros_like(mean), identity, identity
        for _ in range(_REFINEMENTS):  # nodes move to where the posterior is, which may be narrow and far away
            place = center + (root @ nodes.unsqueeze(-1)).squeeze(-1)
            latent = mean + (factor @ place.unsqueeze(-1)).squeeze(-1)
            ratio = 0.5 * (nodes.square() - place.square()).sum(-1)
            joint = self._log_density(latent, y.expand(latent.shape[:-1])) + log_weights + ratio
            shares = joint.softmax(0).unsqueeze(-1)
            found = (shares * place).sum(0)
            away = place - found
            spread = (shares.unsqueeze(-1) * away.unsqueeze(-1) * away.unsqueeze(-2)).sum(0)
            # All the mass may lie on one node, or beyond the last: then look closer, not blindly.
            move = _FURTHER * (found - center)
            width = self._widening**2 * spread + _CLOSER**2 * width + move.unsqueeze(-1) * move.unsqueeze(-2)
            center, root = found, torch.linalg.cholesky_ex(width)[0]
        # Back from whitened coordinates: a = L⁻ᵀ center, W = L⁻ᵀ (I - spread) L⁻¹.
        gradient = torch.linalg.solve_triangular(factor.mT, center.unsqueeze(-1), upper=True).squeeze(-1)
        half = torch.linalg.solve_triangular(factor.mT, identity - spread, upper=True)
        curvature = torch.linalg.solve_triangular(factor.mT, half.mT, upper=True)
        return VectorSite(gradient, curvature)


def _from_one_side(known: KnownDerivatives, mean: Tensor, variance: Tensor, y: Tensor) -> Sites | None:
    """Newton's method where it needs no damping; ``None`` where it takes too long, or numbers overflow."""
    rough = float(torch.finfo(mean.dtype).eps ** 0.4)  # the error after the last step is about its square
    point, one = known.start(mean, variance, y), mean.new_ones(())
    for number in range(_UNDAMPED):
        first, second = known.at(point, y)
        gap = torch.addcmul(point - mean, variance, first, value=-1)
        point = torch.addcdiv(point, gap, torch.addcmul(one, variance, second, value=-1), value=-1)
        # The divisor is at least one: a step is no longer than its gap.
        if number >= _UNCHECKED and bool((gap.abs() <= rough * (1 + point.abs())).all()):
            first, second = known.at(point, y)
            return Sites(-second, first - second * point, point)
    return None


def _tolerance(like: Tensor) -> float:
    """Relative size of the last Newton step: its square is lost in the mode, itself in the curvature."""
    return float(0.1 * torch.finfo(like.dtype).eps ** 0.5)
