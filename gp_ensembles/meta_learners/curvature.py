"""Newton rules target by target and in chunks, and the curvature of experts, old and new."""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

_CHUNK = 32  # targets taken with one support before it is checked
_ROUNDINGS = 64  # a gradient within so many roundings of its terms counts as zero, as in the projection


class Chunk(NamedTuple):
    """Targets taken with one support.

    Attributes:
        gradients: Gradients g, one row a target, shape (n, M).
        leaders: Minimum on the plane of the support after each target, shape (n, M).
        num_right: How many of them, counted from the first, are the minimum over the simplex.
    """

    gradients: Tensor
    leaders: Tensor
    num_right: int


class NewtonProblem(ABC):
    """What a Newton rule minimizes over the simplex after each target; the minimum is called the leader."""

    @abstractmethod
    def take(self, leader: Tensor, rows: Tensor, density: float) -> Chunk:
        """Follow the leader through some targets as long as it keeps its support.

        Args:
            leader: The leader before the targets, shape (M,).
            rows: Densities x of the targets, each up to a factor, shape (n, M).
            density: That of the first target under the weights in force, up to the same factor.
        """

    @abstractmethod
    def absorb(self, gradients: Tensor) -> Self:
        """The problem after targets of these gradients, shape (n, M)."""

    @abstractmethod
    def settle(self, before: Tensor, gradient: Tensor) -> Tensor:
        """The exact leader of this problem, from the one before its last target and that target's gradient."""


ProblemT = TypeVar("ProblemT", bound=NewtonProblem)


def follow(
    problem: ProblemT, leader: Tensor, weights: Tensor, x: Tensor, share: float
) -> tuple[ProblemT, Tensor, Tensor]:
    """Follow the leader of a problem through a block of targets.

    Chunks are taken with the support that the leader has before them, without looking, and then checked whole; the
    first target that changes the support is settled by the active-set method and starts the next chunk.

    Args:
        problem: The problem before the block.
        leader: Its leader, shape (M,).
        weights: Weights in force for the first target, shape (M,).
        x: Densities of the targets, each up to a factor, shape (B, M).
        share: Share of the weights in force that is spread equally.

    Returns:
        The problem and the leader after the block, and the weights in force before each target and after the last,
        shape (B + 1, M).
    """
    history = [weights.unsqueeze(0)]
    start, size = 0, _CHUNK
    while start < x.shape[0]:
        rows = x[start : start + size]
        density = float(torch.dot(rows[0], history[-1][-1]))
        if rows.shape[0] > 1:
            chunk = problem.take(leader, rows, density)
        else:
            chunk = Chunk(rows * invert(density), leader.unsqueeze(0), 0)
        done = min(chunk.num_right + 1, chunk.gradients.shape[0])
        problem = problem.absorb(chunk.gradients[:done])
        leaders = chunk.leaders[:done]
        if chunk.num_right < done:
            before = leaders[-2] if done > 1 else leader
            leader = problem.settle(before, chunk.gradients[done - 1])
            leaders = torch.cat([leaders[:-1], leader.unsqueeze(0)])
            same = bool(((leader > 0) == (before > 0)).all())
            size = 2 * size if same else done
        else:
            leader, size = leaders[-1], 2 * size
        history.append((1 - share) * leaders + share / weights.shape[0])
        start += done
    return problem, leader, torch.cat(history)


def invert(density: float) -> float:
    """One over a density; zero, for no gradient, where the target is impossible under the weights in force."""
    return 1 / density if density > 0 else 0.0


def count_right(leaders: Tensor, support: Tensor, uphill: Tensor, downhill: Tensor) -> int:
    """How many leaders, from the first, have positive weights and no expert outside that would improve them.

    Args:
        leaders: Minima on the plane of the support, shape (n, M).
        support: Indices of the experts in the support.
        uphill: Gradient of the quadratic there, its growing part, shape (n, M).
        downhill: What is taken from it, shape (n, M).
    """
    wrong = ~(leaders[:, support].amin(1) > 0)
    slope = uphill - downhill
    slope = slope - (slope * leaders).sum(1, keepdim=True)
    slope[:, support] = 0.0
    rounding = torch.finfo(slope.dtype).eps * (uphill.abs().amax(1) + downhill.abs().amax(1))
    flags = (wrong | (slope.amin(1) < -_ROUNDINGS * rounding)).tolist()
    return flags.index(True) if True in flags else len(flags)


def near_leader(weights: Tensor, share: float) -> Tensor:
    """About the leader from which weights in force were made: right in its support, but for experts next to none."""
    raw = ((weights - share / weights.shape[0]) / (1 - share)).clamp(min=0)
    kept = torch.where(raw > 1e-6 * raw.max(), raw, 0.0)
    return kept / kept.sum()


def identity_memory(num_experts: int, scale: float, like: Tensor) -> Tensor:
    """A multiple of the identity, shape (M, M), in float64: curvature spans more than float32 has digits for."""
    return torch.diag(like.new_full((num_experts,), scale, dtype=torch.float64))


def relative_densities(log_prob: Tensor) -> Tensor:
    """Densities relative to the best of each target, one row a target, shape (B, M), in float64.

    A target that is impossible under all experts tells them apart no more than a missing one does: a row of ones.
    """
    values = log_prob.detach().double().mT
    best = values.amax(1, keepdim=True)
    return torch.where(best == -torch.inf, 0.0, values - best).exp().contiguous()


def grown_curvature(curvature: Tensor, weights: Tensor, num_new: int, epsilon: float) -> Tensor:
    r"""Curvature with experts more that predicted as the mixture of these weights, (M, M) to (M + n, M + n).

    Such an expert has ratios :math:`g_t^\top w` in the past, so its rows of :math:`\sum_t g_t g_t^\top` are
    combinations of those of the others; the multiple :math:`\varepsilon I` stands beside the sum.
    """
    num_experts = weights.shape[0]
    old = torch.diag(torch.ones_like(weights))
    mapping = torch.cat([old, weights.expand(num_new, num_experts)])
    learned = mapping @ (curvature - epsilon * old) @ mapping.mT
    return learned + epsilon * torch.diag(torch.ones_like(learned[0]))
