"""Joint covariance of several rows under an ensemble."""

import torch
from torch import Tensor

from gp_ensembles.distributions import LatentMixture, Recalibrated, WithPointMass
from gp_ensembles.engine.ensemble import evaluate, next_inputs
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.external import BoundExternal
from gp_ensembles.experts.refitted import BoundRefitted
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.filters.states import FilterState
from gp_ensembles.streaming.model import OnlineModel

_PAIRS = 4096  # pairs of rows whose features are held at once


@torch.no_grad()
def joint_covariance(model: OnlineModel, X: Tensor) -> Tensor:
    r"""Covariance of the targets of rows that all come next, noise and disagreement of the experts included.

    .. math:: \sum_m w_m \left(C_m + (\mu_m - \mu)(\mu_m - \mu)^\top\right)

    Returns the covariance of rows X (N, D) in squared units of the target, shape (N, N), or (N, N, O) for O independent
    outputs.
    """
    if not model.config.ensemble.target.is_real:
        raise TypeError(f"rows have a joint covariance for real numbers only, not for {model.config.ensemble.target}")
    distribution = model.predict(X)
    stretch, total_deviation = None, distribution.stddev
    while isinstance(distribution, Recalibrated | WithPointMass):
        distribution = distribution.base
        stretch = total_deviation / distribution.stddev
    assert not isinstance(distribution, LatentMixture)
    if model.online is None:
        return torch.diag_embed(distribution.variance.movedim(0, -1)).movedim((-2, -1), (0, 1))
    bound, state, layers = model.online.ensemble.bind(), model.online.state, model.online.ensemble.layers
    inputs = next_inputs(layers, state, model.next_inputs(X))
    weights = distribution.log_weights.exp()
    if distribution.log_weights.ndim > 1:  # some are absent from some rows: correlations of those that predict all
        weights = distribution.log_weights.amin(1).softmax(0)
    error = distribution.component_mean - torch.einsum("m,m...->...", weights, distribution.component_mean)
    total = torch.einsum("m,m...->...", weights, error.unsqueeze(1) * error.unsqueeze(2))
    # The innovation models behind an expert scale its covariance.
    variance = distribution.component_variance.unflatten(0, (-1, layers.num_copies))
    scaled = (weights.unflatten(0, (-1, layers.num_copies)) * _of_a_row(variance / variance[:, :1])).sum(1)
    start = 0
    for expert, part, Phi in zip(bound, state.experts, evaluate(bound, inputs), strict=True):  # N² numbers an expert
        within = expert_covariance(expert, part, Phi).double() * model.scales.y_scale.square()
        total = total + torch.einsum("m,m...->...", scaled[start : start + within.shape[0]], within)
        start += within.shape[0]
    if distribution.log_weights.ndim > 1:
        own = distribution.stddev / total.diagonal().sqrt()
        stretch = own if stretch is None else own * stretch
    return total if stretch is None else stretch.unsqueeze(0) * total * stretch.unsqueeze(1)


def _of_a_row(ratio: Tensor) -> Tensor:
    """Ratios (M, K, N, ...), equal in all rows and outputs, as (M, K)."""
    return ratio.flatten(2)[..., 0]


def expert_covariance(expert: BoundExpert, state: FilterState, Phi: Tensor) -> Tensor:
    r"""Joint covariances of the targets of several rows under each expert of one object, noise included.

    From features (\*batch, N, F): shape (M, N, N), or (M, N, N, O) for O outputs; diagonal for external models, which
    predict rows one at a time.
    """
    num_rows = Phi.shape[-2]
    if isinstance(expert, BoundWindow | BoundRefitted):  # no quadratic form in features
        return expert.joint_covariance(state, Phi).reshape(-1, num_rows, num_rows)
    if isinstance(expert, BoundExternal):  # predicts rows one at a time
        variance = expert.predict(state, Phi).variance.reshape(-1, num_rows)
        return torch.diag_embed(variance.nan_to_num(0.0))  # one that is absent has no weight
    first, second = torch.triu_indices(num_rows, num_rows, 1, device=Phi.device)
    values = []
    for i, j in zip(first.split(_PAIRS), second.split(_PAIRS), strict=True):
        plus = expert.predict(state, Phi[..., i, :] + Phi[..., j, :]).variance
        minus = expert.predict(state, Phi[..., i, :] - Phi[..., j, :]).variance
        values.append(_flat(0.25 * (plus - minus), Phi))
    diagonal = _flat(expert.predict(state, Phi).variance, Phi)
    result = diagonal.new_zeros(diagonal.shape[0], num_rows, *diagonal.shape[1:])
    rows = torch.arange(num_rows, device=Phi.device)
    result[:, rows, rows] = diagonal
    if values:
        upper = torch.cat(values, dim=1)
        result[:, first, second] = upper
        result[:, second, first] = upper
    return result


def _flat(variance: Tensor, Phi: Tensor) -> Tensor:
    r"""Variances (\*batch, N, ...) as (M, N, ...)."""
    return variance.reshape(-1, *variance.shape[Phi.ndim - 2 :])
