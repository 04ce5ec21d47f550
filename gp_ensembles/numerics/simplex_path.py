r"""Minimizers over the probability simplex of a quadratic that gains one term after another, on plain arrays.

Each minimizer is found from the one before it, by the quick active-set method of
:func:`~gp_ensembles.numerics.simplex.simplex_quadratic`: one symmetric elimination on a support, then one more for each
change of it. A call of torch costs as much as a whole elimination for a dozen numbers; compiled, a term takes
microseconds.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dposv

from gp_ensembles.numerics.compiled import IS_COMPILED, compiled
from gp_ensembles.numerics.simplex import JUMPS, ROUNDINGS, simplex_quadratic

Numbers = NDArray[np.float64]


class Growth(NamedTuple):
    r"""How the quadratic grows with a target of densities x: by its gradient :math:`g = x / w^\top x`."""

    discount: float  # Discount γ of the curvature per target
    refill: float  # Multiple ρ of the identity that is added after it
    step: float  # What the linear term gains, in gradients
    # Whether the quadratic restarts from the minimizer v before the target, with the linear term :math:`A v +
    # \text{step} \cdot g`; else the linear term is a multiple of the sum of all gradients
    is_proximal: bool
    share: float  # Share of the current weights w that is spread equally; the rest is the minimizer


class Followed(NamedTuple):
    """The quadratic and its minimizers after some targets."""

    matrix: Numbers  # Curvature A, shape (M, M)
    sums: Numbers  # Sum of all gradients, shape (M,)
    leader: Numbers  # Minimizer, shape (M,)
    weights: Numbers  # Weights before each target and after the last, shape (B + 1, M)


def follow_minimizer(before: Followed, rows: Numbers, growth: Growth) -> Followed:
    """Follow the minimizer through a block of targets. Shapes: ``rows`` (B, M)."""
    matrix, sums, leader = (np.array(part) for part in before[:3])
    weights = np.concatenate([before.weights, np.empty_like(rows)])
    linear, done = np.empty_like(sums), 0
    while True:
        done = _follow(matrix, sums, leader, weights, rows, linear, done, *growth)
        if done == len(rows):
            return Followed(matrix, sums, leader, weights)
        # The quick method did not settle.
        found = simplex_quadratic(*(torch.from_numpy(part) for part in (matrix, linear, leader)))
        leader[:] = found.numpy()
        done += 1
        weights[done] = (1 - growth.share) * leader + growth.share / len(leader)


def settle_by_products(matrix: Numbers, linear: Numbers, point: Numbers) -> bool:
    """Move a point of the simplex to the minimizer, which probably has nearly the same support.

    Shapes: ``matrix`` (M, M), ``linear`` (M,), ``point`` (M,).
    """
    size, level = len(linear), linear - linear.max()  # a constant changes nothing but the digits that are left
    rounding = -ROUNDINGS * np.finfo(np.float64).eps * level.min()
    inside = point > 0
    for _ in range(JUMPS):
        places = inside.nonzero()[0]
        right = np.ones((2, len(places)))
        right[0] = level[places]
        _, solved, failed = dposv(matrix.take(places[:, None] * size + places), right.T)
        if failed:
            return False
        free, normal = solved.sum(0).tolist()
        multiplier = (free - 1) / normal
        weights = np.zeros(size)
        weights[places] = solved[:, 0] - multiplier * solved[:, 1]
        slope = matrix.dot(weights)
        slope -= level
        after = np.where(inside, weights > 0, slope < -multiplier - rounding)
        if (after == inside).all():
            np.divide(weights, weights.sum(), out=point)
            return True
        inside = after
    return False


def settle_by_loops(matrix: Numbers, linear: Numbers, point: Numbers) -> bool:
    """The same in loops to be compiled; see :func:`settle_by_products`."""
    size, top = len(linear), linear.max()
    rounding = ROUNDINGS * np.finfo(np.float64).eps * (top - linear.min())
    inside, weights = point > 0, np.empty(size)
    places, system = np.empty(size, np.int64), np.empty((size, size + 2))
    for _ in range(JUMPS):
        count = 0
        for m in range(size):
            if inside[m]:
                places[count] = m
                count += 1
        for i in range(count):  # the upper triangle, and two right sides behind it
            for j in range(i, count):
                system[i, j] = matrix[places[i], places[j]]
            system[i, count] = linear[places[i]] - top
            system[i, count + 1] = 1.0
        free, normal = 0.0, 0.0
        for i in range(count):
            own, last = system[i, i : count + 2], count - i
            if not own[0] > 0:
                return False
            free += own[last] * own[last + 1] / own[0]
            normal += own[last + 1] * own[last + 1] / own[0]
            for j in range(i + 1, count):
                factor, row, above = own[j - i] / own[0], system[j, j : count + 2], own[j - i :]
                for k in range(len(row)):
                    row[k] -= factor * above[k]
        multiplier = (free - 1) / normal
        weights[:] = 0.0
        for i in range(count - 1, -1, -1):
            total = system[i, count] - multiplier * system[i, count + 1]
            for j in range(i + 1, count):
                total -= system[i, j] * system[j, count]
            system[i, count] = total / system[i, i]
            weights[places[i]] = system[i, count]
        settled = True
        for m in range(size):
            if inside[m]:
                stays = weights[m] > 0
            else:
                row, slope = matrix[m], top - linear[m]
                for k in range(size):
                    slope += row[k] * weights[k]
                stays = slope < -multiplier - rounding
            if stays != inside[m]:
                settled = False
            inside[m] = stays
        if settled:
            point[:] = weights / weights.sum()
            return True
    return False


_settle = compiled(settle_by_loops, any_order=True) if IS_COMPILED else settle_by_products


@compiled
def _follow(
    matrix: Numbers,
    sums: Numbers,
    leader: Numbers,
    weights: Numbers,
    rows: Numbers,
    linear: Numbers,
    start: int,
    discount: float,
    refill: float,
    step: float,
    is_proximal: bool,
    share: float,
) -> int:
    """Follow from a row on, all in place; the number of rows done, fewer where the quick method did not settle."""
    size = len(sums)
    diagonal = matrix.reshape(-1)[:: size + 1]
    for number in range(start, len(rows)):
        density = np.dot(rows[number], weights[number])
        gradient = rows[number] * (1 / density if density > 0 else 0.0)  # none of an impossible target
        if discount < 1:
            matrix *= discount
            diagonal += refill
        matrix += gradient * gradient.reshape(-1, 1)
        sums += gradient
        if is_proximal:
            linear[:] = np.dot(matrix, leader) + step * gradient
        else:
            linear[:] = step * sums
        if not _settle(matrix, linear, leader):
            return number
        weights[number + 1] = (1 - share) * leader + share / size
    return len(rows)
