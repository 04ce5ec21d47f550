r"""Targets of a block of rows, and how much each of them counts.

A target may be missing, count in part because it is an outlier, or have further noise of variance e because an input
of its row was imputed. Time between rows may be uneven. An expert with noise variance :math:`\sigma^2` predicts a row
with variance :math:`v + e` and learns it with noise :math:`\sigma^2 / r^2`,

.. math:: r^2 = \text{share} \cdot \frac{\sigma^2}{\sigma^2 + e}

and :math:`r = 0` where the target is missing: one weight for each row and expert.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.filters.states import StepPredictions, StudentTPredictions
from gp_ensembles.numerics import normal, student_t

Numbers = NDArray[np.float64]
P = TypeVar("P", bound=StepPredictions | StudentTPredictions)


class Rows(NamedTuple):
    r"""Targets of B rows in the order of time.

    Attributes:
        y: Targets, shape (B,), (\*batch, B), or (B, O) for several outputs; NaN where missing.
        share: What counts of each target, above 0 and at most 1, shape (B,); ``None`` for all of all.
        extra: Further noise variance of each, shape (B,); ``None`` for none.
        steps: Steps since the row before, shape (B,); ``None`` for one each.
    """

    y: Tensor
    share: Tensor | None = None
    extra: Tensor | None = None
    steps: Tensor | None = None

    @property
    def is_plain(self) -> bool:
        """Whether all of every target counts that is not missing."""
        return self.share is None and self.extra is None

    @property
    def ages(self) -> Tensor | None:
        """Steps between the state before the block and each row, (B,); ``None`` for 1, 2, ..., B."""
        return None if self.steps is None else self.steps.cumsum(-1)

    def root_weights(self, noise: Tensor) -> Tensor | None:
        r"""The roots r for experts of noise variances (\*batch), shape (\*batch, B); ``None`` where all are one."""
        if self.is_plain:
            return None
        counts = torch.ones_like(self.y) if self.share is None else self.share
        if self.extra is not None:
            own = noise.to(self.extra).unsqueeze(-1)
            counts = counts * (own / (own + self.extra))
        return counts.sqrt()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Rows":
        """The same with each of its tensors changed."""
        others = (None if value is None else change(value) for value in self[1:])
        return Rows(change(self.y), *others)

    def at(self, index: Tensor) -> "Rows":
        """Those of some series, of rows (S, B)."""
        return self.mapped(lambda value: value[index])

    def part(self, rows: slice) -> "Rows":
        """Some of the rows, of single targets."""
        return self._replace(y=self.y[..., rows])._with_others(rows)

    def block(self, rows: slice) -> "Rows":
        """Some of the rows, of targets (B,) or (B, O); what is usual for all of them is left out."""
        return self._replace(y=self.y[rows])._with_others(rows).simplified()

    def simplified(self) -> "Rows":
        """The same with steps of one each, or no further noise at all, left out."""
        steps, extra = self.steps, self.extra
        if steps is not None and bool((steps == 1).all()):
            steps = None
        if extra is not None and not bool((extra > 0).any()):
            extra = None
        return self._replace(steps=steps, extra=extra)

    def unusual(self) -> list[int]:
        """Indices of the rows that are not one step after the one before or have further noise, ascending."""
        flags = [part != usual for part, usual in ((self.steps, 1), (self.extra, 0)) if part is not None]
        return torch.stack(flags).any(0).nonzero().flatten().tolist() if flags else []

    def equal_steps(self, most: int) -> Iterator[slice]:
        """Slices of at most ``most`` consecutive rows with the same number of steps."""
        start = 0
        changes = [] if self.steps is None else (1 + self.steps.diff().nonzero().flatten()).tolist()
        for stop in [*changes, self.y.shape[0]]:
            for first in range(start, stop, most):
                yield slice(first, min(first + most, stop))
            start = stop

    def _with_others(self, rows: slice) -> "Rows":
        return Rows(self.y, *(None if value is None else value[rows] for value in self[1:]))


def as_rows(y: Tensor | Rows) -> Rows:
    """Rows of plain targets, or rows as they are."""
    return y if isinstance(y, Rows) else Rows(y)


def with_extra_noise(steps: P, rows: Rows) -> P:
    """Predictions (..., B) with the further noise of their rows added, and log densities of targets (B,)."""
    return steps if rows.extra is None else add_extra_noise(steps, rows.extra, rows.y)


def add_extra_noise(steps: P, extra: Tensor, y: Tensor) -> P:
    """Predictions (..., B) with further noise variance (B,) added, and log densities of targets y (B,)."""
    variance, df = steps.variance + extra, getattr(steps, "degrees_of_freedom", None)
    if df is None:
        log_prob = normal.log_prob(y, steps.mean, variance)
    else:
        log_prob = student_t.log_prob(y, steps.mean, variance, df)
    kept = (extra == 0) | torch.isinf(steps.log_prob)  # a dead expert stays dead
    changed = {"variance": variance, "log_prob": torch.where(kept, steps.log_prob, log_prob)}
    return type(steps)(**{**steps._asdict(), **changed})


class RowExpert(ABC):
    """An expert object of E experts at one row, on plain arrays in the memory of its state."""

    @abstractmethod
    def predict(self, x: Numbers) -> tuple[Numbers | float, Numbers | float] | None:
        """Means and variances (E,), or one for all, at a row x (D,); ``None`` without a prediction."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next row needs nothing special: no row dropped, no training, no refit after it."""

    @abstractmethod
    def learn(self, y: float) -> None:
        """Learn the target of the row that was predicted last."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was predicted: others may change the state from here on."""
