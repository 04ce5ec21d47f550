"""How the shell runs one expert object over a stream: stage a block, then commit it in place."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.filters.dispatch import update_block
from gp_ensembles.filters.states import FilterState, GaussianState, SquareRootState, StepPredictions
from gp_ensembles.filters.stream import BlockStream


class Runner(ABC):
    """Runs one expert object on a state that it changes in place, a block at a time."""

    @abstractmethod
    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> StepPredictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""

    @abstractmethod
    def commit(self) -> None:
        """Learn the staged block."""


class CovarianceRunner(Runner):
    """The covariance form, with scratch memory kept between blocks of one length."""

    def __init__(self, bound: BoundExpert, state: GaussianState) -> None:
        self._bound = bound
        self._moments = state.moments
        self._streams: dict[int, BlockStream] = {}
        self._staged: BlockStream | None = None

    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> StepPredictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        num_rows = y.shape[0]
        stream = self._streams.get(num_rows)
        if stream is None:
            if len(self._streams) > 3:  # streams have few block lengths; odd ones must not pile up
                self._streams.clear()
            bound = self._bound
            stream = BlockStream(self._moments, bound.noise, bound.random_walk_variance, num_rows)
            self._streams[num_rows] = stream
        self._staged = None
        predictions = stream.stage(Phi, y, has_gaps)
        self._staged = stream
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            self._staged.commit()
            self._staged = None


class PureRunner(Runner):
    """Any state: the pure update, copied into the old state's memory."""

    def __init__(self, bound: BoundExpert, state: FilterState) -> None:
        self._bound = bound
        self._state = state
        self._staged: FilterState | None = None

    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> StepPredictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        bound = self._bound
        self._staged, predictions = update_block(self._state, Phi, y, bound.noise, bound.random_walk_variance)
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            for old, new in zip(self._state, self._staged, strict=True):
                old.copy_(new)
            self._staged = None


class CompactRunner(Runner):
    """Only the living experts of a batch, on a private copy of their states, until :meth:`scatter`."""

    def __init__(self, bound: BoundExpert, state: FilterState, alive: Tensor) -> None:
        batch_shape = bound.noise.shape
        self._full = tuple(field.view(batch_shape.numel(), *field.shape[len(batch_shape) :]) for field in state)
        self._alive = alive
        self._num_experts = batch_shape.numel()
        walk = bound.random_walk_variance
        if walk is not None:
            walk = walk.reshape(self._num_experts, -1)[alive]
        small = bound._replace(noise=bound.noise.reshape(-1)[alive], random_walk_variance=walk)
        parts = [field[alive] for field in self._full]
        self._parts = parts
        self._runner: Runner | None
        if alive.numel() == 0:
            self._runner = None
        elif isinstance(state, GaussianState):
            self._runner = CovarianceRunner(small, GaussianState(parts[0]))
        else:
            self._runner = PureRunner(small, SquareRootState(parts[0], parts[1]))

    def stage(self, Phi: Tensor, y: Tensor, has_gaps: bool) -> StepPredictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        shape = (self._num_experts, y.shape[0])
        mean, variance = y.new_full(shape, torch.nan), y.new_full(shape, torch.nan)
        log_prob = y.new_full(shape, -torch.inf)
        if self._runner is not None:
            living = Phi.reshape(self._num_experts, *Phi.shape[-2:])[self._alive]
            mean[self._alive], variance[self._alive], log_prob[self._alive] = self._runner.stage(living, y, has_gaps)
        return StepPredictions(mean, variance, log_prob)

    def commit(self) -> None:
        """Learn the staged block."""
        if self._runner is not None:
            self._runner.commit()

    def scatter(self) -> None:
        """Bring the living experts' states back to where they came from."""
        for full, part in zip(self._full, self._parts, strict=True):
            full[self._alive] = part


def make_runner(bound: BoundExpert, state: FilterState) -> Runner:
    """The runner that the type of the state asks for."""
    if isinstance(state, GaussianState):
        return CovarianceRunner(bound, state)
    return PureRunner(bound, state)
