r"""Missing inputs: imputation, the uncertainty that it leaves, and indicators of missing values.

Between its mean m and its last value l, age a rows ago, a column that is an autoregression of order one with
coefficient :math:`\rho` is best predicted by :math:`m + \rho^a (l - m)`, whose squared error is
:math:`1 - \rho^{2a}` of its variance. The coefficient is found on the warm-up rows, between zero (the mean) and one
(the last value). If weights :math:`\rho_u` other than the best are asked for, the error is
:math:`1 - 2 \rho_u^a \rho^a + \rho_u^{2a}` of the variance.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.config import Impute

_RIDGE = 1e-8
_LEAST_PAIRS = 10  # of rows that follow one another, to find a coefficient
_LEAST_SHARE, _LEAST_SPANS, _LEAST_T = 0.05, 10, 4.0  # gaps of the warm-up that make an indicator worth while


class Gaps(NamedTuple):
    """The last values of K columns, of one series or of many side by side."""

    last: Tensor  # the last observed values, NaN where there is none, shape (..., K)
    age: Tensor  # rows since then, shape (..., K)
    num_imputed: Tensor  # how many values were missing, shape (..., K)

    @classmethod
    def none(cls, like: Tensor) -> "Gaps":
        """Before any row of K columns; ``like`` has shape (..., K)."""
        zero = torch.zeros_like(like)
        return cls(torch.full_like(like, torch.nan), zero, zero)

    def follow(self, X: Tensor) -> tuple["Gaps", Tensor, Tensor]:
        """The last observed values at consecutive rows X (..., N, K).

        Returns: the state after them; the last observed values at each row, (..., N, K); and their ages in rows.
        """
        missing = X.isnan()
        if not bool(missing.any()):
            return Gaps(X[..., -1, :].clone(), torch.zeros_like(self.age), self.num_imputed), X, torch.zeros_like(X)
        rows = torch.arange(1, X.shape[-2] + 1, device=X.device).unsqueeze(-1)
        seen = torch.where(missing, 0, rows).cummax(-2).values
        last = torch.cat([self.last.unsqueeze(-2), X], dim=-2).gather(-2, seen)
        age = (rows - seen).to(X) + torch.where(seen > 0, 0.0, self.age.unsqueeze(-2))
        return Gaps(last[..., -1, :].clone(), age[..., -1, :].clone(), self.num_imputed + missing.sum(-2)), last, age


class Imputation(NamedTuple):
    """Imputation of K columns, found from the warm-up rows."""

    mean: Tensor  # means, shape (..., K)
    persistence: Tensor  # coefficients ρ, shape (..., K)
    used: Tensor  # those by which gaps are filled, shape (..., K)

    @classmethod
    def of(cls, X: Tensor, mean: Tensor, impute: Impute) -> "Imputation":
        """From warm-up rows X (N, K), NaN where missing, and the means (K,)."""
        persistence = _persistence(X - mean)
        used = {"found": persistence, "last": torch.ones_like(mean), "mean": torch.zeros_like(mean)}[impute]
        return cls(mean, persistence, used)

    def fill(self, last: Tensor, age: Tensor) -> Tensor:
        """Rows (..., N, K) without gaps, from last values and ages; where there was no value the mean."""
        mean = self.mean.unsqueeze(-2)
        filled = mean + self.used.unsqueeze(-2) ** age * (last.nan_to_num(0.0) - mean)
        return torch.where(last.isnan(), mean, torch.where(age > 0, filled, last))

    def uncertainty(self, last: Tensor, age: Tensor) -> Tensor:
        """Expected squared errors of imputed values, in variances of the columns, (..., N, K); zero elsewhere."""
        used = torch.where(last.isnan(), 0.0, self.used.unsqueeze(-2) ** age)
        error = 1 - 2 * used * self.persistence.unsqueeze(-2) ** age + used.square()
        return torch.where(age > 0, error, 0.0).clamp_min(0.0)


def _persistence(deviation: Tensor) -> Tensor:
    """Lag-one autocorrelations of deviations from the mean (N, K), NaN where missing; at least zero."""
    now, before = deviation[1:], deviation[:-1]
    both = ~(now.isnan() | before.isnan())
    now, before = (torch.where(both, part, 0.0) for part in (now, before))
    size = (now.square().sum(0) * before.square().sum(0)).sqrt()
    found = (now * before).sum(0) / torch.where(size > 0, size, 1.0)
    return torch.where(both.sum(0) >= _LEAST_PAIRS, found, 0.0).clamp(0.0, 1.0)


def missing_indicators(X: Tensor, y: Tensor, imputation: Imputation) -> tuple[int, ...]:
    """Columns of warm-up rows X (N, K) that are to have an indicator, 1 where missing.

    Their gaps predict the residual of a regression of y, (N,) or (N, O), on imputed inputs and the last target.
    """
    missing = X.isnan()
    if not bool(missing.any()):
        return ()
    _, last, age = Gaps.none(imputation.mean).follow(X)
    filled = imputation.fill(last, age)
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
