"""Checks of the rows of a stream; messages name the row, the column and the remedy."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.targets import Target
from gp_ensembles.likelihoods.response import IllegalTargetError
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.streaming.config import MIN_WARM_UP

FARTHEST = 1e6  # warm-up deviations beyond which a number is taken for a mistake
LARGEST = 1e150  # larger numbers cannot be squared
_DOMINANT = 0.8  # share of the targets of a warm-up at one value from which others are waited for


class IllegalRow(NamedTuple):
    """A row that cannot be learned."""

    row: int  # its place in the block, counted from 0
    column: int | None  # the input that is wrong, counted from 0; ``None`` for the target
    problem: str  # what is wrong and how to fix it

    def message(self, first_row: int, feature_names: Sequence[str] | None) -> str:
        """The whole sentence; inputs without names are ``column 0`` and so on."""
        number = first_row + self.row
        if self.column is None:
            return f"the target of row {number} is {self.problem}"
        name = feature_names[self.column] if feature_names else f"column {self.column}"
        return f"{name!r} is {self.problem.format(row=number)}"


def check_input_shape(X: Tensor, num_columns: int | None) -> None:
    """Raise unless X is a floating point matrix (N, D) with a row; D is any number if ``num_columns`` is ``None``."""
    if not isinstance(X, Tensor) or not X.is_floating_point():
        raise TypeError("X must be a floating point tensor; use torch.as_tensor(X, dtype=torch.float64)")
    if X.ndim != 2 or X.shape[1] == 0 or num_columns not in (None, X.shape[1]):
        raise ValueError(f"X must have shape (N, {num_columns or 'D'}), got {tuple(X.shape)}")
    if X.shape[0] == 0:
        raise ValueError("X has no row; at least one is needed")


def checked_targets(y: Tensor, X: Tensor, num_outputs: int | None) -> Tensor:
    """Targets in double precision on the device of X, which must be one, or one for each output, for each row."""
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError("y must be a floating point tensor; use torch.as_tensor(y, dtype=torch.float64)")
    num_rows = X.shape[0]
    wanted = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    if y.shape != wanted:
        hint = "; use y.squeeze(-1)" if y.shape == (num_rows, 1) else ""
        raise ValueError(f"y must have shape {wanted}, a target for each row of X, got {tuple(y.shape)}{hint}")
    return y.detach().to(X.device, torch.float64)


def illegal_input(X: Tensor) -> IllegalRow | None:
    """The first row of X (N, D) with an infinite input, if there is one; NaN is missing and legal."""
    infinite = X.isinf()
    if not bool(infinite.any()):
        return None
    row, column = divmod(int(infinite.flatten().int().argmax()), X.shape[1])
    return IllegalRow(row, column, "infinite in row {row}; inputs must be finite, or NaN if missing")


def earliest(*found: IllegalRow | None) -> IllegalRow | None:
    """That of the lowest row, the first of several; ``None`` if there is none."""
    return min((one for one in found if one is not None), key=lambda one: one.row, default=None)


def too_large(X: Tensor, y: Tensor) -> IllegalRow | None:
    """The first row of X (N, D) and y (N,) or (N, O) with a number too large to be squared, if there is one."""
    numbers = torch.cat([X, y.reshape(y.shape[0], -1)], dim=-1)
    wrong = numbers.abs() > LARGEST
    if not bool(wrong.any()):
        return None
    row, column = divmod(int(wrong.flatten().int().argmax()), numbers.shape[1])
    text = f"{float(numbers[row, column]):.6g}, too large to be squared; correct it, or leave it out"
    if column < X.shape[1]:
        return IllegalRow(row, column, f"{text} (row {{row}})")
    return IllegalRow(row, None, text)


def num_warm_up_rows(y: Tensor, warmup: int, target: Target) -> int | None:
    """The length of the warm-up: ``warmup`` rows, enough targets, not all equal; ``None`` while it continues."""
    columns = y.reshape(y.shape[0], -1)
    seen = ~columns.isnan()
    first = columns.gather(0, seen.int().argmax(0, keepdim=True))  # the first target of each output
    varies = (seen & (columns != first)).int().cummax(0).values.bool().all(-1)
    enough = ((varies | target.may_be_constant) & (seen.all(-1).cumsum(0) >= MIN_WARM_UP)).nonzero().flatten()
    if y.shape[0] < warmup or enough.numel() == 0:
        return None
    num = max(warmup, int(enough[0]) + 1)
    return extended_warm_up(y, num) if target.is_real and y.ndim == 1 else num


def extended_warm_up(y: Tensor, num: int) -> int | None:
    """The length of a warm-up of ``num`` rows with targets y (N,), longer where most of these are one value.

    It lasts until ten others have come, from which one can learn what they are; ``None`` while it continues.
    """
    values, counts = y[:num][~y[:num].isnan()].unique(return_counts=True)
    if len(values) < 2 or int(counts.max()) < _DOMINANT * int(counts.sum()):
        return num
    is_other = ~y.isnan() & (y != values[counts.argmax()])
    enough = (is_other.cumsum(0) >= MIN_WARM_UP).nonzero().flatten()
    return None if enough.numel() == 0 else max(num, int(enough[0]) + 1)


def warn_of_waiting(num_before: int, num_rows: int, warmup: int) -> None:
    """A ``UserWarning``, once, when a warm-up has become twice as long as planned and continues."""
    if num_before < 2 * warmup <= num_rows:
        warn_caller(
            f"the warm-up of {warmup} rows has not ended after {num_rows}: fewer than {MIN_WARM_UP} targets were "
            f"observed, or fewer than that differ from the commonest; all rows are kept until then",
        )


def illegal_target(target: Target, y: Tensor) -> IllegalRow | None:
    """The first of the targets (N,) or (N, O) that is not of a kind, if there is one; NaN is missing and legal."""
    infinite = torch.isinf(y)
    if bool(infinite.any()):
        row = int(infinite.reshape(y.shape[0], -1).any(-1).int().argmax())
        return IllegalRow(row, None, "infinite; correct it, or leave it out (missing)")
    try:
        if not target.is_real:
            target.check(y)
    except IllegalTargetError as error:
        return IllegalRow(error.row, None, _not_of_kind(error, target))
    except ValueError:
        pass  # too few or too similar: that matters to a fit only
    return None


def columns_of(X: Tensor, kept: Sequence[int]) -> Tensor:
    """Some columns of X (..., N, D); X itself if they are all."""
    return X[..., kept] if len(kept) < X.shape[-1] else X


def outlying_numbers(
    X: Tensor, y: Tensor, inputs: Tensor, targets: Tensor, kept: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Mask (N, K + O) of numbers too far from the warm-up mean or beyond the precision of a run.

    ``inputs`` (N, K) and ``targets`` are X (N, D) and y in standardized units.
    """
    num_rows = X.shape[0]
    given = torch.cat([columns_of(X, kept), y.reshape(num_rows, -1)], dim=-1)
    scaled = torch.cat([inputs, targets.reshape(num_rows, -1)], dim=-1)
    return (~(scaled.abs() < FARTHEST) | given.to(dtype).isinf()) & ~given.isnan()


def outlying_number(
    X: Tensor, y: Tensor, inputs: Tensor, targets: Tensor, kept: Sequence[int], dtype: torch.dtype
) -> IllegalRow | None:
    """The first of :func:`outlying_numbers`, if there is one."""
    outlying = outlying_numbers(X, y, inputs, targets, kept, dtype)
    if not bool(outlying.any()):
        return None
    row, column = divmod(int(outlying.flatten().int().argmax()), outlying.shape[1])
    value = float(X[row, kept[column]] if column < len(kept) else y.reshape(len(y), -1)[row, column - len(kept)])
    far = f"more than {FARTHEST:g} warm-up deviations from the warm-up mean; correct it, or leave"
    if column < len(kept):
        return IllegalRow(row, kept[column], f"{value:.6g} in row {{row}}, {far} the row out")
    return IllegalRow(row, None, f"{value:.6g}, {far} it empty (missing)")


def _not_of_kind(error: IllegalTargetError, target: Target) -> str:
    num = target.num_labels
    rule = error.rule if num is None else f"the classes are {'0 and 1' if num == 2 else f'0 to {num - 1}'}"
    return (
        f"{error.value:.10g}, but {rule} ({type(target).__name__}); {error.remedy}, or leave the cell empty if it is "
        f"missing (NaN, or --missing {error.value:.10g} of the command line)"
    )
