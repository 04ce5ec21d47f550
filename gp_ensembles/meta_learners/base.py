"""Abstract weight rule, its state and output, and shared helpers: checks, Bayes' rule, loops over targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import call_text, record_text
from gp_ensembles.numerics.reductions import readable_all

# Log densities whose digits leave room for weights, in double and in single precision.
PLAIN, _PLAIN_SINGLE = 1e6, 1e4

# Weights before, relative densities, number of the target: weights after, and the density before.
LinearStep = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor, int], Tensor]  # log weights before, a legal column, its number: log weights after


class MetaState(NamedTuple):
    """State of a weight rule between two targets.

    Attributes:
        log_weights: Log weights after the last target seen, shape (M,); minus infinity for a dead expert.
        num_seen: Number of steps taken, a scalar integer tensor.
        memory: Further statistics of the rule, shape (M, K), one row an expert; K is zero for rules that need none.
    """

    log_weights: Tensor
    num_seen: Tensor
    memory: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class MetaOutput(NamedTuple):
    """Weights and mixture log densities over a block of targets.

    Attributes:
        log_weights: Log weights **before** each target, shape (M, B); they sum to one over M.
        log_prob: Log density of each target under the mixture, shape (B,).
    """

    log_weights: Tensor
    log_prob: Tensor

    def __repr__(self) -> str:
        return record_text(self)


class MetaLearner(nn.Module, ABC):
    """A rule that turns the experts' log densities into mixture weights, one step behind the data."""

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
        """Weigh a block of targets in order.

        Args:
            state: The state before the block.
            log_prob: Log densities of the block's targets under each expert, made before each target,
                shape (M, B). A column of zeros is a missing target (:func:`weigh_observed` puts it there): nothing is
                learned from it, though a rule whose weights move with time (by switching, sharing or forgetting)
                lets time pass.

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

        Call it on the rule of the **enlarged** ensemble. Rules built for no particular number of experts serve old
        and new ensemble alike; one built with prior weights or a transition has to be rebuilt for M + n experts.

        Args:
            state: State of the M experts so far.
            num_new: Number of new experts n, put after the old ones.
            share: Weight that the new experts get together, in equal parts; between 0 and 1. The old ones keep their
                proportions.

        Raises:
            ValueError: If ``num_new`` or ``share`` is out of range, the rule was built for another number of experts
                than M + n, or the state has no memory of this rule.
        """

    def revive(self, state: MetaState, experts: Tensor, share: float) -> MetaState:
        """A state in which dead experts have weight again; ``state`` itself is unchanged.

        Args:
            state: The state with dead experts, those of log weight minus infinity.
            experts: Indices of the experts to revive, integers, shape (n,).
            share: Weight that they get together, in equal parts; between 0 and 1. The living keep their proportions.

        Raises:
            ValueError: If ``share`` is out of range, an index is not an expert's or repeated, an expert is alive, or
                the rule averages other rules, whose weights it cannot give back.
            TypeError: If the indices are not integers.
        """
        check_share(share, lowest_is_legal=False)
        dead = torch.isneginf(state.log_weights)
        num_experts = dead.shape[0]
        if experts.dtype != torch.int64:
            raise TypeError(f"experts to revive are given by their indices, int64, got {experts.dtype}")
        indices = experts.tolist()
        if experts.ndim != 1 or len(set(indices)) != len(indices) or not indices:
            raise ValueError(f"experts to revive must be different indices of shape (n,), got {indices}")
        for index in indices:
            if not 0 <= index < num_experts:
                raise ValueError(
                    f"there is no expert {index} to revive: the ensemble has experts 0 to {num_experts - 1}"
                )
            if not bool(dead[index]):
                raise ValueError(f"expert {index} is alive, it has weight already; revive dead experts only")
        log_weights = state.log_weights + math.log1p(-share)
        part = log_weights.new_full(experts.shape, math.log(share / len(indices)))
        revived = state._replace(log_weights=log_weights.index_copy(0, experts.to(log_weights.device), part))
        if bool(torch.isneginf(self.log_weights(revived)[experts]).any()):
            raise ValueError(
                f"{type(self).__name__} averages rules and cannot revive dead experts; add them again with add_experts"
            )
        return revived


def check_prior_weights(prior_weights: Tensor) -> Tensor:
    """Normalized log prior weights, shape (M,); a weight of zero is legal and means a dead expert.

    Raises:
        TypeError: If the weights are not a floating point tensor.
        ValueError: If they are not a vector of finite nonnegative numbers with a positive sum.
    """
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
    """Raise a clear error if a rule built for some number of experts meets another."""
    if num_experts != expected:
        raise ValueError(
            f"this weight rule was built for {expected} experts but the ensemble has {num_experts}; "
            f"build it with weights or a transition of {num_experts} experts"
        )


def check_share(share: float, lowest_is_legal: bool) -> None:
    """Raise a clear error unless a share is a number between 0 and 1, not 1, and 0 only where that is legal."""
    if not (0 <= share < 1 and (share > 0 or lowest_is_legal)):
        kind = "at least 0" if lowest_is_legal else "above 0"
        raise ValueError(f"share must be {kind} and below 1, got {share}")


def check_state_size(rule: MetaLearner, state: MetaState, width: int) -> None:
    """Raise unless a state to grow has the memory, (M, ``width``), from which a rule goes on."""
    if state.memory.shape[-1] != width:
        raise ValueError(
            f"{type(rule).__name__} needs a memory of {width} numbers per expert, but the state has "
            f"{state.memory.shape[-1]}: it is of another rule; use a rule without memory, or start with init"
        )


def check_block(state: MetaState, log_prob: Tensor) -> None:
    """Raise a clear error if log densities do not fit the state; looks at shape and dtype only."""
    num_experts = state.log_weights.shape[0]
    if log_prob.ndim != 2 or log_prob.shape[0] != num_experts:
        raise ValueError(
            f"log_prob must have shape ({num_experts}, B), one row per expert, got {tuple(log_prob.shape)}"
        )
    if log_prob.dtype != state.log_weights.dtype:
        raise TypeError(
            f"log_prob is {log_prob.dtype} but the state is {state.log_weights.dtype}; "
            f"make the state with init(num_experts, like=log_prob)"
        )


def check_densities(log_prob: Tensor) -> None:
    """Raise if a log density is NaN or plus infinity; minus infinity is legal.

    Raises:
        NumericalError: Naming the expert and the step within the block.
    """
    if readable_all(log_prob < torch.inf):
        return
    try:
        entry = int((~(log_prob < torch.inf)).flatten().int().argmax())
    except RuntimeError:  # values cannot be read
        return
    expert, step = divmod(entry, log_prob.shape[1])
    raise NumericalError(
        f"the log density of expert {expert} at step {step} of the block is "
        f"{float(log_prob[expert, step])}; its predictive variance has vanished or is not a number"
    )


def initial_state(log_prior: Tensor | None, num_experts: int, like: Tensor) -> MetaState:
    """State before any data: the prior weights, or equal ones if there are none.

    Raises:
        ValueError: If the prior weights belong to another number of experts, or there is no expert.
        TypeError: If ``like`` is not a floating point tensor.
    """
    if num_experts < 1:
        raise ValueError(f"a weight rule needs at least one expert, got {num_experts}")
    if not like.is_floating_point():
        raise TypeError(f"log weights must be floating point numbers, got {like.dtype}")
    num_seen = like.new_zeros((), dtype=torch.int64)
    memory = like.new_zeros(num_experts, 0)
    if log_prior is None:
        uniform = like.new_full((num_experts,), float(num_experts)).log().neg()
        return MetaState(uniform, num_seen, memory)
    check_num_experts(log_prior.shape[0], num_experts)
    prior = log_prior.to(dtype=like.dtype, device=like.device)
    return MetaState(prior - prior.logsumexp(0), num_seen, memory)


def grown_weights(state: MetaState, num_new: int, share: float) -> MetaState:
    """The state of a rule without memory, with ``num_new`` more experts that have weight ``share`` together.

    Raises:
        ValueError: If ``num_new`` is not positive or ``share`` is not between 0 and 1.
    """
    if num_new < 1:
        raise ValueError(f"at least one expert must be added, got {num_new}")
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


def normalized(joint: Tensor, normalizer: Tensor) -> Tensor:
    """Log weights (M, ...) from their sums with log densities, (M, ...), and the logarithm of the total, (...)."""
    is_plain = normalizer.abs() < (PLAIN if torch.finfo(joint.dtype).eps < 1e-10 else _PLAIN_SINGLE)
    if readable_all(is_plain):
        return joint - normalizer
    return torch.where(is_plain, joint - normalizer, torch.log_softmax(joint, 0))


def weigh_observed(
    rule: MetaLearner, state: MetaState, log_prob: Tensor, missing: Tensor
) -> tuple[MetaState, MetaOutput]:
    """Weigh a block some of whose targets are missing.

    Shapes: ``log_prob`` (M, B), ``missing`` (B,).

    Raises:
        NumericalError: If the log density of a target is NaN or plus infinity; names the expert and the step.
    """
    after, output = rule.update_block(state, torch.where(missing, 0.0, log_prob))
    return after, output._replace(log_prob=torch.where(missing, torch.nan, output.log_prob))


def pack(
    state: MetaState, last: Tensor, log_weights: list[Tensor], log_prob: list[Tensor]
) -> tuple[MetaState, MetaOutput]:
    """State and output from the lists that a per-step loop leaves behind."""
    num_steps = len(log_prob)
    if num_steps == 0:
        empty = state.log_weights.new_empty((state.log_weights.shape[0], 0))
        return state, MetaOutput(empty, state.log_weights.new_empty((0,)))
    output = MetaOutput(torch.stack(log_weights, dim=1), torch.stack(log_prob))
    return state._replace(log_weights=last, num_seen=state.num_seen + num_steps), output


def run_steps(step: Step, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
    """Weigh a block target by target.

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


def run_linear(step: LinearStep, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
    """Weigh a block in plain numbers, for rules that never let a weight fall near the smallest of them.

    Shapes: ``log_prob`` (M, B).
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
    return math.log1p(-share), state.log_weights.new_full((), share / num_experts).log() if share else None


def share_out(log_weights: Tensor, keep: float, part: Tensor | None) -> Tensor:
    """Log weights after each expert has given its share and got its part."""
    return log_weights if part is None else torch.logaddexp(log_weights + keep, part)
