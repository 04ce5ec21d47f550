"""Runners of one expert object over a stream: stage a block, then commit it to the state in place."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.external import BoundExternal, ExternalRows
from gp_ensembles.experts.external import append_ as append_external_
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.multi_output import BoundMultiOutput
from gp_ensembles.experts.refitted import BoundRefitted, RefittedBlock, store_
from gp_ensembles.experts.window import BoundWindow, rows_until_refit
from gp_ensembles.filters.multi_output import (
    GroupGain,
    apply_gains,
    apply_gains_,
    condition_multi_output,
    num_groups,
)
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.schedule import Schedule, moment_scales, scale_features, scale_targets, unscale_steps
from gp_ensembles.filters.states import (
    ExternalState,
    FilterState,
    GaussianState,
    MultiOutputState,
    Predictions,
    RefittedState,
    StepPredictions,
    WindowState,
)
from gp_ensembles.filters.stream import BlockStream
from gp_ensembles.filters.transitions import make_schedule
from gp_ensembles.filters.widened import widened
from gp_ensembles.filters.window import WindowChange


class Runner(ABC):
    """Runs one expert object block by block on a state that it changes in place."""

    @abstractmethod
    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""

    @abstractmethod
    def commit(self) -> None:
        """Learn the staged block."""


class CovarianceRunner(Runner):
    """Covariance form, with scratch memory kept between blocks of one length."""

    def __init__(self, bound: BoundGaussian, state: GaussianState) -> None:
        self._bound = bound
        self._state = state
        self._moments = state.moments
        self._prepared: dict[int, tuple[Schedule, BlockStream, Tensor | None]] = {}
        self._staged: tuple[BlockStream, Tensor | None] | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        num_rows = Phi.shape[-2]
        if rows.steps is not None:
            schedule, stream, scales = self._prepare(num_rows, rows.ages)
        else:
            if num_rows not in self._prepared:
                if len(self._prepared) > 3:  # few block lengths recur; the others must not accumulate
                    self._prepared.clear()
                self._prepared[num_rows] = self._prepare(num_rows)
            schedule, stream, scales = self._prepared[num_rows]
        self._staged = None
        design, scaled = scale_features(Phi, schedule), rows._replace(y=scale_targets(rows.y, schedule))
        predictions = unscale_steps(stream.stage(design, scaled, has_gaps), rows.y, schedule)
        self._staged = stream, scales
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            stream, scales = self._staged
            stream.commit()
            if scales is not None:
                self._moments.mul_(scales)
            self._staged = None

    def _prepare(self, num_rows: int, ages: Tensor | None = None) -> tuple[Schedule, BlockStream, Tensor | None]:
        bound = self._bound
        schedule = make_schedule(bound.transition, num_rows, bound.prior_variance.detach(), ages)
        stream = BlockStream(self._moments, bound.noise, schedule.walk, num_rows, schedule.steps)
        if schedule.mean_scale is None and schedule.covariance_scale is None:
            return schedule, stream, None
        one = bound.noise.new_ones(())
        mean_scale = one if schedule.mean_scale is None else schedule.mean_scale
        covariance_scale = one if schedule.covariance_scale is None else schedule.covariance_scale
        return schedule, stream, moment_scales(self._moments, mean_scale, covariance_scale)


class MultiOutputRunner(Runner):
    """Several outputs: the covariances in use change in place, the memory reserved for others is not touched."""

    def __init__(self, bound: BoundMultiOutput, state: MultiOutputState) -> None:
        self._bound = bound
        self._state = state
        self._staged: tuple[list[GroupGain], Schedule] | MultiOutputState | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        bound = self._bound
        schedule = make_schedule(bound.transition, Phi.shape[-2], bound.prior_variance, rows.ages)
        gains, predictions = condition_multi_output(self._state, Phi, rows.y, bound.observation, schedule)
        same = [gain.source for gain in gains] == list(range(num_groups(self._state)))
        self._staged = (gains, schedule) if same else apply_gains(self._state, gains, schedule)
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if isinstance(self._staged, MultiOutputState):
            for old, new in zip(self._state, self._staged, strict=True):
                old.copy_(new)
        elif self._staged is not None:
            apply_gains_(self._state, *self._staged)
        self._staged = None


class WindowRunner(Runner):
    """Rows appended and dropped in place; a block in which hyperparameters are refitted runs on a copy."""

    def __init__(self, bound: BoundWindow, state: WindowState) -> None:
        self._bound = bound
        self._state = state
        self._staged: tuple[WindowChange | WindowState, int] | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        self._staged = None
        staged, predictions = self._bound.stage(self._state, Phi, rows)
        self._staged = staged, Phi.shape[-2]
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            self._bound.commit(self._state, *self._staged)
            self._staged = None


class ExternalRunner(Runner):
    """Rows of an external model, written in place."""

    def __init__(self, bound: BoundExternal, state: ExternalState) -> None:
        self._bound = bound
        self._state = state
        self._staged: ExternalRows | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        self._staged, predictions = self._bound.condition(self._state, Phi, rows)
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            append_external_(self._state, self._staged)
        self._staged = None


class RefittedRunner(Runner):
    """In place, except for blocks with a refit, which run on a copy."""

    def __init__(self, bound: BoundRefitted, state: RefittedState) -> None:
        self._bound = bound
        self._state = state
        self._due = -1
        self._prepared: dict[int, BlockStream] = {}
        self._staged: tuple[BlockStream, RefittedBlock] | RefittedState | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its rows (\*batch, B, D + 1); the state is not touched."""
        self._staged, num_rows = None, Phi.shape[-2]
        if rows_until_refit(self._state) <= num_rows:
            self._staged, predictions = self._bound.update_block(self._state, Phi, rows)
            return predictions
        block = self._bound.block(self._state, Phi, rows)
        stream = self._stream(num_rows) if block.ages is None else self._bound.stream(self._state, num_rows, block.ages)
        steps = stream.stage(block.design, block.rows, has_gaps)
        self._staged = stream, block
        return widened(StepPredictions(*(value.to(rows.y.dtype) for value in steps)), rows)

    def _stream(self, num_rows: int) -> BlockStream:
        due = int(self._state.due)
        if due != self._due or len(self._prepared) > 3:  # another model, or too many block lengths
            self._prepared.clear()
            self._due = due
        if num_rows not in self._prepared:
            self._prepared[num_rows] = self._bound.stream(self._state, num_rows)
        return self._prepared[num_rows]

    def commit(self) -> None:
        """Learn the staged block."""
        if isinstance(self._staged, RefittedState):
            for old, new in zip(self._state, self._staged, strict=True):
                old.copy_(new)
        elif self._staged is not None:
            stream, block = self._staged
            stream.commit()
            store_(self._state, block)
        self._staged = None


class PureRunner(Runner):
    """Any expert: the pure update, copied into the old state's memory."""

    def __init__(self, bound: BoundExpert, state: FilterState) -> None:
        self._bound = bound
        self._state = state
        self._staged: FilterState | None = None

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        self._staged, predictions = self._bound.update_block(self._state, Phi, rows)
        return predictions

    def commit(self) -> None:
        """Learn the staged block."""
        if self._staged is not None:
            for old, new in zip(self._state, self._staged, strict=True):
                old.copy_(new)
            self._staged = None


class SilentRunner(Runner):
    """An expert object of which no expert is run: it predicts NaN and learns nothing."""

    def __init__(self, bound: BoundExpert, state: FilterState) -> None:
        self._bound = bound
        self._state = state
        self._num_experts = bound.prior_variance.numel()

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predictions (M, B) that are NaN, with log density minus infinity, for features (\*batch, B, F)."""
        example = self._bound.predict(self._state, Phi[..., :1, :])
        axis = example.log_prob.ndim - 1
        size = self._num_experts, Phi.shape[-2]
        shapes = {name: (*size, *value.shape[axis + 1 :]) for name, value in example._asdict().items()}
        fields = {name: example.log_prob.new_full(shape, torch.nan) for name, shape in shapes.items()}
        return type(example)(**{**fields, "log_prob": impossible(rows.y, self._num_experts)})

    def commit(self) -> None:
        """Learn nothing."""


def impossible(y: Tensor, num_experts: int) -> Tensor:
    """Log densities of minus infinity, (M, B); NaN where there is no target."""
    row = y.new_full(y.shape[:1], -torch.inf).masked_fill(missing_rows(y), torch.nan)
    return row.repeat(num_experts, 1)
