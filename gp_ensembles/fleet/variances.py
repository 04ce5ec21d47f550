r"""Noise and prior variances of many series on shared features, profiled exactly.

With the features fixed, one decomposition for each series and expert gives its evidence for all variances
(:mod:`gp_ensembles.numerics.profiled_evidence`); a prior around the shared variances regularizes those of
series with few rows. Length scales: :mod:`gp_ensembles.fleet.length_scales`.
"""

import torch
from torch import Tensor

from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts.base import Variances
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.numerics.profiled_evidence import Profile, evidence_at

_FEATURES_AT_ONCE = 300_000  # numbers that stay in the cache
_LEAST_NOISE = 1e-6  # of standardized targets, as of experts
_ROUND_OFF = 1e-14  # of the largest eigenvalue


@torch.no_grad()
def fit_variances(expert: GaussianExpert, X: Tensor, y: Tensor, fit: FitSettings) -> Variances:
    """The variances of each series X (S, N, D), y (S, N) with the highest evidence, under a prior around the expert's.

    Raises:
        ValueError: If the optimizer is another.
    """
    if not isinstance(fit.method, LBFGS):
        raise ValueError("variances of series are fitted by L-BFGS; give FitSettings(LBFGS())")
    bound = expert.bind()
    num_features, num_experts = expert.features.num_features, expert.num_experts
    size = max(1, _FEATURES_AT_ONCE // (num_experts * y.shape[1] * num_features))
    parts = [
        _profile(bound.features(rows).reshape(len(rows), num_experts, -1, num_features), targets)
        for rows, targets in zip(X.split(size), y.split(size), strict=True)
    ]
    profile = Profile(*(torch.cat(part).flatten(0, 1) for part in zip(*parts, strict=True)))
    above = (bound.noise.reshape(-1).double() - _LEAST_NOISE).clamp_min(_LEAST_NOISE**2)
    own = torch.stack([above, bound.prior_variance.reshape(-1).double()], dim=-1).log()
    start = own.expand(len(y), -1, -1).reshape(-1, 2)

    def losses(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        some = Profile(*(part[problems] for part in profile))
        value, gradient = _evidence(some, points)
        away = points - start[problems]
        value = value - 0.5 * fit.start_precision * away.square().sum(-1)
        gradient = gradient - fit.start_precision * away
        rows = some.num_rows.clamp_min(1.0)
        return -value / rows, -gradient / rows.unsqueeze(-1)

    found = minimize(losses, start.contiguous(), **fit.method._asdict())
    variances = found.point.exp().to(y).reshape(len(y), *expert.batch_shape, 2)
    return Variances(_LEAST_NOISE + variances[..., 0], variances[..., 1])


def _profile(Phi: Tensor, y: Tensor) -> Profile:
    """Of features (S, M, N, F) and targets (S, N), with axes (S, M) in front."""
    seen = (~y.isnan()).double()
    targets = y.double().nan_to_num(0.0)
    design = Phi * seen[:, None, :, None]
    eigenvalues, axes = torch.linalg.eigh(design.mT @ design)
    moments = (axes.mT @ (design.mT @ targets[:, None, :, None])).squeeze(-1)
    like = eigenvalues[..., -1:]
    is_zero = eigenvalues <= _ROUND_OFF * like  # along such an axis the targets have nothing either
    explained = torch.where(is_zero, 0.0, moments.square() / eigenvalues)
    total, num_rows = (part.unsqueeze(1).expand_as(like[..., 0]) for part in (targets.square().sum(-1), seen.sum(-1)))
    left = (total - explained.sum(-1)).clamp_min(0.0)
    return Profile(eigenvalues.masked_fill(is_zero, 0.0), explained, left, num_rows)


def _evidence(found: Profile, points: Tensor) -> tuple[Tensor, Tensor]:
    """Log evidence (P,) and its gradient (P, 2) at logarithms of the noise above the least and of the prior."""
    above, prior = points.exp().unbind(-1)
    noise = _LEAST_NOISE + above
    value, by_noise, by_ratio = evidence_at(found, noise, prior / noise)
    return value, torch.stack([(by_noise - by_ratio) * (above / noise), by_ratio], dim=-1)
