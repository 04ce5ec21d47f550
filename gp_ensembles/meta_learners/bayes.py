"""Bayes' rule on log weights: the parts that every weight rule shares."""

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import MetaOutput, MetaState
from gp_ensembles.numerics.cholesky import NumericalError


def check_prior_weights(prior_weights: Tensor) -> Tensor:
    """Normalized log prior weights, shape (M,); a weight of zero is legal and means a dead expert.

    Weights need not sum to one: they are relative, and divided by their sum here.

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


def check_num_experts(expected: int, num_experts: int) -> None:
    """Raise a clear error if a rule built for some number of experts meets another."""
    if num_experts != expected:
        raise ValueError(
            f"this weight rule was built for {expected} experts but the ensemble has {num_experts}; "
            f"build it with weights or a transition of {num_experts} experts"
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


def readable_all(flags: Tensor) -> bool:
    """Whether all flags are set; False where values cannot be read (in ``vmap``, on the meta device)."""
    try:
        return bool(flags.all())
    except (RuntimeError, NotImplementedError):
        return False


def check_densities(log_prob: Tensor) -> None:
    """Raise if a log density is NaN or plus infinity; minus infinity is legal.

    Raises:
        NumericalError: Naming the expert and the step within the block.
    """
    if readable_all(log_prob < torch.inf):
        return
    try:
        entry = int((~(log_prob < torch.inf)).flatten().int().argmax())
    except (RuntimeError, NotImplementedError):  # values cannot be read
        return
    expert, step = divmod(entry, log_prob.shape[1])
    raise NumericalError(
        f"the log density of expert {expert} at step {step} of the block is "
        f"{float(log_prob[expert, step])}; its predictive variance has vanished or is not a number"
    )


def bayes_step(log_weights: Tensor, log_prob: Tensor) -> tuple[Tensor, Tensor]:
    r"""One step of Bayes' rule, :math:`w_m \propto w_m p_m`, for any log densities below plus infinity.

    Where every living expert gives the target density zero there is no posterior: the weights stay and the
    mixture's log density is minus infinity.

    Args:
        log_weights: Normalized log weights before the target, shape (M,).
        log_prob: Log densities of the target, shape (M,).

    Returns:
        Normalized log weights after the target (M,), and the mixture's log density ().

    Example:
        >>> import torch
        >>> after, log_prob = bayes_step(torch.tensor([0.5, 0.5]).log(), torch.tensor([0.0, -torch.inf]))
        >>> after.exp(), log_prob.exp()
        (tensor([1., 0.]), tensor(0.5000))
    """
    joint = log_weights + log_prob
    impossible = joint.detach().amax(0) == -torch.inf
    legal = torch.where(impossible, log_weights, joint)
    normalizer = legal.logsumexp(0)
    return legal - normalizer, torch.where(impossible, -torch.inf, normalizer)


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
