"""Rivals that are chosen when all targets are known: the best expert and the best mixture of experts.

They are what a weight rule's regret is measured against; the best sequence of experts is in
:mod:`gp_ensembles.metrics.regret`. A missing target is a column of zeros and changes nothing.
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


def best_expert(log_prob: Tensor) -> BestExpert:
    """The expert with the largest sum of log densities; of equals the first.

    Where every expert found some target impossible, it is the one that did so for the fewest, and of those the one with
    the largest sum of the rest.

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
    lost = torch.isneginf(log_prob)
    times = lost.sum(1)
    expert = torch.where(times == times.amin(), log_prob.masked_fill(lost, 0.0).sum(1), -torch.inf).argmax()
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


def _check(log_prob: Tensor) -> None:
    if log_prob.ndim != 2 or log_prob.shape[0] == 0:
        raise ValueError(f"log densities of at least one expert are needed, (M, T), got {tuple(log_prob.shape)}")
    check_densities(log_prob)
