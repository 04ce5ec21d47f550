"""Whether a table holds targets of the kind that a config predicts; the messages name the cell."""

from torch import Tensor

from gp_ensembles.data import Table
from gp_ensembles.ensembles.targets import Target
from gp_ensembles.likelihoods.response import IllegalTargetError


def check_targets(table: Table, kind: Target) -> None:
    """Raise unless each target of a table, those after the warm-up included, is of a kind; NaN is missing and legal.

    Args:
        table: The table, as it was read.
        kind: What the config predicts.

    Raises:
        ValueError: If a target is not of the kind, or true and false are to be predicted as numbers.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.targets import RealTarget
        >>> X = torch.zeros(2, 1, dtype=torch.float64)
        >>> check_targets(Table(X, X.squeeze(-1) - 1, ("time",), "height", "wave"), RealTarget())
    """
    if kind.num_labels is None and table.source is not None and table.source.has_words:
        raise ValueError(
            f"{table.source.path}, column {table.target_name}: true and false are classes, and "
            f"{type(kind).__name__} predicts numbers; choose a config for classes (its target is BinaryTarget), or "
            f"write numbers"
        )
    error = first_illegal(kind, table.y)
    if error is not None:
        raise ValueError(f"{table.where(error.row)}, column {table.target_name}: the target is {_why(error, kind)}")


def first_illegal(kind: Target, y: Tensor) -> IllegalTargetError | None:
    """The first of the targets (N,) that is not of a kind, if there is one.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles.targets import BinaryTarget
        >>> first_illegal(BinaryTarget(), torch.tensor([1.0, torch.nan, 2.0])).row
        2
        >>> first_illegal(BinaryTarget(), torch.tensor([1.0, torch.nan, 1.0])) is None
        True
    """
    try:
        kind.check(y)
    except IllegalTargetError as error:
        return error
    except ValueError:
        pass  # too few or too similar: that matters to a fit only, and the warm-up is checked for it
    return None


def complaint(error: IllegalTargetError, kind: Target, number: int) -> str:
    """What to say of an illegal target in row ``number`` of a stream, counted from 1."""
    return f"the target of row {number} is {_why(error, kind)}"


def _why(error: IllegalTargetError, kind: Target) -> str:
    num = kind.num_labels
    rule = error.rule if num is None else f"the classes are {'0 and 1' if num == 2 else f'0 to {num - 1}'}"
    return (
        f"{error.value:.10g}, but {rule} ({type(kind).__name__}); {error.remedy}, or leave the cell empty if it is "
        f"missing"
    )
