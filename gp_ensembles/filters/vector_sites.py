"""What one target teaches about its vector of latent values: the rules."""

import warnings
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.sites import ConvergenceWarning
from gp_ensembles.numerics.derivatives import Differentiator, LogDensity

_CAP = 100
_HALVINGS = 40
_REFINEMENTS = 4  # of the nodes of a quadrature
_CLOSER = 0.05  # share of the last width to which one refinement may shrink
_FURTHER = 0.1  # share of the last move to which it may
_WIDER = 1.2  # times the posterior's own width, for nodes of equal weight, lest a few of them bear its tails alone


class VectorSite(NamedTuple):
    r"""What a target teaches.

    Attributes:
        gradient: a, shape (\*batch, C): the latent mean moves by S a.
        curvature: W, shape (\*batch, C, C): the latent covariance falls by S W S.
    """

    gradient: Tensor
    curvature: Tensor


class VectorRule(ABC):
    """How a target teaches its latent vector."""

    @abstractmethod
    def solve(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite:
        r"""What the target teaches.

        Args:
            mean: Mean m of the latent vector before the target, shape (\*batch, C).
            covariance: Its covariance S, shape (\*batch, C, C).
            y: The target, a scalar.
        """


class VectorLaplaceRule(VectorRule):
    r"""Mode and curvature of the latent vector's posterior.

    Newton's method in :math:`a = S^{-1} (z - m)`, which needs no inverse of S:

    .. math:: a \leftarrow (I + H S)^{-1} (\nabla \ell(z) + H (z - m)), \qquad H = -\nabla^2 \ell(z), \qquad
              W = (I + H S)^{-1} H

    Args:
        log_density: Log density of latent vectors (..., C) and targets (...), concave in the latent vector.
    """

    def __init__(self, log_density: LogDensity) -> None:
        self._log_density = log_density
        self._derivatives = Differentiator(log_density, is_vector=True)

    def solve(self, mean: Tensor, covariance: Tensor, y: Tensor) -> VectorSite:
        """Damped Newton; see :meth:`VectorRule.solve`."""
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

    def _climb(self, old: Tensor, new: Tensor, mean: Tensor, covariance: Tensor, target: Tensor) -> Tensor:
        """From old towards new, as far as the log posterior climbs, for every vector by itself."""
        start = self._height(old, mean, covariance, target)
        share = torch.ones_like(start)
        for _ in range(_HALVINGS):
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
    r"""What gives the latent vector the mean and covariance of its exact posterior, by nodes that move to it.

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
