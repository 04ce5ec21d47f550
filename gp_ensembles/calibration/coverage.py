"""Coverage of intervals: the share of targets that they contained, over a stream and in windows of it."""

from typing import NamedTuple

import torch
from torch import Tensor

WINDOW = 500  # targets


class CoverageState(NamedTuple):
    """Counts over a stream, each a float64 scalar."""

    num_targets: Tensor  # targets observed
    num_covered: Tensor  # targets covered
    width: Tensor  # sum of the finite widths of intervals, units of the target
    num_finite: Tensor  # how many of them there are
    window_targets: Tensor  # targets in the current window
    window_covered: Tensor  # targets covered in it
    num_windows: Tensor  # windows that are over
    num_kept: Tensor  # windows among them whose share of misses was within half of the nominal one


def init_coverage(like: Tensor) -> CoverageState:
    """Nothing counted yet, on the device of ``like``."""
    zero = like.new_zeros((), dtype=torch.float64)
    return CoverageState(*[zero] * len(CoverageState._fields))


def count_coverage(state: CoverageState, covered: Tensor, width: Tensor, coverage: float) -> CoverageState:
    """Count a block of intervals.

    Shapes: ``covered`` (B,), ``width`` (B,).
    """
    seen = ~covered.isnan()
    hits, width = covered[seen].double(), width.double()
    finite = width.isfinite() & seen
    total, inside = state.window_targets, state.window_covered
    num_windows, num_kept = state.num_windows, state.num_kept
    while hits.numel():
        part = hits[: int(WINDOW - total)]
        hits = hits[part.numel() :]
        total, inside = total + part.numel(), inside + part.sum()
        if int(total) == WINDOW:
            is_kept = (inside / total - coverage).abs() <= (1 - coverage) / 2 + 1e-12
            num_windows, num_kept = num_windows + 1, num_kept + is_kept
            total, inside = torch.zeros_like(total), torch.zeros_like(inside)
    return CoverageState(
        state.num_targets + seen.sum(),
        state.num_covered + covered[seen].double().sum(),
        state.width + width[finite].sum(),
        state.num_finite + finite.sum(),
        total,
        inside,
        num_windows,
        num_kept,
    )
