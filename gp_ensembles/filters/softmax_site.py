r"""Laplace sites of one of C classes under the softmax, on plain arrays.

The same equations, damped Newton steps and test for their end as
:class:`~gp_ensembles.filters.sites.VectorLaplaceRule` has, all experts at once, with

.. math:: \nabla \ell = e_y - p, \qquad -\nabla^2 \ell = \mathrm{diag}(p) - p p^\top, \qquad p = \mathrm{softmax}(z)

A call of torch costs several times as much as one of numpy for a dozen numbers.
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_CAP, _HALVINGS = 100, 40
_TOLERANCE = 0.1 * float(np.finfo(np.float64).eps) ** 0.5


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
