r"""Gaussian sites: what a target that is not Gaussian teaches its latent value, by a Gaussian factor in its place.

A target y has density :math:`p(y \mid z)` given its latent value :math:`z = \phi^\top \theta`, or its vector of them.
With z normal before the target, mean m and covariance S, and a Gaussian in z in place of the density, z is normal
afterwards, with moments

.. math:: m + S a, \qquad S - S W S

The weights follow by linear regression, at the cost of a Gaussian target: no system of F equations is solved.

Everywhere m and S have shapes (\*batch, N) both, or (\*batch, N, C) and (\*batch, N, C, C) for latent vectors, and
targets (N,) or (\*batch, N). The same text runs on tensors and, where a density takes them, on arrays: a call of torch
costs several times as much as one of numpy for a dozen numbers.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.numerics.derivatives import LatentDensity, diagonal_matrix, library_of
from gp_ensembles.numerics.gauss_hermite import gauss_hermite, normal_nodes
from gp_ensembles.numerics.warn_caller import warn_caller

_NEWTON_STEPS = 8  # plain Newton steps before damping is paid for
_UNCHECKED, _UNDAMPED = 2, 40  # steps from one side before the first is checked, and at most
_CAP, _HALVINGS = 100, 60
_NUDGE = 0.1  # in prior standard deviations
_VECTOR_NODES = 1024
_REFINEMENTS = 4  # of the nodes of a quadrature
_NARROWEST = 0.05  # share of the last width to which one refinement may shrink
_CLOSER = 0.05  # the same for vectors
_FURTHER = 0.1  # share of the last move to which it may
_WIDER = 1.2  # times the posterior's own width, for nodes of equal weight, lest a few of them bear its tails alone


class ConvergenceWarning(UserWarning):
    """An iteration hit its cap; the message names the expert and how far it was from done."""


class Site(NamedTuple):
    r"""Gaussian factors in place of densities, as updates of the moments of latent values.

    Attributes:
        gradient: a, of the shape of the mean, which moves by S a.
        curvature: W, of the shape of the covariance, which falls by S W S.
    """

    gradient: Tensor
    curvature: Tensor


class SiteRule(ABC):
    """A rule that replaces targets by Gaussian sites.

    Attributes:
        takes_arrays: Whether it takes numpy arrays as well as tensors.
        num_latent: Number of latent values behind each target.
    """

    takes_arrays: bool = False
    num_latent: int = 1

    @abstractmethod
    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Site:
        """Sites of targets, by the moments of each latent value before its target."""


@final
class RobustRule(SiteRule):
    r"""A Gaussian site that counts less the further the target lies from its prediction.

    The weighted-observation-likelihood filter with the inverse multiquadric weight (Duran-Martin et al. 2024):

    .. math:: W = \frac{1}{s + \sigma^2 / w^2}, \qquad a = W (y - m), \qquad
              w^2 = \Big( 1 + \frac{(y - m)^2}{c^2 (s + \sigma^2)} \Big)^{-1}

    A residual is gross relative to what was expected, and its influence is bounded: a target however gross moves the
    posterior by a limited amount.

    Args:
        noise: Observation noise variance, shape (\*batch).
        threshold: c in standard deviations: a residual of that size counts half.

    Example:
        >>> import torch
        >>> one, y = torch.ones(1).double(), torch.tensor([1.0, 1e3]).double()
        >>> RobustRule(one[0], 4 * one[0]).solve(one, one, y).curvature
        tensor([5.0000e-01, 3.2062e-05], dtype=torch.float64)
    """

    def __init__(self, noise: Tensor, threshold: Tensor) -> None:
        self._noise = noise
        self._threshold = threshold

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Site:
        """In closed form; see :meth:`SiteRule.solve`."""
        noise, residual = self._noise.unsqueeze(-1), y - mean
        weight = 1 / (1 + residual.square() / (self._threshold.square().unsqueeze(-1) * (noise + variance)))
        precision = weight / noise
        curvature = precision / (1 + precision * variance)
        return Site(residual * curvature, curvature)


@final
@dataclass(frozen=True)
class LaplaceUpdate:
    r"""Mode and curvature of the posterior of the latent value (Lu et al. 2022, section 3.2).

    With :math:`\ell(z) = \log p(y \mid z)` and :math:`H = -\nabla^2 \ell(\hat z)` at the mode,

    .. math:: \hat z = m + S a, \qquad a = \nabla \ell(\hat z), \qquad W = (I + H S)^{-1} H

    Newton's method in a needs no inverse of S. It finds the mode in a few steps where :math:`\ell` is concave;
    elsewhere it is damped, and goes to the mode that it climbs to from m. That of latent vectors must be concave.

    Example:
        >>> LaplaceUpdate() == LaplaceUpdate()
        True
    """

    def site(self, density: LatentDensity, mean: Tensor, variance: Tensor, y: Tensor) -> Site:
        """Sites of targets, by the moments of each latent value before its target."""
        site = None
        if density.start is not None:
            site = _from_one_side(density, density.start(mean, variance, y), mean, variance, y)
        if site is None:
            site = _undamped(density, mean, variance, y)
        return _damped(density, mean, variance, y) if site is None else site


@final
@dataclass(frozen=True)
class MomentMatchingUpdate:
    r"""Mean and variance of the posterior of the latent value: assumed-density filtering (Opper 1998; Minka 2001).

    The quadrature's nodes move to where the posterior is. Against a dense grid, 32 nodes give both to 1e-7 for prior
    variances up to one and to 2e-4 up to four, for classes, levels, counts and shares. Heavy tails narrower than the
    prior put a sharp peak on a wide foot: with Student-t noise of a tenth to a fortieth of the prior variance the
    posterior variance is wrong by 1 to 3 %, with 100 nodes by less than 1e-4. For unordered classes, posterior means
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

    Attributes:
        num_nodes: Number of quadrature nodes for one latent value, from 2 to 100.

    Raises:
        ValueError: If the number of nodes is out of range.

    Example:
        >>> MomentMatchingUpdate().num_nodes
        32
    """

    num_nodes: int = 32

    def __post_init__(self) -> None:
        if not 2 <= self.num_nodes <= 100:
            raise ValueError(f"the number of nodes must lie between 2 and 100, got {self.num_nodes}")

    def site(self, density: LatentDensity, mean: Tensor, variance: Tensor, y: Tensor) -> Site:
        """Sites of targets, by the moments of each latent value before its target."""
        if density.num_latent == 1:
            return _matched(density, mean, variance, y, self.num_nodes)
        return _matched_vectors(density, mean, variance, y, self.num_nodes)


# Ways to replace a log density by a Gaussian site.
LatentUpdate = LaplaceUpdate | MomentMatchingUpdate


@final
class LikelihoodRule(SiteRule):
    r"""Sites of targets of any log density.

    Args:
        density: The log density.
        update: How it is replaced: :class:`LaplaceUpdate` by default, or :class:`MomentMatchingUpdate`.

    Example:
        >>> import torch
        >>> from gp_ensembles.numerics.derivatives import automatic
        >>> rule = LikelihoodRule(automatic(lambda z, y: -0.5 * (y - z).square() / 0.5))
        >>> zero, one = torch.zeros(1).double(), torch.ones(1).double()
        >>> rule.solve(zero, one, one).gradient
        tensor([0.6667], dtype=torch.float64)
    """

    def __init__(self, density: LatentDensity, update: LatentUpdate | None = None) -> None:
        self._density = density
        self._update: LatentUpdate = LaplaceUpdate() if update is None else update
        self.takes_arrays, self.num_latent = density.takes_arrays, density.num_latent

    def solve(self, mean: Tensor, variance: Tensor, y: Tensor) -> Site:
        return self._update.site(self._density, mean, variance, y)


def _from_one_side(density: LatentDensity, point: Any, mean: Any, variance: Any, y: Any) -> Site | None:
    """Newton's method where it needs no damping; ``None`` where it takes too long, or numbers overflow."""
    xp = library_of(mean)
    rough = float(xp.finfo(mean.dtype).eps ** 0.4)  # the error after the last step is about its square
    for number in range(_UNDAMPED):
        first, second = density.derivatives(point, y)
        step = (point - mean - variance * first) / (1 - variance * second)
        point = point - step
        # Of steps, not of their numerators: with large variances the round-off of these is no small number.
        if number >= _UNCHECKED and bool((abs(step) <= rough * (1 + abs(point))).all()):
            return _site_at(point, mean, variance, *density.derivatives(point, y))
    return None


def _undamped(density: LatentDensity, mean: Any, variance: Any, y: Any) -> Site | None:
    """Plain Newton steps from the mean; ``None`` where they do not lead to a mode soon."""
    xp, point = library_of(mean), mean
    for _ in range(_NEWTON_STEPS):
        first, second = density.derivatives(point, y)
        site = _site_at(point, mean, variance, first, second)
        moved = mean + _times(variance, site.gradient)
        distance = abs(moved - point) - _tolerance(mean) * (1 + abs(point))
        bends = second if second.ndim == mean.ndim else xp.diagonal(second, 0, -2, -1)
        if not bool(((bends <= 0) & xp.isfinite(distance)).all()):
            return None
        if bool((distance <= 0).all()):
            return site
        point = moved
    return None


def _damped(density: LatentDensity, mean: Any, variance: Any, y: Any) -> Site:
    """Newton's method from the mean, no further in each step than the log posterior climbs."""
    xp, is_vector = library_of(mean), density.num_latent > 1
    tolerance = _tolerance(mean)
    finite = xp.isfinite(mean) & xp.isfinite(variance.sum(-1) if is_vector else variance)
    lost = ~(finite.all(-1)[..., None] if is_vector else finite)  # of an expert that failed: there is no mode to find
    move, site = xp.zeros_like(mean), None

    def height(pull: Any) -> Any:
        step = _times(variance, pull)
        penalty = 0.5 * pull * step
        return density.log_prob(mean + step, y) - (penalty.sum(-1) if is_vector else penalty)

    def ascent(pull: Any, index: int) -> tuple[Any, Any, bool]:
        nonlocal move, site
        point = mean + _times(variance, pull)
        first, second = density.derivatives(point, y)
        # Where the log density is convex its curvature is left out: then the step goes up all the same.
        falls = second if is_vector else xp.clip(second, None, 0.0)
        slope = first - pull
        step = _solve(_system(falls, variance, slope), slope)
        move = _times(variance, step)
        settled = (abs(move) <= tolerance * (1 + abs(point))) | lost
        is_peak = settled if is_vector else (second * variance < 1) | lost
        if bool((settled & is_peak).all()):
            site = _site_at(point, mean, variance, first, second)
            return step, None, True
        if not is_vector:  # level ground that is no peak: step off it, to either side in turn
            step = xp.where(settled & ~is_peak, (-1) ** index * _NUDGE / xp.sqrt(variance), step)
        step = xp.where(lost, 0.0, step)
        rise = slope * _times(variance, step)
        return step, rise.sum(-1) if is_vector else rise, False

    pull, _ = damped_newton(xp.zeros_like(mean), height, ascent, _CAP)
    if site is not None:
        return site
    sizes = abs(move).reshape(mean.shape[0] if mean.ndim > 1 + is_vector else 1, -1)
    warn_caller(
        f"the mode of a target was not found in {_CAP} damped Newton steps for expert "
        f"{int(xp.amax(sizes, -1).argmax())}: the last step was {float(sizes.max()):.2g}; continuing from that point",
        ConvergenceWarning,
    )
    # Off the mode a curvature may be negative beyond all bounds: that part is left out.
    second = density.derivatives(mean + _times(variance, pull), y)[1]
    if is_vector:
        values, axes = xp.linalg.eigh(0.5 * (second + second.swapaxes(-1, -2)))
        second = (axes * xp.clip(values, None, 0.0)[..., None, :]) @ axes.swapaxes(-1, -2)
    else:
        second = xp.clip(second, None, 0.0)
    return Site(pull, _site_at(mean, mean, variance, pull, second).curvature)


Ascent = Callable[[Any, int], tuple[Any, Any, bool]]


def damped_newton(point: Any, height: Callable[[Any], Any], ascent: Ascent, most_steps: int) -> tuple[Any, bool]:
    r"""Where damped steps lead, and whether they ended, for each of many points by itself.

    ``ascent`` maps a point (\*batch, ...) and the number of the step to the full step, the slope along it (\*batch),
    and whether it is the last one. Heights have shape (\*batch).
    """
    xp, value = library_of(point), height(point)
    for index in range(most_steps):
        step, rise, is_last = ascent(point, index)
        if is_last:
            return point + step, True
        axes = (...,) + (None,) * (step.ndim - value.ndim)
        is_still = (step == 0).reshape(*value.shape, -1).all(-1)
        share = xp.ones_like(value)
        for _ in range(_HALVINGS):
            candidate = point + share[axes] * step
            reached = height(candidate)
            # NaN is low; of no step there is nothing to halve.
            low = ~is_still & ~(reached >= value + 1e-4 * share * rise - 1e-12 * (1 + abs(value)))
            if not bool(low.any()):
                break
            share = xp.where(low, 0.5 * share, share)
        point, value = xp.where(low[axes], point, candidate), xp.where(low, value, reached)
    return point, False


def _site_at(point: Any, mean: Any, variance: Any, first: Any, second: Any) -> Site:
    """The site by derivatives at a point: where Newton's method leads from there, and the curvature."""
    system, right = _system(second, variance, mean), first - _times(second, point - mean)
    if second.ndim == mean.ndim:
        return Site(right / system, -second / system)
    solved = library_of(mean).linalg.solve(system, library_of(mean).concatenate([second, right[..., None]], -1))
    curvature = -solved[..., :-1]
    return Site(solved[..., -1], 0.5 * (curvature + curvature.swapaxes(-1, -2)))


def _system(second: Any, variance: Any, like: Any) -> Any:
    """I + H S, for means like those given."""
    if second.ndim == like.ndim:
        return 1 - second * variance
    return diagonal_matrix(library_of(like).ones_like(like)) - second @ variance


def _times(matrix: Any, vector: Any) -> Any:
    return matrix * vector if matrix.ndim == vector.ndim else (matrix @ vector[..., None])[..., 0]


def _solve(system: Any, right: Any) -> Any:
    if system.ndim == right.ndim:
        return right / system
    return library_of(right).linalg.solve(system, right[..., None])[..., 0]


def _tolerance(like: Any) -> float:
    """Relative size of the last Newton step: its square is lost in the mode, itself in the curvature."""
    return float(0.1 * library_of(like).finfo(like.dtype).eps ** 0.5)


def _matched(density: LatentDensity, mean: Any, variance: Any, y: Any, num_nodes: int) -> Site:
    """Moments of latent values by quadrature."""
    xp, deviation = library_of(mean), variance**0.5
    nodes, known = _nodes(num_nodes, mean) if isinstance(mean, Tensor) else _array_nodes(num_nodes, mean.ndim)
    center, spread = xp.zeros_like(mean), xp.ones_like(mean)  # in standard deviations from the mean
    for _ in range(_REFINEMENTS):  # nodes move to where the posterior is, which may be narrow and far away
        place = center + spread * nodes
        joint = density.log_prob(mean + deviation * place, y) + (known - 0.5 * place * place)
        shares = xp.exp(joint - xp.amax(joint, 0))
        total = shares.sum(0)
        center = (shares * place).sum(0) / total
        apart = place - center
        narrow = ((shares * apart * apart).sum(0) / total) ** 0.5
        spread = xp.maximum(narrow, _NARROWEST * spread)  # all the mass on one node: look closer, not blindly
    return Site(center / deviation, (1 - spread * spread) / variance)


def _nodes(num_nodes: int, like: Any) -> tuple[Any, Any]:
    """Nodes (K, 1, ...), and the logarithms of their weights over the normal density."""
    nodes, weights = (part.reshape(-1, *[1] * like.ndim) for part in gauss_hermite(num_nodes, like))
    return nodes, library_of(like).log(weights) + 0.5 * nodes * nodes


@functools.lru_cache(maxsize=16)
def _array_nodes(num_nodes: int, num_axes: int) -> tuple[Any, Any]:
    """The same as arrays; making them would cost a tenth of a row."""
    return _nodes(num_nodes, np.zeros((1,) * num_axes))


def _matched_vectors(density: LatentDensity, mean: Any, covariance: Any, y: Any, num_nodes: int) -> Site:
    """Moments of latent vectors by quadrature in whitened coordinates, by torch: there are a thousand nodes."""
    if not isinstance(mean, Tensor):
        mean, covariance, y = (torch.from_numpy(part) for part in (mean, covariance, y))
        site = _matched_vectors(density, mean, covariance, y, num_nodes)
        return Site(site.gradient.numpy(), site.curvature.numpy())  # type: ignore[arg-type]
    nodes, weights = normal_nodes(num_nodes, density.num_latent, mean, max(_VECTOR_NODES, 16 * density.num_latent))
    widening = _WIDER if bool((weights == weights[0]).all()) else 1.0
    nodes, log_weights = nodes.reshape(-1, *[1] * (mean.ndim - 1), mean.shape[-1]), weights.log()
    log_weights = log_weights.reshape(-1, *[1] * (mean.ndim - 1))
    factor = torch.linalg.cholesky(covariance)
    identity = torch.diag_embed(torch.ones_like(mean))
    center, width, root = torch.zeros_like(mean), identity, identity
    for _ in range(_REFINEMENTS):
        place = center + (root @ nodes.unsqueeze(-1)).squeeze(-1)
        latent = mean + (factor @ place.unsqueeze(-1)).squeeze(-1)
        ratio = 0.5 * (nodes.square() - place.square()).sum(-1)
        joint = density.log_prob(latent, y) + log_weights + ratio
        shares = joint.softmax(0).unsqueeze(-1)
        found = (shares * place).sum(0)
        away = place - found
        spread = (shares.unsqueeze(-1) * away.unsqueeze(-1) * away.unsqueeze(-2)).sum(0)
        # All the mass may lie on one node, or beyond the last: then look closer, not blindly.
        move = _FURTHER * (found - center)
        width = widening**2 * spread + _CLOSER**2 * width + move.unsqueeze(-1) * move.unsqueeze(-2)
        center, root = found, torch.linalg.cholesky_ex(width)[0]
    # Back from whitened coordinates: a = L⁻ᵀ center, W = L⁻ᵀ (I - spread) L⁻¹.
    gradient = torch.linalg.solve_triangular(factor.mT, center.unsqueeze(-1), upper=True).squeeze(-1)
    half = torch.linalg.solve_triangular(factor.mT, identity - spread, upper=True)
    return Site(gradient, torch.linalg.solve_triangular(factor.mT, half.mT, upper=True))
