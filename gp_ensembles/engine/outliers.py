r"""Outliers of the mixture: targets beyond a threshold count less, unless too many of them lie there.

The share of targets beyond the threshold is followed with forgetting, :math:`s \leftarrow s\, e^{-n / W} + 1 / W` at
each of them, n rows after the one before. Where it exceeds a few per cent they are no outliers but what the target
does, such as rare events, and are learned as any other.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.memory import TargetMemory

MOST = 0.03  # share of outliers beyond which there are none
WINDOW = 1000.0  # W, rows


class Discounted(NamedTuple):
    """What a block knows after one more target of each series that lies beyond the threshold."""

    start: Tensor  # the row after it, shape (..., 1)
    share: Tensor  # what counts of each target, shape (..., B)
    remembered: Tensor  # the targets to remember, shape (..., B)
    tally: Tensor  # the tally after it, shape (..., 3)
    is_outlier: Tensor  # whether it counts less, shape (..., 1)


def init_outliers(like: Tensor) -> Tensor:
    """The tally before any row: the share beyond the threshold, the row of the last one, how many counted less."""
    return like.new_zeros(3)


def find_outliers(
    threshold: float | None, mean: Tensor, variance: Tensor, y: Tensor, start: Tensor | None
) -> Tensor | None:
    """Mask of the targets (..., B) beyond the threshold, from a row (..., 1) on; ``None`` for never."""
    if threshold is None:
        return None
    far = (y - mean).abs() > threshold * variance.sqrt()
    return far if start is None else far & (torch.arange(y.shape[-1], device=y.device) >= start)


def discount(
    threshold: float,
    memory: TargetMemory | None,
    tally: Tensor,
    num_seen: Tensor,
    mean: Tensor,
    variance: Tensor,
    y: Tensor,
    far: Tensor,
    remembered: Tensor,
    *,
    share: Tensor | None,
) -> Discounted:
    """Take the first target of each series in a mask (..., B); ``num_seen`` (...) rows came before the block."""
    row = far.int().argmax(-1, keepdim=True)
    now = (num_seen.unsqueeze(-1) + row).to(tally)
    beyond, last, num = tally.split(1, dim=-1)
    beyond = beyond * torch.exp((last - now) / WINDOW) + 1 / WINDOW
    is_outlier = beyond <= MOST
    center, target = mean.gather(-1, row), y.gather(-1, row)
    counts = (threshold * variance.gather(-1, row).sqrt() / (target - center)) ** 4
    counts = torch.where(is_outlier, counts, 1.0)
    share = (torch.ones_like(y) if share is None else share).scatter(-1, row, counts)
    if memory is not None:  # a usual target is remembered: it was the prediction that was off
        usual = memory.is_usual(target)
        kept = torch.where(usual, remembered.gather(-1, row), center + (target - center) * counts)
        remembered = remembered.scatter(-1, row, kept)
    after = torch.cat([beyond, now, num + is_outlier.to(num)], dim=-1)
    return Discounted(row + 1, share, remembered, after, is_outlier)
