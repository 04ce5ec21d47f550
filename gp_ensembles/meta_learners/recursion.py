"""A weight rule as a recursion over targets: the loops that rules without a closed form share."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import MetaOutput, MetaState
from gp_ensembles.meta_learners.bayes import check_densities, pack, readable_all

# Weights before, relative densities, number of the target: weights after, and the density before.
LinearStep = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor, int], Tensor]  # log weights before, a legal column, its number: log weights after


def run_steps(step: Step, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
    """Weigh a block target by target.

    The quick pass takes every target to be possible; where one is not, under any expert that has weight, it leaves
    numbers that are not finite, and the block is done again with such targets taken for missing ones. Their log
    density is minus infinity.

    Args:
        step: One step of the rule.
        state: The state before the block; its log weights are those in force for the first target.
        log_prob: Log densities of the block's targets, shape (M, B), B positive.

    Raises:
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.
    """
    current, before = state.log_weights, []
    for number, column in enumerate(log_prob.unbind(1)):
        before.append(current)
        current = step(current, column, number)
    weights = torch.stack(before, dim=1)
    density = (weights + log_prob).logsumexp(0)
    if readable_all(density.isfinite()):
        after = state._replace(log_weights=current, num_seen=state.num_seen + log_prob.shape[1])
        return after, MetaOutput(weights, density)
    check_densities(log_prob)
    return _careful(step, state, log_prob)


def run_linear(step: LinearStep, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
    """Weigh a block in plain numbers, for rules that never let a weight fall near the smallest of them.

    What underflows in a density is then nothing beside the weight that every expert is given in any case.

    Args:
        step: One step of the rule, on densities relative to the best of each target.
        state: The state before the block; its log weights are those in force for the first target.
        log_prob: Log densities of the block's targets, shape (M, B), B positive.

    Returns:
        The state and output, or ``None`` where a target is impossible, undefined or next to impossible.
    """
    best = log_prob.detach().amax(0)
    columns = (log_prob - best).exp().unbind(1)
    current = state.log_weights.exp()
    after, densities = [], []
    for number, column in enumerate(columns):
        current, density = step(current, column, number)
        after.append(current)
        densities.append(density)
    relative = torch.stack(densities)
    info = torch.finfo(log_prob.dtype)
    if not readable_all(relative > info.tiny / info.eps):
        return None
    weights = torch.cat([state.log_weights.unsqueeze(1), torch.stack(after, dim=1).log()], dim=1)
    last = state._replace(log_weights=weights[:, -1], num_seen=state.num_seen + log_prob.shape[1])
    return last, MetaOutput(weights[:, :-1], relative.log() + best)


def _careful(step: Step, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
    current = state.log_weights
    weights, densities = [], []
    for number, column in enumerate(log_prob.unbind(1)):
        joint = current + column
        impossible = joint.detach().amax(0) == -torch.inf
        legal = torch.where(impossible, torch.zeros_like(column), column)
        weights.append(current)
        densities.append(torch.where(impossible, -torch.inf, (current + legal).logsumexp(0)))
        current = step(current, legal, number)
    return pack(state, current, weights, densities)


def share_logs(share: float, state: MetaState) -> tuple[float, Tensor | None]:
    """Logs of what an expert keeps and of what each gets, the latter ``None`` where nothing is shared."""
    num_experts = state.log_weights.shape[0]
    return math.log1p(-share), state.log_weights.new_tensor(share / num_experts).log() if share else None


def share_out(log_weights: Tensor, keep: float, part: Tensor | None) -> Tensor:
    """Log weights after each expert has given its share and got its part."""
    return log_weights if part is None else torch.logaddexp(log_weights + keep, part)
