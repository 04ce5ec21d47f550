"""Base class of weight rules, their state and output, and shared helpers: checks, Bayes' rule, loops over targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import mul
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gp_ensembles.meta_learners import steps
from gp_ensembles.numerics.backends import as_arrays, rows_of
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import call_text, prints_fields
from gp_ensembles.numerics.reductions import readable_all

Numbers = NDArray[np.float64]
# Largest log densities that leave enough precision for weights, in double and single precision.
PLAIN, _PLAIN_SINGLE = 1e6, 1e4
_FEW = 4  # up to this many experts of one rule run faster on Python floats
SMALLEST_DENSITY = torch.finfo(torch.float64).tiny / torch.finfo(torch.float64).eps  # relative to the best expert's

Step = Callable[[Tensor, Tensor, int], Tensor]  # maps log weights, a valid column and its number to new log weights


@prints_fields
class MetaState(NamedTuple):
    """State of a weight rule between two targets.

    Attributes:
        log_weights: Log weights after the last target seen, shape (M,); minus infinity for a dead expert.
        num_seen: Number of steps taken, a scalar integer tensor.
        memory: Other statistics of the rule, shape (M, K), one row per expert; K is zero for rules without any.
    """

    log_weights: Tensor
    num_seen: Tensor
    memory: Tensor


@prints_fields
class MetaOutput(NamedTuple):
    """Weights and mixture log densities over a block of targets.

    Attributes:
        log_weights: Log weights **before** each target, shape (M, B); they sum to one over M.
        log_prob: Log density of each target under the mixture, shape (B,).
    """

    log_weights: Tensor
    log_prob: Tensor


class MetaLearner(nn.Module, ABC):
    """A rule that turns the experts' log densities into mixture weights, one step behind the data.

    Attributes:
        form: Coefficients a, b and M c of a rule of the form of :func:`~gp_ensembles.meta_learners.steps.linear`, which
            can run with others in one pass; ``None`` for other rules.
    """

    form: tuple[float, float, float] | None = None

    def __repr__(self) -> str:
        return call_text(self)

    @abstractmethod
    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data, with the dtype and device of ``like``.

        Raises:
            ValueError: If the rule was built for another number of experts.
        """

    @abstractmethod
    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights for the next target, shape (M,)."""

    @abstractmethod
    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Update the weights over a block of targets, in order.

        Args:
            state: The state before the block.
            log_prob: Log densities of the block's targets under each expert, predicted before each target,
                shape (M, B). A column of zeros is a missing target (set by :func:`weigh_observed`): nothing is
                learned from it, but a rule whose weights change with time (by switching, sharing or forgetting)
                takes a step.

        Returns:
            The state after the block, and the weights and mixture log densities before each target.

        Raises:
            ValueError: If the shape is wrong.
            TypeError: If the dtype is not the state's.
            NumericalError: If a log density is NaN or plus infinity; names the expert and the step.
        """

    @abstractmethod
    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """A state with new experts appended to the old ones; ``state`` itself is unchanged.

        Call it on the rule of the **enlarged** ensemble. Rules that are not built for a number of experts fit both old
        and new ensemble; one built with prior weights or a transition must be rebuilt for M + n experts.

        Args:
            state: State of the M existing experts.
            num_new: Number of new experts n, appended to the old ones.
            share: Total weight of the new experts, divided equally; between 0 and 1. The old ones keep their
                proportions.

        Raises:
            ValueError: If ``num_new`` or ``share`` is out of range, the rule was built for a number of experts other
                than M + n, or the state has no memory of this rule.
        """

    def revive(self, state: MetaState, experts: Tensor, share: float) -> MetaState:
        """A state in which experts of zero weight have weight again; ``state`` itself is unchanged.

        Args:
            state: A state with dead experts, whose log weight is minus infinity.
            experts: Indices of the experts to revive, integers, shape (n,).
            share: Their total weight, divided equally; between 0 and 1. The others keep their proportions.

        Raises:
            ValueError: If ``share`` is out of range, an index is invalid or repeated, an expert has weight, or
                the rule averages other rules, whose weights it cannot restore.
            TypeError: If the indices are not integers.
        """
        check_share(share, lowest_is_legal=False)
        dead = torch.isneginf(state.log_weights)
        num_experts = dead.shape[0]
        if experts.dtype != torch.int64:
            raise TypeError(f"experts to revive must be given as int64 indices, got {experts.dtype}")
        indices = experts.tolist()
        if experts.ndim != 1 or len(set(indices)) != len(indices) or not indices:
            raise ValueError(f"experts to revive must be distinct indices, shape (n,), got {indices}")
        for index in indices:
            if not 0 <= index < num_experts:
                raise ValueError(
                    f"there is no expert {index} to revive: the ensemble has experts 0 to {num_experts - 1}"
                )
            if not bool(dead[index]):
                raise ValueError(f"expert {index} already has weight; only experts with weight zero can be revived")
        log_weights = state.log_weights + math.log1p(-share)
        part = log_weights.new_full(experts.shape, math.log(share / len(indices)))
        revived = state._replace(log_weights=log_weights.index_copy(0, experts.to(log_weights.device), part))
        if bool(torch.isneginf(self.log_weights(revived)[experts]).any()):
            raise ValueError(
                f"{type(self).__name__} averages rules and cannot revive experts; add them again with add_experts"
            )
        return revived


def check_prior_weights(prior_weights: Tensor) -> Tensor:
    """Normalized log prior weights, shape (M,); zero is a valid weight and excludes an expert."""
    if not isinstance(prior_weights, Tensor) or not prior_weights.is_floating_point():
        raise TypeError("prior_weights must be a floating point tensor of shape (M,)")
    if prior_weights.ndim != 1 or prior_weights.shape[0] == 0:
        raise ValueError(f"prior_weights must have shape (M,), got {tuple(prior_weights.shape)}")
    illegal = ~((prior_weights >= 0) & torch.isfinite(prior_weights))
    if bool(illegal.any()):
        expert = int(illegal.int().argmax())
        raise ValueError(
            f"the prior weight of expert {expert} is {float(prior_weights[expert])}; "
            f"weights must be finite and at least zero"
        )
    if not bool(prior_weights.sum() > 0):
        raise ValueError("all prior weights are zero; give at least one expert a positive weight")
    log_weights = prior_weights.log()
    return log_weights - log_weights.logsumexp(0)


def check_num_experts(expected: int, num_experts: int) -> None:
    """Raise if a rule was built for another number of experts."""
    if num_experts != expected:
        raise ValueError(
            f"this weight rule was built for {expected} experts, but the ensemble has {num_experts}; "
            f"build it with weights or a transition of {num_experts} experts"
        )


def check_share(share: float, lowest_is_legal: bool) -> None:
    """Raise unless a share is at least 0 (or above 0, if zero is not allowed) and below 1."""
    if not (0 <= share < 1 and (share > 0 or lowest_is_legal)):
        kind = "at least 0" if lowest_is_legal else "above 0"
        raise ValueError(f"share must be {kind} and below 1, got {share}")


def check_block(state: MetaState, log_prob: Tensor) -> None:
    """Raise if log densities do not match the state in shape or dtype."""
    num_experts = state.log_weights.shape[0]
    if log_prob.ndim != 2 or log_prob.shape[0] != num_experts:
        raise ValueError(
            f"log_prob must have shape ({num_experts}, B), one row per expert, got {tuple(log_prob.shape)}"
        )
    if log_prob.dtype != state.log_weights.dtype:
        raise TypeError(
            f"log_prob is {log_prob.dtype}, but the state is {state.log_weights.dtype}; "
            f"create the state by init(num_experts, like=log_prob)"
        )


def check_densities(log_prob: Tensor) -> None:
    """Raise if a log density is NaN or plus infinity; minus infinity is valid."""
    if readable_all(log_prob < torch.inf):
        return
    try:
        entry = int((~(log_prob < torch.inf)).flatten().int().argmax())
    except RuntimeError:  # values are not available
        return
    expert, step = divmod(entry, log_prob.shape[1])
    raise NumericalError(
        f"the log density of expert {expert} at step {step} of the block is "
        f"{float(log_prob[expert, step])}; its predictive variance is zero or NaN"
    )


def initial_state(log_prior: Tensor | None, num_experts: int, like: Tensor) -> MetaState:
    """State before any data: the prior weights, or equal weights if there are none.

    Raises:
        ValueError: If the prior weights belong to another number of experts, or there are no experts.
        TypeError: If ``like`` is not a floating point tensor.
    """
    if num_experts < 1:
        raise ValueError(f"a weight rule needs at least one expert, got {num_experts}")
    if not like.is_floating_point():
        raise TypeError(f"log weights must be floating point, got {like.dtype}")
    num_seen = like.new_zeros((), dtype=torch.int64)
    memory = like.new_zeros(num_experts, 0)
    if log_prior is None:
        uniform = like.new_full((num_experts,), float(num_experts)).log().neg()
        return MetaState(uniform, num_seen, memory)
    check_num_experts(log_prior.shape[0], num_experts)
    prior = log_prior.to(dtype=like.dtype, device=like.device)
    return MetaState(prior - prior.logsumexp(0), num_seen, memory)


def grown_weights(state: MetaState, num_new: int, share: float) -> MetaState:
    """The state of a rule without memory, with ``num_new`` additional experts of total weight ``share``.

    Raises:
        ValueError: If ``num_new`` is not positive or ``share`` is not between 0 and 1.
    """
    if num_new < 1:
        raise ValueError(f"num_new must be at least 1, got {num_new}")
    check_share(share, lowest_is_legal=False)
    new = state.log_weights.new_full((num_new,), math.log(share / num_new))
    log_weights = torch.cat([state.log_weights + math.log1p(-share), new])
    return state._replace(log_weights=log_weights, memory=state.memory.new_zeros(log_weights.shape[0], 0))


def bayes_step(log_weights: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    r"""One step of Bayes' rule, :math:`w_m \propto w_m p_m`, for any log densities below plus infinity.

    Shapes: ``log_weights`` (M,), ``log_prob`` (M,); returns (M,).
    """
    joint = log_weights + log_prob
    impossible = joint.detach().amax(0) == -torch.inf
    legal = torch.where(impossible, log_weights, joint)
    normalizer = legal.logsumexp(0)
    return normalized(legal, normalizer), torch.where(impossible, -torch.inf, normalizer)


def run_bayes(
    move: Callable[[Tensor], Tensor],
    state: MetaState,
    log_prob: Tensor,
    survive: Callable[[Tensor], Tensor] | None = None,
) -> tuple[MetaState, MetaOutput]:
    """The textbook recursion, for blocks with a zero density: a transition of the weights, then Bayes' rule.

    ``move`` maps log weights (M,) after a target to those for the next one; ``log_prob`` is (M, B); ``survive``
    maps log weights that predicted a target to those that are updated with it.
    """
    check_densities(log_prob)
    current, weights, densities = state.log_weights, [], []
    for column in log_prob.unbind(1):
        weights.append(move(current))
        current, density = bayes_step(weights[-1], column)
        densities.append(density)
        if survive is not None:
            current, _ = bayes_step(survive(weights[-1]), column)
    return pack(state, current, weights, densities)


def normalized(joint: Tensor, normalizer: Tensor) -> Tensor:
    """Normalize joint log weights (M, ...) by their logsumexp (...); returns (M, ...)."""
    is_plain = normalizer.abs() < (PLAIN if torch.finfo(joint.dtype).eps < 1e-10 else _PLAIN_SINGLE)
    if readable_all(is_plain):
        return joint - normalizer
    return torch.where(is_plain, joint - normalizer, torch.log_softmax(joint, 0))


def weigh_observed(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, missing: Tensor
) -> tuple[MetaState, MetaOutput]:
    """Update the weights over a block in which some targets are missing.

    Shapes: ``log_prob`` (M, B), ``missing`` (B,).
    """
    after, output = rule.update_block(state, torch.where(missing, 0.0, log_prob))
    return after, output._replace(log_prob=torch.where(missing, torch.nan, output.log_prob))


def pack(
    state: MetaState, last: Tensor, log_weights: list[Tensor], log_prob: list[Tensor]
) -> tuple[MetaState, MetaOutput]:
    """State and output from the lists collected by a loop over targets."""
    num_steps = len(log_prob)
    if num_steps == 0:
        empty = state.log_weights.new_empty((state.log_weights.shape[0], 0))
        return state, MetaOutput(empty, state.log_weights.new_empty((0,)))
    output = MetaOutput(torch.stack(log_weights, dim=1), torch.stack(log_prob))
    return state._replace(log_weights=last, num_seen=state.num_seen + num_steps), output


def run_steps(step: Step, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
    """Update the weights over a block, target by target.

    Shapes: ``log_prob`` (M, B).

    Raises:
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.
    """
    if log_prob.shape[1] == 0:
        return pack(state, state.log_weights, [], [])
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


class LinearBlock(NamedTuple):
    """A block of R rules of the form of :func:`~gp_ensembles.meta_learners.steps.linear`."""

    weights: Tensor  # weights before each target and after the last, shape (B + 1, R, M)
    log_weights: Tensor  # their logarithms, exact for arbitrarily small weights if c = 0, (B + 1, R, M)
    log_prob: Tensor  # log density of each target under each of their mixtures, shape (R, B)


def run_linear(form: Sequence[Tensor], log_weights: Tensor, log_prob: Tensor) -> LinearBlock | None:
    """Update several rules over a block in linear space; ``None`` if its range does not suffice.

    Shapes: ``form``, coefficients a, b and c, (R, 1) each, or (B, R, 1) if they change with targets; ``log_weights``
    (R, M), ``log_prob`` (M, B).
    """
    arrays = as_arrays(log_weights, log_prob, *form)
    if arrays is not None:
        return _run_on_arrays(*arrays)
    if not readable_all(log_prob < torch.inf):
        return None
    best = log_prob.detach().amax(0)
    p = (log_prob - best).exp().mT.contiguous()
    found, densities = [log_weights.exp()], []
    keep, gain, give = (part.expand(len(p), *part.shape[-2:]) for part in form)
    for column, *numbers in zip(p.unbind(), keep.unbind(), gain.unbind(), give.unbind(), strict=True):
        after, density = steps.linear(found[-1], column, *numbers)
        found.append(after)
        densities.append(density)
    weights, density = torch.stack(found), torch.stack(densities)
    info = torch.finfo(log_prob.dtype)
    if not readable_all(density > info.tiny / info.eps):
        return None
    is_given = give > 0  # the unselected branch must have a finite derivative
    factors = torch.where(is_given, 1.0, keep + (gain / density) * p.unsqueeze(1))
    logs = torch.where(is_given, weights[1:], 1.0).log()
    logs = torch.where(is_given, logs, log_weights + factors.log().cumsum(0))
    return LinearBlock(weights, torch.cat([log_weights.unsqueeze(0), logs]), density.squeeze(-1).log().mT + best)


def _run_on_arrays(log_weights: Numbers, log_prob: Numbers, *form: Numbers) -> LinearBlock | None:
    """The same on NumPy arrays, which is faster for small sizes."""
    best = log_prob.max(0)
    keep, gain, give = (np.broadcast_to(part, (len(best), *part.shape[-2:])).copy() for part in form)
    follow = _follow_few if len(log_weights) == 1 and log_weights.size <= _FEW else rows_of(steps).follow
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # results are checked
        p = np.ascontiguousarray(np.exp(log_prob - best).T)
        weights, density = follow(np.exp(log_weights), p, keep, gain, give)
        if not density.min() > SMALLEST_DENSITY:
            return None
        logs = np.log(weights)
    logs[0] = log_weights
    for r in np.flatnonzero(give[0] == 0):
        logs[1:, r] = log_weights[r] + np.log(keep[:, r] + (gain[:, r] / density[:, r]) * p).cumsum(0)
    return LinearBlock(*map(torch.from_numpy, (weights, logs, np.log(density[..., 0]).T + best)))


def _follow_few(weights: Numbers, p: Numbers, *form: Numbers) -> tuple[Numbers, Numbers]:
    """As :func:`~gp_ensembles.meta_learners.steps.follow` for one rule of few experts, on Python floats."""
    found, densities = [weights[0].tolist()], []
    for column, *numbers in zip(p.tolist(), *(part[:, 0, 0].tolist() for part in form), strict=True):
        density = math.fsum(map(mul, found[-1], column))
        densities.append(density)
        if not density > SMALLEST_DENSITY:
            break
        found.append([steps.advance(weight, q, density, *numbers) for weight, q in zip(found[-1], column, strict=True)])
    return np.array(found)[:, None], np.array(densities)[:, None, None]


def run_by_form(
    form: Sequence[Tensor],
    state: MetaState,
    log_prob: Tensor,
    *,
    keeps: bool = True,
    gives: bool = True,
    in_numbers: bool = True,
) -> tuple[MetaState, MetaOutput]:
    """Update one rule of this form over a block: in linear space, or in log space if its range does not suffice.

    Shapes: ``form``, coefficients a, b and c, (1, 1) each, or (B, 1, 1) if they change with targets; ``keeps`` and
    ``gives`` tell whether a and c are nonzero; ``log_prob`` (M, B).

    Raises:
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.
    """
    num_rows = log_prob.shape[1]
    if num_rows == 0:
        return pack(state, state.log_weights, [], [])
    block = run_linear(form, state.log_weights.unsqueeze(0), log_prob) if in_numbers else None
    if block is not None:
        log_weights = block.log_weights[:, 0].mT
        after = state._replace(log_weights=log_weights[:, -1], num_seen=state.num_seen + num_rows)
        return after, MetaOutput(log_weights[:, :-1], block.log_prob[0])
    keep, gain, give = (part.reshape(-1).log().expand(num_rows).unbind() for part in form)

    def step(log_weights: Tensor, column: Tensor, number: int) -> Tensor:
        moved = torch.log_softmax(log_weights + column, 0) + gain[number]
        moved = torch.logaddexp(log_weights + keep[number], moved) if keeps else moved
        return torch.logaddexp(moved, give[number]) if gives else moved

    return run_steps(step, state, log_prob)


@lru_cache(maxsize=64)
def form_on(
    forms: tuple[tuple[float, float, float], ...], num_experts: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, ...]:
    """Coefficients a, b and c of R rules, (R, 1) each, from their forms; copied to a device once."""
    rows = [(keep, gain, give / num_experts) for keep, gain, give in forms]
    with torch.inference_mode(False):
        numbers = torch.tensor(rows, dtype=dtype, device=device)
        return tuple(part.unsqueeze(1).contiguous() for part in numbers.unbind(1))


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
