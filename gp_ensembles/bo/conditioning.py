r"""Exact conditioning of an ensemble on observations: states of the experts, weights of the mixture, fantasies.

Rows of data are learned for good by the experts' own filters. A fantasy model differs from its parent by q observations
at inputs that many fantasies share. All fantasies share the covariance :math:`\Sigma` of an expert's weights, and what
they learn is subtracted from it in factored form, :math:`\Sigma - G G^\top` with q columns per fantasy; only means are
kept for each. A batch is folded into rows before it is multiplied with :math:`\Sigma`.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.fantasies import add_noise
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.engine.ensemble import Ensemble, evaluate
from gp_ensembles.engine.predictions import flatten
from gp_ensembles.engine.quarantine import weights_without
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.multi_output import BoundMultiOutput
from gp_ensembles.filters.multi_output import num_groups
from gp_ensembles.filters.states import FilterState, GaussianState, MultiOutputState, Predictions, SquareRootState
from gp_ensembles.filters.transitions import Transition, step_ahead
from gp_ensembles.meta_learners.base import MetaLearner, MetaState

_BLOCK = 64  # rows learned at once: the cost of a block grows with its square, that of a call does not


class WeightPosterior(NamedTuple):
    """Normal posterior of the weights of E experts with O outputs, one step ahead: just before the next row."""

    mean: Tensor  # in units of the output scale, (*batch, E, O, F)
    covariance: Tensor  # (E, G, F, F): one for all outputs, G = 1, or one for each, G = O
    downdate: Tensor  # G of the module's text, what fantasies take from the covariance, (*batch, E, G, F, R)
    noise: Tensor  # observation noise variance in squared units of the output scale, (E,)
    scale: Tensor  # of each output, (E, O)
    prior_variance: Tensor  # of the weights, (E,)
    transition: Transition | None  # how the weights change before every row


class LearnedEnsemble(NamedTuple):
    """All that a model has learned from its rows, just before the next one, in every fantasy of a batch."""

    bound: tuple[BoundExpert, ...]  # the experts' numbers
    key: Tensor  # the hyperparameters that the rows were learned with, flattened
    state: EnsembleState | None  # of the ensemble after all rows; None for a batch of fantasies
    experts: tuple[WeightPosterior, ...]  # of each expert object, with batch shape *batch
    meta: MetaState  # of the weight rule, each field with leading dimensions *batch
    log_weights: Tensor  # for the next row, (*batch, M)


@torch.no_grad()
def learn_rows(
    ensemble: Ensemble, rows: Observations, key: Tensor, before: LearnedEnsemble | None = None
) -> LearnedEnsemble:
    """Learn rows, (n, D) and (n, O), in their order, weights included: all of them, or further ones."""
    bound = ensemble.bind() if before is None else before.bound
    state = ensemble.init() if before is None else before.state
    assert state is not None
    features = evaluate(bound, rows.X)
    for start in range(0, rows.X.shape[0], _BLOCK):
        block = slice(start, start + _BLOCK)
        noise = None if rows.noise is None else rows.noise[block, 0]
        states, parts = [], []
        for expert, b, Phi in zip(state.experts, bound, features, strict=True):
            after, part = update_expert(b, expert, Phi[..., block, :], rows.Y[block], noise)
            states.append(after)
            parts.append(part)
        meta, _ = ensemble.meta_learner.update_block(state.meta, flatten(parts).log_prob)
        state = EnsembleState(tuple(states), meta)
    experts = tuple(_weight_posterior(b, expert) for b, expert in zip(bound, state.experts, strict=True))
    log_weights = ensemble.meta_learner.log_weights(state.meta)
    log_weights = weights_without(log_weights, state.quarantine, ensemble.layers.num_copies)
    return LearnedEnsemble(bound, key, state, experts, state.meta, log_weights)


def condition_fantasies(ensemble: Ensemble, before: LearnedEnsemble, rows: Observations) -> LearnedEnsemble:
    """Learn q rows in every fantasy of a batch, weights included, by the ensemble's own rules."""
    X, Y, noise = rows
    if X.shape[-2] == 0:
        batch_shape = torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], before.log_weights.shape[:-1])
        log_weights = before.log_weights.expand(*batch_shape, before.log_weights.shape[-1])
        return before._replace(state=None, log_weights=log_weights)
    parts = zip(before.experts, _features_at(before.bound, X), strict=True)
    experts, densities = zip(*(_condition_expert(own, Phi, Y, noise) for own, Phi in parts), strict=True)
    meta, log_weights = _update_weights(ensemble.meta_learner, before.meta, _stack(densities, -2))
    return before._replace(state=None, experts=experts, meta=meta, log_weights=log_weights)


def select_outputs(before: LearnedEnsemble, outputs: list[int]) -> LearnedEnsemble:
    """The posterior of some of the outputs; the weights stay."""

    def some(values: Tensor, axis: int) -> Tensor:  # of each output, or one for all
        places = torch.tensor(outputs, dtype=torch.int64, device=values.device)
        return values if values.shape[axis] == 1 else values.index_select(axis, places)

    experts = tuple(
        posterior._replace(
            mean=posterior.mean[..., outputs, :],
            scale=posterior.scale[:, outputs],
            covariance=some(posterior.covariance, 1),
            downdate=some(posterior.downdate, -3),
        )
        for posterior in before.experts
    )
    return before._replace(state=None, experts=experts)


def predict(learned: LearnedEnsemble, X: Tensor, noise: bool | Tensor = False) -> MixturePosterior:
    r"""Joint prediction of q points X (\*t, q, D) at the next step."""
    means, covariances, own_noise = [], [], []
    for posterior, Phi in zip(learned.experts, _features_at(learned.bound, X), strict=True):
        square = posterior.scale.square()
        means.append((Phi @ posterior.mean.mT) * posterior.scale.unsqueeze(-2))  # (*b, E, q, O)
        # (*b, E, O, q, q), without dimensions in which it does not vary:
        covariances.append(_function_covariance(posterior, Phi) * square[..., None, None])
        own_noise.append(posterior.noise.unsqueeze(-1) * square)
    mixture = MixturePosterior(learned.log_weights, _stack(means, -3), _stack(covariances, -4))
    return add_noise(mixture, torch.cat(own_noise), noise)


def update_expert(
    b: BoundExpert, state: FilterState, Phi: Tensor, Y: Tensor, noise: Tensor | None
) -> tuple[FilterState, Predictions]:
    r"""Learn a block with one expert object: features (\*batch, B, F), targets (B, O), known noise variances (B,)."""
    if not isinstance(b, BoundGaussian):
        return b.update_block(state, Phi, Y)
    y = Y.squeeze(-1)
    if noise is None:
        return b.update_block(state, Phi, y)
    root = noise.sqrt()  # in units of its own noise every row has noise one
    unit = BoundGaussian(b.features, b.prior_variance, b.transition, torch.ones_like(b.noise))
    after, part = unit.update_block(state, Phi / root.unsqueeze(-1), y / root)
    return after, part._replace(log_prob=part.log_prob - root.log())


def _weight_posterior(bound: BoundExpert, state: FilterState) -> WeightPosterior:
    """The weights of an expert object one step ahead of its state; a TypeError if they are not normal."""
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
    downdate = mean.new_zeros(*covariance.shape[:-1], 0)
    return _advance(WeightPosterior(mean, covariance, downdate, noise, scale, prior_variance, flat.transition))


def _condition_expert(
    posterior: WeightPosterior, Phi: Tensor, Y: Tensor, known_noise: Tensor | None
) -> tuple[WeightPosterior, Tensor]:
    r"""Learn q rows, one after another, in every fantasy.

    Shapes: ``Phi`` (\*t, E, q, F), ``Y`` (\*y, q, O), ``known_noise`` (\*n, q, 1); returns (\*b, E, q).
    """
    densities = []
    for row in range(Phi.shape[-2]):
        phi = Phi[..., row, :].unsqueeze(-2)  # (*t, E, 1, F)
        cross = _cross_covariance(posterior, phi)  # (*b, E, G, 1, F)
        noise = posterior.noise.unsqueeze(-1)
        if known_noise is not None:
            noise = known_noise[..., row, :].unsqueeze(-2) / posterior.scale[..., :1].square()
        variance = (cross * phi.unsqueeze(-3)).sum(-1).squeeze(-1) + noise  # (*b, E, G)
        mean = (phi @ posterior.mean.mT).squeeze(-2)  # (*b, E, O)
        residual = Y[..., row, :].unsqueeze(-2) / posterior.scale - mean
        log_determinant = variance.log() + math.log(2 * math.pi) + 2 * posterior.scale.log()
        densities.append(-0.5 * (residual.square() / variance + log_determinant).sum(-1))
        gain = cross.squeeze(-2) / variance.unsqueeze(-1)
        column = (cross.squeeze(-2) / variance.sqrt().unsqueeze(-1)).unsqueeze(-1)
        batch_shape = torch.broadcast_shapes(posterior.downdate.shape[:-4], column.shape[:-4])
        columns = [part.expand(*batch_shape, *part.shape[-4:]) for part in (posterior.downdate, column)]
        posterior = _advance(
            posterior._replace(mean=posterior.mean + gain * residual.unsqueeze(-1), downdate=torch.cat(columns, dim=-1))
        )
    return posterior, torch.stack(densities, dim=-1)


def _advance(posterior: WeightPosterior) -> WeightPosterior:
    """The weights one step later, nothing learned."""
    if posterior.transition is None:
        return posterior
    groups = posterior.covariance.unbind(1)
    prior_variance = posterior.prior_variance
    steps = [
        step_ahead(prior_variance.new_zeros(g.shape[:-1]), g, posterior.transition, prior_variance) for g in groups
    ]
    mean_factor, _, root_factor = steps[0]
    covariance = torch.stack([covariance for _, covariance, _ in steps], dim=1)
    mean_factor, root_factor = (f if f.ndim == 0 else f.unsqueeze(-1) for f in (mean_factor, root_factor))
    downdate_factor = root_factor if root_factor.ndim == 0 else root_factor.unsqueeze(-1)
    return posterior._replace(
        mean=posterior.mean * mean_factor, covariance=covariance, downdate=posterior.downdate * downdate_factor
    )


def _shared_cross_covariance(posterior: WeightPosterior, Phi: Tensor) -> Tensor:
    r"""Phi (\*t, E, q, F) times the shared covariance, (\*t, E, G, q, F), one matrix product for the whole batch."""
    batch_shape, (num_experts, num_rows, num_features) = Phi.shape[:-3], Phi.shape[-3:]
    rows = Phi.movedim(-3, 0).reshape(num_experts, 1, -1, num_features)
    product: Tensor = (rows @ posterior.covariance).unflatten(-2, (*batch_shape, num_rows))
    return product.movedim((0, 1), (-4, -3))


def _cross_covariance(posterior: WeightPosterior, Phi: Tensor) -> Tensor:
    r"""Covariance of the functions at q points and the weights, shape (\*b, E, G, q, F)."""
    cross = _shared_cross_covariance(posterior, Phi)
    if posterior.downdate.shape[-1] == 0:
        return cross
    return cross - (Phi.unsqueeze(-3) @ posterior.downdate) @ posterior.downdate.mT


def _function_covariance(posterior: WeightPosterior, Phi: Tensor) -> Tensor:
    r"""Covariance of the functions at q points in units of the output scale, shape (\*b, E, G, q, q)."""
    rows = Phi.unsqueeze(-3)
    covariance = _shared_cross_covariance(posterior, Phi) @ rows.mT
    if posterior.downdate.shape[-1]:
        root = rows @ posterior.downdate
        covariance = covariance - root @ root.mT
    return covariance


def _features_at(bound: Sequence[BoundExpert], X: Tensor) -> list[Tensor]:
    r"""Features of each expert object at X (\*t, q, D), each (\*t, E, q, F)."""
    features = evaluate(bound, X.reshape(-1, X.shape[-1]))
    return [
        Phi.reshape(b.prior_variance.numel(), *X.shape[:-1], Phi.shape[-1]).movedim(0, -3)
        for b, Phi in zip(bound, features, strict=True)
    ]


def _update_weights(rule: MetaLearner, meta: MetaState, log_prob: Tensor) -> tuple[MetaState, Tensor]:
    r"""The weight rule for every fantasy: densities (\*batch, M, q); the new state and the weights that follow."""
    batch_shape = log_prob.shape[:-2]
    ends = (1, 0, 2)  # dimensions of a MetaState's fields without a batch
    fields = (field.expand(batch_shape + field.shape[field.ndim - n :]) for field, n in zip(meta, ends, strict=True))

    def one(state: MetaState, densities: Tensor) -> tuple[MetaState, Tensor]:
        after, _ = rule.update_block(state, densities)
        return after, rule.log_weights(after)

    update: Callable[[MetaState, Tensor], tuple[MetaState, Tensor]] = one
    for _ in batch_shape:
        update = torch.func.vmap(update)
    return update(MetaState(*fields), log_prob)


def _stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Parts side by side along the experts' axis, other leading dimensions broadcast."""
    if len(parts) == 1:
        return parts[0]
    shape = torch.broadcast_shapes(*(part.shape[:axis] for part in parts))
    return torch.cat([part.expand(*shape, *part.shape[axis:]) for part in parts], dim=axis)
