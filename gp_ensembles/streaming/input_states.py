"""States of single inputs: last values, ranges, and the scales of those that were constant in the warm-up."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.config import Impute

REACH, GROWTH = 1.0, 0.1  # in widths of the warm-up range
SETTLED = 100  # deviations that set the scale of an inactive column
FAR = 10.0  # of its scales
_ROUND_OFF = 10 * torch.finfo(torch.float64).eps
_RIDGE = 1e-8
_LEAST_PAIRS = 10  # of rows that follow one another, to find a coefficient
_LEAST_SHARE, _LEAST_SPANS, _LEAST_T = 0.05, 10, 4.0  # gaps of the warm-up that make an indicator worth while


class Gaps(NamedTuple):
    """The last values of K columns, of one series or of many side by side, from which missing ones are imputed."""

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
    r"""Imputation of K columns, found from the warm-up rows.

    Between its mean m and its last value l, age a rows ago, a column that is an autoregression of order one with
    coefficient :math:`\rho` is best predicted by :math:`m + \rho^a (l - m)`, whose squared error is
    :math:`1 - \rho^{2a}` of its variance. The coefficient is found on the warm-up rows, between zero (the mean) and one
    (the last value). If weights :math:`\rho_u` other than the best are asked for, the error is
    :math:`1 - 2 \rho_u^a \rho^a + \rho_u^{2a}` of the variance.
    """

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


class InputRange(NamedTuple):
    r"""The range of D columns so far, which grows slowly, of one series or of many side by side.

    A row a thousand times as far out as the others has the leverage of a million of them: a static expert would never
    recover from one broken number. So an input further beyond the range seen so far than the width w of the warm-up's
    is moved to there. With lower and upper end :math:`a_t, b_t` of a column,

    .. math:: x_t \leftarrow \min(\max(x_t, a_t - w), b_t + w), \qquad b_{t+1} = \max(b_t, \min(x_t, b_t + w / 10))

    and the lower end likewise. A column that moves on, such as a clock, is followed and never moved.
    """

    lower: Tensor  # lower ends, shape (..., D)
    upper: Tensor  # upper ends, shape (..., D)
    width: Tensor  # widths of the warm-up range, shape (..., D)

    @classmethod
    def of(cls, X: Tensor) -> "InputRange":
        """The range of warm-up rows X (..., N, D) without gaps."""
        lower, upper = X.amin(-2), X.amax(-2)
        return cls(lower, upper, upper - lower)

    @classmethod
    def everywhere(cls, like: Tensor) -> "InputRange":
        """One that no input is beyond; ``like`` has shape (..., D)."""
        return cls(torch.full_like(like, -torch.inf), torch.full_like(like, torch.inf), torch.zeros_like(like))

    def limit(self, X: Tensor) -> Tensor:
        """Rows (..., N, D) that all come next, moved into range."""
        reach = REACH * self.width
        return X.clamp((self.lower - reach).unsqueeze(-2), (self.upper + reach).unsqueeze(-2))

    def follow(self, X: Tensor) -> tuple["InputRange", Tensor, Tensor]:
        """Move rows X (..., N, D) into the range of those before them; the last part is how many of each were moved."""
        upper = _follow(self.upper, X, GROWTH * self.width)
        lower = -_follow(-self.lower, -X, GROWTH * self.width)
        reach = REACH * self.width.unsqueeze(-2)
        moved = torch.minimum(torch.maximum(X, lower[..., :-1, :] - reach), upper[..., :-1, :] + reach)
        return InputRange(lower[..., -1, :], upper[..., -1, :], self.width), moved, (moved != X).sum(-1)


def _follow(upper: Tensor, X: Tensor, step: Tensor) -> Tensor:
    """Upper ends before each row and after the last, (..., N + 1, D), none above the one before by more than a step."""
    ends = torch.cat([upper.unsqueeze(-2), X], dim=-2).cummax(-2).values
    if bool((ends[..., 1:, :] <= ends[..., :-1, :] + step.unsqueeze(-2)).all()):
        return ends
    found = [upper]
    for row in X.unbind(-2):
        found.append(torch.maximum(found[-1], torch.minimum(row, found[-1] + step)))
    return torch.stack(found, dim=-2)


class InactiveColumns(NamedTuple):
    r"""State of K columns, of one series or of many side by side, of which some were constant in the warm-up.

    Those, and columns without a value there, are zero to the ensemble until they first change. Then their deviations
    :math:`d_t` from the constant, or from the first value, are divided by a scale that only they set, with the
    geometric mean

    .. math:: s_t = \exp\Big(\frac1n \sum_{i \le n} \log |d_i|\Big)

    of the first hundred that are not zero, so that a column of zeros and ones is itself, whichever it began with, up to
    a sign, and neither one outlier nor a beginning a hundred times smaller sets the scale forever. A scale is doubled
    for as many rows as a deviation is more than ten times as large, and no standardized value is beyond ten.
    """

    base: Tensor  # what they deviate from, NaN before there is a value, shape (..., K)
    log_sum: Tensor  # sum of the logarithms of the deviations that set the scale, (..., K)
    num: Tensor  # how many these are, (..., K)
    floor: Tensor  # what the scale has grown to since, (..., K)
    # Number of the row in which a column first moved, counting the rows of the stream from 1; zero while it is
    # inactive, (..., K)
    activated_at: Tensor

    @classmethod
    def of(cls, base: Tensor) -> "InactiveColumns":
        """Inactive columns with these constants (..., K), NaN where there is none."""
        zero = torch.zeros_like(base, dtype=torch.float64)
        return cls(base.double(), zero, zero, zero, zero)

    @property
    def scale(self) -> Tensor:
        """Current scales, one while a column is inactive, shape (..., K)."""
        return torch.maximum(_own_scale(self.log_sum, self.num), self.floor)

    def follow(self, X: Tensor, num_before: Tensor) -> tuple["InactiveColumns", Tensor]:
        """Standardize consecutive rows X (..., N, K), NaN where there is no value, after so many rows (...)."""
        first = X.gather(-2, (~X.isnan()).int().argmax(-2, keepdim=True)).squeeze(-2)
        base = torch.where(self.base.isnan(), first, self.base)
        deviation = X - base.unsqueeze(-2)
        size = deviation.abs()
        moves = size > _ROUND_OFF * base.abs().unsqueeze(-2)
        if not bool(moves.any()):
            return self._replace(base=base), torch.zeros_like(X)
        num = self.num.unsqueeze(-2) + moves.cumsum(-2)
        logs = torch.where(moves & (num <= SETTLED), size, 1.0).log()
        log_sum = torch.cat([self.log_sum.unsqueeze(-2), logs], dim=-2).cumsum(-2)[..., 1:, :]
        num = num.clamp_max(SETTLED)
        own = _own_scale(log_sum, num)
        floor = _grown(self.floor, own, torch.where(moves & (num >= SETTLED), size, 0.0))
        values = (deviation / torch.maximum(own, floor)).clamp(-FAR, FAR)
        row = num_before.unsqueeze(-1) + 1 + moves.int().argmax(-2)
        is_new = (self.activated_at == 0) & moves.any(-2)
        activated_at = torch.where(is_new, row.to(self.activated_at), self.activated_at)
        after = InactiveColumns(base, log_sum[..., -1, :], num[..., -1, :], floor[..., -1, :], activated_at)
        return after, torch.where(moves, values, 0.0)


def _own_scale(log_sum: Tensor, num: Tensor) -> Tensor:
    """Geometric means of the deviations that set the scales; one where there is none."""
    return torch.where(num > 0, (log_sum / num.clamp_min(1)).exp(), 1.0)


def _grown(floor: Tensor, own: Tensor, size: Tensor) -> Tensor:
    """Least scales at each row, (..., N, K), from those before (..., K) and settled deviations, zero elsewhere."""
    if not bool((size > FAR * torch.maximum(own, floor.unsqueeze(-2))).any()):
        return floor.unsqueeze(-2).expand_as(size)
    floors = list[Tensor]()
    for scale, deviation in zip(own.unbind(-2), size.unbind(-2), strict=True):
        scale = torch.maximum(scale, floor)
        floor = torch.where(deviation > FAR * scale, torch.minimum(2 * scale, deviation / FAR), floor)
        floors.append(floor)
    return torch.stack(floors, dim=-2)
