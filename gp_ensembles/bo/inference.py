"""What a BoTorch model knows, as pure functions: learn rows, say what is believed, predict jointly, fantasise."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.belief import Belief, believe, condition, joint
from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.ensembles.ensemble import Ensemble, EnsembleState, evaluate
from gp_ensembles.ensembles.predictions import flatten
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.filters.states import FilterState, Predictions
from gp_ensembles.meta_learners.base import MetaLearner, MetaState

_BLOCK = 64  # rows learned at once: the cost of a block grows with its square, that of a call does not


class Beliefs(NamedTuple):
    r"""What is believed before the next row, in every fantasy of a batch.

    Attributes:
        experts: The belief of each expert object, with batch shape (\*batch).
        meta: State of the weight rule, each field with leading dimensions (\*batch).
        log_weights: Log weights in force for the next row, shape (\*batch, M).
    """

    experts: tuple[Belief, ...]
    meta: MetaState
    log_weights: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of fantasies."""
        return self.log_weights.shape[:-1]


def learn(ensemble: Ensemble, bound: Sequence[BoundExpert], state: EnsembleState, rows: Observations) -> EnsembleState:
    """Learn rows, (n, D) and (n, O), in their order, weights included; ``bound`` holds the ensemble's numbers."""
    features = evaluate(bound, rows.X)
    for start in range(0, rows.X.shape[0], _BLOCK):
        block = slice(start, start + _BLOCK)
        noise = None if rows.noise is None else rows.noise[block, 0]
        states, parts = [], []
        for expert, b, Phi in zip(state.experts, bound, features, strict=True):
            after, part = learn_block(b, expert, Phi[..., block, :], rows.Y[block], noise)
            states.append(after)
            parts.append(part)
        meta, _ = ensemble.meta_learner.update_block(state.meta, flatten(parts).log_prob)
        state = EnsembleState(tuple(states), meta)
    return state


def learn_block(
    b: BoundExpert, state: FilterState, Phi: Tensor, Y: Tensor, noise: Tensor | None
) -> tuple[FilterState, Predictions]:
    r"""One block for one expert object: features (\*batch, B, F), targets (B, O), known noise variances (B,)."""
    if not isinstance(b, BoundGaussian):
        return b.update_block(state, Phi, Y)
    y = Y.squeeze(-1)
    if noise is None:
        return b.update_block(state, Phi, y)
    root = noise.sqrt()  # in units of its own noise every row has noise one
    unit = BoundGaussian(b.features, b.prior_variance, b.adaptation, torch.ones_like(b.noise))
    after, part = unit.update_block(state, Phi / root.unsqueeze(-1), y / root)
    return after, part._replace(log_prob=part.log_prob - root.log())


def believed(ensemble: Ensemble, bound: Sequence[BoundExpert], state: EnsembleState) -> Beliefs:
    """What is believed before the next row."""
    experts = tuple(believe(b, s) for b, s in zip(bound, state.experts, strict=True))
    return Beliefs(experts, state.meta, ensemble.meta_learner.log_weights(state.meta))


def predict(
    bound: Sequence[BoundExpert], beliefs: Beliefs, X: Tensor, noise: bool | Tensor = False
) -> MixturePosterior:
    r"""Joint prediction of q points at the next step.

    Args:
        bound: The experts' numbers.
        beliefs: What is believed, with batch shape (\*batch).
        X: Inputs, shape (\*t, q, D).
        noise: Whether to add the experts' own observation noise, or the variance to add, shape (..., q or 1, O).
    """
    means, covariances = [], []
    for belief, Phi in zip(beliefs.experts, features_at(bound, X), strict=True):
        mean, covariance = joint(belief, Phi)
        if noise is True:
            own = (belief.noise.unsqueeze(-1) * belief.scale.square()).unsqueeze(-1)
            covariance = covariance + torch.diag_embed(own.expand(*own.shape[:-1], X.shape[-2]))
        elif isinstance(noise, Tensor):
            given = noise.mT.unsqueeze(-3)
            covariance = covariance + torch.diag_embed(given.expand(*given.shape[:-1], X.shape[-2]))
        means.append(mean)
        covariances.append(covariance)
    return MixturePosterior(
        beliefs.log_weights, *(_stack(parts, axis) for parts, axis in ((means, -3), (covariances, -4)))
    )


def fantasise(rule: MetaLearner, bound: Sequence[BoundExpert], beliefs: Beliefs, rows: Observations) -> Beliefs:
    r"""Learn q rows in every fantasy, weights included, by the ensemble's own rules.

    Args:
        rule: The weight rule.
        bound: The experts' numbers.
        beliefs: What is believed before them, with batch shape (\*batch).
        rows: Inputs (\*t, q, D), targets (\*y, q, O), known noise (..., q, 1); all dimensions before q broadcast.
    """
    X, Y, noise = rows
    if X.shape[-2] == 0:
        return _expand(beliefs, torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2], beliefs.batch_shape))
    experts, densities = [], []
    for belief, Phi in zip(beliefs.experts, features_at(bound, X), strict=True):
        after, log_prob = condition(belief, Phi, Y, noise)
        experts.append(after)
        densities.append(log_prob)
    meta, log_weights = _weigh(rule, beliefs.meta, _stack(densities, -2))
    return Beliefs(tuple(experts), meta, log_weights)


def select_outputs(beliefs: Beliefs, outputs: Sequence[int]) -> Beliefs:
    """What is believed about some of the outputs; the weights stay."""
    index = list(outputs)
    experts = [
        belief._replace(
            mean=belief.mean[..., index, :],
            scale=belief.scale[:, index],
            covariance=belief.covariance if belief.covariance.shape[1] == 1 else belief.covariance[:, index],
            removed=belief.removed if belief.removed.shape[-3] == 1 else belief.removed[..., index, :, :],
        )
        for belief in beliefs.experts
    ]
    return beliefs._replace(experts=tuple(experts))


def features_at(bound: Sequence[BoundExpert], X: Tensor) -> list[Tensor]:
    r"""Features of each expert object at X (\*t, q, D), each (\*t, E, q, F)."""
    rows = X.reshape(-1, X.shape[-1])
    features = evaluate(bound, rows)
    return [
        Phi.reshape(b.prior_variance.numel(), *X.shape[:-1], Phi.shape[-1]).movedim(0, -3)
        for b, Phi in zip(bound, features, strict=True)
    ]


def _stack(parts: Sequence[Tensor], axis: int) -> Tensor:
    """Parts side by side along the experts' axis, other leading dimensions broadcast."""
    if len(parts) == 1:
        return parts[0]
    shape = torch.broadcast_shapes(*(part.shape[:axis] for part in parts))
    return torch.cat([part.expand(*shape, *part.shape[axis:]) for part in parts], dim=axis)


def _weigh(rule: MetaLearner, meta: MetaState, log_prob: Tensor) -> tuple[MetaState, Tensor]:
    r"""The weight rule for every fantasy: densities (\*batch, M, q); the new state and the weights that follow."""
    batch_shape = log_prob.shape[:-2]
    wide = _expand_meta(meta, batch_shape)
    size = batch_shape.numel()
    flat = MetaState(*(field.reshape(size, *field.shape[len(batch_shape) :]) for field in wide))
    rows = log_prob.reshape(size, *log_prob.shape[-2:])

    def one(state: MetaState, densities: Tensor) -> tuple[MetaState, Tensor]:
        after, _ = rule.update_block(state, densities)
        return after, rule.log_weights(after)

    after, log_weights = torch.func.vmap(one)(flat, rows)
    unflat = MetaState(*(field.reshape(batch_shape + field.shape[1:]) for field in after))
    return unflat, log_weights.reshape(*batch_shape, log_weights.shape[-1])


def _expand_meta(meta: MetaState, batch_shape: torch.Size) -> MetaState:
    ends = (1, 0, 2)  # dimensions of a MetaState's fields without a batch
    return MetaState(
        *(field.expand(batch_shape + field.shape[field.ndim - n :]) for field, n in zip(meta, ends, strict=True))
    )


def _expand(beliefs: Beliefs, batch_shape: torch.Size) -> Beliefs:
    """The same beliefs in every fantasy of a larger batch."""
    weights = beliefs.log_weights
    return Beliefs(
        beliefs.experts, _expand_meta(beliefs.meta, batch_shape), weights.expand(*batch_shape, weights.shape[-1])
    )
