"""External models as experts: trained on stored rows on a schedule, weighted like any other expert."""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.experts.adapters import (
    FAILED_PREDICTION,
    FAILED_TRAINING,
    ILLEGAL_DEVIATION,
    ILLEGAL_MEAN,
    SILENT,
    UNTRAINED,
    WRONG_LENGTH,
    ModelAdapter,
    TrainingRows,
    encoded,
    error_size,
)
from gp_ensembles.experts.base import BoundExpert, Expert, Plans, StagedRunner, Traits, Upkeep
from gp_ensembles.experts.external_row import LARGEST, Complete, ExternalRow, Trained, completed
from gp_ensembles.experts.gaussian import check_single_output
from gp_ensembles.experts.linear_rows import passed_columns
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.rows import Rows, as_rows, with_extra_noise
from gp_ensembles.filters.states import ExternalState, FilterState, LatentPredictions, Predictions, StepPredictions
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.likelihoods.predictive import Predictive, ProbitApproximation, num_classes
from gp_ensembles.likelihoods.response import check_support, latent_dim
from gp_ensembles.numerics.gpytorch_types import Likelihood

_KEPT = 3  # trained models: a block with outliers is predicted more than once
_LEAST_ROWS = 10  # minimum for training
_LEAST_SHARE = 0.5  # rows with a smaller share are not trained on: few models support weights, some slowly
_CERTAIN = 1e-6  # deviation of log probabilities


class ExternalRows(NamedTuple):
    """Changes to a state by a block: b observed rows in the stored form, counts, and messages."""

    stored: tuple[Tensor, ...]  # inputs (b, D), targets, shares and errors, (b,) each
    # Rows seen and stored, when the next training is due, the rows and digest of the last one, and why a row last
    # had no prediction
    counts: tuple[int, ...]
    words: str | None  # the corresponding message; ``None`` if every row of the block has a prediction


class _Answers(NamedTuple):
    """Predictions of N rows: means and variances (N,), NaN where absent, and the latest reason.

    For C unordered classes these are latent values (N, C).
    """

    mean: Tensor
    variance: Tensor
    reason: int = 0
    words: str = ""


@final
class TrainedModels:
    """Cache of the last trained models by the digest of their rows; shared by copies, not saved to files."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, Trained] = OrderedDict()

    def get(self, digest: int, train: Callable[[], Trained]) -> Trained:
        """The model for a digest, trained if not cached."""
        if digest not in self._kept:
            self._kept[digest] = train()
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(digest)
        return self._kept[digest]

    def __contains__(self, digest: int) -> bool:
        return digest in self._kept

    def __deepcopy__(self, memo: object) -> "TrainedModels":
        other = TrainedModels()
        other._kept = self._kept.copy()
        return other

    def __reduce__(self) -> tuple[type["TrainedModels"], tuple[()]]:
        return TrainedModels, ()


def _runner(bound: "BoundExternal", state: ExternalState) -> StagedRunner:
    """Runner of an external model that writes rows in place."""

    def run(Phi: Tensor, rows: Rows, has_gaps: bool) -> tuple[Predictions, Callable[[], object]]:
        staged, predictions = bound.condition(state, Phi, rows)
        return predictions, lambda: append_(state, staged)

    return StagedRunner(run)


def _row(bound: "BoundExternal", state: ExternalState, features: FeatureMap) -> ExternalRow | None:
    columns = passed_columns(features)
    if columns is None or bound.columns:
        return None
    return ExternalRow(lambda digest: bound.forecast(state, digest, None), state, columns)


def _upkeep(bound: "BoundExternal", state: ExternalState) -> Sequence[Upkeep]:
    # Training happens on first use, in the row after the one in which it was due.
    rows = 1 if bound.is_pending(state) else int(state.due) - int(state.num_seen) + 1
    return [Upkeep("training", rows, lambda: bound.trained(state))]


@final
class BoundExternal(BoundExpert):
    """The view of an external expert for loops."""

    plans = Plans(_runner, _row, upkeep=_upkeep)
    predictive: Predictive = ProbitApproximation()

    def __init__(self, expert: "ExternalExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self.columns: tuple[int, ...] = expert.columns
        self.likelihood = expert.likelihood
        self._expert = expert

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[ExternalState, Predictions]:
        assert isinstance(state, ExternalState)
        rows, steps = self.condition(state, Phi, y)
        after = ExternalState(*(field.clone() for field in state))
        append_(after, rows)
        return after, steps

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> Predictions:
        assert isinstance(state, ExternalState)
        X = self._rows(Phi)
        predicted = self._ask(state, int(state.digest), None, X)
        return self._steps(predicted.mean, predicted.variance, X.new_full(X.shape[:1], torch.nan), Phi)

    def condition(self, state: ExternalState, Phi: Tensor, y: Tensor | Rows) -> tuple[ExternalRows, Predictions]:
        """Predict a block, and compute what :func:`append_` writes to the state; trains models when due."""
        X, given = self._rows(Phi), as_rows(y)
        targets = given.y.detach().double().cpu()
        shares = torch.ones_like(targets) if given.share is None else given.share.detach().double().cpu()
        seen = ~torch.isnan(targets)
        num_seen, stored, due, trained_at, digest, reason = (int(count) for count in state[4:-1])
        words: str | None = None
        parts, errors, rows, start = [], targets.new_full(targets.shape, torch.nan), None, 0
        while start < X.shape[0]:
            stop = min(start + due - num_seen, X.shape[0])
            predicted = self._ask(state, digest, rows, X[start:stop])
            parts.append(predicted)
            if predicted.reason:
                reason, words = predicted.reason, predicted.words
            if self.likelihood is None:
                errors[start:stop] = targets[start:stop] - predicted.mean
            num_seen, start = num_seen + stop - start, stop
            if num_seen == due:
                due += min(due, self._expert.every)
                now = seen[:stop]
                new = tuple(part[:stop][now] for part in (X, targets, shares, errors))
                found = self._history(state, stored, new)
                if found.targets.shape[0] >= _LEAST_ROWS:
                    rows, trained_at, digest = found, stored + int(now.sum()), _digest(found)
        mean, variance = (torch.cat(part) for part in ([p.mean for p in parts], [p.variance for p in parts]))
        steps = self._steps(mean, variance, targets, Phi)
        counts = num_seen, stored + int(seen.sum()), due, trained_at, digest, reason
        observed = tuple(part[seen] for part in (X, targets, shares, errors))
        noisy = steps if isinstance(steps, LatentPredictions) else with_extra_noise(steps, given)
        return ExternalRows(observed, counts, words), noisy

    def is_pending(self, state: ExternalState) -> bool:
        """Whether the next row starts with a training."""
        return bool(int(state.digest)) and int(state.digest) not in self._expert.models

    def trained(self, state: ExternalState) -> ExternalState:
        """The state after training now instead of at the next scheduled time."""
        after = ExternalState(*(field.clone() for field in state))
        if not self.is_pending(state):
            after.due.copy_(state.num_seen + state.num_seen.clamp(1, self._expert.every))
            stored, nothing = int(state.num_stored), tuple(field[:0].double().cpu() for field in state[:4])
            rows = self._history(state, stored, nothing)
            if rows.targets.shape[0] >= _LEAST_ROWS:
                after.trained_at.fill_(stored)
                after.digest.fill_(_digest(rows))
        self.forecast(after, int(after.digest), None)
        return after

    def take(self, index: Tensor) -> "BoundExternal":
        return self._expert.take(index).bind()

    def _rows(self, Phi: Tensor) -> Tensor:
        """Inputs (N, D) rounded to single precision, as doubles on the CPU."""
        Phi = Phi.reshape(-1, *Phi.shape[-2:])[0].detach().double().cpu()
        return Phi[:, :-1].float().double()

    def _ask(self, state: ExternalState, digest: int, rows: TrainingRows | None, X: Tensor) -> _Answers:
        """Predictions at X (N, D) by the model for a digest, trained on ``rows`` or on stored rows."""
        forecast = self.forecast(state, digest, rows)
        shape = (len(X), *self._expert.shape)
        if forecast is not None and not isinstance(forecast, str):
            return _answers(forecast, X, shape)
        nothing = X.new_full(shape, torch.nan)
        return _Answers(nothing, nothing, FAILED_TRAINING if forecast else UNTRAINED, forecast or "")

    def forecast(self, state: ExternalState, digest: int, rows: TrainingRows | None) -> Trained | None:
        """The model for a digest, trained if needed; ``None`` before the first training."""
        if not digest:
            initial = self._expert.adapter.initial
            return None if initial is None else completed(initial, 1.0)

        def train() -> Trained:
            known = self._stored(state) if rows is None else rows
            return _trained(self._expert.adapter, known, self.likelihood)

        return self._expert.models.get(digest, train)

    def _stored(self, state: ExternalState) -> TrainingRows:
        """The rows of the last training."""
        stop = int(state.trained_at)
        empty = tuple(field[:0].cpu().double() for field in state[:4])
        return self._history(state, stop, empty)

    def _history(self, state: ExternalState, stop: int, new: tuple[Tensor, ...]) -> TrainingRows:
        """The last rows without outliers: those stored before row ``stop``, followed by new ones."""
        rows = _history(state, stop, new, self._expert.num_rows)
        return rows if self.likelihood is None else rows._replace(num_labels=num_classes(self.likelihood))

    def _steps(
        self, mean: Tensor, variance: Tensor, targets: Tensor, Phi: Tensor
    ) -> StepPredictions | LatentPredictions:
        if self.likelihood is not None:
            latent = mean, torch.diag_embed(variance) if mean.ndim > 1 else variance
            found = *self.predictive.assess(self.likelihood, *latent, targets), *latent
            batch = self._expert.batch_shape
            return LatentPredictions(*(part.to(Phi).expand(*batch, *part.shape) for part in found))
        log_prob = -0.5 * ((targets - mean).square() / variance + (2 * math.pi * variance).log())
        shape = (*self._expert.batch_shape, mean.shape[0])
        return StepPredictions(*(part.to(Phi).expand(shape) for part in (mean, variance, log_prob)))


@final
class ExternalExpert(Expert):
    """An external model that is retrained on the last rows from time to time, and predicts every row in between.

    Args:
        adapter: The external model.
        features: :class:`~gp_ensembles.features.linear.InputFeatures` of all columns or a subset. Experts of a
            batch are identical.
        first: Number of rows before the first training, including rows without a target.
        every: Number of rows between later trainings.
        num_rows: Maximum number of observed rows used for training, the last ones.
        columns: Columns of its inputs in the rows of an ensemble, if they are forecasts, which may be NaN and which
            other experts do not see; empty if it has the same inputs as the others.
        likelihood: Likelihood of two classes, or of several unordered ones; ``None`` for real targets. The
            model's log probabilities are then latent values without uncertainty.

    Raises:
        ValueError: If a number is not positive, the numbers of columns and inputs differ, or the adapter is for numbers
            and targets are classes, or vice versa.
    """

    traits = Traits(may_be_absent=True, runs_apart=False, stores_rows=True)
    adapter: ModelAdapter
    columns: tuple[int, ...]
    first: int
    every: int
    num_rows: int

    def __init__(
        self,
        adapter: ModelAdapter,
        features: FeatureMap,
        first: int = 125,
        every: int = 1000,
        num_rows: int = 20_000,
        columns: Sequence[int] = (),
        likelihood: Likelihood | None = None,
    ) -> None:
        super().__init__(features, None)
        if adapter.for_classes == (likelihood is None):
            kinds = ("numbers", "classes")
            raise ValueError(
                f"{type(adapter).__name__} predicts {kinds[adapter.for_classes]}, but targets are "
                f"{kinds[likelihood is not None]}; for classes use ClassifierAdapter"
            )
        for name, value in (("first", first), ("every", every), ("num_rows", num_rows)):
            if value < 1:
                raise ValueError(f"{name} must be at least one row, got {value}")
        if columns and len(columns) != features.num_inputs:
            raise ValueError(f"the expert takes {features.num_inputs} inputs, but {len(columns)} columns were given")
        self.adapter, self.columns = adapter, tuple(columns)
        self.first, self.every, self.num_rows = first, every, num_rows
        self.models: TrainedModels = TrainedModels()
        self.likelihood = likelihood
        self.traits = self.traits._replace(is_real=likelihood is None)
        dim = 1 if likelihood is None else latent_dim(likelihood)
        self.shape: tuple[int, ...] = () if dim == 1 else (dim,)  # shape of the prediction of a row

    def init(self) -> ExternalState:
        like = self.features.prior_variance
        room = self.num_rows + self.every  # rows of the last training and since then
        zeros = torch.zeros(room, dtype=torch.float64, device=like.device)
        inputs = zeros.float().unsqueeze(-1).repeat(1, self.features.num_features - 1)
        counts = [torch.full((), n, dtype=torch.int64, device=like.device) for n in (0, 0, self.first, 0, 0, 0)]
        counts.append(encoded("").to(like.device))
        return ExternalState(inputs, zeros, torch.ones_like(zeros), zeros * torch.nan, *counts)

    def bind(self) -> BoundExternal:
        return BoundExternal(self)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)
        if self.likelihood is not None:
            check_support(self.likelihood, y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Sum of one-step-ahead log densities, a constant; see :meth:`Expert.log_evidence`."""
        steps = self.update(self.init(), X, y)[1]
        return steps.log_prob.nansum(-1)

    def take(self, index: Tensor) -> "ExternalExpert":
        features = take_experts(self.features, self.batch_shape, index)
        return self._with(features)

    def with_transition(self, transition: Transition | None) -> "ExternalExpert":
        """An expert that shares features and external model with this one.

        Raises:
            ValueError: If there is a transition: an external model has no time-varying weights.
        """
        if transition is not None:
            raise ValueError("an external model has no time-varying weights; to forget faster, reduce num_rows")
        return self._with(self.features)

    def _with(self, features: FeatureMap) -> "ExternalExpert":
        counts = self.first, self.every, self.num_rows
        return ExternalExpert(self.adapter, features, *counts, self.columns, self.likelihood)


def append_(state: ExternalState, rows: ExternalRows) -> None:
    """Append the rows and counts of a block to a state, in place."""
    capacity = state.targets.shape[0]
    num_stored = rows.counts[1]
    places = torch.arange(num_stored - rows.stored[1].shape[0], num_stored, device=state.targets.device)
    places = places[-capacity:] % capacity
    for field, part in zip(state[:4], rows.stored, strict=True):
        field[places] = part[-capacity:].to(field)
    for count, value in zip(state[4:-1], rows.counts, strict=True):
        count.fill_(value)
    if rows.words is not None:
        state.words.copy_(encoded(rows.words))


def _history(state: ExternalState, stop: int, new: tuple[Tensor, ...], most: int) -> TrainingRows:
    """At most ``most`` last rows without outliers: those stored before row ``stop``, followed by new ones."""
    capacity, kept = state.targets.shape[0], max(most - new[1].shape[0], 0)
    places = torch.arange(max(stop - kept, 0), stop, device=state.targets.device) % capacity
    old = (field[places].double().cpu() for field in state[:4])
    inputs, targets, shares, errors = (torch.cat([one, two[-most:]]) for one, two in zip(old, new, strict=True))
    usual = shares >= _LEAST_SHARE
    return TrainingRows(inputs[usual], targets[usual], errors[usual])


def _answers(forecast: Complete, X: Tensor, shape: tuple[int, ...]) -> _Answers:
    """The valid predictions of a model; if it fails on a block, rows are predicted one by one."""
    reason, words, nothing = 0, "", X.new_full(shape, torch.nan)
    try:
        mean, deviation = forecast(X)
        if mean.shape != nothing.shape or deviation.shape != nothing.shape:
            shapes = f"shapes {tuple(mean.shape)} and {tuple(deviation.shape)}"
            reason, words = WRONG_LENGTH, f"{shapes} for inputs {tuple(X.shape)}"
    except Exception as error:  # external code may raise anything
        reason, words = FAILED_PREDICTION, f"{type(error).__name__}: {error}"
    if reason and X.shape[0] > 1:
        parts = [_answers(forecast, row, (1, *shape[1:])) for row in X.split(1)]
        last = next((part for part in reversed(parts) if part.reason), parts[-1])
        moments = torch.cat([part.mean for part in parts]), torch.cat([part.variance for part in parts])
        return _Answers(*moments, last.reason, last.words)
    if reason:
        return _Answers(nothing, nothing, reason, words)
    variance = deviation.square()
    legal_mean = mean.abs() < LARGEST
    legal = legal_mean & (deviation > 0) & (variance > 1 / LARGEST) & (variance < LARGEST)
    if bool(legal.all()):
        return _Answers(mean, variance)
    place = tuple((~legal).nonzero()[-1].tolist())
    value, spread = float(mean[place]), float(deviation[place])
    legal = legal if legal.ndim == 1 else legal.all(-1, keepdim=True)
    if math.isnan(value) or math.isnan(spread):
        reason = SILENT
    elif not bool(legal_mean[place]):
        reason, words = ILLEGAL_MEAN, f"mean {value:g}"
    else:
        reason, words = ILLEGAL_DEVIATION, f"deviation {spread:g}"
    return _Answers(mean.where(legal, nothing), variance.where(legal, nothing), reason, words)


def _digest(rows: TrainingRows) -> int:
    """A hash of the rows, never zero."""
    digest = hashlib.blake2b(digest_size=8)
    for part in rows[:3]:
        digest.update(part.contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest(), "little", signed=True) or 1


def _trained(adapter: ModelAdapter, rows: TrainingRows, likelihood: Likelihood | None) -> Trained:
    """A forecast that always has a deviation, or the reason why training failed."""
    try:
        forecast = adapter.fit(rows)
    except Exception as error:  # external code may raise anything
        return f"{type(error).__name__}: {error}"
    if likelihood is None:
        return completed(forecast, error_size(rows))
    is_vector = latent_dim(likelihood) > 1
    return completed(lambda X: (forecast(X)[0] if is_vector else forecast(X)[0].diff(dim=-1)[:, 0], None), _CERTAIN)
