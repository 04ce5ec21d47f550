"""Follow the leader: the quadratic program over the simplex that the Newton rules solve after each target.

The two problems are strictly convex quadratics. While the same experts have weight each is solved by a recursion, taken
in chunks of targets that are checked whole; where the support changes, by an active-set quadratic program.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.simplex import simplex_quadratic

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


class QuadraticProgram(ABC):
    """A strictly convex quadratic that a Newton rule minimizes over the simplex after each target."""

    @abstractmethod
    def advance(self, leader: Tensor, rows: Tensor, density: float) -> Chunk:
        """Follow the leader through some targets as long as it keeps its support.

        Args:
            leader: The leader before the targets, shape (M,).
            rows: Densities x of the targets, each up to a factor, shape (n, M).
            density: That of the first target under the weights in force, up to the same factor.
        """

    @abstractmethod
    def update(self, gradients: Tensor) -> Self:
        """The problem after targets of these gradients, shape (n, M)."""

    @abstractmethod
    def solve(self, before: Tensor, gradient: Tensor) -> Tensor:
        """The exact leader of this problem, from the one before its last target and that target's gradient."""


@dataclass(frozen=True)
class LeastSquares(QuadraticProgram):
    r"""All targets at once: the minimum of :math:`|w|^2 + \sum_t (g_t^\top w - c)^2`.

    That is of :math:`w^\top A w - 2 c\, a^\top w` with :math:`A = I + \sum_t g_t g_t^\top` and
    :math:`a = \sum_t g_t`. On the plane of the support it is recursive least squares: with P the inverse of A on the
    plane, a new row g moves the weights by :math:`P g\, (c - g^\top w) / (1 + g^\top P g)`. Rows are g = x / d, with d
    the density of the target under the weights in force, so that only two scalars a target have to be read.

    Attributes:
        matrix: Curvature A, shape (M, M).
        sums: Sum of gradients a, shape (M,).
        target: The constant c.
        share: Share of the weights in force that is spread equally.
    """

    matrix: Tensor
    sums: Tensor
    target: float
    share: float

    def advance(self, leader: Tensor, rows: Tensor, density: float) -> Chunk:
        """Recursive least squares with one support."""
        num_steps, num_experts = rows.shape
        support = (leader > 0).nonzero().squeeze(1)
        inverse = _plane_inverse(self.matrix, support)
        leader = leader + inverse @ (self.target * self.sums - self.matrix @ leader)
        moments = torch.cat([inverse, leader.unsqueeze(1)], dim=1)  # [P | w]
        transposed = moments.mT
        last = torch.zeros_like(moments[0])
        last[-1] = 1.0
        # Row t reads both scalars off one product: x^T P x and x^T w.
        readers = rows.new_zeros(num_steps, 2, num_experts + 1)
        readers[:, 0, :-1] = rows
        readers[:, 1, -1] = 1.0
        spread = (rows.sum(1) * (self.share / num_experts)).tolist()
        products, gains, densities = [], [], []
        for number, (row, reader) in enumerate(zip(rows.unbind(0), readers.unbind(0), strict=True)):
            product = torch.mv(transposed, row)
            curved, fitted = torch.mv(reader, product).tolist()
            if number:
                density = (1 - self.share) * fitted + spread[number]
            if not density > 0:  # the leader left the simplex some steps ago: what follows is thrown away
                break
            scale = density * density + curved
            change = torch.add(product, last, alpha=-self.target * density)
            moments.addr_(product[:num_experts], change, alpha=-1 / scale)
            products.append(product)
            gains.append((self.target * density - fitted) / scale)
            densities.append(density)
        moves = torch.stack(products)[:, :-1] * rows.new_tensor(gains).unsqueeze(1)
        leaders = leader + moves.cumsum(0)
        gradients = rows[: len(densities)] / rows.new_tensor(densities).unsqueeze(1)
        uphill = leaders @ self.matrix + (leaders @ gradients.mT).tril() @ gradients
        downhill = self.target * (self.sums + gradients.cumsum(0))
        return Chunk(gradients, leaders, _count_right(leaders, support, uphill, downhill))

    def update(self, gradients: Tensor) -> Self:
        """Add rows to the sum of squares."""
        matrix = self.matrix + gradients.mT @ gradients
        return replace(self, matrix=matrix, sums=self.sums + gradients.sum(0))

    def solve(self, before: Tensor, gradient: Tensor) -> Tensor:
        """The minimum; the gradient is in the sums already."""
        return simplex_quadratic(self.matrix, self.target * self.sums, before)


@dataclass(frozen=True)
class Proximal(QuadraticProgram):
    r"""A step from the leader before: :math:`\tfrac12 (w - w_t)^\top A_t (w - w_t) - g_t^\top w / \beta`.

    The curvature forgets towards :math:`\varepsilon I`. On the plane of the support, in coordinates of all its
    experts but the last, it is one small Cholesky factor a target.

    Attributes:
        matrix: Curvature A, shape (M, M).
        beta: Constant β.
        discount: Discount γ of the curvature.
        epsilon: Curvature ε without data.
        share: Share of the weights in force that is spread equally.
    """

    matrix: Tensor
    beta: float
    discount: float
    epsilon: float
    share: float

    def advance(self, leader: Tensor, rows: Tensor, density: float) -> Chunk:
        """Steps with one support."""
        num_steps, num_experts = rows.shape
        support = (leader > 0).nonzero().squeeze(1)
        free, last = support[:-1], support[-1:]
        ones = torch.ones_like(leader[free])
        plane = torch.outer(ones, ones) + torch.diag(ones)
        refill = (1 - self.discount) * self.epsilon * plane
        block = self.matrix[support[:, None], support]
        edge = block[:-1, -1:]
        curvature = block[:-1, :-1] - edge - edge.mT + block[-1, -1]
        across = rows[:, free] - rows[:, last]
        constant = (1 - self.share) * rows[:, support[-1]] + (self.share / num_experts) * rows.sum(1)
        position, constants = leader[free], constant.tolist()
        positions, inverses = [], []
        for number, row in enumerate(across.unbind(0)):
            if number:
                density = (1 - self.share) * float(torch.dot(row, position)) + constants[number]
            inverse = _invert(density)
            curvature.addr_(row, row, beta=self.discount, alpha=inverse * inverse)
            curvature.add_(refill)
            factor, _ = torch.linalg.cholesky_ex(curvature)
            step = torch.cholesky_solve(row.unsqueeze(1), factor).squeeze(1)
            position = torch.add(position, step, alpha=inverse / self.beta)
            positions.append(position)
            inverses.append(inverse)
        path = torch.stack(positions)
        leaders = rows.new_zeros(num_steps, num_experts)
        leaders[:, free] = path
        leaders[:, last] = 1 - path.sum(1, keepdim=True)
        gradients = rows * rows.new_tensor(inverses).unsqueeze(1)
        moves = torch.diff(leaders, dim=0, prepend=leader.unsqueeze(0))
        uphill = self._curved(moves, gradients)
        return Chunk(gradients, leaders, _count_right(leaders, support, uphill, gradients / self.beta))

    def update(self, gradients: Tensor) -> Self:
        """Let the curvature forget, and add rows to it."""
        if gradients.shape[0] == 1:
            matrix = torch.addr(self.matrix, gradients[0], gradients[0], beta=self.discount)
            matrix.diagonal().add_((1 - self.discount) * self.epsilon)
            return replace(self, matrix=matrix)
        left = self._decay(gradients)
        scaled = gradients * left[:-1].flip(0).sqrt().unsqueeze(1)
        matrix = left[-1] * self.matrix + scaled.mT @ scaled
        matrix.diagonal().add_((1 - left[-1]) * self.epsilon)
        return replace(self, matrix=matrix)

    def solve(self, before: Tensor, gradient: Tensor) -> Tensor:
        """The minimum; the gradient is in the curvature already."""
        linear = torch.addmv(gradient, self.matrix, before, beta=1 / self.beta)
        return simplex_quadratic(self.matrix, linear, before)

    def _decay(self, gradients: Tensor) -> Tensor:
        """What is left of curvature after 0 to n targets, shape (n + 1,)."""
        times = torch.arange(gradients.shape[0] + 1, device=gradients.device)
        return torch.pow(gradients.new_tensor(self.discount), times)

    def _curved(self, moves: Tensor, gradients: Tensor) -> Tensor:
        """Each move times the curvature of its time, shape (n, M)."""
        left = self._decay(gradients)
        age = torch.arange(left.shape[0] - 1, device=left.device)
        weights = left[(age.unsqueeze(1) - age).clamp(min=0)].tril()
        old = left[1:].unsqueeze(1)
        recent = (weights * (moves @ gradients.mT)) @ gradients
        return old * (moves @ self.matrix) + (1 - old) * self.epsilon * moves + recent


ProgramT = TypeVar("ProgramT", bound=QuadraticProgram)


def follow(
    problem: ProgramT, leader: Tensor, weights: Tensor, x: Tensor, share: float
) -> tuple[ProgramT, Tensor, Tensor]:
    """Follow the leader of a problem through a block of targets.

    Chunks are taken with the support that the leader has before them, without looking, and then checked whole; the
    first target that changes the support is solved by the active-set method and starts the next chunk.

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
            chunk = problem.advance(leader, rows, density)
        else:
            chunk = Chunk(rows * _invert(density), leader.unsqueeze(0), 0)
        done = min(chunk.num_right + 1, chunk.gradients.shape[0])
        problem = problem.update(chunk.gradients[:done])
        leaders = chunk.leaders[:done]
        if chunk.num_right < done:
            before = leaders[-2] if done > 1 else leader
            leader = problem.solve(before, chunk.gradients[done - 1])
            leaders = torch.cat([leaders[:-1], leader.unsqueeze(0)])
            same = bool(((leader > 0) == (before > 0)).all())
            size = 2 * size if same else done
        else:
            leader, size = leaders[-1], 2 * size
        history.append((1 - share) * leaders + share / weights.shape[0])
        start += done
    return problem, leader, torch.cat(history)


def _invert(density: float) -> float:
    """One over a density; zero, for no gradient, where the target is impossible under the weights in force."""
    return 1 / density if density > 0 else 0.0


def _count_right(leaders: Tensor, support: Tensor, uphill: Tensor, downhill: Tensor) -> int:
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


def _plane_inverse(matrix: Tensor, support: Tensor) -> Tensor:
    """Inverse of a matrix on the plane where the support's entries sum to zero, shape (M, M), zero elsewhere."""
    inverse = torch.cholesky_inverse(cholesky(matrix[support[:, None], support], "the curvature on the support"))
    normal = inverse.sum(1)
    whole = torch.zeros_like(matrix)
    whole[support[:, None], support] = inverse - torch.outer(normal, normal) / normal.sum()
    return whole
