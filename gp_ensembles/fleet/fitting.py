r"""Hyperparameters shared by many series, by maximizing the sum of the series' log evidences.

.. math:: \max_\lambda \sum_s \log p(y_s \mid X_s, \lambda)

Every series has its own function, drawn from one prior: rows of several series are not pooled, which
would treat differences between series as noise.

A series may have its own noise and prior variances. With fixed features, one decomposition for each series and
expert gives its evidence for all variances (:mod:`gp_ensembles.numerics.profiled_evidence`); a prior around the shared
variances regularizes those of series with few rows.

It may have its own length scales, too. A stationary kernel with a longer length scale is the same kernel at smaller
inputs: such a series divides its standardized inputs by factors, one per column, and keeps the features that all
series share. No state grows, and the factors are part of the scales of the series.
"""

import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts.base import BoundExpert, Expert, Variances
from gp_ensembles.experts.empirical_bayes import EvidenceFit, fit_empirical_bayes
from gp_ensembles.experts.evidence import whitened_statistics
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.filters.states import FilterState
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.numerics.profiled_evidence import Profile, evidence_at

_FEATURES_AT_ONCE = 300_000  # numbers that fit into the cache
_LEAST_NOISE = 1e-6  # of standardized targets, as for experts
_ROUND_OFF = 1e-14  # of the largest eigenvalue


@torch.no_grad()
def fit_variances(expert: GaussianExpert, X: Tensor, y: Tensor, fit: FitSettings) -> Variances:
    """Variances of each series X (S, N, D), y (S, N) with the most log evidence plus log prior around the expert's."""
    if fit.method is None:
        raise ValueError("settings without an optimizer fit nothing; give FitSettings(LBFGS())")
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
    """Profile of features (S, M, N, F) and targets (S, N), with leading axes (S, M)."""
    seen = (~y.isnan()).double()
    targets = y.double().nan_to_num(0.0)
    design = Phi * seen[:, None, :, None]
    eigenvalues, axes = torch.linalg.eigh(design.mT @ design)
    moments = (axes.mT @ (design.mT @ targets[:, None, :, None])).squeeze(-1)
    like = eigenvalues[..., -1:]
    is_zero = eigenvalues <= _ROUND_OFF * like  # the targets have no component along such an axis
    explained = torch.where(is_zero, 0.0, moments.square() / eigenvalues)
    total, num_rows = (part.unsqueeze(1).expand_as(like[..., 0]) for part in (targets.square().sum(-1), seen.sum(-1)))
    left = (total - explained.sum(-1)).clamp_min(0.0)
    return Profile(eigenvalues.masked_fill(is_zero, 0.0), explained, left, num_rows)


def _evidence(found: Profile, points: Tensor) -> tuple[Tensor, Tensor]:
    """Log evidence (P,) and its gradient (P, 2) at logs of the noise above its minimum and of the prior variance."""
    above, prior = points.exp().unbind(-1)
    noise = _LEAST_NOISE + above
    value, by_noise, by_ratio = evidence_at(found, noise, prior / noise)
    return value, torch.stack([(by_noise - by_ratio) * (above / noise), by_ratio], dim=-1)


def evidence_terms(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    r"""Log evidence (S, \*batch) of targets (S, N), differentiable.

    Shapes: ``Phi`` (S, \*batch, N, F), variances (\*batch) or (S, \*batch).
    """
    seen = (~y.isnan()).to(y).reshape(len(y), *[1] * (Phi.ndim - 3), -1, 1)
    targets = y.nan_to_num(0.0).reshape(seen.shape)
    quadratic, half_log_determinant = whitened_statistics(Phi * seen, targets, prior_variance / noise)
    normalizer = seen.sum((-2, -1)) * (math.log(2 * math.pi) + noise.log())
    return -0.5 * (quadratic / noise + normalizer) - half_log_determinant


def _sum_or_nan(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    try:
        return evidence_terms(Phi, y, prior_variance, noise).sum(0)
    except NumericalError:
        if not prior_variance.shape:
            return (prior_variance + noise) * torch.nan
        experts = zip(Phi.flatten(1, -3).unbind(1), prior_variance.reshape(-1), noise.reshape(-1), strict=True)
        each = [_sum_or_nan(part, y, prior, own) for part, prior, own in experts]
        return torch.stack(each).reshape(prior_variance.shape)


@final
class _Shared(Expert):
    """Experts whose evidence is the sum over given series, X (S, N, D) and y (S, N), whatever the arguments."""

    def __init__(self, expert: GaussianExpert, X: Tensor, y: Tensor) -> None:
        super().__init__(expert.features, expert.transition)
        self._expert, self._rows = expert, (X, y)

    def init(self) -> FilterState:
        return self._expert.init()

    def bind(self) -> BoundExpert:
        return self._expert.bind()

    def check_targets(self, y: Tensor) -> None:
        self._expert.check_targets(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """The sum over series, whatever X and y are; NaN for experts for which it cannot be computed."""
        bound, (own, targets) = self._expert.bind(), self._rows
        return _sum_or_nan(bound.features(own), targets, bound.prior_variance, bound.noise)

    def take(self, index: Tensor) -> "_Shared":
        return _Shared(self._expert.take(index), *self._rows)

    def with_transition(self, transition: Transition | None) -> "_Shared":
        return _Shared(self._expert.with_transition(transition), *self._rows)


def fit_shared(
    expert: GaussianExpert, X: Tensor, y: Tensor, fit: FitSettings, *, progress: bool = False
) -> EvidenceFit:
    """Fit the hyperparameters of every expert of a batch jointly to series X (S, N, D) and y (S, N), in place.

    Raises:
        NumericalError: If an evidence cannot be computed at the starting point.
        ValueError: If the settings have no optimizer, or no target is observed.
    """
    if fit.method is None:
        raise ValueError("settings without an optimizer fit nothing; give FitSettings(LBFGS())")
    shared = _Shared(expert, X, y)
    flat = X.reshape(-1, X.shape[-1]), y.flatten()
    return fit_empirical_bayes(shared, *flat, fit.method, start_precision=fit.start_precision, progress=progress)


def fit_bases(ensemble: Ensemble, X: Tensor, y: Tensor, fit: FitSettings, *, progress: bool = False) -> None:
    """Fit the experts on bases of an unfitted ensemble to series X (S, N, D) and y (S, N), see :func:`fit_shared`."""
    X = with_lagged(ensemble, X, y)
    done: set[int] = set()
    for expert in experts_on_bases(ensemble):
        if id(expert.features) not in done:
            done.add(id(expert.features))
            fit_shared(expert, X, y, fit, progress=progress)


def with_lagged(ensemble: Ensemble, X: Tensor, y: Tensor) -> Tensor:
    """Inputs (S, N, D) as the experts see them: with lagged targets (S, N), if the ensemble has lags."""
    memory = ensemble.memory
    if memory is None:
        return X
    history = memory.init(y).expand(len(y), -1)
    return torch.cat([X, memory.columns(history, y)[1]], dim=-1)


def fit_own_variances(
    ensemble: Ensemble, X: Tensor, y: Tensor, fit: FitSettings, may_move: Tensor
) -> list[Variances | None]:
    """Variances of each series for the experts on bases, see :func:`fit_variances`; ``None`` for other experts.

    Series excluded by ``may_move`` (S,) keep the shared variances.
    """
    X, known = with_lagged(ensemble, X, y), dict[int, Variances]()
    fitted = {id(expert) for expert in experts_on_bases(ensemble)}
    found = list[Variances | None]()
    for expert in ensemble.experts:
        if not isinstance(expert, GaussianExpert) or id(expert) not in fitted:
            found.append(None)
            continue
        if id(expert.features) not in known:
            own, bound = fit_variances(expert, X, y, fit), expert.bind()
            chosen = may_move.reshape(-1, *[1] * (own.noise.ndim - 1))
            shared = bound.noise.detach(), bound.prior_variance.detach()
            parts = (torch.where(chosen, one, other) for one, other in zip(own, shared, strict=True))
            known[id(expert.features)] = Variances(*parts)
        found.append(known[id(expert.features)])
    return found


def experts_on_bases(ensemble: Ensemble) -> Sequence[GaussianExpert]:
    """The static and random-walk experts that :class:`~gp_ensembles.ensembles.spec.EnsembleSpec` builds from bases."""
    found, start = [], 0
    for expert in ensemble.experts:
        name = ensemble.expert_names[start]
        start += expert.num_experts
        if isinstance(expert, GaussianExpert) and ("/static/" in name or "/dynamic " in name):
            found.append(expert)
    return found


# Starting points, as logs of a factor for all columns: with length scales far off, a function looks like noise,
# and the gradient does not help.
_STARTS = (0.0, -0.7, 0.7, -1.4, 1.4, -2.1, 2.1)
_TOLERANCE = 1e-3  # nats per row


@torch.no_grad()
def fit_factors(ensemble: Ensemble, X: Tensor, y: Tensor, fit: FitSettings, may_move: Tensor) -> Tensor:
    r"""The factors c of each series' inputs with the highest mean log evidence of the experts on bases.

    .. math:: \max_c \frac{1}{M} \sum_m \log p(y_s \mid X_s / c, m) - \tfrac{1}{2} \tau \lVert \log c \rVert^2

    Shapes: ``X`` (S, N, D), ``y`` (S, N), ``may_move`` (S,); returns (S, D).
    """
    if fit.method is None:
        raise ValueError("settings without an optimizer fit nothing; give FitSettings(LBFGS())")
    if not (experts := experts_on_bases(ensemble)):
        raise TypeError("no expert has Gaussian noise and a basis with length scales to fit; omit own_length_scales")
    size = max(1, _FEATURES_AT_ONCE // (y.shape[1] * sum(expert.features.num_features for expert in experts)))
    parts = zip(X.split(size), y.split(size), may_move.split(size), strict=True)
    logs = torch.cat([_ascent(ensemble, *rows[:2], *_best_start(ensemble, *rows, fit), fit) for rows in parts])
    return torch.where(may_move.unsqueeze(-1), logs, 0.0).exp()


def _best_start(
    ensemble: Ensemble, X: Tensor, y: Tensor, may_move: Tensor, fit: FitSettings
) -> tuple[Tensor, list[Variances]]:
    """Logs of factors (S, D), equal in all columns, with their variances: the best of a few candidates."""
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
    """Logs of factors (S, D), improved from starting points with given variances."""
    assert fit.method is not None
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
    """Log evidence of each series, (S,), averaged over experts on bases, each feature map once."""
    X, experts = with_lagged(ensemble, X, y), experts_on_bases(ensemble)
    bound: dict[int, tuple[BoundExpert, Variances]] = {}
    for expert, own in zip(experts, variances, strict=True):
        bound.setdefault(id(expert.features), (expert.bind(), own))
    each = list[Tensor]()
    for one, own in bound.values():
        # Without noise, the evidence of features in single precision may be NaN.
        terms = evidence_terms(one.features(X).double(), y.double(), own.prior.double(), own.noise.double())
        each.append(terms.reshape(len(y), -1))
    return torch.cat(each, dim=-1).mean(-1).to(y)


def _divided(X: Tensor, logs: Tensor) -> Tensor:
    return X * (-logs).exp().unsqueeze(1)


def _where(chosen: Tensor, one: Variances, other: Variances) -> Variances:
    shape = (-1, *[1] * (one.noise.ndim - 1))
    return Variances(*(torch.where(chosen.reshape(shape), a, b) for a, b in zip(one, other, strict=True)))
