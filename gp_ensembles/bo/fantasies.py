r"""Fantasies: exact conditioning of joint normal predictions on noisy values of the function.

A model that predicts jointly can be conditioned on any few rows by its predictions alone: each component of the mixture
at the rows and the points together is conditioned as a normal distribution is, and components are weighed by Bayes'
rule. For an exact Gaussian process that is the process of all rows; for a sparse one the rows become further knots,
with the old knots' posterior as their prior. It costs O(q³) for q fantasy observations.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.bo.data import Observations
from gp_ensembles.bo.posterior import MixturePosterior, covariance_factors
from gp_ensembles.numerics.exact_gp import condition


def predict(
    joint: Callable[[Tensor], MixturePosterior],
    own_noise: Tensor,
    rows: Observations | None,
    X: Tensor,
    noise: bool | Tensor,
) -> MixturePosterior:
    r"""Joint prediction of q points after the fantasies, weights included.

    Shapes: ``own_noise`` (\*b, M, O or 1), ``X`` (\*t, q, D).
    """
    if rows is None:
        mixture = joint(X)
    else:
        places = torch.broadcast_shapes(rows.X.shape[:-2], X.shape[:-2])
        both = torch.cat([part.expand(*places, *part.shape[-2:]) for part in (rows.X, X)], dim=-2)
        spread = own_noise.unsqueeze(-1) if rows.noise is None else rows.noise.mT.unsqueeze(-3)
        mixture = condition_mixture(joint(both), rows.Y, spread)
    return add_noise(mixture, own_noise, noise)


def condition_mixture(mixture: MixturePosterior, Y: Tensor, noise: Tensor) -> MixturePosterior:
    r"""The mixture at the last points, given noisy values at the first q: components and weights by Bayes' rule.

    Shapes: ``Y`` (\*y, q, O), ``noise`` (..., M or 1, O or 1, q or 1).
    """
    q = Y.shape[-2]
    mean, covariance = mixture.component_mean.mT, mixture.component_covariance  # (*b, M, O, q + n), (.., M, O, ., .)
    factor = covariance_factors(covariance[..., :q, :q] + torch.diag_embed(noise.expand(*noise.shape[:-1], q)))
    gain = torch.linalg.solve_triangular(factor, covariance[..., :q, q:], upper=False)
    errors = Y.mT.unsqueeze(-3) - mean[..., :q]  # (*y, M, O, q)
    batch = torch.broadcast_shapes(factor.shape[:-2], errors.shape[:-1])
    learned = condition(factor.expand(*batch, q, q), errors.expand(*batch, q))
    after = mean[..., q:] + learned.mean(gain)
    each = learned.log_density
    log_weights = (mixture.log_weights + (each.squeeze(-1) if each.shape[-1] == 1 else each.mT)).log_softmax(-1)
    return MixturePosterior(log_weights, after.mT, covariance[..., q:, q:] - gain.mT @ gain)


def add_noise(mixture: MixturePosterior, own_noise: Tensor, noise: bool | Tensor) -> MixturePosterior:
    """The mixture with the noise of its components, (M, O or 1), or with variances that are given, (..., q or 1, O)."""
    if noise is False:
        return mixture
    q = mixture.component_mean.shape[-2]
    added = noise.mT.unsqueeze(-3) if isinstance(noise, Tensor) else own_noise.unsqueeze(-1)
    covariance = mixture.component_covariance + torch.diag_embed(added.expand(*added.shape[:-1], q))
    return MixturePosterior(mixture.log_weights, mixture.component_mean, covariance)
