"""Rows with numbers that cannot be learned, such as overflow codes, by ``StreamConfig.on_bad_row``."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.streaming.checks import LARGEST, IllegalRow, illegal_target, too_large
from gp_ensembles.streaming.config import OnBadRow, StreamConfig
from gp_ensembles.streaming.warm_up_outliers import implausible, limit_warm_up, outliers_in_warm_up, to_the_edge


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
    first, target, on_bad_row = too_large(X, y), config.ensemble.target, config.on_bad_row
    if first is None or on_bad_row == "refuse":
        return CleanRows(X, y, refused=illegal_target(target, y) if first is None else first)
    wrong = torch.cat([X, y.reshape(len(y), -1)], dim=-1).abs() > LARGEST
    limited = X.clamp(-LARGEST, LARGEST) if on_bad_row == "limit" else None
    rows = clean_rows(X, y, wrong, first, on_bad_row, limited)
    return rows._replace(refused=illegal_target(target, rows.y))


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
