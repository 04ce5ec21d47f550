"""Rivals that are chosen when all targets are known: the best expert, mixture and sequence of experts.

They are what a weight rule's regret is measured against. A missing target is a column of zeros and changes nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.meta_learners.bayes import check_densities
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.simplex import simplex_quadratic


class BestExpert(NamedTuple):
    """The expert that is best over a whole stream.

    Attributes:
        expert: Its index, a scalar integer tensor.
        log_prob: Its log densities, shape (T,), in nats.
    """

    expert: Tensor
    log_prob: Tensor


class BestMixture(NamedTuple):
    """The mixture of fixed weights that is best over a whole stream.

    Attributes:
        weights: The weights, shape (M,).
        log_prob: Log densities of the mixture, shape (T,), in nats.
        gap: No mixture is better by more than this per observed target, in nats, a scalar.
        num_iterations: Passes over the stream.
    """

    weights: Tensor
    log_prob: Tensor
    gap: Tensor
    num_iterations: int


class BestSequence(NamedTuple):
    """The sequence of experts that is best over a whole stream with few switches.

    Attributes:
        totals: Sum of log densities of the best sequence with at most 0, 1, ..., S switches, shape (S + 1,), in nats.
        path: Expert of each step in the best with at most S switches, shape (T,), int64.
        log_prob: Log densities of that sequence, shape (T,), in nats.
    """

    totals: Tensor
    path: Tensor
    log_prob: Tensor


@torch.no_grad()
def best_expert(log_prob: Tensor) -> BestExpert:
    """The expert with the largest sum of log densities; of equals the first.

    Args:
        log_prob: Log densities of the experts, shape (M, T), in nats.

    Raises:
        ValueError: If there is no expert.
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.

    Example:
        >>> import torch
        >>> best_expert(torch.tensor([[-1.0, -1.0], [-0.5, -2.0]])).expert
        tensor(0)
    """
    _check(log_prob)
    expert = log_prob.sum(1).argmax()
    return BestExpert(expert, log_prob[expert])


@torch.no_grad()
def best_fixed_mixture(log_prob: Tensor, tolerance: float = 1e-9, max_iterations: int = 1000) -> BestMixture:
    r"""The weights that maximise the sum of the mixture's log densities (best constant rebalanced portfolio).

    With ratios :math:`r_{t,m} = p_m(y_t) / \sum_j w_j p_j(y_t)` the optimum has :math:`\max_m \bar r_m = 1` in their
    mean over the targets, and as the logarithm is concave no mixture is better than w by more than
    :math:`\log \max_m \bar r_m` a target. Steps are Newton's, with an exact quadratic programme over the simplex and a
    line search, and where Newton's gains nothing expectation-maximisation's :math:`w_m \leftarrow w_m \bar r_m`
    (Cover 1984), which never loses.

    Args:
        log_prob: Log densities of the experts, shape (M, T), in nats. Targets that are missing, or impossible under
            all experts, tell nothing about the weights.
        tolerance: Largest gap per target, in nats, at which to stop.
        max_iterations: Most passes over the stream.

    Raises:
        ValueError: If there is no expert or the tolerance is not positive.
        NumericalError: If a log density is NaN or plus infinity, or the gap is above the tolerance after all passes.

    Example:
        >>> import torch
        >>> log_prob = torch.tensor([[0.8, 0.2, 0.2], [0.2, 0.8, 0.8]], dtype=torch.float64).log()
        >>> best_fixed_mixture(log_prob).weights
        tensor([0.2222, 0.7778], dtype=torch.float64)
    """
    _check(log_prob)
    if not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    values = log_prob.double()
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
        f"the best fixed mixture is known to {float(gap):.3g} nats a target only after {max_iterations} passes; "
        f"allow more or a larger tolerance than {tolerance:.3g}"
    )


@torch.no_grad()
def best_switching_sequence(log_prob: Tensor, num_switches: int) -> BestSequence:
    r"""Best sequence of experts with at most S switches, by a dynamic programme of O(S M T).

    :math:`V_t(s, m) = \ell_{m,t} + \max\{V_{t-1}(s, m), \max_n V_{t-1}(s - 1, n)\}`, over all switch counts and
    experts at once. Ties go to no switch, then to the first expert.

    Args:
        log_prob: Log densities of the experts, shape (M, T), in nats.
        num_switches: Most switches S.

    Raises:
        ValueError: If there is no expert or ``num_switches`` is negative.
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.

    Example:
        >>> import torch
        >>> result = best_switching_sequence(torch.tensor([[0.0, 0.0, -9.0], [-8.0, -9.0, 0.0]]), num_switches=1)
        >>> result.totals, result.path
        (tensor([-9.,  0.]), tensor([0, 0, 1]))
    """
    _check(log_prob)
    if num_switches < 0:
        raise ValueError(f"the number of switches must be at least zero, got {num_switches}")
    num_experts, num_steps = log_prob.shape
    values = log_prob.new_zeros(num_switches + 1, num_experts)
    sources, jumps = [], []
    for column in log_prob.unbind(1):
        highest, source = values[:-1].max(1, keepdim=True)
        jump = highest > values[1:]
        values = torch.cat([values[:1], torch.where(jump, highest, values[1:])]) + column
        sources.append(source.squeeze(1))
        jumps.append(jump)
    totals, last = values.max(1)
    path, used, expert = [], num_switches, int(last[-1])
    if num_steps and num_switches:
        back, jumped = torch.stack(sources).tolist(), torch.stack(jumps).cpu()
    for t in range(num_steps - 1, -1, -1):
        path.append(expert)
        if used and bool(jumped[t, used - 1, expert]):
            expert = back[t][used - 1]
            used -= 1
    chosen = last.new_tensor(path[::-1])
    return BestSequence(totals, chosen, log_prob.gather(0, chosen.unsqueeze(0)).squeeze(0))


def regret(log_prob: Tensor, benchmark: Tensor) -> Tensor:
    """Cumulative regret, in nats: the sum of a rival's log densities minus one's own, shape (T,).

    Args:
        log_prob: Log densities of the targets under the mixture in force, shape (T,).
        benchmark: Log densities under the rival, shape (T,), for instance of :func:`best_fixed_mixture`.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> import torch
        >>> regret(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.5]))
        tensor([0.0000, 0.5000])
    """
    if log_prob.ndim != 1 or log_prob.shape != benchmark.shape:
        raise ValueError(
            f"log densities must have one shape (T,), got {tuple(log_prob.shape)} and {tuple(benchmark.shape)}"
        )
    return (benchmark - log_prob).cumsum(0)


def _improve(weights: Tensor, x: Tensor, ratios: Tensor, mean: Tensor) -> Tensor:
    """The better of a Newton step and one of expectation-maximisation."""
    value = (weights @ x).log().mean()
    expected = weights * mean
    expected = expected / expected.sum()
    floor = (expected @ x).log().mean()
    curvature = ratios @ ratios.mT / x.shape[1]
    # A ridge of round-off's size makes the programme strictly convex where experts are alike.
    curvature.diagonal().add_(1e-12 * curvature.diagonal().amax())
    try:
        direction = simplex_quadratic(curvature, mean + curvature @ weights, weights) - weights
    except NumericalError:  # a badly conditioned programme: the other step needs none
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


def _check(log_prob: Tensor) -> None:
    if log_prob.ndim != 2 or log_prob.shape[0] == 0:
        raise ValueError(f"log densities of at least one expert are needed, (M, T), got {tuple(log_prob.shape)}")
    check_densities(log_prob)
