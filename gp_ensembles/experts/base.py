"""Abstract base classes of experts: features, a likelihood and a filter."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.filters.rows import RowExpert, Rows
from gp_ensembles.filters.states import FilterState, Predictions, overwrite_
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.likelihoods.predictive import Predictive
from gp_ensembles.numerics.gpytorch_types import Likelihood

Numbers = NDArray[np.float64]
P = TypeVar("P")
_COPIED_BYTES = 64_000_000  # of states of series at once


class Traits(NamedTuple):
    """Traits of a kind of expert that an ensemble needs to know."""

    is_real: bool = True  # whether its targets are real numbers, without a non-Gaussian likelihood
    may_be_absent: bool = False  # whether it may have no prediction for a row, so that NaN is no failure
    # Whether the experts of a batch share part of the state, so that they fail and restart together
    shares_state: bool = False
    runs_apart: bool = True  # whether experts of a batch can run without the others
    stores_rows: bool = False  # whether the state consists of rows, not of weights: long blocks are fastest
    num_outputs: int | None = None  # number of targets of a row, (B, O); ``None`` for one, (B,)


class Runner(ABC):
    """Runs one expert object block by block and updates its state in place."""

    @abstractmethod
    def set_block(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> None:
        r"""Set a block of features (\*batch, B, F); the state is unchanged."""

    @abstractmethod
    def condition(self, rows: Rows) -> Predictions:
        """Predict the block, and predict it again if an outlier is downweighted; the state is unchanged."""

    @abstractmethod
    def commit(self) -> None:
        """Learn the block as last predicted."""

    def stage(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> Predictions:
        """:meth:`set_block` and :meth:`condition`."""
        self.set_block(Phi, rows, has_gaps)
        return self.condition(rows)


def of_length(prepared: dict[int, P], num_rows: int, prepare: Callable[[int], P]) -> P:
    """Cached preparation for blocks of a given length; the cache stays small, as few lengths recur."""
    if num_rows not in prepared:
        if len(prepared) > 3:
            prepared.clear()
        prepared[num_rows] = prepare(num_rows)
    return prepared[num_rows]


class Season(NamedTuple):
    """Design of a structural expert at each row: a level, a trend and a season."""

    design: Numbers  # (1, S)
    num_rows: NDArray[np.int64]  # the state's own memory
    growth: float  # of the linear trend, per row
    waves: Numbers  # of each row of a season, followed by the remaining columns, (season, S - 2)
    slope: "Slope | None"


class Slope(NamedTuple):
    """Random-walk slope: the batch holds the moments of the next row, computed from those of the state."""

    moments: Numbers  # the state's own memory, (S, S + 1)
    ahead: Numbers  # the batch's, (S, S + 1)
    variance: float
    damping: float


class LinearRow(NamedTuple):
    """Linear experts of one object for one row, on plain arrays that share the memory of their state."""

    walk: Numbers  # variances of a step of each weight, shape (E, F); zero for static ones
    noise: Numbers  # noise variances, shape (E,)
    season: Season | None = None  # the features, if they are not those of the inputs


@final
class StagedRunner(Runner):
    """Runner from a function of features, rows and has_gaps that returns predictions and an in-place update."""

    def __init__(self, run: Callable[[Tensor, Rows, bool], tuple[Predictions, Callable[[], object]]]) -> None:
        self._run = run
        self._block: tuple[Tensor, bool] | None = None
        self._learn: Callable[[], object] | None = None

    def set_block(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> None:
        self._block, self._learn = (Phi, has_gaps), None

    def condition(self, rows: Rows) -> Predictions:
        assert self._block is not None
        Phi, has_gaps = self._block
        predictions, self._learn = self._run(Phi, rows, has_gaps)
        return predictions

    def commit(self) -> None:
        if self._learn is not None:
            self._learn()
            self._learn = None


def pure_runner(bound: "BoundExpert", state: FilterState) -> StagedRunner:
    """Runner of any expert: the pure update, copied into the memory of the old state."""

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        after, predictions = bound.update_block(state, Phi, rows)
        return predictions, lambda: overwrite_(state, after)

    return StagedRunner(run)


class Variances(NamedTuple):
    """Variances of S series for the experts of one object."""

    noise: Tensor  # noise variances, shape (S, *batch)
    prior: Tensor  # prior variances of the weights, shape (S, *batch)


class SeriesBatch(ABC):
    """One expert object with the states of T series; updates are staged, and applied only by :meth:`commit`."""

    @abstractmethod
    def most_series(self, num_rows: int) -> int:
        """Maximum number of series staged at once, with this many rows each."""

    @abstractmethod
    def stage(self, places: Tensor, Phi: Tensor, rows: Rows, own: Variances | None) -> Predictions:
        r"""Predict rows (S, B) of series at places (S,), and stage their updates.

        Shapes: ``Phi`` (S, \*batch, B, F); returns predictions (S, \*batch, B).
        """

    @abstractmethod
    def commit(self, keep: Tensor) -> None:
        """Write the staged updates of the series with these indices."""

    @abstractmethod
    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        r"""Predict one row of each series (S,), with repetitions, from features (S, \*batch, 1, F)."""


@final
class CopiedSeries(SeriesBatch):
    r"""Any expert with a fixed-size state: the pure update, on copies of the states.

    Args:
        bound: The bound expert.
        state: Its states, with a leading axis for the series, (T, \*batch, ...); changed in place.
        with_variances: Creates the expert with the variances of each series, if it supports them and a leading axis for
            the series; ``None`` for an expert that runs under ``torch.func.vmap``.
    """

    def __init__(
        self,
        bound: "BoundExpert",
        state: FilterState,
        with_variances: "Callable[[Variances | None], BoundExpert] | None" = None,
    ) -> None:
        self._bound, self._state, self._with_variances = bound, state, with_variances
        self._staged: tuple[Tensor, FilterState] | None = None

    def most_series(self, num_rows: int) -> int:
        size = sum(part[0].numel() * part.element_size() for part in self._state)
        return max(1, _COPIED_BYTES // max(1, size))

    def stage(self, places: Tensor, Phi: Tensor, rows: Rows, own: Variances | None) -> Predictions:
        state = self._at(places)
        if self._with_variances is not None and rows.steps is None:
            axes = [1] * (Phi.ndim - 3)
            each = rows.mapped(lambda part: part.reshape(len(part), *axes, -1))
            each = each._replace(y=each.y.expand(Phi.shape[:-1]))
            after, found = self._with_variances(own).update_block(state, Phi, each)
        else:  # schedules of irregular steps have no axis for the series
            given = {name: part for name, part in rows._asdict().items() if part is not None}
            after, found = torch.func.vmap(self._one)(state, Phi, given, *([] if own is None else [own]))
        self._staged = places, after
        return found

    def _one(
        self, state: FilterState, Phi: Tensor, rows: dict[str, Tensor], own: Variances | None = None
    ) -> tuple[FilterState, Predictions]:
        bound = self._bound if self._with_variances is None else self._with_variances(own)
        return bound.update_block(state, Phi, Rows(**rows))

    def commit(self, keep: Tensor) -> None:
        assert self._staged is not None
        places, after = self._staged
        self._staged = None
        for old, new in zip(self._state, after, strict=True):
            old.index_copy_(0, places[keep], new[keep])

    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        state = self._at(places)
        if self._with_variances is not None:
            return self._with_variances(own).predict(state, Phi)
        steps: Predictions = torch.func.vmap(self._bound.predict)(state, Phi)
        return steps

    def _at(self, places: Tensor) -> FilterState:
        return type(self._state)(*(part.index_select(0, places) for part in self._state))


class FixedUpdate(NamedTuple):
    """Update with fixed shapes and without host synchronization, for recorded blocks."""

    # Predictions and updates of the state, as functions of the previous state, features and targets
    stage: Callable[[FilterState, Tensor, Tensor], tuple[Predictions, list[Tensor]]]
    # Updates the state in place if a flag is set, and keeps NaN out of it
    learn: Callable[[Iterator[Tensor], Tensor], None]


def whole_update(bound: "BoundExpert", state: FilterState) -> FixedUpdate:
    """Full new state, for any expert."""

    def stage(before: FilterState, Phi: Tensor, y: Tensor) -> tuple[Predictions, list[Tensor]]:
        after, steps = bound.update_block(before, Phi, y)
        return steps, list(after)

    def learn(updates: Iterator[Tensor], keep: Tensor) -> None:
        for old in state:
            old.copy_(torch.where(keep, next(updates), old))

    return FixedUpdate(stage, learn)


class Upkeep(NamedTuple):
    """Work of an expert that makes a single row take longer."""

    what: str  # a noun, such as ``refit``
    rows: int  # number of rows with a target until it is due: 1 means within the next one
    do: Callable[[], FilterState]  # returns the state after doing it now; the same state if it is too early


def _none(bound: "BoundExpert", state: FilterState) -> Sequence[Upkeep]:
    return ()


class Plans(NamedTuple):
    """Ways to run a kind of expert in the memory of a state, in addition to the pure update."""

    runner: Callable[[Any, Any], Runner] = pure_runner  # creates a block runner from a bound expert and a state
    # Creates the single-row form on plain arrays, from these and its features; or ``None``
    row: Callable[[Any, Any, FeatureMap], LinearRow | RowExpert | None] | None = None
    # Creates the update of a recorded block, from a bound expert and a state
    fixed: Callable[[Any, Any], FixedUpdate] = whole_update
    series: Callable[[Any, Any], SeriesBatch] = CopiedSeries  # creates the batch for many series
    # Lists upcoming refits, trainings and drops, from a bound expert and a state
    upkeep: Callable[[Any, Any], Sequence[Upkeep]] = _none


class BoundExpert(ABC):
    r"""An expert's hyperparameters as plain tensors, read once, for use in loops.

    Shapes: ``prior_variance`` (\*batch).
    """

    plans: ClassVar[Plans] = Plans()
    columns: tuple[int, ...] = ()  # indices of forecast columns among the inputs, if it sees only these
    # Link from latent values to targets that are not real numbers; ``None`` for real targets
    likelihood: Likelihood | None = None
    predictive: Predictive | None = None

    def __init__(self, features: BoundFeatures, prior_variance: Tensor, transition: Transition | None) -> None:
        self.features = features
        self.prior_variance = prior_variance
        self.transition = transition

    @abstractmethod
    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[FilterState, Predictions]:
        r"""Predict and learn a block of targets from its features.

        Shapes: ``Phi`` (\*batch, B, F), ``y`` (B,) or ``Rows`` with such targets.
        """

    @abstractmethod
    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> Predictions:
        r"""Predict each row (\*batch, N, F) independently, ``steps`` (1,) ahead, as a row with a missing target."""

    def runner(self, state: FilterState) -> Runner:
        """A runner that processes blocks and updates the state in place."""
        return self.plans.runner(self, state)

    @abstractmethod
    def take(self, index: Tensor) -> "BoundExpert":
        r"""A subset of the flattened batch of experts: batch shape (S,) for ``index`` (S,)."""


class Expert(nn.Module, ABC):
    """A model that predicts each target before it learns it; one object may be a batch of experts.

    Args:
        features: Feature map; its ``batch_shape`` is the expert's.
        transition: How the weights change before every row; ``None`` for static weights.

    Raises:
        ValueError: If the transition does not fit the batch shape or the number of features.
    """

    traits: Traits = Traits()
    columns: tuple[int, ...] = ()  # as in the bound expert

    def __init__(self, features: FeatureMap, transition: Transition | None) -> None:
        super().__init__()
        if transition is not None:
            transition.check_shape(features.batch_shape, features.num_features)
            transition = copy.deepcopy(transition).to(features.prior_variance)
        self.features = features
        self.transition = transition

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch of experts in this object."""
        return self.features.batch_shape

    @property
    def num_experts(self) -> int:
        """Number of experts in this object."""
        return self.batch_shape.numel()

    @abstractmethod
    def init(self) -> FilterState:
        """State before any data."""

    @abstractmethod
    def bind(self) -> BoundExpert:
        """Read the hyperparameters once, differentiably."""

    @abstractmethod
    def check_targets(self, y: Tensor) -> None:
        """Raise unless the targets, (B,) or (B, O), are valid; NaN means missing.

        Raises:
            ValueError: With the value and the row.
        """

    @abstractmethod
    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        r"""Log evidence of targets under each expert's static model, differentiable in the hyperparameters.

        Args:
            X: Inputs, shape (N, D).
            y: Targets, shape (N,) or (N, O), all observed.

        Returns:
            In nats, shape (\*batch); NaN for an expert for which it cannot be computed.
        """

    @abstractmethod
    def take(self, index: Tensor) -> "Expert":
        """Independent copies of some experts of a batch, () or (M,): batch shape (S,) for ``index`` (S,)."""

    @abstractmethod
    def with_transition(self, transition: Transition | None) -> "Expert":
        """An expert with another transition that shares features and likelihood with this one."""

    def update(self, state: FilterState, X: Tensor, y: Tensor) -> tuple[FilterState, Predictions]:
        r"""Predict and learn a block of targets.

        Args:
            state: Posterior before the block.
            X: Inputs in time order, shape (B, D).
            y: Targets, shape (B,); NaN where missing.

        Returns:
            The posterior after the block, and the predictions made before each target, (\*batch, B).
        """
        self.features.check_inputs(X)
        self.check_targets(y)
        bound = self.bind()
        return bound.update_block(state, bound.features(X), y)

    def predict(self, state: FilterState, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and variance (noise included) one step ahead at X (N, D), (\*batch, N) each, without learning."""
        self.features.check_inputs(X)
        bound = self.bind()
        predictions = bound.predict(state, bound.features(X))
        return predictions.mean, predictions.variance
