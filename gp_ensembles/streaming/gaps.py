r"""Missing inputs: imputation, the uncertainty that it leaves, and indicators of missing values.

Between its mean m and its last value l, age a rows ago, a column that is an autoregression of order one with
coefficient :math:`\rho` is best predicted by :math:`m + \rho^a (l - m)`, whose squared error is
:math:`1 - \rho^{2a}` of its variance. The coefficient is found on the warm-up rows, between zero (the mean) and one
(the last value). If weights :math:`\rho_u` other than the best are asked for, the error is
:math:`1 - 2 \rho_u^a \rho^a + \rho_u^{2a}` of the variance.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.config import Impute

_RIDGE = 1e-8
_LEAST_PAIRS = 10  # of rows that follow one another, to find a coefficient
_LEAST_SHARE, _LEAST_SPANS, _LEAST_T = 0.05, 10, 4.0  # gaps of the warm-up that make an indicator worth while


class Gaps(NamedTuple):
    """The last values of K columns.

    Attributes:
        last: The last observed values, NaN where there is none, shape (K,).
        age: Rows since then, shape (K,).
        num_imputed: How many values were missing, shape (K,).
    """

    last: Tensor
    age: Tensor
    num_imputed: Tensor

    @classmethod
    def none(cls, like: Tensor) -> "Gaps":
        """Before any row of K columns; ``like`` has shape (K,)."""
        zero = torch.zeros_like(like)
        return cls(torch.full_like(like, torch.nan), zero, zero)

    def follow(self, X: Tensor) -> tuple["Gaps", Tensor, Tensor]:
        """The last observed values at consecutive rows X (N, K).

        Returns: the state after them; the last observed values at each row, (N, K); and their ages in rows, (N, K).
        """
        missing = X.isnan()
        if not bool(missing.any()):
            return Gaps(X[-1].clone(), torch.zeros_like(self.age), self.num_imputed), X, torch.zeros_like(X)
        rows = torch.arange(1, X.shape[0] + 1, device=X.device).unsqueeze(-1)
        seen = torch.where(missing, 0, rows).cummax(0).values
        last = torch.cat([self.last.unsqueeze(0), X]).gather(0, seen)
        age = (rows - seen).to(X) + torch.where(seen > 0, 0.0, self.age)
        return Gaps(last[-1].clone(), age[-1].clone(), self.num_imputed + missing.sum(0)), last, age

    def each(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Last values and ages at rows (N, K) that all come next, each on its own."""
        missing = X.isnan()
        return torch.where(missing, self.last, X), torch.where(missing, self.age + 1, 0.0)


class Imputation(NamedTuple):
    r"""Imputation of K columns, found from the warm-up rows.

    Attributes:
        mean: Means, shape (K,).
        persistence: Coefficients :math:`\rho`, shape (K,).
        used: Those by which gaps are filled, shape (K,).
        indicators: Columns that have an indicator, 1 where missing.
    """

    mean: Tensor
    persistence: Tensor
    used: Tensor
    indicators: tuple[int, ...]

    @classmethod
    def of(cls, X: Tensor, y: Tensor, mean: Tensor, impute: Impute) -> "Imputation":
        """From warm-up rows X (N, K), NaN where missing, their targets y, (N,) or (N, O), and the means (K,)."""
        persistence = _persistence(X - mean)
        used = {"found": persistence, "last": torch.ones_like(mean), "mean": torch.zeros_like(mean)}[impute]
        found = cls(mean, persistence, used, ())
        missing = X.isnan()
        if not bool(missing.any()):
            return found
        _, last, age = Gaps.none(mean).follow(X)
        return found._replace(indicators=_indicators(found.fill(last, age), missing, y))

    def with_last_values(self, inactive: Sequence[int]) -> "Imputation":
        """The same with the last value, and no uncertainty, for columns that were constant in the warm-up."""
        persistence, used = self.persistence.clone(), self.used.clone()
        persistence[list(inactive)] = used[list(inactive)] = 1.0
        return self._replace(persistence=persistence, used=used)

    def to(self, device: torch.device) -> "Imputation":
        """The same on a device."""
        mean, persistence, used = (part.to(device) for part in self[:3])
        return Imputation(mean, persistence, used, self.indicators)

    def fill(self, last: Tensor, age: Tensor) -> Tensor:
        """Rows (N, K) without gaps, from last values and ages; where there was no value the mean."""
        filled = self.mean + self.used**age * (last.nan_to_num(0.0) - self.mean)
        return torch.where(last.isnan(), self.mean, torch.where(age > 0, filled, last))

    def uncertainty(self, last: Tensor, age: Tensor) -> Tensor:
        """Expected squared errors of imputed values, in variances of the columns, (N, K); zero elsewhere."""
        used = torch.where(last.isnan(), 0.0, self.used**age)
        return torch.where(age > 0, 1 - 2 * used * self.persistence**age + used.square(), 0.0).clamp_min(0.0)


def _persistence(deviation: Tensor) -> Tensor:
    """Lag-one autocorrelations of deviations from the mean (N, K), NaN where missing; at least zero."""
    now, before = deviation[1:], deviation[:-1]
    both = ~(now.isnan() | before.isnan())
    now, before = (torch.where(both, part, 0.0) for part in (now, before))
    size = (now.square().sum(0) * before.square().sum(0)).sqrt()
    found = (now * before).sum(0) / torch.where(size > 0, size, 1.0)
    return torch.where(both.sum(0) >= _LEAST_PAIRS, found, 0.0).clamp(0.0, 1.0)


def _indicators(filled: Tensor, missing: Tensor, y: Tensor) -> tuple[int, ...]:
    """Columns whose gaps predict the residual of a regression of y on imputed inputs (N, K) and the last target."""
    share = missing.double().mean(0)
    candidates = ((share >= _LEAST_SHARE) & (share <= 1 - _LEAST_SHARE)).nonzero().flatten().tolist()
    if not candidates:
        return ()
    target = y if y.ndim == 1 else y[:, 0]
    rest = torch.full_like(target, torch.nan)
    seen = ~(target.isnan() | target.roll(1).isnan())
    seen[0] = False
    if int(seen.sum()) <= 2 * filled.shape[1]:
        return ()
    design = torch.cat([torch.ones_like(target).unsqueeze(-1), target.roll(1).unsqueeze(-1), filled], dim=-1)[seen]
    design = design / design.square().mean(0).sqrt().clamp_min(torch.finfo(design.dtype).tiny)
    ridge = _RIDGE * design.shape[0] * torch.eye(design.shape[1], dtype=design.dtype, device=design.device)
    rest[seen] = target[seen] - design @ torch.linalg.solve(design.mT @ design + ridge, design.mT @ target[seen])
    chosen, masks = list[int](), list[Tensor]()
    for column in candidates:
        gaps = missing[:, column]
        spans = int((gaps[1:] & ~gaps[:-1]).sum()) + int(gaps[0])
        within, without = rest[gaps & seen], rest[~gaps & seen]
        if min(spans, within.numel(), without.numel()) < _LEAST_SPANS:
            continue
        error = float(rest[seen].std()) * (2 / spans) ** 0.5
        # Sensors that fail together need one.
        if abs(float(within.mean() - without.mean())) > _LEAST_T * error and not any(gaps.equal(m) for m in masks):
            chosen.append(column)
            masks.append(gaps)
    return tuple(chosen)
