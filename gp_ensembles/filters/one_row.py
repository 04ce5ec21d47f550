r"""One row of the covariance filter on plain arrays, where a call of torch costs as much as its numbers.

The state [Σ | μ] of E experts on each of T transitions is read and changed in the memory of its tensor. As in
:mod:`~gp_ensembles.filters.block` with one row,

.. math:: c = \Sigma \phi + Q \phi, \quad v = \phi^\top c + \sigma^2, \quad m = \phi^\top \mu, \qquad
          [\Sigma \mid \mu] \leftarrow [\Sigma + Q \mid \mu] - \frac{c}{v}\, [c^\top \mid m - y]

The cost is that of memory access, so the compiled loops read and change the lower triangle of the covariance alone, and
``mirror`` fills the upper triangle before anything else reads the state. Without numba the products are those of
numpy and torch, and there is nothing to mirror.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.numerics.compiled import IS_COMPILED, compiled

Numbers = NDArray[np.float64]


def _predict_by_products(
    moments: Numbers, walk: Numbers, noise: Numbers, design: Numbers, joint: Numbers, mean: Numbers, variance: Numbers
) -> None:
    np.matmul(design[:, None, :], moments, out=joint[:, :, None, :])
    mean[...] = joint[..., -1]
    cross = joint[..., :-1]
    cross += design * walk
    np.add((cross * design).sum(-1), noise, out=variance)


def _learn_by_products(
    moments: Numbers, walk: Numbers, joint: Numbers, mean: Numbers, variance: Numbers, y: float
) -> None:
    joint[..., -1] -= y
    joint /= np.sqrt(variance)[..., None]
    width = moments.shape[-2]
    right = torch.from_numpy(joint.reshape(-1, 1, width + 1))
    torch.from_numpy(moments.reshape(-1, width, width + 1)).baddbmm_(right[..., :-1].mT, right, alpha=-1.0)
    diagonal = moments.reshape(*moments.shape[:2], -1)[..., :: width + 2]
    diagonal += walk


def _predict_by_loops(
    moments: Numbers, walk: Numbers, noise: Numbers, design: Numbers, joint: Numbers, mean: Numbers, variance: Numbers
) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            out, weights = joint[t, e], design[e]
            out[:] = 0.0
            for i in range(width):
                weight, row, total = weights[i], moments[t, e, i], 0.0
                for j in range(i):
                    total += row[j] * weights[j]
                    out[j] += row[j] * weight
                out[i] += total + row[i] * weight
                out[width] += row[width] * weight
            spread = noise[t, e]
            for j in range(width):
                out[j] += weights[j] * walk[t, e, j]
                spread += weights[j] * out[j]
            mean[t, e] = out[width]
            variance[t, e] = spread


def _learn_by_loops(
    moments: Numbers, walk: Numbers, joint: Numbers, mean: Numbers, variance: Numbers, y: float
) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            gain = joint[t, e]
            scale = 1.0 / np.sqrt(variance[t, e])
            gain[width] -= y
            for j in range(width + 1):
                gain[j] *= scale
            for i in range(width):
                weight, row = gain[i], moments[t, e, i]
                for j in range(i + 1):
                    row[j] -= weight * gain[j]
                row[width] -= weight * gain[width]
                row[i] += walk[t, e, i]


def _mirror_by_loops(moments: Numbers) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            for i in range(width):
                for j in range(i):
                    moments[t, e, j, i] = moments[t, e, i, j]


def _nothing(moments: Numbers) -> None:
    pass


# Predict one target; the state is not touched. Shapes: ``moments`` (T, E, F, F + 1), ``walk`` (T, E, F), ``noise``
# (T, E), ``design`` (E, F), ``joint`` (T, E, F + 1), ``mean`` (T, E), ``variance`` (T, E).
predict_row = compiled(_predict_by_loops, any_order=True) if IS_COMPILED else _predict_by_products
# Learn the target that ``predict_row`` has predicted; the state changes in place, up to ``mirror``.
learn_row = compiled(_learn_by_loops) if IS_COMPILED else _learn_by_products
# Make whole what ``learn_row`` has left: the upper triangle of each covariance, from the lower one.
mirror = compiled(_mirror_by_loops) if IS_COMPILED else _nothing
