"""Recording of an ensemble's blocks as CUDA graphs, and learning rows by replaying them."""

import copy
from bisect import bisect_left
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.fixed_block import FixedBlock, Progress, check_fixed_size, with_tensors
from gp_ensembles.engine.predictions import EnsemblePredictions, concatenate_predictions
from gp_ensembles.engine.state import EnsembleState, named_tensors
from gp_ensembles.filters.rows import Rows

_AHEAD = 32  # blocks that are queued before the host reads how many were learned
_SHORT = (8, 1)  # more lengths, for the remaining rows


class CannotRecordError(TypeError):
    """Blocks of an ensemble cannot be recorded."""


def check_recordable(ensemble: Ensemble, state: EnsembleState) -> None:
    """Raise unless blocks of an ensemble can be recorded.

    Raises:
        CannotRecordError: If an expert's state has no fixed size, a rule or an expert reads numbers on the host, or
            targets are not single numbers.
    """
    try:
        check_fixed_size(ensemble, state, "a graph")
    except (TypeError, ValueError) as error:
        raise CannotRecordError(str(error)) from error
    # A block that reads a number fails on the meta device, where there are none.
    other, like = copy.deepcopy(ensemble).to("meta"), state._replace(quarantine=None)
    there = with_tensors(like, (torch.zeros_like(value, device="meta") for _, value in named_tensors(like)))
    progress = Progress(there.meta.num_seen.bool(), there.meta.num_seen.clone())
    try:
        FixedBlock(other, there, 2, True, progress).run()
    except (RuntimeError, NotImplementedError) as error:
        raise CannotRecordError(
            "an expert or the rule of this ensemble reads numbers while it learns, which no graph can record"
        ) from error


@final
class Recording:
    """Recorded blocks of an ensemble, which change its state in place.

    Raises:
        CannotRecordError: As :func:`check_recordable`.
    """

    def __init__(self, ensemble: Ensemble, state: EnsembleState, block_size: int) -> None:
        check_recordable(ensemble, state)
        self._ensemble, self._state = ensemble, state._replace(quarantine=None)
        self.lengths: tuple[int, ...] = (block_size, *(length for length in _SHORT if length < block_size))
        like = state.meta.num_seen
        self._progress = Progress(torch.zeros_like(like, dtype=torch.bool), torch.zeros_like(like))
        self._blocks: dict[tuple[int, bool], FixedBlock] = {}

    def learn(self, X: Tensor, y: Tensor, has_gaps: bool) -> list[EnsemblePredictions]:
        """Predict and learn rows X (N, D), y (N,) up to the first block that is left to the host.

        Raises:
            CannotRecordError: If the GPU refuses to record the first block; nothing was learned then.
        """
        parts, row = list[EnsemblePredictions](), 0
        while row < len(y):
            length = next(length for length in self.lengths if length <= len(y) - row)
            queued = min((len(y) - row) // length, _AHEAD)
            try:
                block = self._block(length, has_gaps)
            except RuntimeError as error:
                if parts:
                    break
                raise CannotRecordError(f"the GPU did not record a block ({str(error).splitlines()[0]})") from error
            num_done = self._replay(block, X[row:], y[row:], queued, parts)
            row += num_done * length
            if num_done < queued:
                break
        return parts

    def _replay(self, block: FixedBlock, X: Tensor, y: Tensor, queued: int, parts: list[EnsemblePredictions]) -> int:
        """Learn ``queued`` blocks, or those before the first that is left to the host; returns their number."""
        length, progress = len(block.y), self._progress
        progress.stopped.zero_()
        progress.num_done.zero_()
        predicted = block.predicted.new_empty(len(block.predicted), queued * length)
        for first in range(0, queued * length, length):
            here = slice(first, first + length)
            block.X.copy_(X[here])
            block.y.copy_(y[here])
            block.replay()
            predicted[:, here].copy_(block.predicted)
        num_done = int(progress.num_done)  # the only wait
        if num_done:
            parts.append(block.predictions(predicted[:, : num_done * length]))
        return num_done

    def _block(self, length: int, has_gaps: bool) -> FixedBlock:
        key = length, has_gaps
        if key not in self._blocks:
            block = FixedBlock(self._ensemble, self._state, *key, self._progress)
            block.record()
            self._blocks[key] = block
        return self._blocks[key]


def observe_recorded(
    recording: Callable[[], Recording | None],
    by_host: Callable[[Tensor, Rows], EnsemblePredictions],
    X: Tensor,
    rows: Rows,
    block_size: int,
    has_gaps: bool,
) -> EnsemblePredictions:
    """Learn rows X (N, D) from recorded blocks, and with ``by_host`` those that no block may learn."""
    parts, row, unusual, y = list[EnsemblePredictions](), 0, rows.unusual(), rows.y
    while row < len(y):
        place = bisect_left(unusual, row)
        stop = unusual[place] if place < len(unusual) else len(y)
        blocks = recording() if stop > row else None
        if blocks is not None:
            learned = blocks.learn(X[row:stop], y[row:stop], has_gaps)
            parts += learned
            row += sum(len(part.mean) for part in learned)
            if row == stop:
                continue
        here = slice(row, row + block_size)
        parts.append(by_host(X[here], rows.block(here)))
        row += len(parts[-1].mean)
    return concatenate_predictions(parts)
