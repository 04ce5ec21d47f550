"""Runners of experts that are not run, or of which only some are."""

from collections.abc import Mapping

import torch
from torch import Tensor

from gp_ensembles.engine.input_checks import missing_rows
from gp_ensembles.experts.base import BoundExpert, Runner
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import FilterState, Predictions


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


class CompactRunner(Runner):
    """Runs only the living experts of a batch, on a copy of their states until :meth:`scatter`."""

    def __init__(self, bound: BoundExpert, state: FilterState, alive: Tensor) -> None:
        batch_shape = bound.prior_variance.shape
        num_axes = len(batch_shape)
        self._num_experts = batch_shape.numel()
        self._full = tuple(field.view(self._num_experts, *field.shape[num_axes:]) for field in state)
        self._alive = alive
        self._bound, self._state = bound, state
        self._parts = type(state)(*(field[alive] for field in self._full))
        self._runner: Runner | None = None
        if alive.numel():
            self._runner = bound.take(alive).runner(self._parts)

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        r"""Predict a block from its features (\*batch, B, F); the state is not touched."""
        if self._runner is None:
            return SilentRunner(self._bound, self._state).stage(Phi, rows, has_gaps)
        living = self._runner.stage(Phi.reshape(self._num_experts, *Phi.shape[-2:])[self._alive], rows, has_gaps)
        parts = living._asdict()
        full = {name: self._scattered(value, torch.nan) for name, value in parts.items()}
        full["log_prob"] = impossible(rows.y, self._num_experts).index_copy(0, self._alive, living.log_prob)
        return type(living)(**full)

    def commit(self) -> None:
        """Learn the staged block."""
        if self._runner is not None:
            self._runner.commit()

    def scatter(self) -> None:
        """Write the living experts' states back."""
        for full, part in zip(self._full, self._parts, strict=True):
            full[self._alive] = part

    def _scattered(self, living: Tensor, rest: float) -> Tensor:
        full = living.new_full((self._num_experts, *living.shape[1:]), rest)
        full[self._alive] = living
        return full


def impossible(y: Tensor, num_experts: int) -> Tensor:
    """Log densities of minus infinity, (M, B); NaN where there is no target."""
    row = y.new_full(y.shape[:1], -torch.inf).masked_fill(missing_rows(y), torch.nan)
    return row.repeat(num_experts, 1)


def scatter(runners: Mapping[int, Runner]) -> None:
    """Write states back of which runners have copies."""
    for runner in runners.values():
        if isinstance(runner, CompactRunner):
            runner.scatter()
