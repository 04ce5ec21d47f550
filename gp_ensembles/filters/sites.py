r"""What one target teaches about its latent value, as a Gaussian factor: the rules that make one.

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

from gp_ensembles.numerics.derivatives import Differentiator, LogDensity

_NEWTON_STEPS = 8  # plain Newton steps before damping is paid for
_CAP = 100
_HALVINGS = 60
_NUDGE = 0.1  # in prior standard deviations
_REFINEMENTS = 4  # of the nodes of a quadrature
_NARROWEST = 0.05  # share of the last width to which one refinement may shrink


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
    """How a target becomes a site."""

    @abstractmethod
    def sweep(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        r"""Better sites for these moments, by one cheap step.

        Args:
            point: Where the sites were matched last; the mean at first. Shape (\*batch, B).
            mean: Mean of each latent value before its target, shape (\*batch, B).
            variance: Variance before its target, shape (\*batch, B).
            y: Targets, shape (B,).
        """

    @abstractmethod
    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """The sites for these moments; arguments as in :meth:`sweep`."""


class LaplaceRule(SiteRule):
    r"""The site that has the curvature of the log density at the mode of the latent value.

    .. math:: \hat z = m + s\, \ell'(\hat z), \qquad h = -\ell''(\hat z), \qquad b = \ell'(\hat z) + h \hat z

    with :math:`\ell(z) = \log p(y \mid z)`. Newton's method finds the mode in a few steps where :math:`\ell` is
    concave; elsewhere it is damped, and goes to the mode that it climbs to from m.

    Args:
        log_density: Elementwise log density of latent values and targets.
    """

    def __init__(self, log_density: LogDensity) -> None:
        self._log_density = log_density
        self._derivatives = Differentiator(log_density)

    def sweep(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """One Newton step."""
        sites, _ = self._step(point, mean, variance, y)
        return sites

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Newton's method, damped where it must be; see :meth:`SiteRule.solve`."""
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
        point = mean
        height = self._height(point, mean, variance, y)
        for index in range(_CAP):
            first, second = self._derivatives(point, y)
            slope = first - (point - mean) / variance
            # Where the log density is convex its curvature is left out: then the step goes up all the same.
            step = slope * variance / (1 - second.clamp_max(0.0) * variance)
            settled = step.abs() <= tolerance * (1 + point.abs())
            is_peak = second * variance < 1
            if bool((settled & is_peak).all()):
                return self._at(point + step, y)
            # Level ground that is no peak: step off it, to either side in turn.
            step = torch.where(settled & ~is_peak, (-1) ** index * _NUDGE * variance.sqrt(), step)
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
            low = ~(reached >= height + 1e-4 * share * step * slope - 1e-12 * (1 + height.abs()))  # NaN is low
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
    """

    def __init__(self, log_density: LogDensity, nodes: Tensor, weights: Tensor) -> None:
        self._log_density = log_density
        self._nodes = nodes
        self._log_weights = weights.log()

    def sweep(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Exact for its moments at once."""
        return self.solve(mean, variance, y)

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


class GaussianRule(SiteRule):
    r"""The exact site of a Gaussian target.

    Args:
        noise: Observation noise variance, shape (\*batch).
    """

    def __init__(self, noise: Tensor) -> None:
        self._noise = noise

    def sweep(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Exact."""
        return self.solve(mean, variance, y)

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Exact; see :meth:`SiteRule.solve`."""
        precision = (1 / self._noise).unsqueeze(-1).expand_as(mean)
        shift = precision * y
        return Sites(precision, shift, (mean + variance * shift) / (1 + precision * variance))


class RobustRule(SiteRule):
    r"""A Gaussian site that counts less the further the target lies from its prediction.

    The weighted-observation-likelihood filter with the inverse multiquadric weight (Duran-Martin et al. 2024):

    .. math:: h = w^2 / \sigma^2, \qquad w^2 = \Big( 1 + \frac{(y - m)^2}{c^2 \sigma_y^2} \Big)^{-1}

    whose influence is bounded: a target however gross moves the posterior by a limited amount.

    Args:
        noise: Observation noise variance, shape (\*batch).
        threshold: c in standard deviations: a residual of that size counts half.
        is_scaled: Whether :math:`\sigma_y^2` is the predictive variance s + σ² (a residual is gross relative to what
            was expected) and not the noise alone.
    """

    def __init__(self, noise: Tensor, threshold: Tensor, is_scaled: bool = True) -> None:
        self._noise = noise
        self._threshold = threshold
        self._is_scaled = is_scaled

    def sweep(self, point: Tensor, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """Exact for its moments at once."""
        return self.solve(mean, variance, y)

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Sites:
        """In closed form; see :meth:`SiteRule.solve`."""
        noise = self._noise.unsqueeze(-1)
        scale = noise + variance if self._is_scaled else noise
        weight = 1 / (1 + (y - mean).square() / (self._threshold.square().unsqueeze(-1) * scale))
        precision = weight / noise
        shift = precision * y
        return Sites(precision, shift, (mean + variance * shift) / (1 + precision * variance))


def _tolerance(like: Tensor) -> float:
    """Relative size of the last Newton step: its square is lost in the mode, itself in the curvature."""
    return float(0.1 * torch.finfo(like.dtype).eps ** 0.5)
