"""An ensemble on a stream of rows in their own units: warm-up, fit, predict, learn, save and load."""

import copy
import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.distributions import Distribution
from gp_ensembles.engine.access_lock import AccessLock, guarded, uninterrupted
from gp_ensembles.engine.external_report import ExternalReport, external_reports
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.upkeep import UpkeepReport
from gp_ensembles.files.checkpoint import rebuilt, write_checkpoint
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.filters.rows import Rows
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.compiled import IS_COMPILED
from gp_ensembles.streaming.calibration import Calibration, calibration_of, next_interval, next_levels
from gp_ensembles.streaming.checks import Arrived, CleanRows, arrive, clean_arrivals, illegal_input, refuse
from gp_ensembles.streaming.columns import Standardizer, names_of
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.content import KIND, STREAMS
from gp_ensembles.streaming.forecasting.forecast import Forecast, check_forecast, forecast_rows, future_rows, with_point
from gp_ensembles.streaming.inputs import InputPath, InputState, Standard
from gp_ensembles.streaming.one_row import RowPipeline, is_plain, pipeline_of
from gp_ensembles.streaming.point_mass import PointMass, without_point
from gp_ensembles.streaming.predictions import OnlinePredictions, StreamDistribution, no_predictions, running_mixture
from gp_ensembles.streaming.reports import AnomalyCounts, ColumnReport, column_reports
from gp_ensembles.streaming.warm_up import FirstRows, keep, start
from gp_ensembles.streaming.warm_up_rows import num_warm_up_rows, warn_of_waiting

_KEPT = {  # whatever else, a file has these
    "config", "feature_names", "online", "warm_X", "warm_y", "anomaly_counts", "point", "_calibration", "_path",
    "_followed",
}  # fmt: skip


@guarded(writes=["fit", "observe", "maintain"], reads=["predict", "predict_interval", "forecast", "weights", "save"])
class OnlineModel:
    """An ensemble on a stream of rows in their own units.

    The first rows are kept until there are ``config.warmup`` of them, at least ten with a target, and numbers are not
    all the same. They set scales and hyperparameters; every row after them costs the same. Classes may all be the same,
    as where the other is rare: hyperparameters are then not fitted, with a warning. All outputs are in the units of the
    target. A missing target is NaN. So is a missing input: it is imputed by something between the column's last value
    and its mean, and predictions become less certain. Columns that are constant in the warm-up are used from the row
    in which they first change. A value that a large share of the warm-up's targets equal, such as zero sales, gets a
    probability of its own in each prediction, see :class:`~gp_ensembles.distributions.WithPointMass`.

    Args:
        config: The ensemble, and how rows are given to it; a price in it becomes a size with the first rows.
        feature_names: Names of the inputs, for messages; ``column 0`` and so on by default.

    Example:
        >>> import torch
        >>> from gp_ensembles.ensembles import EnsembleSpec
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> lines = EnsembleSpec(bases=(LinearBasis(),))
        >>> model = OnlineModel(StreamConfig(lines, warmup=20))
        >>> predictions = model.observe(X, 100 + 5 * X.squeeze(-1))
        >>> predictions.first_row, predictions.mean.shape, model.num_rows
        (20, torch.Size([40]), 60)
        >>> model.predict(X[-1:]).quantile(0.5).round()
        tensor([145.], dtype=torch.float64)
    """

    def __init__(self, config: StreamConfig | None = None, feature_names: Sequence[str] | None = None) -> None:
        self.config: StreamConfig = StreamConfig() if config is None else config
        check_made("config", self.config, StreamConfig, "StreamConfig(gpe.auto, warmup=200)")
        if isinstance(feature_names, str):
            raise TypeError(f"feature_names must be a sequence of names, got {feature_names!r}")
        self.device: torch.device = self.config.torch_device
        self.feature_names: tuple[str, ...] | None = None if feature_names is None else tuple(map(str, feature_names))
        self.access: AccessLock = AccessLock()
        self.online: OnlineEnsemble | None = None
        self.warm_X: Tensor | None = None  # all rows while the warm-up lasts, then its rows
        self.warm_y: Tensor | None = None
        self._calibration = calibration_of(self.config).init()
        self.anomaly_counts: AnomalyCounts = AnomalyCounts()
        self._path: InputPath | None = None
        self._followed: InputState | None = None
        self._row: RowPipeline | None = None
        self.point: PointMass | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows so far, those of the warm-up among them."""
        if self._followed is not None:
            return int(self._followed.num_rows)
        return 0 if self.warm_X is None else self.warm_X.shape[0]

    @property
    def is_fitted(self) -> bool:
        """Whether the warm-up is over."""
        return self.online is not None

    @property
    def has_intervals(self) -> bool:
        """Whether intervals are adaptive."""
        return self._calibration.levels is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the M experts; none while the warm-up lasts."""
        return () if self.online is None else self.online.ensemble.expert_names

    @property
    def weights(self) -> dict[str, float]:
        """Weights for the next target, by expert with its innovation models; none while the warm-up lasts.

        An external model that did not predict the last row has weight zero: the others share its weight.
        """
        if self.online is None:
            return {}
        weights = self.online.ensemble.layers.by_expert(self.online.log_weights).exp()
        return dict(zip(self.names, weights.tolist(), strict=True))

    @property
    def external_models(self) -> tuple[ExternalReport, ...]:
        """Reports of the external models, in units of the target; none while the warm-up lasts."""
        reports = () if self.online is None else external_reports(self.online)
        return tuple(report.in_units(float(self.scales.y_scale)) for report in reports)

    @property
    def upkeep(self) -> tuple[UpkeepReport, ...]:
        """Refits, trainings and drops of rows that are to come, each of which makes its row take longer."""
        return () if self.online is None else self.online.upkeep

    def maintain(self, rows: int = 1000) -> tuple[UpkeepReport, ...]:
        """Do now, in a pause, what would come within so many rows; returns what was done, see :attr:`upkeep`."""
        return () if self.online is None else self.online.maintain(rows)

    @property
    def used_features(self) -> tuple[str, ...]:
        """Names of the inputs: of all columns but forecasts."""
        return () if self._path is None else names_of(self.feature_names, self._path.columns.kept)

    @property
    def columns(self) -> tuple[ColumnReport, ...]:
        """A report of each input: imputed values, first change, missing-value indicator; none in the warm-up."""
        if self._path is None or self._followed is None:
            return ()
        return column_reports(self._path.columns, self._followed, self.used_features)

    @property
    def scales(self) -> Standardizer:
        """Shifts and scales of the inputs, one for those that were constant in the warm-up, and of the target.

        Raises:
            ValueError: If the warm-up is not over.
        """
        return self._inputs[0].columns.scales

    @property
    def _inputs(self) -> tuple[InputPath, InputState]:
        if self._path is None or self._followed is None:
            raise ValueError(f"the warm-up is not complete: {self.num_rows} of {self.config.warmup} rows received")
        return self._path, self._followed

    @property
    def _calibrates(self) -> Calibration:
        return calibration_of(self.config, has_point=self.point is not None)

    def fit(self, X: Tensor, y: Tensor, *, progress: bool = False) -> "OnlineModel":
        """Forget everything and take exactly these rows as the warm-up.

        Args:
            X: Inputs in the order of time, in their units, shape (N, D), any float dtype; NaN where missing.
            y: Targets, shape (N,), or (N, O) for several outputs; NaN where missing.
            progress: Show a progress bar.

        Returns:
            The model itself.

        Raises:
            ValueError: If rows are malformed, fewer than ten have a target, a target is not of its kind, the target is
                constant, or all inputs are.
            NumericalError: If an expert's evidence cannot be computed where it starts.
        """
        first = keep(self.config, self._arrived(X, y), 1, AnomalyCounts(), self.feature_names)
        self._start(first, progress)
        return self

    def observe(self, X: Tensor, y: Tensor, steps: Tensor | None = None) -> OnlinePredictions:
        """Predict each target, then learn it; a rejected call changes nothing.

        While the warm-up lasts rows are kept; those of the call that ends it are learned after the fit.

        Args:
            X: Inputs in the order of time, in their units, shape (N, D), any float dtype; NaN where missing.
            y: Targets, shape (N,), or (N, O) for several outputs; NaN where missing.
            steps: Time since the row before, in usual steps, at least zero, shape (N,); one each by default, and in the
                warm-up.

        Returns:
            Predictions of the rows that came after the warm-up.

        Raises:
            ValueError: If a row is not legal (by ``config.on_bad_row`` a number that cannot be learned may make it so);
                or when the warm-up ends, as in :meth:`fit`.
            NumericalError: If an expert fails; the message names it and the row.
        """
        if steps is None and (predicted := self._observe_row(X, y)) is not None:
            return predicted
        rows = self._arrived(X, y, steps)
        return self._wait(rows) if self.online is None else self._learn(self.online, rows)

    def predict(self, X: Tensor, steps: Tensor | None = None) -> StreamDistribution:
        """Predict the next row, for each row of X (N, D) on its own, learning nothing.

        While the warm-up lasts, the distribution of the targets so far, whatever X.

        Args:
            X: Inputs as in :meth:`observe`.
            steps: Time since the last row that was learned, likewise.

        Returns:
            Distributions in the units of the target; float64 for real numbers, else in the precision of the run.

        Raises:
            ValueError: If a row is malformed or not legal, as in :meth:`observe`.
        """
        row = self._pipeline(X) if steps is None else None
        if row is not None and (predicted := row.predict(X, self._inputs[1], self._calibration)) is not None:
            return predicted
        rows = self._arrived(X, None, steps)
        if self.online is None:
            if self.config.on_bad_row == "refuse":
                refuse(illegal_input(rows.X), 1, self.feature_names)
            y = rows.X.new_zeros(0) if self.warm_y is None else self.warm_y
            return running_mixture(self.config.ensemble.target, y, len(rows.X))
        standard, _ = self._standard(rows, all_next=True)
        mixture = self.online.predict(standard.inputs, steps=rows.steps, extra=standard.extra)
        known = self._calibrates.predict(self._calibration, self._inputs[0].in_units(mixture))
        return known if self.point is None else self.point.mixed(known, self.point.predict(standard.inputs, rows.steps))

    def predict_interval(self, X: Tensor, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Ends, (N,) each, of intervals one step ahead at rows X (N, D)."""
        return self.interval_of(self.predict(X), coverage)

    def interval_of(self, predicted: Distribution, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Ends, (N,) each, of the intervals of N rows from what :meth:`predict` says of them."""
        return next_interval(self._calibration, self.config, predicted, coverage)

    def forecast(self, X: Tensor | int, *, num_paths: int = 500, generator: torch.Generator | None = None) -> Forecast:
        """Sample the targets of the next H rows together; learns nothing and changes nothing.

        The marginal of the first row is that of :meth:`predict`; see the page "Multi-step forecasts".

        Args:
            X: Future rows in their units, shape (H, D), NaN where an input is not known; or H, where none is.
            num_paths: Number of sample paths.
            generator: Source of randomness.

        Raises:
            ValueError: If a row is not legal, the warm-up is not over, or H is larger than the number of rows learned.
            TypeError: If the target is not one real number.
        """
        scales, online, known = self.scales, self.online, self.warm_X
        assert online is not None
        assert known is not None
        rows = self._arrived(future_rows(X, known.shape[1]))
        check_forecast(self.config.ensemble.target, len(rows.X), self.num_rows, num_paths)
        (path, followed), (standard, _) = self._inputs, self._standard(rows)
        inputs, first = path.taken(followed.within.limit(standard.scaled), rows.X), self.predict(rows.X[:1])
        paths = forecast_rows(online, inputs, standard.extra, scales, first, num_paths, generator)
        return paths if self.point is None else with_point(paths, self.point.predict(inputs), generator)

    def interval_levels(self, coverage: float = 0.9) -> tuple[float, float]:
        """Probabilities at both ends of the next interval, but for what its fifth of the predicted widths adds.

        See :class:`~gp_ensembles.calibration.IntervalLevels`; for several outputs, classes, levels and counts they are
        those of the central interval.

        Raises:
            ValueError: If the config does not name the coverage, or it is not between 0 and 1.
        """
        return next_levels(self._calibration, self.config, coverage)

    def inputs(self, X: Tensor) -> Tensor:
        """Rows (N, D) that come one after another as the ensemble sees them: gaps filled, standardized; float64."""
        path, followed = self._inputs
        return path.follow(followed, X.to(self.device)).scaled

    def next_inputs(self, X: Tensor) -> Tensor:
        """Rows (N, D) that all come next as the ensemble takes them: standardized, within reach, and forecasts."""
        return self._standard(self._arrived(X), all_next=True)[0].inputs

    def targets(self, y: Tensor) -> Tensor:
        """Targets as the ensemble sees them: standardized if they are real numbers; float64."""
        return self._inputs[0].targets(y.to(self.device))

    def cleaned(self, X: Tensor, y: Tensor) -> CleanRows:
        """The next rows X (N, D) and y (N,) as :meth:`observe` takes them, see ``StreamConfig.on_bad_row``."""
        X, y = X.to(self.device), y.to(self.device)
        if self._path is None or self._followed is None:
            return clean_arrivals(X, y, self.config)
        return self._path.cleaned(partial(self._path.follow, self._followed), X, y)[1]

    def _standard(self, arrived: Arrived, *, all_next: bool = False, first_row: int = 1) -> tuple[Standard, CleanRows]:
        """Consecutive rows, or rows that all come next, in standardized units, and as they are learned; or an error."""
        path, followed = self._inputs
        standard, rows = path.cleaned(partial(path.each if all_next else path.follow, followed), *arrived[:2])
        refuse(rows.refused, first_row, self.feature_names)
        return standard, rows

    def save(self, path: str | Path) -> None:
        """Write everything to a file in one step: a reader finds the old file or the new one, never half of one.

        The file loads with ``torch.load(path, weights_only=True)``; nothing in it can be executed.

        Raises:
            OSError: If the file cannot be written.
            TypeError: If a record cannot be saved, such as ``ExternalModel``; pickle the model instead.
        """
        write_checkpoint(Path(path), KIND, self.content())

    @classmethod
    def load(cls, path: str | Path, *, device: str | None = None) -> "OnlineModel":
        """Read a model, which continues where it was saved.

        Args:
            path: The file.
            device: Where to continue; where it was by default.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is not a model, is damaged, or is of another version.
        """
        return rebuilt(Path(path), KIND, partial(cls.from_content, device=device), "fit the model again")

    def content(self) -> dict[str, Any]:
        """Everything as plain containers and tensors, which :meth:`from_content` reads back."""
        own = {name: value for name, value in vars(self).items() if name not in ("access", "device", "_row")}
        return to_plain(own, STREAMS)

    @classmethod
    def from_content(cls, content: Mapping[str, Any], *, device: str | None = None) -> "OnlineModel":
        """The model that :meth:`content` described, on its device or another."""
        known = from_plain(content, STREAMS)
        if device is not None:
            known["config"] = replace(known["config"], device=device)
        if lacking := _KEPT - known.keys():
            raise KeyError(f"there is no {', '.join(sorted(lacking))}")
        model = cls.__new__(cls)
        vars(model).update(known, access=AccessLock(), device=known["config"].torch_device, _row=None)
        model._move()
        model._compile_now()
        return model

    def _move(self) -> None:
        """Bring what was read from a file, on the host, to the device; the calibration stays on the host."""
        there = self.device
        if there.type == "cpu":
            return
        self.warm_X, self.warm_y = (rows if rows is None else rows.to(there) for rows in (self.warm_X, self.warm_y))
        if self.online is not None and self._path is not None and self._followed is not None:
            self.online.to(there)
            self._path = InputPath(self.config, self._path.columns.to(there))
            self._followed = InputState.unpacked(self._followed.packed().to(there), len(self._path.columns.kept))
        if self.point is not None:
            self.point.move(there)

    def __repr__(self) -> str:
        if self.online is None:
            return f"OnlineModel({self.config.ensemble.name}, {self.num_rows} of {self.config.warmup} warm-up rows)"
        point = "" if self.point is None else f", with a point mass at {self.point.at:g}"
        return f"OnlineModel after {self.num_rows} rows{point}: {self.online!r}"

    def _repr_html_(self) -> str:
        """A table of experts with weights as bars, for notebooks."""
        return html.escape(repr(self)) if self.online is None else self.online._repr_html_()

    def _wait(self, rows: Arrived) -> OnlinePredictions:
        """Keep rows of the warm-up; those of the call that ends it are learned after the fit."""
        num_before, target = self.num_rows, self.config.ensemble.target
        first = keep(self.config, rows, num_before + 1, self.anomaly_counts, self.feature_names)
        X, y, counts = first.X, first.y, first.counts
        if self.warm_X is not None and self.warm_y is not None:
            X, y = torch.cat([self.warm_X, X]), torch.cat([self.warm_y, y])
        num_warm = num_warm_up_rows(y, self.config.warmup, target)
        if num_warm is None:
            warn_of_waiting(num_before, len(y), self.config.warmup)
            # Copies: the caller's memory may change before the warm-up is over.
            self.config, self.warm_X, self.warm_y, self.anomaly_counts = first.config, X.clone(), y.clone(), counts
            return no_predictions(target, y[num_before:], len(self.names))
        before, first_row = dict(self.__dict__), num_warm - num_before
        try:
            self._start(first._replace(X=X[:num_warm], y=y[:num_warm]), progress=False)
            if self.online is None or num_warm == len(y):
                return no_predictions(target, y[num_before:], len(self.names))
            rest = Arrived(X[num_warm:], y[num_warm:], None if rows.steps is None else rows.steps[first_row:])
            return self._learn(self.online, rest)._replace(first_row=first_row)
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _start(self, first: FirstRows, progress: bool) -> None:
        """Fit to these rows, all or nothing."""
        started = start(*first, self.feature_names, progress=progress)
        with uninterrupted():
            self.config = first.config
            self.warm_X, self.warm_y, self.anomaly_counts = started.X, started.y, started.counts
            self.online, self.point, self._calibration = started.online, started.point, started.calibration
            self._path, self._followed = started.path, started.followed
        self._compile_now()

    def _learn(self, online: OnlineEnsemble, arrived: Arrived) -> OnlinePredictions:
        """Inputs; features, experts, innovations, rule and mixture; units; recalibration and levels."""
        path, point, first_row = self._inputs[0], self.point, self.num_rows + 1
        standard, clean = self._standard(arrived, first_row=first_row)
        y = without_point(clean.y, None if point is None else point.at)
        targets, followed, log_share = path.targets(y), standard.state, None
        rows = Rows(targets.to(standard.inputs), None, standard.extra, arrived.steps).simplified()
        if point is None:
            predictions = online.learn(standard.inputs, rows)
        else:
            predictions, log_share = point.learn(online, standard.inputs, rows, clean.y)
        num_imputed = int(followed.gaps.num_imputed.sum())
        with uninterrupted():  # the layers around the ensemble learn the rows too
            counts = self.anomaly_counts.with_bad(clean, first_row, self.feature_names)
            self.anomaly_counts = counts.after(int(standard.num_moved.sum()), online.num_discounted, num_imputed)
            self._followed = followed
            mixture = path.in_units(predictions.mixture)
            calibrated = self._calibrates.update(self._calibration, mixture, y, online.block_size)
            self._calibration, distribution, gain, intervals = calibrated
        log_prob = predictions.log_prob.double() - self.scales.log_scale(targets) + gain
        log_weights = online.ensemble.layers.by_expert(predictions.log_weights.double())
        if point is not None and log_share is not None:
            distribution = point.mixed(distribution, log_share)
            log_prob = distribution.mixed_log_prob(clean.y, log_prob)
        return OnlinePredictions(distribution, log_prob, log_weights, 0, intervals)

    def _pipeline(self, X: object, y: object = None) -> RowPipeline | None:
        """The fast pipeline of a single row X and its target; ``None`` where only blocks can handle or refuse it."""
        is_row = self.warm_X is not None and is_plain(X, (1, self.warm_X.shape[1]))
        if self.online is None or self.point is not None or not is_row or not (y is None or is_plain(y, (1,))):
            return None
        self._row = pipeline_of(self._row, self.online, self.config, self._inputs[0].columns)
        return self._row

    def _compile_now(self) -> None:
        """Learn, predict and look on a copy, so that functions are compiled now and not at the first row."""
        if IS_COMPILED and self.warm_X is not None and self._pipeline(self.warm_X[-1:]) is not None:
            other, row = copy.deepcopy(self), self.warm_X[-1:]
            other.observe(row, self.scales.y_mean.reshape(1))
            other.predict(row)
            list(other.upkeep)

    def _observe_row(self, X: Tensor, y: Tensor) -> OnlinePredictions | None:
        pipeline = self._pipeline(X, y)
        row = None if pipeline is None else pipeline.stage(X, y, self._inputs[1], self._calibration)
        if pipeline is None or row is None:
            return None
        with uninterrupted():
            pipeline.ensemble.commit(row.staged)
            self._followed, self._calibration = row.followed, row.calibration
            if row.num_moved:
                moved = self.anomaly_counts.inputs_moved + row.num_moved
                self.anomaly_counts = self.anomaly_counts._replace(inputs_moved=moved)
        return row.predictions

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_row": None}  # it shares memory with the state

    def _arrived(self, X: Tensor, y: Tensor | None = None, steps: Tensor | None = None) -> Arrived:
        known = self.warm_X.shape[1] if self.warm_X is not None else None
        return arrive(X, y, steps, known if self.feature_names is None else len(self.feature_names), self.config)
