r"""What an expert object believes about its weights: joint predictions, and fantasies without copies of a covariance.

A fantasy model differs from its parent by q observations at inputs that many fantasies share. So the covariance
:math:`\Sigma` of the parent is kept as it is, for all of them, and what the fantasies teach is taken from it in
factored form, :math:`\Sigma - G G^\top` with q columns a fantasy; means alone are kept for each. A batch is folded into
rows before it meets :math:`\Sigma`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.multi_output import BoundMultiOutput
from gp_ensembles.filters.adaptation import Adaptation
from gp_ensembles.filters.ahead import step_ahead
from gp_ensembles.filters.multi_output import num_groups
from gp_ensembles.filters.states import FilterState, GaussianState, MultiOutputState, SquareRootState


class Belief(NamedTuple):
    r"""Moments of the weights of E experts with O outputs just before the next row.

    Attributes:
        mean: In units of the output scale, shape (\*batch, E, O, F).
        covariance: :math:`\Sigma`, shape (E, G, F, F): one for all outputs (G = 1) or one for each (G = O).
        removed: G, what fantasies have taken from it, shape (\*batch, E, G, F, R).
        noise: Observation noise variance in squared units of the output scale, shape (E,).
        scale: Scale of each output, shape (E, O).
        prior_variance: Prior variance of the weights, shape (E,).
        adaptation: How the weights change before every row; ``None`` for static weights.
    """

    mean: Tensor
    covariance: Tensor
    removed: Tensor
    noise: Tensor
    scale: Tensor
    prior_variance: Tensor
    adaptation: Adaptation | None


def believe(bound: BoundExpert, state: FilterState) -> Belief:
    """The belief of an expert object, one step ahead.

    Args:
        bound: The expert object's numbers.
        state: Its state after the last row.

    Raises:
        TypeError: If the expert is neither a Gaussian nor a multi-output one.
    """
    index = torch.arange(bound.prior_variance.numel(), device=bound.prior_variance.device)
    flat = bound.take(index)
    prior_variance = flat.prior_variance
    if isinstance(flat, BoundGaussian) and isinstance(state, GaussianState | SquareRootState):
        num_features = state.mean.shape[-1]
        mean = state.mean.reshape(-1, 1, num_features)
        covariance = state.covariance.reshape(-1, 1, num_features, num_features)
        noise, scale = flat.noise, flat.noise.new_ones(index.shape[0], 1)
    elif isinstance(flat, BoundMultiOutput) and isinstance(state, MultiOutputState):
        num_outputs, num_features = state.mean.shape[-2:]
        mean = state.mean.reshape(-1, num_outputs, num_features)
        kept = state.covariance[state.group] if num_groups(state) > 1 else state.covariance[:1]
        covariance = kept.reshape(kept.shape[0], -1, num_features, num_features).transpose(0, 1)
        noise, scale = flat.noise, flat.scale
    else:
        raise TypeError(
            f"a BoTorch model needs experts with Gaussian posteriors (GaussianExpert or MultiOutputExpert), got "
            f"{type(bound).__name__.removeprefix('Bound')}"
        )
    removed = mean.new_zeros(*covariance.shape[:-1], 0)
    belief = Belief(mean, covariance, removed, noise, scale, prior_variance, flat.adaptation)
    return _advance(belief)


def joint(belief: Belief, Phi: Tensor) -> tuple[Tensor, Tensor]:
    r"""Joint prediction of the functions (noise left out) at q points.

    Args:
        belief: The belief, with batch shape (\*batch).
        Phi: Features, shape (\*t, E, q, F).

    Returns:
        Mean (\*b, E, q, O) and covariance (\*b, E, O, q, q), in units of the targets, where \*b broadcasts \*t and
        \*batch; the covariance lacks dimensions in which it does not vary.
    """
    mean = (Phi @ belief.mean.mT) * belief.scale.unsqueeze(-2)
    covariance = _quadratic(belief, Phi)
    return mean, covariance * belief.scale.square()[..., None, None]


def condition(belief: Belief, Phi: Tensor, Y: Tensor, known_noise: Tensor | None = None) -> tuple[Belief, Tensor]:
    r"""Learn q rows, one after another, in every fantasy.

    Args:
        belief: The belief before them, with batch shape (\*batch).
        Phi: Features, shape (\*t, E, q, F).
        Y: Targets, shape (\*y, q, O); \*y broadcasts with \*t and \*batch.
        known_noise: Noise variance of each row in squared units of the targets, shape (\*n, q, 1); the experts' own if
            ``None``.

    Returns:
        The belief before the next row, and the log density of each row (all outputs jointly) under each expert before
        it was seen, shape (\*b, E, q).
    """
    densities = []
    for row in range(Phi.shape[-2]):
        phi = Phi[..., row, :].unsqueeze(-2)  # (*t, E, 1, F)
        cross = _cross(belief, phi)  # (*b, E, G, 1, F)
        noise = belief.noise.unsqueeze(-1)
        if known_noise is not None:
            noise = known_noise[..., row, :].unsqueeze(-2) / belief.scale[..., :1].square()
        variance = (cross * phi.unsqueeze(-3)).sum(-1).squeeze(-1) + noise  # (*b, E, G)
        mean = (phi @ belief.mean.mT).squeeze(-2)  # (*b, E, O)
        residual = Y[..., row, :].unsqueeze(-2) / belief.scale - mean
        spread = variance.log() + math.log(2 * math.pi) + 2 * belief.scale.log()
        densities.append(-0.5 * (residual.square() / variance + spread).sum(-1))
        gain = cross.squeeze(-2) / variance.unsqueeze(-1)
        taken = (cross.squeeze(-2) / variance.sqrt().unsqueeze(-1)).unsqueeze(-1)
        batch_shape = torch.broadcast_shapes(belief.removed.shape[:-4], taken.shape[:-4])
        removed = [part.expand(*batch_shape, *part.shape[-4:]) for part in (belief.removed, taken)]
        learned = belief._replace(mean=belief.mean + gain * residual.unsqueeze(-1), removed=torch.cat(removed, dim=-1))
        belief = _advance(learned)
    return belief, torch.stack(densities, dim=-1)


def _advance(belief: Belief) -> Belief:
    """The belief one step later, nothing learned."""
    if belief.adaptation is None:
        return belief
    groups = belief.covariance.unbind(1)
    steps = [
        step_ahead(belief.prior_variance.new_zeros(g.shape[:-1]), g, belief.adaptation, belief.prior_variance)
        for g in groups
    ]
    mean_factor, _, root_factor = steps[0]
    covariance = torch.stack([covariance for _, covariance, _ in steps], dim=1)
    mean_factor, root_factor = (f if f.ndim == 0 else f.unsqueeze(-1) for f in (mean_factor, root_factor))
    removed_factor = root_factor if root_factor.ndim == 0 else root_factor.unsqueeze(-1)
    return belief._replace(
        mean=belief.mean * mean_factor, covariance=covariance, removed=belief.removed * removed_factor
    )


def _base_cross(belief: Belief, Phi: Tensor) -> Tensor:
    r"""Phi (\*t, E, q, F) times the covariance, shape (\*t, E, G, q, F), one matrix product for the whole batch."""
    batch_shape, (num_experts, num_rows, num_features) = Phi.shape[:-3], Phi.shape[-3:]
    rows = Phi.movedim(-3, 0).reshape(num_experts, 1, -1, num_features)
    product: Tensor = (rows @ belief.covariance).unflatten(-2, (*batch_shape, num_rows))
    return product.movedim((0, 1), (-4, -3))


def _cross(belief: Belief, Phi: Tensor) -> Tensor:
    r"""Phi times the covariance without what was removed, shape (\*b, E, G, q, F)."""
    cross = _base_cross(belief, Phi)
    if belief.removed.shape[-1] == 0:
        return cross
    return cross - (Phi.unsqueeze(-3) @ belief.removed) @ belief.removed.mT


def _quadratic(belief: Belief, Phi: Tensor) -> Tensor:
    r"""Covariance of the functions at q points, shape (\*b, E, G, q, q)."""
    rows = Phi.unsqueeze(-3)
    covariance = _base_cross(belief, Phi) @ rows.mT
    if belief.removed.shape[-1]:
        taken = rows @ belief.removed
        covariance = covariance - taken @ taken.mT
    return covariance
