r"""Regret: log density that a stream of predictions lost, in nats, compared with rivals chosen in hindsight.

The loss of a step is minus the log density of its target, so regret is the sum of the rival's log densities minus those
of the stream. ``log_prob`` (T,) are log densities of the ensemble made before each target, ``expert_log_prob`` (M, T)
those of its experts; a missing target is NaN in all of them and adds nothing. Curves end in the regret of the whole
stream. Where both gave a target density zero there is no regret at that step: infinite losses cancel, one for one.

Upper bounds are in :mod:`gp_ensembles.metrics.regret_bounds`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.numerics.simplex import simplex_quadratic


@prints_fields
class BestExpert(NamedTuple):
    """The expert that is best over a whole stream."""

    expert: Tensor  # its index, a scalar integer tensor
    log_prob: Tensor  # its log densities, (T,), in nats; NaN where the target is missing


@prints_fields
class BestMixture(NamedTuple):
    """The mixture of fixed weights that is best over a whole stream."""

    weights: Tensor  # the weights, (M,)
    log_prob: Tensor  # log densities of the mixture, (T,), in nats; NaN where the target is missing
    gap: Tensor  # no mixture is better by more than this per observed target, in nats, ()
    num_iterations: int  # passes over the stream


@prints_fields
class BestPath(NamedTuple):
    """The sequence of experts that is best over a whole stream."""

    path: Tensor  # index of the expert of each step, (T,), int64
    log_prob: Tensor  # log densities of the sequence, (T,), in nats; NaN where the target is missing


def best_expert(log_prob: Tensor) -> BestExpert:
    """The expert with the largest sum of log densities; ties go to the first.

    If every expert gave some target density zero, it is the one with the fewest such targets, and among those the one
    with the largest sum over the rest.

    Args:
        log_prob: Log densities of the experts, shape (M, T), in nats.

    Raises:
        ValueError: If there is no expert, or a log density is invalid (the row and the expert are named).

    Example:
        >>> best_expert(torch.tensor([[-1.0, -1.0], [-0.5, -2.0]])).expert
        tensor(0)
    """
    values = _checked(log_prob)
    lost = torch.isneginf(values)
    times = lost.sum(1)
    expert = torch.where(times == times.amin(), values.masked_fill(lost, 0.0).sum(1), -torch.inf).argmax()
    return BestExpert(expert, log_prob[expert])


@torch.no_grad()
def best_fixed_mixture(log_prob: Tensor, tolerance: float = 1e-9, max_iterations: int = 1000) -> BestMixture:
    r"""The weights that maximize the sum of the mixture's log densities (best constant rebalanced portfolio).

    With ratios :math:`r_{t,m} = p_m(y_t) / \sum_j w_j p_j(y_t)` the optimum has :math:`\max_m \bar r_m = 1` in their
    mean over the targets, and as the logarithm is concave no mixture is better than w by more than
    :math:`\log \max_m \bar r_m` a target. Steps are Newton's, with an exact quadratic program over the simplex and a
    line search, and where Newton's gains nothing expectation-maximization's :math:`w_m \leftarrow w_m \bar r_m`
    (Cover 1984), which never loses.

    Args:
        log_prob: Log densities of the experts, shape (M, T), in nats. Targets that are missing, or impossible under
            all experts, carry no information about the weights.
        tolerance: Largest gap per target, in nats, at which to stop.
        max_iterations: Largest number of passes over the stream.

    Raises:
        ValueError: If there is no expert, the tolerance is not positive, or a log density is invalid.
        NumericalError: If the gap is above the tolerance after all passes.

    Example:
        >>> log_prob = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log()
        >>> best_fixed_mixture(log_prob).weights
        tensor([0.2222, 0.7778], dtype=torch.float64)
    """
    values = _checked(log_prob).double()
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    best = values.amax(0)
    informative = (best > -torch.inf) & (values != 0).any(0)
    x = (values[:, informative] - best[informative]).exp()
    weights = torch.full_like(values[:, 0], 1 / values.shape[0])
    if x.shape[1] == 0:
        return BestMixture(weights.to(log_prob), _mixture(weights, log_prob), log_prob.new_zeros(()), 0)
    # Steps are looked for in the dual as well: an expert of weight zero may gain, so the gap sees all experts.
    for number in range(max_iterations):
        ratios = x / (weights @ x)
        mean = ratios.mean(1)
        gap = mean.amax().log()
        if float(gap) <= tolerance:
            return BestMixture(weights.to(log_prob), _mixture(weights, log_prob), gap.to(log_prob), number + 1)
        weights = _improve(weights, x, ratios, mean)
    raise NumericalError(
        f"the best fixed mixture is known only to within {float(gap):.3g} nats per target after {max_iterations} "
        f"passes; allow more passes or a larger tolerance than {tolerance:.3g}"
    )


@torch.no_grad()
def best_switching_path(expert_log_prob: Tensor, num_switches: int) -> BestPath:
    r"""The sequence of experts with at most S switches that has the largest sum of log densities.

    Exact, by a dynamic program over steps, switches used and experts,
    :math:`V_t(s, m) = \ell_{m, t} + \max\{V_{t-1}(s, m), \max_n V_{t-1}(s - 1, n)\}`: O(S M T) time and memory.

    Args:
        expert_log_prob: Log densities of the experts, shape (M, T), in nats.
        num_switches: Largest number of switches S.

    Returns:
        The sequence; ties go to those that switch less, or earlier.

    Raises:
        ValueError: If there is no expert, ``num_switches`` is negative, or a log density is invalid.

    Example:
        >>> best_switching_path(torch.tensor([[0.0, 0.0, -9.0], [-9.0, -9.0, 0.0]]), num_switches=1).path
        tensor([0, 0, 1])
    """
    values_of_experts = _checked(expert_log_prob)
    if num_switches < 0:
        raise ValueError(f"the number of switches must be at least zero, got {num_switches}")
    num_experts, num_steps = expert_log_prob.shape
    num_switches = min(num_switches, num_steps)
    values = expert_log_prob.new_zeros(num_switches + 1, num_experts)
    origins = expert_log_prob.new_empty((num_steps, num_switches + 1), dtype=torch.int64)  # best expert before
    moved = expert_log_prob.new_zeros((num_steps, num_switches + 1, num_experts), dtype=torch.bool)
    for t, column in enumerate(values_of_experts.unbind(-1)):
        highest, origins[t] = values.max(-1)
        torch.gt(highest[:-1].unsqueeze(-1), values[1:], out=moved[t, 1:])
        values[1:] = torch.maximum(values[1:], highest[:-1].unsqueeze(-1))
        values += column
    used, expert = num_switches, int(values[-1].argmax())
    back, jumps, path = origins.cpu(), moved.cpu(), [0] * num_steps
    for t in range(num_steps - 1, -1, -1):
        path[t] = expert
        if bool(jumps[t, used, expert]):
            used -= 1
            expert = int(back[t, used])
    found = torch.tensor(path, dtype=torch.int64, device=expert_log_prob.device)
    return BestPath(found, expert_log_prob.gather(0, found.unsqueeze(0)).squeeze(0))


def cumulative_regret(log_prob: Tensor, rival_log_prob: Tensor) -> Tensor:
    r"""Cumulative regret against a rival, or against whichever of several is best **so far**.

    :math:`R_t = \max_m \sum_{s \le t} (\ell_{m, s} - \ell_s)`. A rival that is chosen at the **end** of the stream is
    that of :func:`best_expert`, :func:`best_fixed_mixture` (never worse than the best expert) or
    :func:`best_switching_path`. Under Bayesian model averaging with equal prior weights the regret to the experts is at
    most :math:`\log M`, at every step.

    Args:
        log_prob: Log densities of the ensemble, shape (T,), in nats.
        rival_log_prob: Log densities of the rival, shape (T,), or of M rivals, shape (M, T).

    Returns:
        The curve, shape (T,), in nats; negative where the ensemble is ahead.

    Raises:
        ValueError: If the shapes do not fit, there is no rival, or a log density is NaN (the row is named).

    Example:
        >>> experts = torch.tensor([[-1.0, -1.0], [-0.5, -2.0]])
        >>> own = torch.tensor([-1.0, -1.5])
        >>> cumulative_regret(own, best_expert(experts).log_prob)
        tensor([0.0000, 0.5000])
        >>> cumulative_regret(own, experts)
        tensor([0.5000, 0.5000])
    """
    rivals = rival_log_prob.unsqueeze(0) if rival_log_prob.ndim == 1 else rival_log_prob
    if rivals.ndim != 2 or rivals.shape[0] == 0 or log_prob.shape != rivals.shape[1:]:
        raise ValueError(
            f"log_prob must be (T,) and rival_log_prob (T,) or (M, T) with M at least one, got {tuple(log_prob.shape)} "
            f"and {tuple(rival_log_prob.shape)}"
        )
    missing = torch.isnan(rivals).all(0)
    log_prob, rivals = (torch.where(missing, 0.0, values) for values in (log_prob, rivals))
    _check_legal(log_prob.unsqueeze(0), "log_prob")
    _check_legal(rivals, "rival_log_prob")
    lost, own_lost = torch.isneginf(rivals), torch.isneginf(log_prob)
    difference = torch.where(lost, 0.0, rivals) - torch.where(own_lost, 0.0, log_prob)
    finite = difference.cumsum(-1)
    fewer = (own_lost.to(finite.dtype) - lost.to(finite.dtype)).cumsum(-1)
    return torch.where(fewer == 0, finite, torch.where(fewer > 0, torch.inf, -torch.inf)).amax(0)


@torch.no_grad()
def _improve(weights: Tensor, x: Tensor, ratios: Tensor, mean: Tensor) -> Tensor:
    """The better of a Newton step and one of expectation-maximization."""
    value = (weights @ x).log().mean()
    expected = weights * mean
    expected = expected / expected.sum()
    floor = (expected @ x).log().mean()
    curvature = ratios @ ratios.mT / x.shape[1]
    # A ridge of round-off's size makes the program strictly convex where experts are alike.
    curvature.diagonal().add_(1e-12 * curvature.diagonal().amax())
    try:
        direction = simplex_quadratic(curvature, mean + curvature @ weights, weights) - weights
    except NumericalError:  # a badly conditioned program: the other step needs none
        return expected
    size = 1.0
    while size > 1e-3:
        candidate = weights + size * direction
        candidate = candidate / candidate.sum()
        if bool((candidate @ x).log().mean() > torch.maximum(value, floor)):
            return candidate
        size *= 0.5
    return expected


def _mixture(weights: Tensor, log_prob: Tensor) -> Tensor:
    return (weights.to(log_prob).log().unsqueeze(1) + log_prob).logsumexp(0)


def _checked(log_prob: Tensor) -> Tensor:
    """Log densities of at least one expert (M, T), zero where all of them say that the target is missing (NaN)."""
    if log_prob.ndim != 2 or log_prob.shape[0] == 0:
        raise ValueError(f"log densities of at least one expert are needed, (M, T), got {tuple(log_prob.shape)}")
    log_prob = torch.where(torch.isnan(log_prob).all(0), 0.0, log_prob)
    _check_legal(log_prob, "expert_log_prob")
    return log_prob


def _check_legal(values: Tensor, name: str) -> None:
    """Raise unless log densities (M, T) are numbers below infinity; minus infinity is legal."""
    illegal = ~(values < torch.inf)
    if values.is_meta or not bool(illegal.any()):
        return
    row = int(illegal.any(0).int().argmax())
    expert = int(illegal[:, row].int().argmax())
    whose = "" if name == "log_prob" else f" of expert {expert}"
    raise ValueError(
        f"{name} is {float(values[expert, row])} in row {row}{whose}; a log density is a number below infinity: leave "
        f"the row out, or set it to NaN everywhere if its target is missing"
    )
