"""What a model is given: columns kept, scales taken from the warm-up rows, rows without a value left out."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import EmbedOptions
from gp_ensembles.cli.embed.rows import Rows, select
from gp_ensembles.data import constant_columns

_NAMED = 5  # columns that a message names


class Prepared(NamedTuple):
    """Rows as a model takes them.

    Attributes:
        rows: The rows with the columns kept, in units of the data.
        options: The options, settled.
        offset: What is taken from each column, its mean in the warm-up rows, float64, shape (D,).
        scale: What each column is then divided by, float64, shape (D,).
        present: Rows with a value, of which there are n, boolean, shape (N,).
        Y: These rows in the model's units and dtype, shape (n, D).
        dropped: Names of the columns left out as constant.
    """

    rows: Rows
    options: EmbedOptions
    offset: Tensor
    scale: Tensor
    present: Tensor
    Y: Tensor
    dropped: tuple[str, ...]

    @property
    def warmup(self) -> int:
        """Number of warm-up rows."""
        assert self.options.warmup is not None
        return self.options.warmup


def prepare(rows: Rows, options: EmbedOptions) -> Prepared:
    """Check rows and bring them into a model's units.

    Raises:
        ValueError: If no row follows the warm-up, a warm-up row has a gap, a column is constant in the warm-up rows, a
            number is too large (each is named), or there are more latent dimensions than columns.

    Example:
        >>> Y = torch.arange(40, dtype=torch.float64).reshape(20, 2)
        >>> prepared = prepare(Rows(Y, ("a", "b"), None, "pump", False), EmbedOptions(warmup=10))
        >>> prepared.scale
        tensor([5.7446, 5.7446], dtype=torch.float64)
    """
    options = options.settled(len(rows.Y), rows.is_array)
    warmup = options.warmup
    assert warmup is not None
    if len(rows.Y) <= warmup:
        raise ValueError(
            f"{rows.name} has {len(rows.Y)} rows and the first {warmup} are the warm-up; at least one row must follow, "
            f"so choose a smaller --warmup"
        )
    _check_complete(rows, warmup)
    rows, dropped = _without_constant(rows, warmup, options.drop_constant)
    if options.num_latent > rows.Y.shape[1]:
        raise ValueError(
            f"--num_latent {options.num_latent} is more than the {rows.Y.shape[1]} column(s) to embed; choose fewer"
        )
    first = rows.Y[:warmup]
    scale = first.std(0, correction=0) if options.standardize else rows.Y.new_ones(rows.Y.shape[1])
    if not bool(first.std(0, correction=0).isfinite().all()):
        column = int(first.std(0, correction=0).isfinite().int().argmin())
        raise ValueError(f"the spread of column {rows.names[column]} overflows in the warm-up rows; rescale its values")
    offset = first.mean(0)
    scaled = ((rows.Y - offset) / scale).to(options.torch_dtype)  # in that order: a large offset would eat the digits
    # Squares are summed over columns; a number whose square is out of range would show up as an error far from here.
    wild = scaled.abs() > (torch.finfo(scaled.dtype).max / 2**20) ** 0.5
    if bool(wild.any()):
        row, column = wild.nonzero()[0].tolist()
        raise ValueError(
            f"{rows.where(row, column)}: {float(rows.Y[row, column]):.6g} is too large for {options.dtype}; correct "
            f"it, or leave the cell empty"
        )
    present = ~torch.isnan(rows.Y).all(-1)
    return Prepared(rows, options, offset, scale, present, scaled[present], dropped)


def _check_complete(rows: Rows, warmup: int) -> None:
    missing = torch.isnan(rows.Y[:warmup])
    if bool(missing.any()):
        row, column = missing.nonzero()[0].tolist()
        empty = missing.all(0)
        if bool(empty.any()):
            raise ValueError(
                f"the column {rows.names[int(empty.int().argmax())]} has no value in the first {warmup} rows, from "
                f"which the model starts; leave it out with --features, or choose a longer --warmup"
            )
        raise ValueError(
            f"{rows.where(row, column)}: no value, and the first {warmup} rows, from which the model starts, must be "
            f"complete; fill it in, leave the row or the column out, or choose a smaller --warmup (gaps in later rows "
            f"are fine)"
        )


def _without_constant(rows: Rows, warmup: int, drop: bool) -> tuple[Rows, tuple[str, ...]]:
    constant = constant_columns(rows.Y[:warmup])
    if not constant:
        return rows, ()
    names = tuple(rows.names[column] for column in constant)
    if len(constant) == len(rows.names):
        raise ValueError(f"all columns are constant in the {warmup} warm-up rows; choose a larger --warmup")
    if not drop:
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise ValueError(
            f"constant in the {warmup} warm-up rows: {', '.join(names[:_NAMED])}{more}; leave them out with "
            f"--drop-constant, or use a longer --warmup"
        )
    kept = [column for column in range(len(rows.names)) if column not in set(constant)]
    return select(rows, kept), names
