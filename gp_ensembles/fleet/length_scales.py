r"""Length scales of each of many series: factors of its inputs, found by evidence.

A stationary kernel with a longer length scale is the same kernel of smaller inputs. So a series with its own length
scales divides its standardized inputs by factors, one per column, and keeps the features that all series share: no
state grows, and the factors are part of the scales of the series.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts.base import BoundExpert, Variances
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.fleet.fitting import evidence_terms, experts_on_bases, fit_own_variances, with_lagged
from gp_ensembles.numerics.minimize import minimize

# Logarithms of factors of all columns to start from: with length scales that are far off a function looks like noise,
# and the gradient is of no help.
_STARTS = (0.0, -0.7, 0.7, -1.4, 1.4, -2.1, 2.1)
_TOLERANCE = 1e-3  # nats per row
_NUMBERS_AT_ONCE = 300_000  # features of some series: what stays in the cache


@torch.no_grad()
def fit_factors(ensemble: Ensemble, X: Tensor, y: Tensor, fit: FitSettings, may_move: Tensor) -> Tensor:
    r"""The factors c of each series' inputs with the highest mean log evidence of the experts on bases.

    .. math:: \max_c \frac{1}{M} \sum_m \log p(y_s \mid X_s / c, m) - \tfrac{1}{2} \tau \lVert \log c \rVert^2

    Shapes: ``X`` (S, N, D), ``y`` (S, N), ``may_move`` (S,); returns (S, D).

    Raises:
        TypeError: If no expert has Gaussian noise and a basis.
        ValueError: If the optimizer is another.
    """
    if not isinstance(fit.method, LBFGS):
        raise ValueError("length scales of series are fitted by L-BFGS; give FitSettings(LBFGS())")
    if not (experts := experts_on_bases(ensemble)):
        raise TypeError("no expert has Gaussian noise and a basis to fit length scales of; leave own_length_scales out")
    size = max(1, _NUMBERS_AT_ONCE // (y.shape[1] * sum(expert.features.num_features for expert in experts)))
    parts = zip(X.split(size), y.split(size), may_move.split(size), strict=True)
    logs = torch.cat([_ascent(ensemble, *rows[:2], *_best_start(ensemble, *rows, fit), fit) for rows in parts])
    return torch.where(may_move.unsqueeze(-1), logs, 0.0).exp()


def _best_start(
    ensemble: Ensemble, X: Tensor, y: Tensor, may_move: Tensor, fit: FitSettings
) -> tuple[Tensor, list[Variances]]:
    """Logarithms of factors (S, D), alike in all columns, with their variances: the best of a few."""
    best = torch.full_like(y[:, 0], -torch.inf)
    logs, chosen = X.new_zeros(len(y), X.shape[-1]), list[Variances]()
    for start in _STARTS:
        point = torch.full_like(logs, start)
        inputs = _divided(X, point)
        variances = [own for own in fit_own_variances(ensemble, inputs, y, fit, may_move) if own is not None]
        value = _mean_evidence(ensemble, inputs, y, variances) - 0.5 * fit.start_precision * point.square().sum(-1)
        higher = value > best
        logs, best = torch.where(higher.unsqueeze(-1), point, logs), torch.where(higher, value, best)
        chosen = [_where(higher, *pair) for pair in zip(variances, chosen or variances, strict=True)]
    return logs, chosen


def _ascent(
    ensemble: Ensemble, X: Tensor, y: Tensor, start: Tensor, variances: Sequence[Variances], fit: FitSettings
) -> Tensor:
    """Logarithms of factors (S, D) that are better than those to start from, with given variances."""
    assert isinstance(fit.method, LBFGS)
    num_rows = (~y.isnan()).sum(-1).clamp_min(1)

    def losses(points: Tensor, problems: Tensor) -> tuple[Tensor, Tensor]:
        some = [Variances(*(part[problems] for part in own)) for own in variances]
        with torch.enable_grad():
            points = points.detach().to(X).requires_grad_()
            evidence = _mean_evidence(ensemble, _divided(X[problems], points), y[problems], some)
            value = (0.5 * fit.start_precision * points.square().sum(-1) - evidence) / num_rows[problems]
            (gradient,) = torch.autograd.grad(value.sum(), points)
        return value.detach().double(), gradient.double()

    most = fit.method.max_iterations
    found = minimize(
        losses, start.double(), max_iterations=most, gradient_tolerance=_TOLERANCE, loss_tolerance=_TOLERANCE
    )
    return found.point.to(X)


def _mean_evidence(ensemble: Ensemble, X: Tensor, y: Tensor, variances: Sequence[Variances]) -> Tensor:
    """Mean over the experts on bases of the log evidence of each series, (S,), each feature map once."""
    X, experts = with_lagged(ensemble, X, y), experts_on_bases(ensemble)
    bound: dict[int, tuple[BoundExpert, Variances]] = {}
    for expert, own in zip(experts, variances, strict=True):
        bound.setdefault(id(expert.features), (expert.bind(), own))
    each = list[Tensor]()
    for one, own in bound.values():
        # Without noise the evidence of features in single precision may not be a number.
        terms = evidence_terms(one.features(X).double(), y.double(), own.prior.double(), own.noise.double())
        each.append(terms.reshape(len(y), -1))
    return torch.cat(each, dim=-1).mean(-1).to(y)


def _divided(X: Tensor, logs: Tensor) -> Tensor:
    return X * (-logs).exp().unsqueeze(1)


def _where(chosen: Tensor, one: Variances, other: Variances) -> Variances:
    shape = (-1, *[1] * (one.noise.ndim - 1))
    return Variances(*(torch.where(chosen.reshape(shape), a, b) for a, b in zip(one, other, strict=True)))
