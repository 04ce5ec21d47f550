"""Many series in their own units, each with its own ensemble: from rows to distributions and intervals."""

import copy
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import AccessLock, guarded
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.ensembles.records import spec_to_plain
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.spec_checks import check_flag
from gp_ensembles.files.checkpoint import fitting
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.fleet.arrivals import numbered
from gp_ensembles.fleet.calls import SMALL, CallRows, arrived, checked_rows, fleet_settings, refuse
from gp_ensembles.fleet.checkpoint import REMEDY, read_about
from gp_ensembles.fleet.ensemble_fleet import AllSetAsideError, EnsembleFleet, Names, listed
from gp_ensembles.fleet.exported import SeriesModel
from gp_ensembles.fleet.notes import (
    NOTES,
    calibrate_rows,
    first_notes,
    follow_rows,
    pack_calibration,
    path_of,
    predict_rows,
    unpack_calibration,
)
from gp_ensembles.fleet.predictions import FleetPredictions, empty_predictions
from gp_ensembles.fleet.store import new_folder, next_folder
from gp_ensembles.fleet.warm_up import (
    WarmUpRows,
    fitted_ensemble,
    joined,
    length_of_warm_up,
    missed_shares,
    moves,
    rows_of_warm_ups,
    some_of,
    start_series,
    warm_ups,
    without_outliers,
)
from gp_ensembles.streaming.config import MIN_WARM_UP, Impute, OnBadRow, StreamConfig
from gp_ensembles.streaming.content import STREAMS
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.missed_structure import warn_of_missed
from gp_ensembles.streaming.point_mass import without_point
from gp_ensembles.streaming.warm_up_rows import warn_of_outliers

_Counts = dict[Hashable, int]  # rows of series
_FLEETS = STREAMS.with_kinds(WarmUpRows)
_DTYPES = {"float64": torch.float64, "float32": torch.float32}  # by the names used in files


@final
@guarded(writes=["fit", "fit_shared", "observe", "add", "retire"], reads=["predict", "export", "save"])
class Fleet:
    """A model for each of many series, with shared hyperparameters, and scales, weights and states per series.

    The first rows of a series set its scales. Hyperparameters are fitted once, to the sum of the log evidences of up to
    fifty series: by :meth:`fit`, to all rows given, or by the first call of :meth:`observe` in which a
    series completes its warm-up, to the warm-ups completed in that call. A series is not predicted during its
    warm-up. Missing targets and inputs are NaN. Inputs are treated as in
    :class:`~gp_ensembles.streaming.OnlineModel`: imputed with added noise, used from their first change if they were
    constant, and clamped to their range; but without missing-value indicators, since all series share their columns.

    Args:
        spec: Specification of every series' ensemble; experts whose states have no fixed size, such as windows and
            boosted trees, are not supported. The default takes 80 kilobytes per series.
        warmup: Number of rows from which the scales of a series are estimated.
        coverages: Target coverages of adaptive intervals, which adapt to each series.
        recalibrate: Correct distribution functions by past errors; means and variances then need integrals, which cost
            several times as much as the row, when requested.
        impute: Imputation of missing inputs, as in :class:`~gp_ensembles.streaming.StreamConfig`.
        on_bad_row: Handling of unusable numbers, as in ``StreamConfig``; ``bad_rows`` counts the rows affected.
        clip: Inputs are clipped at this many warm-up standard deviations from the warm-up mean; not by default.
        seed: Seed of all randomness.
        dtype: Precision of the states; scales and predictions are in float64.
        device: Device of scales, states and predictions, for instance ``cpu`` or ``cuda``; rows may be on any device.
        own_variances: Whether noise and prior variances are fitted to each series at the end of its warm-up.
        own_length_scales: The same for length scales, as factors of its inputs; a fit takes several times as long.
        folder: Where states live as memory-mapped files, an empty or new folder; by default, and in copies, in memory.

    Raises:
        TypeError: If an argument has the wrong type, such as a string for ``spec`` or ``dtype``.
        ValueError: If targets are not scalar, a number is out of range, a device is unavailable, or a folder not empty.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import e_doebe
        >>> fleet = Fleet(replace(e_doebe, bases=(LinearBasis(),)), warmup=30)
        >>> names = ["north", "south"] * 40
        >>> X = torch.linspace(0, 9, 80, dtype=torch.float64).unsqueeze(-1)
        >>> slope = torch.tensor([3.0, -5.0], dtype=torch.float64).repeat(40)
        >>> y = 1000 + slope * X.squeeze(-1)
        >>> fleet.fit(names[:60], X[:60], y[:60])
        >>> predictions = fleet.observe(names[60:], X[60:], y[60:])
        >>> bool((predictions.mean - y[60:]).abs().max() < 1)
        True
    """

    def __init__(
        self,
        spec: EnsembleSpec = SMALL,
        *,
        warmup: int = 200,
        coverages: Sequence[float] = (0.9,),
        recalibrate: bool = True,
        impute: Impute = "found",
        clip: float | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
        own_variances: bool = True,
        own_length_scales: bool = False,
        on_bad_row: OnBadRow = "missing",
        folder: str | Path | None = None,
    ) -> None:
        check_flag(self, "own_variances", own_variances)
        check_flag(self, "own_length_scales", own_length_scales)
        more: dict[str, Any] = {"warmup": warmup, "seed": seed, "impute": impute, "on_bad_row": on_bad_row}
        more.update(clip=clip, coverages=coverages, recalibrate=recalibrate)
        self.config: StreamConfig = fleet_settings(spec, dtype, device, **more)
        self.access: AccessLock = AccessLock()
        self.spec: EnsembleSpec = spec
        self.warmup: int = self.config.warmup
        self.dtype: torch.dtype = dtype
        self.device: torch.device = self.config.torch_device
        self.own_variances, self.own_length_scales = own_variances, own_length_scales
        self.series: EnsembleFleet | None = None
        self.folder: Path | None = new_folder(folder, self.device)
        self.bad_rows: Counter[Hashable] = Counter()  # number of rows with an unusable number, by series
        self._waiting: dict[Hashable, WarmUpRows] = {}
        self._known_X: Tensor | None = None  # standardized rows of the series for which the ensemble was built, (N, D)

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of the series that have started, in the order of their places."""
        return () if self.series is None else self.series.names

    @property
    def waiting(self) -> dict[Hashable, int]:
        """Series in their warm-up, and the number of rows each has received."""
        return {name: len(rows.y) for name, rows in self._waiting.items()}

    @property
    def failures(self) -> dict[Hashable, int]:
        """Series that were set aside because no expert was left, and the number of rows each had learned."""
        return {} if self.series is None else self.series.failures

    @property
    def weights(self) -> dict[Hashable, dict[str, float]]:
        """Weights for the next target of each series, by expert, innovation models included."""
        if self.series is None or not self.names:
            return {}
        layers, experts = self.series.ensemble.layers, self.series.ensemble.expert_names
        each = layers.by_expert(self.series.log_weights(self.names).T).exp().T.tolist()
        return {name: dict(zip(experts, row, strict=True)) for name, row in zip(self.names, each, strict=True)}

    def fresh(self, folder: str | Path | None = None) -> "Fleet":
        """A new, untrained fleet with the same settings; its states live in memory or in a folder."""
        return Fleet(self.spec, **self._numbers, dtype=self.dtype, device=self.device, folder=folder)

    @property
    def _numbers(self) -> dict[str, Any]:
        names = ("warmup", "seed", "recalibrate", "impute", "clip", "on_bad_row")
        own = {"own_variances": self.own_variances, "own_length_scales": self.own_length_scales}
        return {**{name: getattr(self.config, name) for name in names}, **own, "coverages": list(self.config.coverages)}

    def fit(self, names: Names, X: Tensor, y: Tensor, *, shared: "Fleet | None" = None, progress: bool = False) -> None:
        """Discard all states, fit hyperparameters to these rows, and start the series with enough of them.

        Args:
            names: The series of each row, N names. Rows of the same series must be in time order.
            X: Inputs in their units, shape (N, D), any float dtype; NaN where missing.
            y: Targets, shape (N,); NaN where missing.
            shared: A fitted fleet, whose shared hyperparameters are used instead of fitting them.
            progress: Show a progress bar.

        Raises:
            ValueError: If rows are malformed or too few, or ``shared`` has other settings or is not fitted.
            NumericalError: If an evidence cannot be computed at the starting point.
        """
        with self._restarted(names, X, y, must_fit=shared is None) as (other, ready):
            if shared is not None:
                other._share(shared)
            other._prepare(ready, must_fit=True, progress=progress)

    def fit_shared(self, names: Names, X: Tensor, y: Tensor, *, progress: bool = False) -> None:
        """Discard all states, and fit only the shared hyperparameters to these rows; no series starts."""
        with self._restarted(names, X, y, must_fit=True) as (other, ready):
            warm, other.bad_rows, _ = without_outliers(self.config, {name: other._waiting[name] for name in ready})
            other._begin(*fitted_ensemble(self.config, warm_ups(self.config, warm).standard, progress))
            other._waiting = {}

    @contextmanager
    def _restarted(self, names: Names, X: Tensor, y: Tensor, *, must_fit: bool) -> "Iterator[tuple[Fleet, _Counts]]":
        """A fleet with only these rows, and the series with enough of them; it replaces this one after the block."""
        other = self.fresh()
        other.folder = self.folder
        rows, bad = arrived(self.config, other.checked(names, X, y))
        other.bad_rows.update(rows.names[row] for row in bad)
        other._waiting = joined({}, *rows)
        ready = {name: len(rows.y) for name, rows in other._waiting.items() if length_of_warm_up(rows.y, self.warmup)}
        if must_fit and not ready:
            raise ValueError(
                f"no series has the {self.warmup} rows and {MIN_WARM_UP} targets needed to start, the longest has "
                f"{max(other.waiting.values())} rows; give more rows, or use a smaller warmup"
            )
        try:
            yield other, ready
        except BaseException:
            if other.series is not None:
                other.series.remove_files()
            raise
        old = self.series
        self.__dict__.update({**other.__dict__, "access": self.access})
        if old is not None:
            old.remove_files()

    def _share(self, other: "Fleet") -> None:
        if other.series is None or other._known_X is None:
            raise ValueError("the fleet given as shared= is not fitted yet")
        if spec_to_plain(self.spec) != spec_to_plain(other.spec) or self.config.seed != other.config.seed:
            raise ValueError("the fleet given as shared= has another ensemble or seed")
        self._begin(copy.deepcopy(other.series.ensemble).to(self.device, self.dtype), other._known_X.to(self.device))

    @torch.no_grad()
    def observe(self, names: Names, X: Tensor, y: Tensor) -> FleetPredictions:
        """Predict each target, then learn it; a rejected call changes nothing.

        Args:
            names: The series of each row, N names, which may be new. Rows of the same series must be in time
                order.
            X: Inputs in their units, shape (N, D), any float dtype; NaN where missing.
            y: Targets, shape (N,); NaN where missing.

        Returns:
            Predictions in the order of the rows.

        Raises:
            ValueError: If rows are malformed; with ``on_bad_row="refuse"`` also if one has a number more than 1e6
                warm-up standard deviations from the warm-up mean of its series.
        """
        call, series = self.checked(names, X, y), self.series
        waiting, known_X, bad_rows = dict(self._waiting), self._known_X, self.bad_rows.copy()
        new = [row for row, name in enumerate(call.names) if series is None or name not in series]
        try:
            kept = self._keep(call, new)
            rows = torch.ones_like(call.y, dtype=torch.bool).index_fill(0, kept, False).nonzero().flatten()
            return self._learn(call, rows)
        except BaseException:
            if series is None and self.series is not None:
                self.series.remove_files()
            self._waiting, self.series, self._known_X, self.bad_rows = waiting, series, known_X, bad_rows
            if series is not None:
                began = {*waiting, *(call.names[row] for row in new)}
                series.retire([name for name in began if name in series])
            raise

    @torch.no_grad()
    def predict(self, names: Names, X: Tensor) -> FleetPredictions:
        """Predict the next target of a series at each row, in its units, without learning.

        Args:
            names: The series of each row; repetitions are allowed.
            X: Inputs as in :meth:`observe`, shape (N, D).

        Returns:
            Predictions without targets. Rows of series in their warm-up are NaN, and these series are listed.

        Raises:
            KeyError: If a series is unknown.
            ValueError: As in :meth:`observe`.
        """
        given, X, y = self.checked(names, X)
        waiting = tuple(dict.fromkeys(name for name in given if name in self._waiting))
        rows = [row for row, name in enumerate(given) if name not in self._waiting]
        found = empty_predictions(y, self.config.coverages)._replace(waiting=waiting)
        if not rows:
            return found
        numbers = torch.tensor(rows, dtype=torch.int64, device=X.device)
        X, y, given = X[numbers], y[numbers], [given[row] for row in rows]
        series = self._series_of(given)
        path = path_of(self.config, series.note("columns", given))
        states = InputState.unpacked(series.note("inputs", given), X.shape[1])
        standard, clean = path.cleaned(partial(path.each, states), X, y)
        refuse(clean.refused, given, numbers)
        mixture = path.in_units(series.predict(given, standard.inputs, extra=standard.extra))
        calibration, points = (series.note(name, given) for name in ("calibration", "point"))
        distribution, levels = predict_rows(self.config, calibration, points, mixture)
        return found._replace(rows=numbers, distribution=distribution, levels=levels)

    def retire(self, names: Names) -> None:
        """Remove series, including those in their warm-up.

        Raises:
            KeyError: If one is unknown; then none is removed.
        """
        given = list(dict.fromkeys(listed(names)))
        if prepared := [name for name in given if name not in self._waiting]:
            self._series_of(prepared).retire(prepared)
        for name in set(given) - set(prepared):
            del self._waiting[name]

    def export(self, name: Hashable) -> SeriesModel:
        """A single series: its ensemble with a copy of its state, its units and intervals.

        Raises:
            KeyError: If it is unknown, or its warm-up is not over.
        """
        series, own = self._series_of([name]), [name]
        columns, inputs = series.note("columns", own)[0], series.note("inputs", own)[0]
        path = path_of(self.config, columns)
        state = InputState.unpacked(inputs, len(path.columns.kept))
        calibration = unpack_calibration(self.config, series.note("calibration", own)[0])
        return SeriesModel(series.export(name), path, state, calibration, series.note("point", own)[0])

    def add(self, names: Names, model: SeriesModel) -> None:
        """Add series, each as a copy of an exported one, see :meth:`export`.

        Args:
            names: Their names, new and distinct.
            model: Exported from this fleet, or from another with the same hyperparameters and settings.

        Raises:
            ValueError: If a series exists or is in its warm-up, nothing is fitted yet, or the model has other
                hyperparameters, columns or coverages.
        """
        given = listed(names)
        if waiting := [name for name in given if name in self._waiting]:
            raise ValueError(f"series {waiting[0]!r} is in its warm-up; retire it first, or omit it")
        if self.series is None or self._known_X is None:
            raise ValueError("nothing is fitted yet: fit or observe first, or load a fleet")
        model.check(self.series.ensemble, self._known_X.to(self.dtype), self.config)
        self.series.add(given, model.online)
        self.series.write_note("columns", given, model.path.columns.packed())
        self.series.write_note("inputs", given, model.state.packed())
        self.series.write_note("calibration", given, pack_calibration(model.calibration))
        self.series.write_note("point", given, model.point)

    def save(self, folder: str | Path, *, notes: Mapping[str, Any] | None = None, progress: bool = False) -> None:
        """Write everything to a folder, in shards; if this fails, the previous save remains.

        Args:
            folder: Target folder; created if it does not exist.
            notes: Plain containers to store with it, such as the last row read from a table; see :meth:`notes_in`.
            progress: Show a progress bar.

        Raises:
            TypeError: If a series' name is neither a string nor an integer.
            OSError: If a file cannot be written.
            ValueError: If hyperparameters are not fitted yet.
        """
        if self.series is None:
            raise ValueError("nothing is fitted yet: no series has finished its warm-up; observe more rows first")
        settings = {"spec": self.spec, **self._numbers, "dtype": str(self.dtype).removeprefix("torch.")}
        rows = {"known_X": self._known_X, "waiting": self._waiting, "bad_rows": dict(self.bad_rows)}
        about = {"fleet": to_plain({"settings": settings, **rows}, _FLEETS), "notes": dict(notes or {})}
        self.series.save(folder, about=about, progress=progress)

    @classmethod
    def load(
        cls, folder: str | Path, *, states: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> "Fleet":
        """Load a fleet from a folder, bit for bit, whatever device it was saved from.

        Args:
            folder: The folder in which it was saved.
            states: Where states live as memory-mapped files; by default they live in memory.
            device: Device of the loaded fleet.

        Raises:
            FileNotFoundError: If there is no fleet in the folder.
            ValueError: If a file is damaged, or as in :class:`Fleet`.
        """
        about, _ = read_about(Path(folder))
        if "fleet" not in about:
            raise ValueError(f"{folder} was saved by EnsembleFleet; use EnsembleFleet.load")
        with fitting(Path(folder), REMEDY):
            known = from_plain(about["fleet"], _FLEETS)
            dtype = _DTYPES[known["settings"].pop("dtype")]
            fleet = cls(**known["settings"], dtype=dtype, device=device, folder=states)
            fleet._known_X = known["known_X"].to(fleet.device)
            fleet.bad_rows = Counter(known["bad_rows"])
            fleet._waiting = {name: rows.to(fleet.device) for name, rows in known["waiting"].items()}
        fleet.series = EnsembleFleet.load(folder, states=next_folder(fleet.folder), device=fleet.device)
        return fleet

    @staticmethod
    def notes_in(folder: str | Path) -> dict[str, Any]:
        """The notes stored with a fleet that was saved in a folder.

        Raises:
            FileNotFoundError: As in :meth:`load`.
            ValueError: As in :meth:`load`.
        """
        return dict(read_about(Path(folder))[0].get("notes", {}))

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles live in memory."""
        return {**self.__dict__, "folder": None}

    def __repr__(self) -> str:
        return f"Fleet({self.spec.name}, {len(self.names)} series, {len(self._waiting)} waiting)"

    def _learn(self, call: CallRows, rows: Tensor) -> FleetPredictions:
        """Predict and learn the rows (R,) of a call whose series have started: inputs, ensemble, units, calibration."""
        series, config, none = self.series, self.config, empty_predictions(call.y, self.config.coverages)
        if series is None or not len(rows):
            return none
        names, X, y = [call.names[row] for row in rows.tolist()], call.X[rows], call.y[rows]
        codes, distinct = numbered(names, y)
        columns, state, calibration, points = (series.note(name, distinct) for name in NOTES)
        each = path_of(config, columns[codes])
        standard, clean = each.cleaned(lambda X: follow_rows(config, columns, state, X, codes), X, y)
        refuse(clean.refused, names, rows)
        targets = each.targets(without_point(clean.y, points[codes, 0])).to(self.dtype)
        try:
            predictions = series.observe(names, standard.inputs, targets, extra=standard.extra)
        except AllSetAsideError:
            return none
        mixture = each.in_units(predictions.mixture)
        log_prob = predictions.log_prob.double() - each.columns.scales.log_scale(targets)
        found = calibrate_rows(config, calibration, points, mixture, log_prob, clean.y, codes)
        self.bad_rows.update(names[row] for row in clean.bad)
        for name, numbers in zip(NOTES[1:], (standard.state.packed(), calibration, points), strict=True):
            series.write_note(name, distinct, numbers)
        distribution, none.log_prob[rows], intervals = found
        none.covered[:, rows] = intervals.covered
        return none._replace(rows=rows, distribution=distribution, levels=intervals.levels)

    def checked(self, names: Names, X: Tensor, y: Tensor | None = None) -> CallRows:
        """Validate names, inputs and targets (NaN by default), and convert them to float64 on the device."""
        kept = (self._known_X, *(waiting.X for waiting in self._waiting.values()))
        num_inputs = next((known.shape[1] for known in kept if known is not None), None)
        return checked_rows(self.config, names, X, y, num_inputs)

    def _keep(self, call: CallRows, new: Sequence[int]) -> Tensor:
        """Store new warm-up rows and start the series with enough of them; returns the numbers of rows kept, (K,)."""
        rows = torch.tensor(new, dtype=torch.int64, device=call.y.device)
        if not new:
            return rows
        came, own = self.waiting, CallRows([call.names[row] for row in new], call.X[rows], call.y[rows])
        own, bad = arrived(self.config, own, rows)
        self._waiting = joined(self._waiting, *own)
        least = {name: length_of_warm_up(kept.y, self.warmup) for name, kept in self._waiting.items()}
        # With all rows of earlier calls, if there was nothing to fit to until now.
        prepared = self._prepare({name: max(num, came.get(name, 0)) for name, num in least.items() if num})
        is_kept = rows_of_warm_ups(own.names, came, prepared)
        self.bad_rows.update(own.names[row] for row in bad if is_kept[row])
        return rows[torch.tensor(is_kept, dtype=torch.bool, device=rows.device)]

    def _prepare(self, ready: _Counts, *, must_fit: bool = False, progress: bool = False) -> _Counts:
        """Start series, each from its first rows; none as long as there is nothing to fit to."""
        first = {name: WarmUpRows(*(part[:num] for part in self._waiting[name])) for name, num in ready.items()}
        warm, bad, num_left_out = without_outliers(self.config, first)
        if not warm or (self.series is None and not must_fit and not any(map(moves, warm.values()))):
            return {}
        self.bad_rows += bad
        warn_of_outliers(num_left_out, 0)
        ups = warm_ups(self.config, warm)
        own, is_first = (self.own_variances, self.own_length_scales), self.series is None
        if self.series is None:
            self.series = self._begin(*fitted_ensemble(self.config, ups.standard, progress))
            if len(some_of(ups.standard)) == 1:  # the ensemble was fitted to this series
                own = False, False
        found = start_series(self.series, self.config, ups, *own)
        warn_of_missed(missed_shares(found) if is_first else {})
        self._waiting = {name: rows for name, rows in self._waiting.items() if name not in ready}
        return ready

    def _begin(self, ensemble: Ensemble, X: Tensor) -> EnsembleFleet:
        """Start with an ensemble for rows such as X (N, D), and no series."""
        self._known_X, notes = X, first_notes(self.config, X.new_zeros(X.shape[1]))
        folder, own = next_folder(self.folder), self.own_variances
        self.series = EnsembleFleet(ensemble, folder=folder, notes=notes, own_variances=own)
        return self.series

    def _series_of(self, names: Sequence[Hashable]) -> EnsembleFleet:
        if (waiting := next((name for name in names if name in self._waiting), None)) is not None:
            raise KeyError(
                f"series {waiting!r} has received {self.waiting[waiting]} of the {self.warmup} rows of its warm-up"
            )
        if self.series is None:
            raise KeyError("no series has started: observe or fit first")
        if unknown := [name for name in names if name not in self.series]:
            raise KeyError(f"unknown series {unknown[0]!r}; observe rows of this series first")
        return self.series
