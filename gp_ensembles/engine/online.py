"""Online ensemble: the object that owns a state, learns from rows in place, predicts, saves and loads."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from gp_ensembles.engine.access_lock import AccessLock, guarded, uninterrupted
from gp_ensembles.engine.bound import BoundEnsemble, RowEnsemble
from gp_ensembles.engine.ensemble import Ensemble, predict_mixture
from gp_ensembles.engine.external_counts import next_weights
from gp_ensembles.engine.input_checks import (
    MANY_ROWS,
    check_domain,
    check_states_fit,
    checked_rows,
    most_rows,
    usual_block_size,
)
from gp_ensembles.engine.learning import Learning
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions, concatenate_mixtures
from gp_ensembles.engine.quarantine import QuarantineReport, init_quarantine, quarantine_reports, weights_without
from gp_ensembles.engine.recorded import CannotRecordError, Recording
from gp_ensembles.engine.runners import SharedBases, find_shared_bases, make_contiguous
from gp_ensembles.engine.state import EnsembleState, check_shapes, named_tensors, state_from
from gp_ensembles.engine.state import snapshot as state_snapshot
from gp_ensembles.engine.upkeep import UpkeepReport, coming, maintain_
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import ExternalState, RefittedState, StructuralState, WindowState
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.display import ensemble_html, ensemble_text
from gp_ensembles.numerics.warn_caller import warn_caller

_UNRANKED = (
    "the experts are weighted equally because no row has been observed since the fit: observe rows first, or fit "
    "replace(spec, rank_on_warm_up=True), which weights them by the rows of the fit"
)
_PREDICT_ROWS = 256  # rows predicted at once, so that features of a long table fit in memory


@guarded(writes=["observe", "learn", "maintain"], reads=["predict", "condition_on", "state", "log_weights", "upkeep"])
class OnlineEnsemble(nn.Module):
    """An ensemble and its state: learns from blocks of any length, predicts, saves and loads.

    Learning is not differentiable; for gradients through a stream use :class:`Ensemble` itself. The state
    lives in buffers, so ``state_dict`` holds everything (hyperparameters, features, posteriors, weights) and
    loads, weights only, into a new object that is built the same way. Only one thread may learn at a time.

    Args:
        ensemble: The ensemble.
        state: State to start from; before any data by default. It is copied.
        block_size: Rows learned at once; chosen from the sizes by default. It changes speed only.

    Attributes:
        records: Whether blocks are recorded as CUDA graphs and replayed, where they can be; ``None`` for on a GPU only.
        why_eager: Why they cannot be recorded, once that was tried; ``None`` otherwise.
        is_ranked: Whether weights follow from rows; not after a fit that ends with equal weights, before other rows.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> features = LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
        >>> expert = GaussianExpert(features)
        >>> online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> before = online.observe(X, 3 * X.squeeze(-1))
        >>> after = online.predict(X[-1:])
        >>> bool((after.mean - 3).abs() < 0.3 * (before.mean[0] - 3).abs())
        True
    """

    def __init__(self, ensemble: Ensemble, state: EnsembleState | None = None, block_size: int | None = None) -> None:
        super().__init__()
        self.access: AccessLock = AccessLock()
        if block_size is not None and block_size < 1:
            raise ValueError(f"block_size must be positive, got {block_size}")
        check_made("ensemble", ensemble, Ensemble, "Ensemble([expert], FixedShare())")
        self.ensemble = ensemble
        self.block_size: int = block_size or usual_block_size(ensemble.experts)
        check_states_fit(ensemble.experts, self.block_size, ensemble.experts[0].features.prior_variance)
        start = ensemble.init() if state is None else state
        self.records: bool | None = None
        self.why_eager: str | None = None
        self.is_ranked: bool = True
        self._bound_ensemble: BoundEnsemble | None = None
        self._kinds = tuple(type(part) for part in start.experts)
        if start.quarantine is None:
            start = start._replace(quarantine=init_quarantine(len(ensemble.expert_names), start.meta.num_seen.device))
        for name, value in named_tensors(start):
            self.register_buffer(name, value.detach().clone())
        self._make_contiguous()
        before_loading: Callable[..., object] = self.register_load_state_dict_pre_hook
        before_loading(_before_loading)
        before_saving: Callable[..., object] = self.register_state_dict_pre_hook
        before_saving(OnlineEnsemble._flush)

    @property
    def state(self) -> EnsembleState:
        """The state, by reference: copy it before you keep it."""
        self._flush()
        return state_from(self._kinds, self._buffers, self._buffer)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the M experts."""
        return self.ensemble.names

    @property
    def log_weights(self) -> Tensor:
        """Log weights for the next target, (M,); no weight for experts in quarantine or absent from the last row."""
        layers, state = self.ensemble.layers, self.state
        log_weights = weights_without(layers.rule.log_weights(state.meta), state.quarantine, layers.num_copies)
        if state.external_models is None:
            return log_weights
        return next_weights(log_weights, state.external_models, layers.external_models, layers.num_copies)

    @property
    def failures(self) -> tuple[QuarantineReport, ...]:
        """Experts that have failed, and when those in quarantine return, in rows as the weight rule counts them."""
        quarantine = self.state.quarantine
        assert quarantine is not None
        return quarantine_reports(quarantine, self.ensemble.expert_names)

    @torch.no_grad()
    def observe(
        self, X: Tensor, y: Tensor, *, steps: Tensor | None = None, extra: Tensor | None = None
    ) -> EnsemblePredictions:
        """Predict each target, then learn it; a call that raises or is interrupted leaves the state unchanged.

        An expert that fails at a row, with or without a target, is put into quarantine for a while, see
        :mod:`~gp_ensembles.engine.quarantine` and :attr:`failures`. Ctrl-C while the state is being written takes
        effect once that is done.

        Args:
            X: Inputs in the order of time, shape (N, D).
            y: Targets, shape (N,); NaN where a target was not observed.
            steps: Steps since the row before, at least zero, shape (N,); by default one each. Walks and forgetting
                are in proportion.
            extra: Further noise variance of single real targets, at least zero, shape (N,); by default none.

        Returns:
            Predictions made before each target.

        Raises:
            ValueError: If a shape is wrong, an input is not finite or outside a feature map's domain, or a
                target is infinite.
            TypeError: If a dtype or device is wrong.
            NumericalError: If the last expert that has weight fails: its predictive covariance is not positive
                definite, or its mean or variance overflows; names the expert and the row of this call.
        """
        rows = checked_rows(self.ensemble.wanted(self._buffer("meta_log_weights")), X, y, steps, extra)
        for expert in self._bind().checkers:
            expert.check_targets(y)
        return self.learn(X, rows)

    @torch.no_grad()
    def learn(self, X: Tensor, rows: Rows) -> EnsemblePredictions:
        """:meth:`observe` of rows X (N, D) that were checked: none is refused but one outside a feature map's domain.

        Raises:
            ValueError: If there is such a row, or predictions of all rows do not fit into memory.
            NumericalError: As in :meth:`observe`.
        """
        bound = self._bind()
        bound.flush()
        check_domain(X, bound.bounded, self.ensemble.forecasts)
        num = self.ensemble.num_experts
        if len(X) > MANY_ROWS and len(X) > (most := most_rows(num, bound.like)):
            what = f"the predictions of {num} experts for {len(X)} rows do not fit into memory"
            raise ValueError(f"{what}; pass at most {most} rows per call")
        while True:
            try:
                call = Learning(self.ensemble, self.block_size, self._bind, self._invalidate, self._recording)
                return call.learn(X, rows)
            except CannotRecordError as error:  # nothing was learned: once more by the host
                self.why_eager = str(error)

    def snapshot(self, num_rows: int) -> Callable[[], None]:
        """A function that restores the present state, after at most ``num_rows`` rows were learned."""
        restore = state_snapshot(self.state, num_rows)

        def restore_all() -> None:
            restore()
            self._invalidate()

        return restore_all

    def _recording(self) -> Recording | None:
        """The recorded blocks; ``None`` where blocks are not recorded or an expert is in quarantine."""
        wanted = self.device.type == "cuda" if self.records is None else self.records
        if not wanted or self.why_eager is not None or (bound := self._bind()).out:
            return None
        if bound.recording is None:
            size = min([self.block_size, *bound.limits])
            try:
                bound.recording = Recording(self.ensemble, bound.state, size)
            except CannotRecordError as error:
                self.why_eager = str(error)
        return bound.recording

    @torch.no_grad()
    def predict(self, X: Tensor, *, steps: Tensor | None = None, extra: Tensor | None = None) -> AnyMixture:
        """Predict each row of X (N, D) separately as the next one; learns nothing.

        ``steps`` (N,) lie between the last row and each, one by default, and ``extra`` (N,) is further noise variance.
        Experts whose numbers overflow at a row have no weight there.

        Raises:
            ValueError: As in :meth:`observe`.
            TypeError: As in :meth:`observe`.
            NumericalError: If no expert with weight predicts a row; names the row.
        """
        bound = self._bind()
        bound.flush()
        rows = checked_rows(self.ensemble.wanted(bound.like), X, None, steps, extra)
        check_domain(X, bound.bounded, self.ensemble.forecasts)
        layers, state = self.ensemble.layers, bound.state
        if not self.is_ranked and int(state.meta.num_seen) == 0:
            warn_caller(_UNRANKED)
        parts: list[AnyMixture] = []
        for here in rows.equal_steps(_PREDICT_ROWS):
            part, known = rows.block(here), (layers, bound.experts, bound.responses, state, X[here])
            passed = None if part.steps is None else part.steps[:1]
            parts.append(predict_mixture(*known, passed, part.extra, out=bound.out, first_row=here.start))
        return concatenate_mixtures(parts)

    def condition_on(self, X: Tensor, y: Tensor) -> "OnlineEnsemble":
        """A new ensemble that has also learned these rows, as by :meth:`observe`; this one is unchanged."""
        other = copy.deepcopy(self)
        other.observe(X, y)
        return other

    @property
    def upkeep(self) -> tuple[UpkeepReport, ...]:
        """Refits, trainings and drops that are to come, each of which makes a row take longer, the next ones first."""
        bound = self._bind()
        bound.flush()
        found = coming(bound.experts, bound.state.experts, self.ensemble.expert_names)
        return tuple(sorted((report for report, *_ in found), key=lambda report: report.rows))

    @property
    def num_discounted(self) -> int:
        """Targets from which less was learned because they lay beyond the outlier threshold."""
        return int(self._buffer("outliers")[2]) if "outliers" in self._buffers else 0

    def maintain(self, rows: int = 1000) -> tuple[UpkeepReport, ...]:
        """Do now what would come within so many rows, a number that is at least one.

        Experts learn on from there, refitted, trained and shortened a little earlier than otherwise. :attr:`upkeep` has
        what comes then; for young experts it comes soon.

        Returns:
            What was done.

        Raises:
            ValueError: If the number is another.
        """
        if not isinstance(rows, int) or rows < 1:
            raise ValueError(f"rows must be a whole number of at least one, got {rows!r}")
        bound = self._bind()
        bound.flush()
        with uninterrupted():
            try:
                return maintain_(bound.experts, bound.state.experts, self.ensemble.expert_names, rows)
            finally:
                self._invalidate()

    @property
    def one_row(self) -> RowEnsemble | None:
        """The fast path for single rows, in the memory of the state; ``None`` where only blocks can run.

        In between, read the state only through :attr:`state` or ``state_dict``.
        """
        bound = self._bind()
        return None if bound.out else bound.row

    def _apply(self, fn: Callable[[Tensor], Tensor], *arguments: Any) -> Self:
        """Move as any module does, or raise first; states in double precision stay in it."""
        like = self._buffer("meta_log_weights")
        there = fn(like.new_empty(0))  # tells where to, and in which precision
        if there.device != like.device:
            check_states_fit(self.ensemble.experts, self.block_size, there)
        kept = {
            f"expert_{number}_{field}": self._buffer(f"expert_{number}_{field}")
            for number, kind in enumerate(self._kinds)
            for field in kind._fields
            if kind in (WindowState, ExternalState, StructuralState, RefittedState)
        }
        if "external_models" in self._buffers:
            kept["external_models"] = self._buffer("external_models")
        self._invalidate()  # blocks were recorded where the state was
        self.why_eager = None
        super()._apply(fn, *arguments)  # type: ignore[no-untyped-call]
        for name, value in kept.items():
            moved = self._buffer(name)
            if moved.dtype != value.dtype:
                self._buffers[name] = value.to(moved.device)
        return self

    def _flush(self, *_: object) -> None:
        """Complete the state after single rows, before it is read, saved, copied or replaced."""
        if self._bound_ensemble is not None:
            self._bound_ensemble.flush()

    def _invalidate(self) -> None:
        """Drop what was read from hyperparameters and state."""
        self._flush()
        if self._bound_ensemble is not None:
            self._bound_ensemble.is_dropped = True
        self._bound_ensemble = None

    def _bind(self) -> BoundEnsemble:
        if self._bound_ensemble is None or not self._bound_ensemble.is_fresh():
            self._invalidate()
            shared_bases = self._make_contiguous()  # moved apart when the state goes to another device
            with torch.no_grad():  # covariances round otherwise where gradients are kept
                self._bound_ensemble = BoundEnsemble(self.ensemble, self.state, shared_bases, self._buffers)
        return self._bound_ensemble

    def _make_contiguous(self) -> SharedBases:
        """Make the states of experts that run together contiguous in memory, if they are not."""
        return {
            places: make_contiguous(self._buffers, [f"expert_{place}_moments" for place in places])
            for places in find_shared_bases(self.ensemble.experts, self._kinds)
        }

    @property
    def device(self) -> torch.device:
        """Where the state lives."""
        return self._buffer("meta_log_weights").device

    def _buffer(self, name: str) -> Tensor:
        value = self._buffers[name]
        assert value is not None
        return value

    def __repr__(self) -> str:
        return ensemble_text(*self._described())

    def _repr_html_(self) -> str:
        """A table of experts with weights as bars, for notebooks."""
        return ensemble_html(*self._described())

    def _described(self) -> tuple[str, tuple[str, ...], Tensor, str]:
        ensemble = self.ensemble
        weights = ensemble.layers.by_expert(self.log_weights).exp()
        return "OnlineEnsemble", ensemble.expert_names, weights, type(ensemble.meta_learner).__name__

    def __getstate__(self) -> dict[str, object]:
        self._flush()
        return {**self.__dict__, "_bound_ensemble": None}


def _before_loading(module: nn.Module, state_dict: Mapping[str, Tensor], prefix: str, *_: object) -> None:
    """Raise before anything is loaded that does not fit; what was read of hyperparameters is read again."""
    assert isinstance(module, OnlineEnsemble)
    module._invalidate()
    check_shapes(module, state_dict, prefix)
