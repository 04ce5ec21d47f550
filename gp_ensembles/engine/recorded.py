"""Recording of an ensemble's blocks as CUDA graphs, and learning rows by replaying them.

A block has a fixed length and fixed memory, and the host reads no number from it. The code of an ensemble reads a few:
is a prediction valid, is a target possible? A block assumes the usual answers
(:func:`~gp_ensembles.numerics.reductions.assuming`) and checks them afterwards on the device: if one was wrong, or a
target is an outlier, nothing is learned from this block and those after it until the host has handled it. Other reads
fail under ``torch.func.vmap``, where the code takes the branch that is correct for all numbers; therefore the block
runs there, along an axis of length one.
"""

import copy
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble, evaluate, responses_of
from gp_ensembles.engine.predictions import EnsemblePredictions, assemble, flatten, invalid_rows
from gp_ensembles.engine.state import EnsembleState, named_tensors, state_from
from gp_ensembles.engine.weighing import innovate, weigh, within_reach
from gp_ensembles.experts.laplace import BoundLaplace
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import GaussianState, Predictions, SquareRootState, StepPredictions, StudentTState
from gp_ensembles.numerics.reductions import assuming

_AHEAD = 32  # blocks that are queued before the host reads how many were learned
_SHORT = (8, 1)  # more lengths, for the remaining rows


class Progress(NamedTuple):
    """State shared by blocks that run one after the other, which the host reads at the end."""

    stopped: Tensor  # whether a block, and with it all later ones, was left to the host, shape ()
    num_done: Tensor  # number of blocks that were learned, shape ()


class FixedBlock:
    r"""Predicts and learns blocks of one length, of a state without external models, in place.

    Attributes:
        X: Memory of the inputs, shape (B, D).
        y: Memory of the targets, shape (B,).
        predicted: Predictions made before each target, for :meth:`predictions`, shape (R, B).
    """

    y: Tensor

    def __init__(
        self, ensemble: Ensemble, state: EnsembleState, num_rows: int, has_gaps: bool, progress: Progress
    ) -> None:
        like = state.meta.log_weights
        self._layers, self._bound = ensemble.layers, ensemble.bind()
        self._experts = [b.plans.fixed(b, part) for b, part in zip(self._bound, state.experts, strict=True)]
        self._responses = tuple(response.frozen() for response in responses_of(self._bound))
        self._state, self._has_gaps, self._progress = state, has_gaps, progress
        self._kind: type[Predictions] = StepPredictions
        self.X, self.y = like.new_zeros(num_rows, ensemble.num_inputs), like.new_zeros(num_rows)
        self.predicted: Tensor = torch.empty_like(self._run()[1])
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def run(self) -> None:
        """Predict the block and, unless it or one before it is left to the host, learn it."""
        fine, predicted, *learned = self._run()
        keep = fine & ~self._progress.stopped
        self._learn(iter(learned), keep)
        self._progress.num_done.add_(keep)
        self._progress.stopped.logical_or_(~fine)
        self.predicted.copy_(predicted)

    def record(self) -> None:
        """Record :meth:`run` as a CUDA graph for :meth:`replay`, where the block is on a GPU."""
        if self.y.device.type == "cuda":
            self._progress.stopped.fill_(True)  # the runs that warm up learn nothing
            stream = torch.cuda.Stream(self.y.device)
            stream.wait_stream(torch.cuda.current_stream(self.y.device))
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self.run()
            torch.cuda.current_stream(self.y.device).wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=stream):  # on the device of the block, whichever is the current
                self.run()

    def replay(self) -> None:
        """Predict and learn what is in the block's memory, from its graph if it has one."""
        if self._graph is None:
            self.run()
        else:
            self._graph.replay()

    def predictions(self, predicted: Tensor) -> EnsemblePredictions:
        """Predictions of N rows from ``predicted`` (R, N)."""
        num = len(self._state.meta.log_weights)
        mean, variance, log_prob = predicted[:3]
        log_weights, *steps = predicted[3:].split(num)
        return EnsemblePredictions(mean, variance, log_prob, log_weights, self._kind(*steps), self._responses)

    @torch.no_grad()
    def _run(self) -> tuple[Tensor, ...]:
        """Whether the block is valid, its predictions, and the updates of the state."""
        tensors = [value for _, value in named_tensors(self._state)]
        given = [part.unsqueeze(0) for part in (self.X, self.y, *tensors)]
        results: tuple[Tensor, ...] = torch.func.vmap(self._one)(*given)
        return tuple(part.squeeze(0) for part in results)

    def _one(self, X: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        with assuming() as asked:
            rest, predicted, *learned = self._block(X, y, *tensors)
        return torch.stack([rest, *asked]).all(), predicted, *learned

    def _block(self, X: Tensor, y: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        layers, state = self._layers, with_tensors(self._state, iter(tensors))
        y = within_reach(layers, y)
        history, inputs = None, X
        if layers.memory is not None and state.history is not None:
            history, columns = layers.memory.columns(state.history, y, is_complete=not self._has_gaps)
            inputs = torch.cat([X, columns], dim=-1)
        parts, learned = [], list[Tensor]()
        for expert, before, Phi in zip(self._experts, state.experts, evaluate(self._bound, inputs), strict=True):
            part, updates = expert.stage(before, Phi, y)
            parts.append(part)
            learned += updates
        own = flatten(parts)
        invalid_rows(own)  # an assumption
        missing = y.isnan() if self._has_gaps else None
        innovations, steps = innovate(layers, state.innovations, own, y, None, missing)
        meta, output = weigh(layers.rule, state.meta, steps.log_prob, None, missing)
        predicted = assemble(steps, output.log_weights, output.log_prob)
        fine = self._fine(predicted, y)
        self._kind = type(steps)
        rows = torch.cat([torch.stack(list(predicted[:3])), predicted.log_weights, *steps])
        learned += [*meta, *(innovations or ()), *([] if history is None else [history])]
        return fine, rows, *learned

    def _fine(self, predicted: EnsemblePredictions, y: Tensor) -> Tensor:
        """Whether all targets are possible and none is an outlier."""
        fine = (predicted.log_prob.isfinite() | y.isnan()).all()
        if self._layers.outlier_threshold is not None:
            far = (y - predicted.mean).abs() > self._layers.outlier_threshold * predicted.variance.sqrt()
            fine = fine & ~far.any()
        return fine

    def _learn(self, learned: Iterator[Tensor], keep: Tensor) -> None:
        """Update the state of experts and layers in place, if ``keep`` is set."""
        for expert in self._experts:
            expert.learn(learned, keep)
        state = self._state
        layers = [*state.meta, *(state.innovations or ()), *([] if state.history is None else [state.history])]
        for old in layers:
            old.copy_(torch.where(keep, next(learned), old))


def with_tensors(like: EnsembleState, tensors: Iterator[Tensor]) -> EnsembleState:
    """A state of other tensors, in the order of :func:`~gp_ensembles.engine.state.named_tensors`."""
    given = dict(zip((name for name, _ in named_tensors(like)), tensors, strict=True))
    return state_from([type(part) for part in like.experts], given, given.__getitem__)


def check_fixed_size(ensemble: Ensemble, start: EnsembleState, what: str) -> None:
    """Raise unless all states of an ensemble have a fixed size and no number is read while it learns."""
    if ensemble.num_outputs is not None or ensemble.forecasts:
        raise ValueError(f"ensembles of {what} have one target and no columns of forecasts among their inputs")
    try:
        meta = type(start.meta)(*(part.unsqueeze(0) for part in start.meta))
        zero = start.meta.log_weights.new_zeros(1, ensemble.num_experts, 1)
        torch.func.vmap(ensemble.meta_learner.update_block)(meta, zero)
    except RuntimeError:
        rule = type(ensemble.meta_learner).__name__
        raise TypeError(f"{rule} cannot be the rule of {what}; use FixedShare() or another rule") from None
    for expert, bound, state in zip(ensemble.experts, ensemble.bind(), start.experts, strict=True):
        if isinstance(bound, BoundLaplace) and bound.num_latent > 1:
            raise TypeError(f"ensembles of {what} have one latent value: two classes, levels or counts, not classes")
        if not isinstance(state, GaussianState | SquareRootState | StudentTState):
            raise TypeError(
                f"{type(expert).__name__} cannot be an expert of {what}, whose states have a fixed size; leave it "
                f"out, as the preset light does"
            )


class CannotRecordError(TypeError):
    """Blocks of an ensemble cannot be recorded."""


def check_recordable(ensemble: Ensemble, state: EnsembleState) -> None:
    """Raise unless blocks of an ensemble can be recorded."""
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

    def learn(self, X: Tensor, rows: Rows, start: int) -> list[EnsemblePredictions]:
        """Predict and learn rows of X (N, D) from one on, up to the first block that is left to the host.

        Rows that are not one step after the one before or have further noise are for the host.

        Raises:
            CannotRecordError: If the GPU refuses to record.
        """
        unusual, has_gaps = rows.unusual(), bool(rows.y.isnan().any())
        stop = unusual[place] if (place := bisect_left(unusual, start)) < len(unusual) else len(X)
        X, y = X[start:stop], rows.y[start:stop]
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
