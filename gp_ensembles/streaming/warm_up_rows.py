"""The length of a warm-up, and its outliers: before there is a scale, one outlier would set it."""

import torch
from torch import Tensor

from gp_ensembles.ensembles.targets import Target
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.streaming.checks import FARTHEST, CleanRows, IllegalRow, clean_rows
from gp_ensembles.streaming.config import MIN_WARM_UP, OnBadRow, StreamConfig

_DOMINANT = 0.8  # share of the targets of a warm-up at one value from which others are waited for
# Ranges beyond which a number is a mistake, and typical sizes where most numbers are one and the same.
_RANGES, _SIZES = 60.0, 1000.0
_LEAST, _SHARE, _MOST = 10, 0.01, 0.05  # so many may be mistakes, or this share if that is more; of few rows this one
_FARTHEST = 10  # one in so many does not count where the range of the others is taken
_ROUND_OFF = 1e-12  # of a number
_STEP = 3  # so many at the end of the warm-up are a step, no mistakes


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
            f"observed, or fewer than that differ from the commonest; all rows are kept until then"
        )


def far_from_others(y: Tensor) -> Tensor:
    """Mask of the numbers that lie far from all others of their column, y (N,) or (N, O), however many they are."""
    columns = y.reshape(y.shape[0], -1)
    return torch.stack([_far(column) for column in columns.unbind(-1)], dim=-1).reshape(y.shape)


def outliers_in_warm_up(y: Tensor) -> Tensor:
    """Mask of those of :func:`far_from_others` that count as mistakes: none of a column that has too many of them."""
    columns = y.reshape(y.shape[0], -1)
    far = far_from_others(columns)
    few = [_may_be_mistakes(f[~column.isnan()]) for f, column in zip(far.unbind(-1), columns.unbind(-1), strict=True)]
    return (far & torch.tensor(few, dtype=torch.bool, device=y.device)).reshape(y.shape)


def num_far(y: Tensor) -> int:
    """How many targets are far from all others."""
    return int(far_from_others(y).sum())


def limit_warm_up(X: Tensor) -> tuple[Tensor, int]:
    """Warm-up rows (N, D) with outliers moved to the edge of the other values, and how many were moved."""
    outliers = outliers_in_warm_up(X)
    return to_the_edge(X, outliers) if bool(outliers.any()) else X, int(outliers.sum())


def to_the_edge(X: Tensor, outliers: Tensor) -> Tensor:
    """Rows (N, D) with the numbers of a mask moved to the edge of the others of their column."""
    rest = torch.where(outliers, torch.nan, X)
    lower, upper = (rest.nan_to_num(nan=value) for value in (torch.inf, -torch.inf))
    return torch.where(outliers, X.clamp(lower.amin(0), upper.amax(0)), X)


def implausible(X: Tensor) -> Tensor:
    """Mask of inputs (N, D) as far from the others, in their deviations, as is a mistake in later rows, see FARTHEST.

    The others are nine tenths of a column, those nearest to its median, unless they are all the same.
    """
    far = torch.zeros_like(X, dtype=torch.bool)
    for column, mask in zip(X.unbind(-1), far.unbind(-1), strict=True):
        distance = (column - column.nanmedian()).abs()
        near = distance[~distance.isnan()].sort().values
        near = near[: near.numel() - near.numel() // _FARTHEST]
        spread = near.square().mean().sqrt()
        if bool(spread > _ROUND_OFF * column.nanmedian().abs()):
            mask.copy_(distance > FARTHEST * spread)
    return far


def warm_up_outlier_lines(num_missing: int, num_kept: int) -> list[str]:
    """Messages about targets of the warm-up that count as missing, and about those that are too many for that."""
    lines = []
    if num_missing:
        lines.append(f"{num_missing} target(s) of the warm-up are outliers and count as missing")
    if num_kept:
        lines.append(
            f"{num_kept} targets of the warm-up are outliers, but too many to be mistakes: they are learned and set "
            f"the scale of all scores; if they are mistakes, leave them empty"
        )
    return lines


def warn_of_outliers(num_missing: int, num_kept: int) -> None:
    """A ``UserWarning`` for each line of :func:`warm_up_outlier_lines`."""
    for line in warm_up_outlier_lines(num_missing, num_kept):
        warn_caller(line)


def _most(num_observed: int) -> int:
    """How many of these numbers may be mistakes."""
    return min(max(_LEAST, int(_SHARE * num_observed)), int(_MOST * num_observed))


def _may_be_mistakes(far: Tensor) -> bool:
    """Whether those of the observed numbers of a column that are far from the others may be mistakes."""
    is_step = far.shape[0] >= _STEP and bool(far[-_STEP:].all())
    return int(far.sum()) <= _most(far.shape[0]) and not is_step


def _far(column: Tensor) -> Tensor:
    seen = column[~column.isnan()]
    if not seen.numel():
        return torch.zeros_like(column, dtype=torch.bool)
    distance = (column - seen.median()).abs()
    kept = distance.nan_to_num(nan=torch.inf).argsort(stable=True)[: seen.numel() - seen.numel() // _FARTHEST]
    lower, upper = column[kept].quantile(torch.tensor([0.05, 0.95], dtype=column.dtype, device=column.device))
    others = distance[distance > 0]
    if upper == lower and not others.numel():
        return torch.zeros_like(column, dtype=torch.bool)
    far: Tensor = distance > (_RANGES * (upper - lower) if upper > lower else _SIZES * others.median())
    return far


def clean_warm_up(X: Tensor, y: Tensor, config: StreamConfig) -> tuple[CleanRows, int, int]:
    """A whole warm-up without outliers; how many inputs were moved to the edge of the others, and targets left out."""
    rows = CleanRows(X, y) if config.on_bad_row == "refuse" else _without_implausible(X, y, config.on_bad_row)
    outlier = outliers_in_warm_up(rows.y) if config.ensemble.target.is_real else torch.zeros_like(y).bool()
    X, num_moved = limit_warm_up(rows.X) if config.limit_inputs else (rows.X, 0)
    return rows._replace(X=X, y=torch.where(outlier, torch.nan, rows.y)), num_moved, int(outlier.sum())


def _without_implausible(X: Tensor, y: Tensor, on_bad_row: OnBadRow) -> CleanRows:
    """Rows without inputs that no scale of the others explains; targets stay, for a few of them may be the signal."""
    far = implausible(X)
    if not bool(far.any()):
        return CleanRows(X, y)
    row, column = divmod(int(far.flatten().int().argmax()), X.shape[1])
    text = f"{float(X[row, column]):.6g} in row {{row}}, implausibly far from all others of the warm-up; correct it"
    wrong = torch.cat([far, torch.zeros_like(y.reshape(len(y), -1), dtype=torch.bool)], dim=-1)
    limited = to_the_edge(X, far) if on_bad_row == "limit" else None
    return clean_rows(X, y, wrong, IllegalRow(row, column, text), on_bad_row, limited)
