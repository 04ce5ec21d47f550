"""Linear experts whose hyperparameters and lags are refitted on a schedule."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert, Plans, StagedRunner, Traits, Upkeep, of_length
from gp_ensembles.experts.empirical_bayes import LBFGS, get_vectors, gradient_ascent, set_vectors_
from gp_ensembles.experts.gaussian import BoundGaussian, GaussianExpert, check_single_output
from gp_ensembles.experts.window import Refit
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters.block import predict_covariance, predict_joint_linear, update_covariance
from gp_ensembles.filters.rows import Rows, as_rows, with_extra_noise
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    Predictions,
    RefittedState,
    StepPredictions,
    concatenate_steps,
    gaussian_state,
    in_dtype,
    overwrite_,
)
from gp_ensembles.filters.stream import BlockStream
from gp_ensembles.filters.transitions import RandomWalk, Transition
from gp_ensembles.filters.window import rows_until_refit
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.lag_selection import carried_forward, find_lags

# ``benchmarks/README.md``: half the search steps lose 0.04 nats on data with large changes, twice as many gain nothing;
# a model conditioned on the last two thousand rows predicts as well as one conditioned on four thousand.
_SEARCH = LBFGS(max_iterations=15, loss_tolerance=1e-5)
_PRECISION = 0.5  # of a prior around the previous hyperparameters
_REMEMBERED = 2  # stored rows, all relearned after a refit, as a multiple of the rows used for fitting
LONGEST_LAG = 200
_LEAST_ROWS = 10
_BLOCK = 64


class InitialFit(NamedTuple):
    """The start of a refitted expert."""

    lags: tuple[int, ...] = ()  # initial lags, one per lagged column; zero for an unused one
    # Initial mean squared norm of the features, which converts speeds to variances of weight steps
    mean_square: Tensor | float = 1.0
    # Unconstrained hyperparameters (P,) from which a second search starts as long as each refit has twice as many
    # rows: the best values for few rows may be far from those for more, and the evidence has several modes.
    # ``None`` for those of the model
    hyperparameters: Tensor | None = None


class RefittedBlock(NamedTuple):
    """A block of rows prepared for a refitted expert."""

    inputs: Tensor  # rows, shape (B, D)
    targets: Tensor  # targets, NaN where missing or downweighted, shape (B,)
    remembered: Tensor  # targets with gaps filled by the last value, shape (B,)
    design: Tensor  # features, shape (*batch, B, F)
    rows: Rows  # all targets in double precision, with their shares
    ages: Tensor | None  # steps to each row, shape (B,); ``None`` for one per row


def _runner(bound: "BoundRefitted", state: RefittedState) -> StagedRunner:
    """In-place runner, except for blocks with a refit, which use a copy."""
    prepared, made_until = dict[int, BlockStream](), -1

    def stream_of(num_rows: int, ages: Tensor | None) -> BlockStream:
        nonlocal made_until
        if ages is not None:
            return bound.stream(state, num_rows, ages)
        if int(state.due) != made_until:  # the model has changed
            prepared.clear()
            made_until = int(state.due)
        return of_length(prepared, num_rows, partial(bound.stream, state))

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        num_rows = Phi.shape[-2]
        if rows_until_refit(state) <= num_rows:
            after, predictions = bound.update_block(state, Phi, rows)
            return predictions, lambda: overwrite_(state, after)
        block = bound.block(state, Phi, rows)
        stream = stream_of(num_rows, block.ages)
        stream.set_block(block.design, block.rows.y, has_gaps)
        steps = stream.condition(block.rows)

        def learn() -> None:
            stream.commit()
            store_(state, block)

        return with_extra_noise(in_dtype(steps, rows.y), rows), learn

    return StagedRunner(run)


def _upkeep(bound: "BoundRefitted", state: RefittedState) -> Sequence[Upkeep]:
    now = state._replace(due=state.num_rows.clone())
    return [Upkeep("refit", rows_until_refit(state), lambda: bound.refitted(now))]


@final
class BoundRefitted(BoundExpert):
    """The view of a refitted expert for loops; hyperparameters are part of the state."""

    plans = Plans(_runner, upkeep=_upkeep)

    def __init__(self, expert: "RefittedExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self._expert = expert
        with torch.inference_mode(False):
            self._copy = copy.deepcopy(expert.model).double()
        self._latest: tuple[Tensor, BoundGaussian] | None = None  # hyperparameters (P,) and the model with these

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[RefittedState, StepPredictions]:
        assert isinstance(state, RefittedState)
        given, parts, start, num_rows = as_rows(y), [], 0, Phi.shape[-2]
        while start < num_rows:
            stop = min(num_rows, start + rows_until_refit(state))
            block = self.block(state, Phi[..., start:stop, :], given.part(slice(start, stop)))
            before, model = GaussianState(state.moments), self._model(state)
            after, steps = update_covariance(
                before, block.design, block.rows, model.noise, state.walks[..., None], block.ages
            )
            state = self._stored(state._replace(moments=after.moments), block)
            if rows_until_refit(state) == 0:
                state = self.refitted(state)
            parts.append(in_dtype(steps, given.y))
            start = stop
        return state, with_extra_noise(concatenate_steps(parts), given)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, RefittedState)
        model, design = self._model(state), self._next_design(state, Phi)
        walk = state.walks[..., None] * (1.0 if steps is None else steps.double())
        mean, variance = predict_covariance(GaussianState(state.moments), design, model.noise, walk)
        return in_dtype(StepPredictions(mean, variance, torch.full_like(mean, torch.nan)), Phi)

    def joint_covariance(self, state: FilterState, Phi: Tensor) -> Tensor:
        r"""Joint covariance (\*batch, N, N) of targets of rows (\*batch, N, D + 1), all one step ahead."""
        assert isinstance(state, RefittedState)
        model, walk = self._model(state), RandomWalk(state.walks[..., None])
        design, moments = self._next_design(state, Phi), GaussianState(state.moments)
        return predict_joint_linear(moments, design, model.noise, walk, model.prior_variance)[1].to(Phi.dtype)

    def linear(self, state: RefittedState) -> tuple[Tensor, Tensor, RandomWalk]:
        r"""Noise variances and prior variances, (\*batch) each, and the walks of the current linear model."""
        model = self._model(state)
        return model.noise, model.prior_variance, RandomWalk(state.walks[..., None])

    def remembered(self, state: RefittedState) -> Tensor:
        """The last targets, gaps filled, shape (200,), the newest last."""
        back = torch.arange(LONGEST_LAG, 0, -1, device=state.due.device)
        return state.remembered[(state.num_rows - back) % state.targets.shape[0]]

    def features_at(self, state: RefittedState, Phi: Tensor, past: Tensor) -> Tensor:
        r"""Features of rows (\*batch, N, D + 1) with these past targets (200, N), each (\*batch, N, F)."""
        lagged = torch.where(state.lags[:, None] > 0, past[-state.lags], 0.0).mT
        return self._design(state, torch.cat([self._own(_rows(Phi)), lagged], dim=-1))

    def take(self, index: Tensor) -> "BoundRefitted":
        return self._expert.take(index).bind()

    def block(self, state: RefittedState, Phi: Tensor, given: Rows) -> RefittedBlock:
        r"""A block of rows (\*batch, B, D + 1) with the features of the current model."""
        rows, y = _rows(Phi), given.y
        counted = y.double() if given.share is None else torch.where(given.share < 1, torch.nan, y.double())
        number, capacity = state.num_rows, state.targets.shape[0]
        before = state.remembered[(number - 1) % capacity].reshape(1)
        remembered = carried_forward(torch.cat([before, counted]))[1:]
        back = torch.arange(LONGEST_LAG, 0, -1, device=y.device)
        known = torch.cat([state.remembered[(number - back) % capacity], remembered])
        design = self._design(state, torch.cat([self._own(rows), _lagged(known, state.lags, y.shape[0])], dim=-1))
        ages = None if given.steps is None else given.steps.double().cumsum(0)
        return RefittedBlock(self._own(rows), counted, remembered, design, Rows(y.double(), given.share), ages)

    def stream(self, state: RefittedState, num_rows: int, ages: Tensor | None = None) -> BlockStream:
        """The in-place filter, on the state's own memory, until the next refit."""
        return BlockStream(state.moments, self._model(state).noise, state.walks[..., None], num_rows, ages)

    def _model(self, state: RefittedState) -> BoundGaussian:
        """The model at a state's hyperparameters, for each expert; the latest one is cached."""
        given = state.hyperparameters
        if self._latest is None or not torch.equal(self._latest[0], given):
            with torch.no_grad():
                set_vectors_(self._copy, given.unsqueeze(0))
                bound = self._copy.bind()
            prior_variance, noise = (
                value.reshape(1).expand(self._expert.batch_shape) for value in (bound.prior_variance, bound.noise)
            )
            self._latest = given.clone(), BoundGaussian(bound.features, prior_variance, None, noise)
        return self._latest[1]

    def _own(self, rows: Tensor) -> Tensor:
        """The model's input columns."""
        return rows[:, : self._expert.num_columns]

    def _design(self, state: RefittedState, columns: Tensor) -> Tensor:
        features = self._model(state).features(columns)
        return features.reshape(columns.shape[0], -1).expand(*self._expert.batch_shape, -1, -1)

    def _next_design(self, state: RefittedState, Phi: Tensor) -> Tensor:
        rows = _rows(Phi)
        past = state.remembered[(state.num_rows - state.lags) % state.targets.shape[0]]
        past = torch.where(state.lags > 0, past, 0.0).expand(rows.shape[0], -1)
        return self._design(state, torch.cat([self._own(rows), past], dim=-1))

    def _stored(self, state: RefittedState, block: RefittedBlock) -> RefittedState:
        """The state with a block stored."""
        state = RefittedState(*(field.clone() for field in state))
        store_(state, block)
        return state

    @torch.no_grad()
    def refitted(self, state: RefittedState) -> RefittedState:
        """The model refitted and conditioned on all stored rows; unchanged after a numerical failure."""
        state = state._replace(due=state.due + state.due.clamp(max=self._expert.refit.every))
        capacity, count = state.targets.shape[0], int(state.num_rows)
        used = min(count, capacity)
        order = (count - used + torch.arange(used, device=state.due.device)) % capacity
        targets, remembered = state.targets[order], state.remembered[order]
        # Rows whose lagged targets are no longer stored are left out; before the first row they are zero.
        first = LONGEST_LAG if count > capacity else 0
        seen = (~torch.isnan(targets[first:])).nonzero().flatten()[-self._expert.refit.num_rows :]
        if len(seen) < _LEAST_ROWS:
            return state
        changed = state._replace(lags=_updated_lags(state.lags, remembered))
        columns = torch.cat([state.inputs[order], lagged_columns(remembered, changed.lags)], dim=-1)[first:]
        targets = targets[first:]
        try:
            return self._learned(
                changed._replace(hyperparameters=self._fitted(changed, columns[seen], targets[seen])), columns, targets
            )
        except NumericalError:
            return state

    def _fitted(self, state: RefittedState, columns: Tensor, targets: Tensor) -> Tensor:
        """Hyperparameters (P,) with at least the evidence of the state's for these rows."""
        model, num_rows, starts = self._copy, targets.shape[0], [state.hyperparameters]
        self._latest = None
        if int(state.num_rows) < self._expert.refit.every:
            starts.append(self._expert.start)

        def evidence() -> Tensor:
            return model.log_evidence(columns, targets)

        found, values = [], []
        for start in starts:
            set_vectors_(model, start.unsqueeze(0))
            found.append(gradient_ascent(model, evidence, _SEARCH, _PRECISION, num_rows))
            set_vectors_(model, found[-1])
            values.append(float(evidence()))
        return found[-1 if values[-1] > values[0] else 0][0]

    def _learned(self, state: RefittedState, columns: Tensor, targets: Tensor) -> RefittedState:
        """The state's model conditioned on these rows only."""
        model, design = self._model(state), self._design(state, columns)
        walks = self._expert.speeds / design[0].square().sum(-1).mean()
        moments = gaussian_state(model.prior_variance, design.shape[-1])
        for Phi, y in zip(design.split(_BLOCK, -2), targets.split(_BLOCK), strict=True):
            moments, _ = update_covariance(moments, Phi, y, model.noise, walks[..., None])
        return state._replace(moments=moments.moments, walks=walks)


@final
class RefittedExpert(Expert):
    """A linear model in features of inputs and past targets, refitted to its stored rows at intervals.

    Args:
        model: A single expert without a transition, on D inputs followed by L lagged targets, valid everywhere.
        num_inputs: Number of input columns; the model uses the first D.
        initial_fit: Its initial lags, and the starting point of a second search.
        speeds: Variance that a step of the random walk adds to the function, per expert of the batch, shape (K,);
            zero for static weights.
        refit: Schedule of refits and number of rows; twice as many are stored.

    Raises:
        ValueError: If the model is a batch, has a transition, is not valid everywhere, or lags are invalid.
    """

    traits = Traits(shares_state=True, runs_apart=False)
    model: GaussianExpert
    refit: Refit
    lags: tuple[int, ...]
    speeds: Tensor
    mean_square: Tensor
    start: Tensor

    def __init__(
        self, model: GaussianExpert, num_inputs: int, initial_fit: InitialFit, speeds: Tensor, refit: Refit
    ) -> None:
        lags = initial_fit.lags
        if model.num_experts != 1 or model.transition is not None:
            raise ValueError(
                f"a refitted expert needs a single model without a transition, got {model.num_experts} and "
                f"{model.transition}; speeds define the batch"
            )
        if model.features.domain is not None:
            raise ValueError(
                "the model's features are valid only in a box, which a stream may leave; use features valid everywhere"
            )
        if speeds.ndim != 1 or not bool((speeds >= 0).all()):
            raise ValueError(f"speeds must be non-negative numbers, shape (K,), got {speeds}")
        if any(not 0 <= lag <= LONGEST_LAG for lag in lags) or len(lags) >= model.features.num_inputs:
            raise ValueError(
                f"lags must be at least 0 and at most {LONGEST_LAG}, and fewer than the model's "
                f"{model.features.num_inputs} columns, got {list(lags)}"
            )
        self_columns = model.features.num_inputs - len(lags)
        if num_inputs < self_columns:
            raise ValueError(f"the model takes {self_columns} inputs, but there are only {num_inputs}")
        like = model.features.prior_variance.detach()
        super().__init__(InputFeatures(num_inputs, like.new_ones(speeds.shape)), None)
        self.model, self.refit, self.lags = model, refit, tuple(int(lag) for lag in lags)
        self.num_columns = self_columns
        self.register_buffer("speeds", speeds.to(like.device).double())
        self.register_buffer("mean_square", torch.as_tensor(initial_fit.mean_square).to(like.device).double())
        start = get_vectors(model)[0] if initial_fit.hyperparameters is None else initial_fit.hyperparameters
        self.register_buffer("start", start.detach().to(like.device).double())

    def init(self) -> RefittedState:
        bound, (speeds, refit) = self.model.bind(), (self.speeds, self.refit)
        prior_variance = bound.prior_variance.detach().double().reshape(1).expand(self.batch_shape)
        capacity = max(_REMEMBERED * refit.num_rows, 2 * LONGEST_LAG)
        count = torch.zeros((), dtype=torch.int64, device=speeds.device)
        return RefittedState(
            gaussian_state(prior_variance, self.model.features.num_features).moments,
            get_vectors(self.model)[0].double(),
            speeds / self.mean_square,
            torch.tensor(self.lags, dtype=torch.int64, device=speeds.device),
            speeds.new_zeros(capacity, self.num_columns),
            speeds.new_full((capacity,), torch.nan),
            speeds.new_zeros(capacity),
            count,
            count + (refit.every if refit.first is None else refit.first),
        )

    def bind(self) -> BoundRefitted:
        """See :meth:`Expert.bind`; hyperparameters are in the state, so predictions are not differentiable in them."""
        return BoundRefitted(self)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """For consecutive rows from the first on, with static weights; see :meth:`Expert.log_evidence`."""
        lags = torch.tensor(self.lags, dtype=torch.int64, device=y.device)
        columns = torch.cat([X[:, : self.num_columns], lagged_columns(y, lags)], dim=-1)
        return self.model.log_evidence(columns, y).reshape(1).expand(self.batch_shape)

    def take(self, index: Tensor) -> "RefittedExpert":
        speeds = self.speeds[index.to(self.speeds.device)]
        return RefittedExpert(
            copy.deepcopy(self.model), self.features.num_inputs, self._initial_fit(), speeds, self.refit
        )

    def with_transition(self, transition: Transition | None) -> "RefittedExpert":
        """An expert that shares its model with this one."""
        if transition is not None:
            raise ValueError("a refitted expert takes no transition; its random walks are set by speeds")
        return RefittedExpert(self.model, self.features.num_inputs, self._initial_fit(), self.speeds, self.refit)

    def _initial_fit(self) -> InitialFit:
        return InitialFit(self.lags, self.mean_square, self.start)


def store_(state: RefittedState, block: RefittedBlock) -> None:
    """Store a block, in place."""
    capacity, num_rows = state.targets.shape[0], block.targets.shape[0]
    last = min(num_rows, capacity)
    place = (state.num_rows + torch.arange(num_rows - last, num_rows, device=state.num_rows.device)) % capacity
    state.inputs[place] = block.inputs[-last:]
    state.targets[place] = block.targets[-last:]
    state.remembered[place] = block.remembered[-last:]
    state.num_rows.add_(num_rows)


def lags_of(y: Tensor, room: int) -> tuple[int, ...]:
    """At most ``room`` lags that help to predict targets (N,), see :func:`find_lags`."""
    most = max(1, room - 1)  # any lag is accompanied by the lag of one row
    return find_lags(y, most, LONGEST_LAG)[:room]


def lagged_columns(y: Tensor, lags: Tensor) -> Tensor:
    """Lagged columns (N, L) of targets (N,) without gaps; zero before the first row and for lag 0."""
    return _lagged(torch.cat([y.new_zeros(LONGEST_LAG), y]), lags, y.shape[0])


def _rows(Phi: Tensor) -> Tensor:
    r"""Inputs (B, D); all experts of the batch see the same rows (\*batch, B, D + 1)."""
    return Phi[0, :, :-1].double()


def _lagged(known: Tensor, lags: Tensor, num_rows: int) -> Tensor:
    """Lagged columns (B, L) for the last B of the known values; zero for lag 0."""
    place = known.shape[0] - num_rows + torch.arange(num_rows, device=known.device).unsqueeze(-1) - lags
    return torch.where(lags > 0, known[place], 0.0)


def _updated_lags(lags: Tensor, remembered: Tensor) -> Tensor:
    """The lags that help now, (L,), with retained ones in their positions; zero for an unused one."""
    room = lags.numel()
    if room == 0:
        return lags
    found = lags_of(remembered, room)
    old = lags.tolist()
    new = iter([lag for lag in found if lag not in old])
    kept = [lag if lag in found else 0 for lag in old]
    return torch.tensor([lag or next(new, 0) for lag in kept], dtype=torch.int64, device=lags.device)
