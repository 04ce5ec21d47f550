"""The rows of a call: what is legal, and how they are divided over several fleets."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.engine.input_checks import check_real_numbers
from gp_ensembles.fleet.ensemble_fleet import Names, listed

Owner = TypeVar("Owner", bound=Hashable)


class CallRows(NamedTuple):
    """Rows of a call.

    Attributes:
        names: The series of each.
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
    """

    names: Sequence[Hashable]
    X: Tensor
    y: Tensor


def checked_rows(names: Names, X: Tensor, y: Tensor | None, num_inputs: int | None) -> CallRows:
    """Names, inputs and targets in float64, if they are legal.

    Shapes: ``X`` (N, D), ``y`` (N,).

    Raises:
        ValueError: If they are not.
        TypeError: If a kind is wrong.
    """
    given = listed(names)
    if not isinstance(X, Tensor) or X.ndim != 2 or not X.is_floating_point():
        raise ValueError("X must be a floating point tensor of shape (N, D)")
    y = X.new_zeros(len(X)) if y is None else y
    check_real_numbers(X, y)
    if y.shape != X.shape[:1] or len(given) != len(y) or len(y) == 0:
        raise ValueError(
            f"there must be a name and a target for each row of X, one row at least; got {len(given)} names, "
            f"{len(X)} rows and targets of shape {tuple(y.shape)}"
        )
    if num_inputs is not None and X.shape[1] != num_inputs:
        raise ValueError(f"X has {X.shape[1]} columns, the rows before had {num_inputs}")
    for what, values in (("X", X.flatten(1)), ("y", y.unsqueeze(-1))):
        wild = values.isinf().any(-1)
        if bool(wild.any()):
            row = int(wild.int().argmax())
            raise ValueError(f"{what} is infinite in row {row}, of series {given[row]!r}; use NaN where missing")
    return CallRows(given, X.detach().double(), y.detach().double())


def divided(rows: CallRows, owners: Sequence[Owner]) -> tuple[dict[Owner, Tensor], dict[Owner, CallRows]]:
    """Numbers of the rows of each owner, in their order, and these rows."""
    numbers: dict[Owner, list[int]] = {}
    for row, owner in enumerate(owners):
        numbers.setdefault(owner, []).append(row)
    places = {owner: torch.tensor(here, dtype=torch.int64, device=rows.y.device) for owner, here in numbers.items()}
    parts = {
        owner: CallRows([rows.names[row] for row in numbers[owner]], rows.X[here], rows.y[here])
        for owner, here in places.items()
    }
    return places, parts
