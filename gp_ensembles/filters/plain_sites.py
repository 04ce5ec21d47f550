r"""Sites of classes on plain arrays: blocks of two classes under the logistic link, and single rows of C classes.

The same equations, Newton steps and tests for their end as :class:`~gp_ensembles.filters.sites.LaplaceRule` and
:class:`~gp_ensembles.filters.sites.VectorLaplaceRule` have, or the same quadrature as
:class:`~gp_ensembles.filters.sites.MomentMatchingRule`, all experts at once. A call of torch costs several times as
much as one of numpy for a dozen numbers. Under the softmax

.. math:: \nabla \ell = e_y - p, \qquad -\nabla^2 \ell = \mathrm{diag}(p) - p p^\top, \qquad p = \mathrm{softmax}(z)
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_UNCHECKED, _UNDAMPED = 2, 40  # Newton steps before the first is checked, and at most
_ROUGH = float(np.finfo(np.float64).eps ** 0.4)  # the error after the last step is about its square
_CAP, _HALVINGS = 100, 40
_TOLERANCE = 0.1 * float(np.finfo(np.float64).eps) ** 0.5


class Quadrature(NamedTuple):
    """How moments are matched.

    Attributes:
        nodes: Nodes for the standard normal distribution, shape (K,).
        log_weights: Logarithms of their weights, shape (K,).
        num_refinements: How often the nodes move to where the posterior is.
        narrowest: Share of the last width to which one refinement may shrink.
    """

    nodes: Numbers
    log_weights: Numbers
    num_refinements: int
    narrowest: float


def logistic_sites(
    moments: Numbers, y: Numbers, quadrature: Quadrature | None = None
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers] | None:
    """Sites of the rows of a block, one after another.

    Shapes: ``moments`` (M, B, B + 1), ``y`` (B,). Returns: means and variances one step ahead, gradients and
    curvatures, each (M, B), and the columns (M, B, B), as in :class:`~gp_ensembles.filters.latent.BlockSites`;
    ``None`` where Newton's method takes too long.
    """
    num_experts, num_rows = moments.shape[:2]
    means, variances, gradients, curvatures = np.zeros((4, num_rows, num_experts))
    columns = np.empty((num_experts, num_rows, num_rows))
    for t, label in enumerate(y.tolist()):
        column = moments[:, :, t]
        mean, variance = moments[:, t, -1].copy(), column[:, t].copy()
        means[t], variances[t], columns[:, :, t] = mean, variance, column
        if label != label:
            continue
        if quadrature is not None:
            gradients[t], curvatures[t] = _matched(mean, variance, label, quadrature)
        else:
            point = _mode(mean, variance, label)
            if point is None:
                return None
            probability = 1 / (1 + np.exp(-point))
            precision = probability - probability * probability
            shrink = 1 / (1 + precision * variance)
            gradients[t] = (label - probability + precision * (point - mean)) * shrink
            curvatures[t] = precision * shrink
        if t + 1 < num_rows:
            rest, later = columns[:, t + 1 :, t], moments[:, t + 1 :]
            later[:, :, t + 1 : num_rows] -= (rest * curvatures[t][:, None])[:, :, None] * rest[:, None, :]
            later[:, :, -1] += rest * gradients[t][:, None]
    return means.T, variances.T, gradients.T, curvatures.T, columns


def _mode(mean: Numbers, variance: Numbers, label: float) -> Numbers | None:
    """Newton's method for the modes from where it moves to one side only; ``None`` where it takes too long."""
    end = mean + variance * (2 * label - 1)  # the slope is at most one
    point: Numbers = np.maximum(np.minimum(mean, end), np.minimum(np.maximum(mean, end), 0.0))
    for number in range(_UNDAMPED):
        probability = 1 / (1 + np.exp(-point))
        gap = point - mean - variance * (label - probability)
        point = point - gap / (1 + variance * (probability - probability * probability))
        if number >= _UNCHECKED and (np.abs(gap) <= _ROUGH * (1 + np.abs(point))).all():
            return point
    return None


def _matched(mean: Numbers, variance: Numbers, label: float, quadrature: Quadrature) -> tuple[Numbers, Numbers]:
    """Gradients and curvatures after which latent values have mean and variance of their posteriors."""
    nodes, log_weights = quadrature.nodes[:, None], quadrature.log_weights[:, None]
    known, sign, deviation = log_weights + 0.5 * nodes * nodes, 2 * label - 1, np.sqrt(variance)
    center, spread = np.zeros_like(mean), np.ones_like(mean)  # in standard deviations from the mean
    for _ in range(quadrature.num_refinements):
        place = center + spread * nodes
        odds = sign * (mean + deviation * place)
        height = known - 0.5 * place * place + np.minimum(odds, 0.0)
        shares = np.exp(height - height.max(0)) / (1 + np.exp(-np.abs(odds)))
        shares /= shares.sum(0)
        center = (shares * place).sum(0)
        apart = place - center
        narrow = np.sqrt((shares * apart * apart).sum(0))
        spread = np.maximum(narrow, quadrature.narrowest * spread)  # all the mass on one node: look closer, not blindly
    return center / deviation, (1 - spread * spread) / variance


def softmax_site(mean: Numbers, covariance: Numbers, label: int) -> tuple[Numbers, Numbers] | None:
    """Gradient (M, C) and curvature (M, C, C) of the site of a class; ``None`` if the mode was not found."""
    identity = np.eye(mean.shape[-1])
    gradient, point = np.zeros_like(mean), mean
    log_shares = _log_softmax(point)
    height = log_shares[:, label]
    for _ in range(_CAP):
        shares = np.exp(log_shares)
        hessian = shares[:, :, None] * identity - shares[:, :, None] * shares[:, None, :]
        right = _times(hessian, point - mean) - shares
        right[:, label] += 1.0
        system = identity + hessian @ covariance
        solved = np.linalg.solve(system, np.concatenate([hessian, right[:, :, None]], axis=-1))
        proposal = solved[:, :, -1]
        moved = _times(covariance, proposal) + mean
        if (np.abs(moved - point) <= _TOLERANCE * (1 + np.abs(point))).all():
            curvature = solved[:, :, :-1]
            return proposal, 0.5 * (curvature + curvature.swapaxes(-1, -2))
        share, direction = np.ones((len(mean), 1)), proposal - gradient
        for _ in range(_HALVINGS):
            candidate = gradient + share * direction
            step = _times(covariance, candidate)
            log_shares = _log_softmax(mean + step)
            reached = log_shares[:, label] - 0.5 * (candidate * step).sum(-1)
            low = ~(reached >= height - 1e-12 * (1 + np.abs(height)))  # NaN is low
            if not low.any():
                break
            share = np.where(low[:, None], 0.5 * share, share)
        else:
            return None
        gradient, point, height = candidate, mean + step, reached
    return None


def _times(matrix: Numbers, vector: Numbers) -> Numbers:
    """Products of matrices (M, C, C) and vectors (M, C)."""
    product: Numbers = np.matmul(matrix, vector[:, :, None])[:, :, 0]
    return product


def _log_softmax(latent: Numbers) -> Numbers:
    away = latent - latent.max(-1, keepdims=True)
    found: Numbers = away - np.log(np.exp(away).sum(-1, keepdims=True))
    return found
