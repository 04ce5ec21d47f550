r"""Uneven time between rows, and rows with extra noise, for instance because an input was missing and is imputed.

Every expert predicts a row with extra noise variance e with variance :math:`v + e`. An expert with noise variance
:math:`\sigma^2` learns it with noise :math:`\sigma^2 + e`, which is what a row :math:`r \phi` and a target :math:`r y`
with :math:`r^2 = \sigma^2 / (\sigma^2 + e)` teach: each expert has its own r. Those whose noise is itself learned
(Student-t, refitted) and external models learn such a row as any other.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.robust import BoundRobust
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.filters.states import LatentPredictions, Predictions, StudentTPredictions
from gp_ensembles.numerics import normal, student_t


class RowTiming(NamedTuple):
    """Time between rows, and their extra noise.

    Attributes:
        steps: Steps since the previous row, at least zero, shape (N,); ``None`` for one each. Walks and forgetting
            are in proportion.
        extra: Extra noise variance of the targets, at least zero, shape (N,), for single real targets; ``None`` for
            none.
    """

    steps: Tensor | None = None
    extra: Tensor | None = None

    @property
    def is_usual(self) -> bool:
        """Whether all rows are one step apart and have no extra noise."""
        return self.steps is None and self.extra is None

    def checked(self, X: Tensor, is_real: bool) -> "RowTiming":
        """The same in the precision of rows X (N, D); steps of one each, or no noise at all, are left out.

        Raises:
            ValueError: If a shape is wrong, a number is negative or not finite, or targets that are not single real
                numbers have extra noise.
        """
        steps, extra = self._of(self.steps, "steps", X), self._of(self.extra, "extra", X)
        if steps is not None and bool((steps == 1).all()):
            steps = None
        if extra is not None and not bool((extra > 0).any()):
            extra = None
        if extra is not None and not is_real:
            raise ValueError("only single real targets can have extra noise; omit extra")
        return RowTiming(steps, None if extra is None else extra.to(X.dtype))

    def rows(self, rows: slice) -> "RowTiming":
        """Some of the rows."""
        steps, extra = (None if part is None else part[rows] for part in self)
        if steps is not None and bool((steps == 1).all()):
            steps = None
        if extra is not None and not bool((extra > 0).any()):
            extra = None
        return RowTiming(steps, extra)

    def unusual(self) -> list[int]:
        """Indices of the rows that are not one step after the previous one or have extra noise, ascending."""
        flags = [part != usual for part, usual in ((self.steps, 1), (self.extra, 0)) if part is not None]
        return torch.stack(flags).any(0).nonzero().flatten().tolist() if flags else []

    def alike(self, num_rows: int, most: int) -> Iterator[tuple[slice, "RowTiming"]]:
        """Slices of at most ``most`` consecutive rows with the same number of steps."""
        start = 0
        changes = [] if self.steps is None else (1 + self.steps.diff().nonzero().flatten()).tolist()
        for stop in [*changes, num_rows]:
            for first in range(start, stop, most):
                rows = slice(first, min(first + most, stop))
                yield rows, self.rows(rows)
            start = stop

    @staticmethod
    def _of(value: Tensor | None, name: str, X: Tensor) -> Tensor | None:
        if value is None:
            return None
        if not isinstance(value, Tensor) or value.shape != X.shape[:1]:
            found = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
            raise ValueError(f"{name} must have shape ({X.shape[0]},), a number for each row of X, got {found}")
        wrong = ~((value >= 0) & torch.isfinite(value))
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            raise ValueError(f"{name} must be finite and at least zero, got {float(value[row]):g} in row {row}")
        return value.detach().to(X.device)


def noise_of(bound: Sequence[BoundExpert]) -> Tensor | None:
    r"""Noise variances of K expert objects that are run together, (K, \*batch), or (\*batch) of one; or none known."""
    known = (BoundGaussian, BoundRobust, BoundStructural, BoundWindow)
    found = [b.noise.detach() for b in bound if isinstance(b, known)]
    if len(found) < len(bound):
        return None
    return found[0] if len(found) == 1 else torch.stack(found)


def row_counts(noise: Tensor, extra: Tensor) -> Tensor:
    r"""The factor r of each row for each expert, (\*batch, B), for ``noise`` (\*batch) and ``extra`` (B,)."""
    own = noise.to(extra).unsqueeze(-1)
    return (own / (own + extra)).sqrt()


def unscaled(steps: Predictions, y: Tensor, counts: Tensor, noise: Tensor, extra: Tensor) -> Predictions:
    r"""Predictions of targets y (B,) from those of ``counts`` (\*batch, B) times y, for ``extra`` (B,)."""
    assert not isinstance(steps, LatentPredictions)
    noise = noise.to(extra).unsqueeze(-1)
    variance = steps.variance / counts.square() - noise / counts.square() + noise + extra
    rows = torch.where(extra > 0, variance, steps.variance)  # exact for the others
    mean = torch.where(extra > 0, steps.mean / counts, steps.mean)
    return _rescored(steps, y, mean, rows, extra)


def widened(steps: Predictions, y: Tensor, extra: Tensor) -> Predictions:
    """Predictions (..., B) with extra noise variance (B,) added."""
    assert not isinstance(steps, LatentPredictions)
    return _rescored(steps, y, steps.mean, steps.variance + extra, extra)


def _rescored(steps: Predictions, y: Tensor, mean: Tensor, variance: Tensor, extra: Tensor) -> Predictions:
    if isinstance(steps, StudentTPredictions):
        log_prob = student_t.log_prob(y, mean, variance, steps.degrees_of_freedom)
    else:
        log_prob = normal.log_prob(y, mean, variance)
    kept = (extra == 0) | torch.isinf(steps.log_prob)  # a dead expert stays dead
    log_prob = torch.where(kept, steps.log_prob, log_prob)
    return steps._replace(mean=mean, variance=variance, log_prob=log_prob)
