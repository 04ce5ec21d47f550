"""The rows of a stream as they arrive, and what of them cannot be learned, by ``StreamConfig.on_bad_row``.

Messages name the row, the column and the remedy.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.input_checks import check_axes, row_numbers
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.likelihoods.response import IllegalTargetError
from gp_ensembles.streaming.config import OnBadRow, StreamConfig

FARTHEST = 1e6  # warm-up deviations beyond which a number is taken for a mistake
LARGEST = 1e150  # larger numbers cannot be squared
_TENSOR = (
    "{0} must be a floating point tensor; use torch.as_tensor({0}, dtype=torch.float64), of a frame {0}.to_numpy()"
)


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


class IllegalRowError(ValueError):
    """A row that cannot be learned is refused; its arguments are those of :meth:`IllegalRow.message`."""

    def __str__(self) -> str:
        return IllegalRow.message(*self.args)


def refuse(wrong: IllegalRow | None, first_row: int, feature_names: Sequence[str] | None) -> None:
    """Raise a ``ValueError`` if there is a row that cannot be learned."""
    if wrong is not None:
        raise IllegalRowError(wrong, first_row, feature_names)


class Arrived(NamedTuple):
    """Rows of a call, in double precision on the device of the stream."""

    X: Tensor  # inputs, shape (N, D); NaN where missing
    y: Tensor  # targets, shape (N,) or (N, O); NaN where missing
    steps: Tensor | None  # steps since the row before, shape (N,); ``None`` for one each


def arrive(X: Tensor, y: Tensor | None, steps: Tensor | None, num_columns: int | None, config: StreamConfig) -> Arrived:
    """Rows X (N, D), D of any number if ``num_columns`` is ``None``, with a target or one for each output, if given.

    Raises:
        ValueError: If a shape is wrong, there is no row, or steps are not numbers of zero and more.
        TypeError: If X or y is no floating point tensor.
    """
    if not isinstance(X, Tensor) or not X.is_floating_point():
        raise TypeError(_TENSOR.format("X"))
    check_axes(X, num_columns)
    if X.ndim != 2 or X.shape[1] == 0 or num_columns not in (None, X.shape[1]):
        raise ValueError(f"X must have shape (N, {num_columns or 'D'}), got {tuple(X.shape)}")
    num_rows, num_outputs = X.shape[0], config.ensemble.target.num_outputs
    if num_rows == 0:
        raise ValueError("X has no row; at least one is needed")
    wanted = (num_rows,) if num_outputs is None else (num_rows, num_outputs)
    y = X.new_full(wanted, torch.nan) if y is None else y
    if not isinstance(y, Tensor) or not y.is_floating_point():
        raise TypeError(_TENSOR.format("y"))
    if y.shape != wanted:
        hint = "; use y.squeeze(-1)" if y.shape == (num_rows, 1) else ""
        raise ValueError(f"y must have shape {wanted}, one target per row of X, got {tuple(y.shape)}{hint}")
    X, y = (part.detach().to(config.torch_device, torch.float64) for part in (X, y))
    return Arrived(X, y, row_numbers(steps, "steps", X))


class CleanRows(NamedTuple):
    """Rows as they are learned.

    Attributes:
        X: Inputs, shape (N, D); what cannot be learned is NaN, or moved.
        y: Targets, shape (N,) or (N, O), likewise.
        bad: Places of the rows that held a number that cannot be learned.
        first: The first of these numbers; ``None`` if there is none.
        refused: Why the rows are refused; ``None`` if they are not.
    """

    X: Tensor
    y: Tensor
    bad: tuple[int, ...] = ()
    first: IllegalRow | None = None
    refused: IllegalRow | None = None


def clean_rows(
    X: Tensor, y: Tensor, wrong: Tensor, first: IllegalRow | None, on_bad_row: OnBadRow, limited: Tensor | None = None
) -> CleanRows:
    """Rows X (N, D), y (N,) or (N, O) without the numbers of a mask (N, D + O); inputs are replaced by ``limited``."""
    is_bad, outputs = wrong.any(-1), wrong[:, X.shape[1] :]
    gone = outputs | is_bad.unsqueeze(-1) if on_bad_row == "skip" else outputs
    X = torch.where(wrong[:, : X.shape[1]], torch.full_like(X, torch.nan) if limited is None else limited, X)
    y = torch.where(gone.reshape(y.shape), torch.nan, y)
    return CleanRows(X, y, tuple(is_bad.nonzero().flatten().tolist()), first)


def clean_arrivals(X: Tensor, y: Tensor, config: StreamConfig) -> CleanRows:
    """Rows of a warm-up as they arrive, before there is a scale: only numbers too large to be squared are wrong."""
    first, target, on_bad_row = earliest(illegal_input(X), too_large(X, y)), config.ensemble.target, config.on_bad_row
    if first is None or on_bad_row == "refuse":
        return CleanRows(X, y, refused=earliest(first, illegal_target(target, y)))
    wrong = torch.cat([X, y.reshape(len(y), -1)], dim=-1).abs() > LARGEST
    limited = X.clamp(-LARGEST, LARGEST) if on_bad_row == "limit" else None
    rows = clean_rows(X, y, wrong, first, on_bad_row, limited)
    return rows._replace(refused=illegal_target(target, rows.y))


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


def first_outlying(outlying: Tensor, X: Tensor, y: Tensor, kept: Sequence[int]) -> IllegalRow | None:
    """The first of :func:`outlying_numbers` of rows X (N, D) and y, if there is one."""
    if not bool(outlying.any()):
        return None
    row, column = divmod(int(outlying.flatten().int().argmax()), outlying.shape[1])
    value = float(X[row, kept[column]] if column < len(kept) else y.reshape(len(y), -1)[row, column - len(kept)])
    far = f"more than {FARTHEST:g} warm-up standard deviations from the warm-up mean; correct it, or leave"
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
