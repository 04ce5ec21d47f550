r"""The filter for targets with a vector of latent values: one for each of C classes that share their features.

The weights of all classes are one vector, class after class, so the state is that of C F weights. With the latent
values :math:`z_c = \phi^\top \theta_c` normal before a target, mean m and covariance S, a rule gives the gradient a
and the curvature W (C by C) of what the target teaches, and

.. math:: \mu \leftarrow \mu + G a, \qquad \Sigma \leftarrow \Sigma - G W G^\top, \qquad G = \mathrm{cov}(\theta, z)

a correction of rank C.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.adaptation import Adaptation, Schedule
from gp_ensembles.filters.adaptive import scale_ahead, scale_state, walk_ahead
from gp_ensembles.filters.latent import LatentMoments
from gp_ensembles.filters.states import GaussianState
from gp_ensembles.filters.vector_sites import VectorRule
from gp_ensembles.filters.walks import as_matrix


class _Ahead(NamedTuple):
    """A state moved to the next row, in the coordinates of its schedule."""

    covariance: Tensor
    schedule: Schedule


def update_block(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor,
    rule: VectorRule,
    adaptation: Adaptation | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn targets one after another.

    Args:
        state: Posterior of all classes' weights, shape (\*batch, C F, C F + 1).
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,); NaN where missing.
        rule: What a target teaches about its latent vector.
        adaptation: How the weights of each class change before every row; ``None`` for static weights.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        The posterior after the block, and the latent vectors one step ahead: mean (\*batch, B, C) and covariance
        (\*batch, B, C, C).
    """
    parts = []
    for t in range(Phi.shape[-2]):
        ahead = _move(state, adaptation, prior_variance, Phi.shape[-1])
        phi = scale_ahead(Phi[..., t : t + 1, :], ahead.schedule).squeeze(-2)
        cross = _cross(ahead.covariance, phi)
        latent = _latent(state, cross, phi, ahead.schedule)
        moments = torch.cat([ahead.covariance, state.mean.unsqueeze(-1)], dim=-1)
        if not bool(torch.isnan(y[t])):
            gradient, curvature = rule.solve(latent.mean, latent.variance, y[t])
            if ahead.schedule.target_scale is not None:
                gradient = gradient / ahead.schedule.target_scale
            right = torch.cat([curvature @ cross.mT, -gradient.unsqueeze(-1)], dim=-1)
            moments = moments - cross @ right
        scaled = scale_state(GaussianState(moments), ahead.schedule)
        assert isinstance(scaled, GaussianState)
        state = scaled
        parts.append(latent)
    axis = Phi.ndim - 2
    return state, LatentMoments(*(torch.stack(fields, dim=axis) for fields in zip(*parts, strict=True)))


def predict(state: GaussianState, Phi: Tensor, adaptation: Adaptation | None, prior_variance: Tensor) -> LatentMoments:
    r"""Latent vectors of rows (\*batch, N, F) that all come next; other arguments as in :func:`update_block`."""
    num_features = Phi.shape[-1]
    ahead = _move(state, adaptation, prior_variance, num_features)
    design = scale_ahead(Phi, ahead.schedule)
    num_latent = state.mean.shape[-1] // num_features
    batch_shape = state.mean.shape[:-1]
    mean = design @ state.mean.reshape(*batch_shape, num_latent, num_features).mT
    blocks = ahead.covariance.reshape(*batch_shape, num_latent, num_features, num_latent, num_features)
    variance = torch.einsum("...nf,...cfdg,...ng->...ncd", design, blocks, design)
    scale = ahead.schedule.target_scale
    return LatentMoments(mean if scale is None else mean * scale.unsqueeze(-1), variance)


def _move(state: GaussianState, adaptation: Adaptation | None, prior_variance: Tensor, num_features: int) -> _Ahead:
    if adaptation is None:
        return _Ahead(state.covariance, Schedule())
    schedule = adaptation.schedule(1, prior_variance)
    walk = walk_ahead(schedule)
    if walk is None:
        return _Ahead(state.covariance, schedule)
    num_latent = state.mean.shape[-1] // num_features
    own = as_matrix(walk, prior_variance, num_features)
    classes = torch.diag_embed(torch.ones_like(state.mean[..., :num_latent]))
    return _Ahead(state.covariance + _kron(classes, own), schedule)


def _kron(left: Tensor, right: Tensor) -> Tensor:
    """Kronecker product of the last two axes."""
    product = left[..., :, None, :, None] * right[..., None, :, None, :]
    size = left.shape[-1] * right.shape[-1]
    return product.reshape(*product.shape[:-4], size, size)


def _cross(covariance: Tensor, phi: Tensor) -> Tensor:
    r"""cov(θ, z), shape (\*batch, C F, C)."""
    size, num_features = covariance.shape[-1], phi.shape[-1]
    blocks = covariance.reshape(*covariance.shape[:-1], size // num_features, num_features)
    return (blocks @ phi[..., None, :, None]).squeeze(-1)


def _latent(state: GaussianState, cross: Tensor, phi: Tensor, schedule: Schedule) -> LatentMoments:
    num_latent, num_features = cross.shape[-1], phi.shape[-1]
    batch_shape = state.mean.shape[:-1]
    mean = (state.mean.reshape(*batch_shape, num_latent, num_features) @ phi.unsqueeze(-1)).squeeze(-1)
    blocks = cross.reshape(*batch_shape, num_latent, num_features, num_latent)
    variance = (phi[..., None, None, :] @ blocks).squeeze(-2)
    scale = schedule.target_scale
    return LatentMoments(mean if scale is None else mean * scale, 0.5 * (variance + variance.mT))
