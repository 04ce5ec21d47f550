"""What rows bring beside inputs and targets: the time since the row before, and further noise."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class RowTiming(NamedTuple):
    """Time between rows, and their further noise.

    Attributes:
        steps: Steps since the row before, at least zero, shape (N,); ``None`` for one each. Weights walk, and old rows
            are forgotten, in proportion.
        extra: Noise variance that targets have beyond that of all rows, at least zero, shape (N,), for single real
            targets; ``None`` for none. See :mod:`~gp_ensembles.engine.row_noise`.
    """

    steps: Tensor | None = None
    extra: Tensor | None = None

    @property
    def is_usual(self) -> bool:
        """Whether rows bring nothing but inputs and targets."""
        return self.steps is None and self.extra is None

    def checked(self, X: Tensor, is_real: bool) -> "RowTiming":
        """The same in the precision of rows X (N, D); steps of one each, or no noise at all, are left out.

        Raises:
            ValueError: If a shape is wrong, a number is negative or not finite, or targets of another kind are to have
                further noise.
        """
        steps, extra = self._of(self.steps, "steps", X), self._of(self.extra, "extra", X)
        if steps is not None and bool((steps == 1).all()):
            steps = None
        if extra is not None and not bool((extra > 0).any()):
            extra = None
        if extra is not None and not is_real:
            raise ValueError("only single real targets can have further noise; leave extra out")
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
        """Numbers of the rows that bring something, ascending."""
        flags = [part != usual for part, usual in ((self.steps, 1), (self.extra, 0)) if part is not None]
        return torch.stack(flags).any(0).nonzero().flatten().tolist() if flags else []

    def alike(self, num_rows: int, most: int) -> Iterator[tuple[slice, "RowTiming"]]:
        """Pieces of all rows, of at most so many that follow one another and have the same number of steps."""
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
