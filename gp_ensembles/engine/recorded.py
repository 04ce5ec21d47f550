"""Blocks of an ensemble recorded once as CUDA graphs and replayed: which ensembles can be, and how rows run through."""

import copy
from bisect import bisect_left
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.fixed_block import FixedBlock, Progress, with_tensors
from gp_ensembles.engine.fixed_size import check_fixed_size
from gp_ensembles.engine.predictions import EnsemblePredictions, concatenate_predictions
from gp_ensembles.engine.row_timing import RowTiming
from gp_ensembles.engine.state import EnsembleState, named_tensors

_AHEAD = 32  # blocks that are queued before the host asks how they went
_SHORT = (8, 1)  # further lengths, for what is left


class CannotRecordError(TypeError):
    """Why blocks of an ensemble cannot be recorded."""


def check_recordable(ensemble: Ensemble, state: EnsembleState) -> None:
    """Raise unless blocks of an ensemble can be recorded.

    Raises:
        CannotRecordError: If the state of an expert has no fixed size, a weight rule or an expert must read numbers on
            the host, or targets are not single numbers.
    """
    try:
        check_fixed_size(ensemble, state, "a graph")
    except (TypeError, ValueError) as error:
        raise CannotRecordError(str(error)) from error
    # A block that needs a number on the host fails on the meta device, where there are none.
    twin, like = copy.deepcopy(ensemble).to("meta"), state._replace(quarantine=None)
    there = with_tensors(like, (torch.zeros_like(value, device="meta") for _, value in named_tensors(like)))
    progress = Progress(there.meta.num_seen.bool(), there.meta.num_seen.clone())
    try:
        FixedBlock(twin, there, 2, True, progress).run()
    except (RuntimeError, NotImplementedError) as error:
        raise CannotRecordError(
            "an expert or the rule of this ensemble reads numbers while it learns, which no graph can record"
        ) from error


@final
class Recording:
    """The blocks of an ensemble, on its state.

    Raises:
        CannotRecordError: As :func:`check_recordable`.
    """

    def __init__(self, ensemble: Ensemble, state: EnsembleState, block_size: int) -> None:
        check_recordable(ensemble, state)
        self._ensemble, self._state = ensemble, state._replace(quarantine=None)
        self.lengths: tuple[int, ...] = (block_size, *(length for length in _SHORT if length < block_size))
        like = state.meta.num_seen
        self._progress = Progress(torch.zeros_like(like, dtype=torch.bool), torch.zeros_like(like))
        self._blocks: dict[tuple[int, bool], _RecordedBlock] = {}

    def learn(self, X: Tensor, y: Tensor, has_gaps: bool) -> list[EnsemblePredictions]:
        """Learn rows X (N, D), y (N,) up to the first block that is left to the host, and say what was predicted.

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

    def _replay(
        self, block: "_RecordedBlock", X: Tensor, y: Tensor, queued: int, parts: list[EnsemblePredictions]
    ) -> int:
        """Learn so many blocks, or those before the first that is left to the host, and tell how many these are."""
        length, progress = len(block.fixed.y), self._progress
        progress.stopped.zero_()
        progress.num_done.zero_()
        predicted = block.fixed.predicted.new_empty(len(block.fixed.predicted), queued * length)
        for first in range(0, queued * length, length):
            here = slice(first, first + length)
            block.fixed.X.copy_(X[here])
            block.fixed.y.copy_(y[here])
            block.run()
            predicted[:, here].copy_(block.fixed.predicted)
        num_done = int(progress.num_done)  # the only wait
        if num_done:
            parts.append(block.fixed.predictions(predicted[:, : num_done * length]))
        return num_done

    def _block(self, length: int, has_gaps: bool) -> "_RecordedBlock":
        key = length, has_gaps
        if key not in self._blocks:
            fixed = FixedBlock(self._ensemble, self._state, *key, self._progress)
            self._blocks[key] = _RecordedBlock(fixed, self._progress)
        return self._blocks[key]


def observe_recorded(
    recording: Callable[[], Recording | None],
    by_host: Callable[[Tensor, Tensor, RowTiming], EnsemblePredictions],
    X: Tensor,
    y: Tensor,
    timing: RowTiming,
    block_size: int,
    has_gaps: bool,
) -> EnsemblePredictions:
    """Learn rows from recorded blocks, and by the host where it must look or a row is not as usual.

    Shapes: ``X`` (N, D), ``y`` (N,).
    """
    parts, row, unusual = list[EnsemblePredictions](), 0, timing.unusual()
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
        parts.append(by_host(X[here], y[here], timing.rows(here)))
        row += len(parts[-1].mean)
    return concatenate_predictions(parts)


@final
class _RecordedBlock:
    """A block that is replayed from a CUDA graph, or run as it is on other devices."""

    def __init__(self, fixed: FixedBlock, progress: Progress) -> None:
        self.fixed = fixed
        self._graph: torch.cuda.CUDAGraph | None = None
        if fixed.y.device.type == "cuda":
            progress.stopped.fill_(True)  # the runs that warm up learn nothing
            stream = torch.cuda.Stream(fixed.y.device)
            stream.wait_stream(torch.cuda.current_stream(fixed.y.device))
            with torch.cuda.stream(stream):
                for _ in range(3):
                    fixed.run()
            torch.cuda.current_stream(fixed.y.device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):  # on the device of the block, whichever is the current
                fixed.run()

    def run(self) -> None:
        """Predict and learn what stands in the block's memory."""
        if self._graph is None:
            self.fixed.run()
        else:
            self._graph.replay()
