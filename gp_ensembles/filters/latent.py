r"""Filters for targets that are not Gaussian: exact in blocks, given the rule that makes a site of a target.

Everything that a target teaches passes through its latent value :math:`z_t = \phi_t^\top \theta_t`. So a block of B
targets is filtered on B numbers, whose joint moments two matrix products give, and the F weights are updated once at
the end, as in the Gaussian block filter. Rows of a block depend on the rows before them; their sites are found together
by sweeps over the whole block until nothing changes (row t is settled after row t - 1, and all of them long before B
sweeps), or one after another where a site's precision is negative or the sweeps do not settle.

Targets with a vector of latent values, one for each of C classes that share their features, are taken one after
another. The weights of all classes are one vector, class after class, so the state is that of C F weights. With the
latent values :math:`z_c = \phi^\top \theta_c` normal before a target, mean m and covariance S, a rule gives the
gradient a and the curvature W (C by C) of what the target teaches, and

.. math:: \mu \leftarrow \mu + G a, \qquad \Sigma \leftarrow \Sigma - G W G^\top, \qquad G = \mathrm{cov}(\theta, z)

a correction of rank C.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.filters.block import BlockGain, apply_gain, joint_moments, predict_linear
from gp_ensembles.filters.schedule import Schedule, as_matrix, scale_features, scale_state, walk_ahead
from gp_ensembles.filters.sites import SiteRule, VectorRule
from gp_ensembles.filters.states import GaussianState, LatentMoments
from gp_ensembles.filters.transitions import Transition, make_schedule, split_rows
from gp_ensembles.numerics.cholesky import NumericalError, cholesky

_SWEEPS = 40
_WHAT = "the covariance of the latent values of the block"


class _Block(NamedTuple):
    """A block in the coordinates of its schedule."""

    cross: Tensor
    mean: Tensor
    covariance: Tensor
    target_scale: Tensor
    seen: Tensor
    y: Tensor


class _Ahead(NamedTuple):
    """A state moved to the next row, in the coordinates of its schedule."""

    covariance: Tensor
    schedule: Schedule


def update_latent(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor,
    rule: SiteRule,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn a block of targets; equal to single steps to the tolerance of the sites.

    Args:
        state: Posterior before the block.
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,); NaN where missing.
        rule: How a target becomes a site.
        transition: How the weights change before every row; ``None`` for static weights.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        The posterior after the block, and the latent values one step ahead.

    Example:
        >>> import torch
        >>> from gp_ensembles.filters.sites import LaplaceRule
        >>> from gp_ensembles.filters.states import gaussian_state
        >>> one = torch.ones((), dtype=torch.float64)
        >>> rule = LaplaceRule(lambda z, y: torch.nn.functional.logsigmoid((2 * y - 1) * z))
        >>> Phi = torch.ones(2, 1, dtype=torch.float64)
        >>> state, latent = update_latent(gaussian_state(one, 1), Phi, Phi.squeeze(-1), rule, None, one)
        >>> latent.mean
        tensor([0.0000, 0.4011], dtype=torch.float64)
    """
    parts = []
    for rows, targets in split_rows(Phi, y, transition):
        schedule = make_schedule(transition, rows.shape[-2], prior_variance)
        gain, latent = condition_latent(state, rows, targets, rule, schedule)
        scaled = scale_state(apply_gain(state, gain), schedule)
        assert isinstance(scaled, GaussianState)
        state = scaled
        parts.append(latent)
    if len(parts) == 1:
        return state, parts[0]
    return state, LatentMoments(*(torch.cat(fields, dim=-1) for fields in zip(*parts, strict=True)))


def predict_latent(
    state: GaussianState, Phi: Tensor, transition: Transition | None, prior_variance: Tensor
) -> LatentMoments:
    r"""Latent values of rows (..., \*batch, N, F) that all come next; other arguments as in :func:`update_latent`."""
    noiseless = torch.zeros_like(prior_variance)
    return LatentMoments(*predict_linear(state, Phi, noiseless, transition, prior_variance))


def condition_latent(
    state: GaussianState, Phi: Tensor, y: Tensor, rule: SiteRule, schedule: Schedule
) -> tuple[BlockGain, LatentMoments]:
    """Gain of a block, not yet applied to the state, and its latent values one step ahead."""
    batch = state.moments[..., 0, 0]  # any tensor with the batch shape
    design = scale_features(Phi, schedule)
    cross, mean, covariance, drift = joint_moments(state, design, batch, schedule.walk, schedule.steps)
    scale = mean.new_ones(()) if schedule.target_scale is None else schedule.target_scale
    seen = ~torch.isnan(y)
    block = _Block(cross, mean, covariance, scale.expand_as(mean), seen, _fill(y, seen))
    result = None if y.shape[-1] == 1 or not bool(seen.any()) else _by_sweeps(block, rule)
    left, right, latent = _by_rows(block, rule) if result is None else result
    return BlockGain(left, right, drift), latent


def update_latent_vector(
    state: GaussianState,
    Phi: Tensor,
    y: Tensor,
    rule: VectorRule,
    transition: Transition | None,
    prior_variance: Tensor,
) -> tuple[GaussianState, LatentMoments]:
    r"""Learn targets one after another.

    Args:
        state: Posterior of all classes' weights, shape (\*batch, C F, C F + 1).
        Phi: Features, shape (\*batch, B, F), in the order of time.
        y: Targets, shape (B,); NaN where missing.
        rule: What a target teaches about its latent vector.
        transition: How the weights of each class change before every row; ``None`` for static weights.
        prior_variance: Prior variance of the weights, shape (\*batch).

    Returns:
        The posterior after the block, and the latent vectors one step ahead: mean (\*batch, B, C) and covariance
        (\*batch, B, C, C).
    """
    parts = []
    for t in range(Phi.shape[-2]):
        ahead = _move(state, transition, prior_variance, Phi.shape[-1])
        phi = scale_features(Phi[..., t : t + 1, :], ahead.schedule).squeeze(-2)
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


def predict_latent_vector(
    state: GaussianState, Phi: Tensor, transition: Transition | None, prior_variance: Tensor
) -> LatentMoments:
    r"""Latent vectors of rows (\*batch, N, F) that all come next; arguments as in :func:`update_latent_vector`."""
    num_features = Phi.shape[-1]
    ahead = _move(state, transition, prior_variance, num_features)
    design = scale_features(Phi, ahead.schedule)
    num_latent = state.mean.shape[-1] // num_features
    batch_shape = state.mean.shape[:-1]
    mean = design @ state.mean.reshape(*batch_shape, num_latent, num_features).mT
    blocks = ahead.covariance.reshape(*batch_shape, num_latent, num_features, num_latent, num_features)
    variance = torch.einsum("...nf,...cfdg,...ng->...ncd", design, blocks, design)
    scale = ahead.schedule.target_scale
    return LatentMoments(mean if scale is None else mean * scale.unsqueeze(-1), variance)


_Result = tuple[Tensor, Tensor, LatentMoments]


def _by_sweeps(block: _Block, rule: SiteRule) -> _Result | None:
    """All sites of the block together; ``None`` where a precision is negative or nothing settles."""
    cross, mean, covariance, target_scale, seen, y = block
    tolerance = float(0.1 * torch.finfo(mean.dtype).eps ** 0.5)
    identity = torch.diag_embed(torch.ones_like(mean))
    before = LatentMoments(mean * target_scale, covariance.diagonal(dim1=-2, dim2=-1))
    point = before.mean
    for _ in range(_SWEEPS):
        sites = rule.sweep(point, before.mean, before.variance, y)
        precision = torch.where(seen, sites.precision, 0.0)
        if not bool((precision >= 0).all()):
            return None
        root = precision.sqrt()
        try:
            lower = cholesky(identity + root.unsqueeze(-1) * covariance * root.unsqueeze(-2), _WHAT)
        except NumericalError:
            return None
        residual = torch.where(seen, sites.shift, 0.0) / target_scale - precision * mean
        both = torch.linalg.solve_triangular(
            lower, root.unsqueeze(-1) * torch.cat([covariance, cross], dim=-1), upper=False
        )
        past_and_future, weights = both.split([mean.shape[-1], cross.shape[-1]], dim=-1)
        past = torch.triu(past_and_future, diagonal=1)
        variance = covariance.diagonal(dim1=-2, dim2=-1) - past.square().sum(-2)
        # cov(z_t, z_j) given the targets before t, for j < t
        conditional = torch.tril(covariance - past.mT @ past_and_future, diagonal=-1)
        center = (mean + (conditional @ residual.unsqueeze(-1)).squeeze(-1)) * target_scale
        latent = LatentMoments(center, variance)
        change = torch.where(seen, (sites.point - point).abs() - tolerance * (1 + point.abs()), 0.0)
        moved = (center - before.mean).abs() - tolerance * (1 + center.abs())
        spread = (variance - before.variance).abs() - 10 * tolerance * variance
        if bool(((change <= 0) & (moved <= 0) & (spread <= 0)).all()):
            # a solves (I + H K) a = b - H m without a division by a precision, which may be zero
            inner = past_and_future @ residual.unsqueeze(-1)
            solved = torch.linalg.solve_triangular(lower.mT, inner, upper=True).squeeze(-1)
            return *_gain(weights, weights, cross, residual - root * solved), latent
        before, point = latent, sites.point
    return None


def _by_rows(block: _Block, rule: SiteRule) -> _Result:
    """One site after the other, on the latent values of the block."""
    cross, mean, covariance, target_scale, seen, y = block
    columns, gradients, curvatures, means, variances = [], [], [], [], []
    for t in range(mean.shape[-1]):
        column = covariance[..., t]
        variance = column[..., t : t + 1]
        scale = target_scale[..., t : t + 1]
        center = mean[..., t : t + 1] * scale
        if bool(seen[..., t]):
            sites = rule.solve(center, variance, y[..., t : t + 1])
            shrink = 1 / (1 + sites.precision * variance)
            curvature = sites.precision * shrink
            gradient = (sites.shift - sites.precision * center) * shrink / scale
        else:
            curvature = gradient = torch.zeros_like(center)
        means.append(center)
        variances.append(variance)
        columns.append(column)
        gradients.append(gradient)
        curvatures.append(curvature)
        if t + 1 < mean.shape[-1]:
            mean = mean + column * gradient
            covariance = covariance - (curvature * column).unsqueeze(-1) * column.unsqueeze(-2)
    latent = LatentMoments(torch.cat(means, dim=-1), torch.cat(variances, dim=-1))
    gradient, curvature = torch.cat(gradients, dim=-1), torch.cat(curvatures, dim=-1)
    if len(columns) > 1:  # cov(z_t, θ_B) before target t, for all t
        lower = torch.tril(torch.stack(columns, dim=-1) * curvature.unsqueeze(-2), diagonal=-1)
        cross = torch.linalg.solve_triangular(lower, cross, upper=False, unitriangular=True)
    size = curvature.abs().sqrt().unsqueeze(-1) * cross
    return *_gain(size, size * curvature.sign().unsqueeze(-1), cross, gradient), latent


def _gain(left: Tensor, right: Tensor, cross: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that take ``left.mT @ right`` from the covariance and add ``cross.mT @ gradient`` to the mean."""
    shift = gradient.unsqueeze(-2) @ cross
    right = torch.nn.functional.pad(right, (0, 1))
    last = torch.nn.functional.pad(-torch.ones_like(shift[..., :1]), (shift.shape[-1], 0))
    return torch.cat([left, shift], dim=-2), torch.cat([right, last], dim=-2)


def _fill(y: Tensor, seen: Tensor) -> Tensor:
    """Targets with a legal value where one is missing; what is computed from it is thrown away."""
    if bool(seen.all()) or not bool(seen.any()):
        return y
    return torch.where(seen, y, y[..., seen.nonzero()[0, -1]])


def _move(state: GaussianState, transition: Transition | None, prior_variance: Tensor, num_features: int) -> _Ahead:
    schedule = make_schedule(transition, 1, prior_variance)
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
