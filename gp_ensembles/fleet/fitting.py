r"""Hyperparameters that many series share: those with the highest sum of the series' evidences.

.. math:: \max_\lambda \sum_s \log p(y_s \mid X_s, \lambda)

Every series has a function of its own, drawn from one prior: rows of several series are not pooled, which
would treat their differences as noise.
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
from gp_ensembles.fleet.variances import fit_variances
from gp_ensembles.numerics.cholesky import NumericalError


def evidence_terms(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor) -> Tensor:
    r"""Log evidence (S, \*batch) of targets (S, N), differentiable.

    Shapes: ``Phi`` (S, \*batch, N, F), variances (\*batch) or (S, \*batch).

    Raises:
        NumericalError: If it cannot be computed for one.
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
    """Experts whose evidence is the sum over series with rows X (S, N, D) and y (S, N), whatever the arguments."""

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
        """The sum over series, whatever X and y are; NaN for those experts for which it cannot be computed."""
        bound, (own, targets) = self._expert.bind(), self._rows
        return _sum_or_nan(bound.features(own), targets, bound.prior_variance, bound.noise)

    def take(self, index: Tensor) -> "_Shared":
        return _Shared(self._expert.take(index), *self._rows)

    def with_transition(self, transition: Transition | None) -> "_Shared":
        return _Shared(self._expert.with_transition(transition), *self._rows)


def fit_shared(
    expert: GaussianExpert, X: Tensor, y: Tensor, fit: FitSettings, *, progress: bool = False
) -> EvidenceFit:
    """Fit the hyperparameters of every expert of a batch to series X (S, N, D) and y (S, N) at once, in place.

    Raises:
        NumericalError: If an evidence cannot be computed where it starts.
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
    """Inputs (S, N, D) as the experts see them: with the lagged targets (S, N) that the ensemble remembers."""
    memory = ensemble.memory
    if memory is None:
        return X
    history = memory.init(y).expand(len(y), -1)
    return torch.cat([X, memory.columns(history, y)[1]], dim=-1)


def fit_own_variances(
    ensemble: Ensemble, X: Tensor, y: Tensor, fit: FitSettings, may_move: Tensor
) -> list[Variances | None]:
    """Variances of each series under the experts on bases, see :func:`fit_variances`; ``None`` for other experts.

    Series that ``may_move`` (S,) excludes keep the shared variances.
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
    """The static experts and random walks that :class:`~gp_ensembles.ensembles.spec.EnsembleSpec` makes of bases."""
    found, start = [], 0
    for expert in ensemble.experts:
        name = ensemble.expert_names[start]
        start += expert.num_experts
        if isinstance(expert, GaussianExpert) and ("/static/" in name or "/dynamic " in name):
            found.append(expert)
    return found
