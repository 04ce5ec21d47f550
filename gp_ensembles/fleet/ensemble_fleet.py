"""Many series, each with its own ensemble, learned together by one object."""

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import AccessLock, guarded
from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.input_checks import check_domain, checked_rows
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions, concatenate_mixtures
from gp_ensembles.engine.quarantine import QuarantineReport
from gp_ensembles.engine.recorded import check_fixed_size
from gp_ensembles.engine.state import EnsembleState, named_tensors, state_from
from gp_ensembles.ensembles.structure import ENSEMBLES
from gp_ensembles.experts.base import Variances
from gp_ensembles.experts.gaussian import BoundGaussian, sound_variances
from gp_ensembles.files.checkpoint import fitting
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.filters.states import GaussianState
from gp_ensembles.fleet.arrivals import LENGTHS, batches
from gp_ensembles.fleet.checkpoint import REMEDY, read_about, read_shard, remove_part, save_fleet
from gp_ensembles.fleet.exported import with_own_variances
from gp_ensembles.fleet.step import RowBuffer, Step, Work
from gp_ensembles.fleet.store import Slots, Store, new_folder
from gp_ensembles.numerics.arguments import check_made


@runtime_checkable
class HasToList(Protocol):
    """An array or index of names."""

    def tolist(self) -> list[Hashable]:
        """The names."""


Names = Sequence[Hashable] | HasToList


class AllSetAsideError(ValueError):
    """Every series of a call has failed, before or during the call."""


@guarded(writes=["observe", "add", "retire"], reads=["predict", "log_weights", "export", "save"])
class EnsembleFleet:
    """An ensemble for each of many series, with shared hyperparameters and separate states.

    A series learns what its own :class:`~gp_ensembles.engine.online.OnlineEnsemble` would learn, in whatever order rows
    arrive, but rows of different series are processed together.

    An expert that fails on a series is quarantined, see :attr:`expert_failures`; until it returns, the series is
    processed separately, which takes longer. A series without usable experts is set aside, and the others continue: it
    keeps its state before that row, its predictions are NaN, :attr:`failures` lists it, and :meth:`retire` and
    :meth:`add` restart it.

    Args:
        ensemble: The ensemble of every series; its hyperparameters are read on construction. Experts must be
            :class:`~gp_ensembles.experts.GaussianExpert`, Student-t experts or experts with another likelihood, and
            their states must have a fixed size.
        names: Names of the initial series.
        start: State of a series before its first row; by default, the ensemble's initial state.
        folder: Where states live as memory-mapped files, an empty or new folder; by default they live in memory.
        notes: Additional tensors stored per series, by name, with their initial values.
        own_variances: Whether each series has its own noise and prior variances, see :meth:`add`.

    Attributes:
        folder: Where states live; ``None`` for memory.

    Raises:
        TypeError: If ``ensemble`` is no ensemble, or an expert cannot be used in a fleet.
        ValueError: If there are several outputs or external models, or the folder is not empty.

    Example:
        >>> import torch
        >>> from gp_ensembles.experts import GaussianExpert
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging
        >>> expert = GaussianExpert(
        ...     LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
        ... )
        >>> fleet = EnsembleFleet(
        ...     Ensemble([expert], BayesianModelAveraging()), ["pump 1", "pump 2"]
        ... )
        >>> X = torch.ones(3, 1, dtype=torch.float64)
        >>> y = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
        >>> predictions = fleet.observe(["pump 1", "pump 2", "pump 1"], X, y)
        >>> predictions.mean.shape, fleet.predict(["pump 1", "pump 2"], X[:2]).mean.sign()
        (torch.Size([3]), tensor([ 1., -1.], dtype=torch.float64))
    """

    def __init__(
        self,
        ensemble: Ensemble,
        names: Names = (),
        *,
        start: EnsembleState | None = None,
        folder: str | Path | None = None,
        notes: Mapping[str, Tensor] | None = None,
        own_variances: bool = False,
    ) -> None:
        check_made("ensemble", ensemble, Ensemble, "Ensemble([expert], FixedShare())")
        self.access: AccessLock = AccessLock()
        start = ensemble.init() if start is None else start
        check_fixed_size(ensemble, start, "a fleet")
        self.has_own_variances = own_variances
        if own_variances:
            notes = {**(notes or {}), **_variance_notes(ensemble)}
        self.ensemble = ensemble
        self._slots = Slots()
        self.folder: Path | None = new_folder(folder, start.meta.num_seen.device)
        self._store = Store(start, self.folder, notes)
        self._step: Step | None = None
        self._store.on_move = self._read_again
        self.add(names)

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of all series, in the order of their places; a new series reuses the place of a retired one."""
        return self._slots.names

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._slots

    @property
    def failures(self) -> dict[Hashable, int]:
        """Series that were set aside, and the number of rows each had learned."""
        names = self._slots.names
        found = self._store.failed[self._slots.places(names)].tolist() if names else []
        return {name: rows for name, rows in zip(names, found, strict=True) if rows >= 0}

    @property
    def expert_failures(self) -> dict[Hashable, tuple[QuarantineReport, ...]]:
        """Failed experts by series, with row numbers as counted by the weight rule."""
        names = self._slots.names
        if not names:
            return {}
        places = self._slots.places(names).to(self._store.failed.device)
        times = self._store.quarantine(places).times.sum(-1).tolist()
        some = [name for name, number in zip(names, times, strict=True) if number]
        return {name: self.export(name).failures for name in some}

    def add(
        self,
        names: Names,
        state: EnsembleState | OnlineEnsemble | None = None,
        *,
        variances: Sequence[Variances | None] = (),
    ) -> None:
        """Add series.

        Args:
            names: Their names, new and distinct.
            state: The initial state of each, such as that of a single ensemble (imported, with its noise and prior
                variances if series have their own); by default, the state before any data.
            variances: The variances of the S series before any data, per expert object; ``None`` for the expert's own.
                Empty by default.

        Raises:
            ValueError: If a series already exists or is named twice, the state belongs to another ensemble, or there
                is not enough memory or disk space.
            TypeError: If a name is not hashable.
        """
        names = listed(names)
        given = state.state if isinstance(state, OnlineEnsemble) else state
        self._slots.check_new(names)
        if given is not None:
            self._store.checked(given)
        if variances and (given is not None or not self.has_own_variances):
            raise ValueError("variances can be given only without a state, and in a fleet with own_variances=True")
        if not names:
            return
        device = self._store.failed.device
        self._store.check_growth(self._slots.size_with(len(names)))
        with torch.no_grad():
            places = self._slots.add(names).to(device)
            self._store.put(places, given)
            for number, own in enumerate(variances):
                if own is not None:
                    self._store.prepare_with_variances(number, places, self._sound(number, own))
            if self.has_own_variances and isinstance(state, OnlineEnsemble):
                for number, bound in enumerate(state.ensemble.bind()):
                    assert isinstance(bound, BoundGaussian)
                    shape = (len(places), *bound.noise.shape)
                    own = Variances(bound.noise.expand(shape), bound.prior_variance.expand(shape))
                    self._store.put_variances(number, places, own)

    def retire(self, names: Names) -> None:
        """Remove series; their places are reused.

        Raises:
            KeyError: If a series is unknown; then none is removed.
        """
        self._slots.retire(listed(names))

    def export(self, name: Hashable) -> OnlineEnsemble:
        """An ensemble with the hyperparameters and a copy of the state of one series; shares feature maps and rule.

        Raises:
            KeyError: If the series is unknown.
        """
        return self._export(int(self._slots.places([name])[0]))

    def _export(self, place: int) -> OnlineEnsemble:
        ensemble = self.ensemble
        if self.has_own_variances:
            ensemble = with_own_variances(ensemble, self._variances_at(place))
        return OnlineEnsemble(ensemble, self._store.state(place))

    def _sound(self, number: int, own: Variances) -> Variances:
        """Variances for which the representation of the states is numerically accurate."""
        if self._store.kinds[number] is not GaussianState:
            return own
        transition = self.ensemble.experts[number].transition
        walk = None if transition is None else transition.slowest_walk()
        prior, noise = sound_variances(own.prior, own.noise, walk)
        return Variances(noise, prior)

    def _variances_at(self, place: int) -> list[Variances]:
        numbers = range(len(self.ensemble.experts))
        return [
            Variances(*(self._store.note(f"{kind}_{number}")[place] for kind in Variances._fields))
            for number in numbers
        ]

    @torch.no_grad()
    def observe(
        self, names: Names, X: Tensor, y: Tensor, *, steps: Tensor | None = None, extra: Tensor | None = None
    ) -> EnsemblePredictions:
        """Predict each target, then learn it; a rejected call leaves everything as it was.

        Ctrl-C takes effect between two batches: every series has then learned its rows up to some row,
        see :meth:`export`.

        Args:
            names: The series of each row, N names. Rows of the same series must be in time order.
            X: Inputs, shape (N, D).
            y: Targets, shape (N,); NaN where missing.
            steps: Steps since the previous row of the same series, at least zero, shape (N,); one by default.
            extra: Further noise variance of each row, at least zero, shape (N,); none by default.

        Returns:
            Predictions made before each target was learned, in row order; NaN for series that are set aside.

        Raises:
            KeyError: If a series is unknown.
            ValueError: If a shape is wrong, an input is not finite or outside a feature map's domain, a target is
                infinite, or steps or additional noise are negative or not finite.
            TypeError: If a dtype or device is wrong.
        """
        given = checked_rows(self.ensemble.wanted(), X, y, steps, extra)
        places = self._places(names, X)
        for expert in self.ensemble.experts:
            expert.check_targets(y)
        step, predicted = self._read(), RowBuffer(len(y))
        for places_at_once, numbers in batches(places, LENGTHS if given.steps is None else (1,)):
            for part in torch.arange(len(numbers), device=numbers.device).split(step.most_series(numbers.shape[1])):
                chosen = numbers[part]
                step.observe(Work(places_at_once[part], chosen, X[chosen], given.at(chosen)), predicted)
        if predicted.whole is None:
            raise AllSetAsideError("every series of this call is set aside; see fleet.failures")
        return predicted.whole

    @torch.no_grad()
    def predict(self, names: Names, X: Tensor, *, extra: Tensor | None = None) -> AnyMixture:
        """Predict the next target of a series at each row independently, without learning.

        Args:
            names: The series of each row, N names; repetitions are allowed.
            X: Inputs, shape (N, D).
            extra: Further noise variance of each row, at least zero, shape (N,); none by default.

        Raises:
            KeyError: As in :meth:`observe`.
            ValueError: As in :meth:`observe`.
            TypeError: As in :meth:`observe`.
        """
        step, noise = self._read(), checked_rows(self.ensemble.wanted(), X, extra=extra).extra
        places = self._places(names, X)
        rows = torch.arange(len(X), device=X.device).split(step.most_series(1))
        parts = ((places[part], X[part], None if noise is None else noise[part]) for part in rows)
        return concatenate_mixtures([step.predict(*part) for part in parts])

    @torch.no_grad()
    def log_weights(self, names: Names) -> Tensor:
        """Log weights for the next target of each series, shape (N, M)."""
        return self._read().log_weights(self._slots.places(listed(names)).to(self._store.failed.device))

    def note(self, note: str, names: Names) -> Tensor:
        """A copy of a stored tensor of each series, shape (S, ...)."""
        return self._store.note(note)[self._slots.places(listed(names)).to(self._store.failed.device)]

    def write_note(self, note: str, names: Names, values: Tensor) -> None:
        """Write a stored tensor (S, ...) of distinct series."""
        places = self._slots.places(listed(names)).to(self._store.failed.device)
        self._store.note(note)[places] = values

    def save(self, folder: str | Path, *, about: Mapping[str, Any] | None = None, progress: bool = False) -> None:
        """Write hyperparameters and all series to a folder, in shards; if this fails, the previous save remains.

        Args:
            folder: Target folder; created if it does not exist.
            about: Additional tensors and plain containers to store in the head.
            progress: Show a progress bar.

        Raises:
            TypeError: If a series' name is neither a string nor an integer, or a part of the ensemble, such as a
                kernel, cannot be serialized.
            OSError: If a file cannot be written.
        """
        names = self._slots.names
        own = {"ensemble": self.ensemble, **self._store.begin, "own_variances": self.has_own_variances}
        whole = {**(about or {}), "series": to_plain(own, ENSEMBLES)}
        places = self._slots.places(names).to(self._store.failed.device)
        save_fleet(Path(folder), whole, names, places, self._store.tensors, progress=progress)

    @classmethod
    def load(
        cls, folder: str | Path, *, states: str | Path | None = None, device: str | torch.device = "cpu"
    ) -> "EnsembleFleet":
        """Load a fleet from a folder, bit for bit; only one shard at a time is in memory.

        Args:
            folder: The folder in which it was saved.
            states: Where states live as memory-mapped files, an empty or new folder; by default they live in memory.
            device: Device of the loaded fleet.

        Raises:
            FileNotFoundError: If there is no fleet in the folder.
            ValueError: If a file is damaged, or memory or disk space is insufficient; then no states are left behind.
        """
        about, shards = read_about(Path(folder))
        with fitting(Path(folder), REMEDY):
            known = from_plain(about["series"], ENSEMBLES)
            tensors = {name: value.to(device) for name, value in named_tensors(known["start"])}
            start = state_from([type(part) for part in known["start"].experts], tensors, tensors.__getitem__)
            notes = {name: value.to(device) for name, value in known["notes"].items()}
            own = known["own_variances"]
            fleet = cls(known["ensemble"].to(device), start=start, folder=states, notes=notes, own_variances=own)
        try:
            fleet._store.reserve(sum(int(shard["num_series"]) for shard in shards))
            for shard in shards:
                names, read = read_shard(Path(folder), shard)
                fleet._store.check_tensors(read)
                fleet._store.put_tensors(fleet._slots.add(names).to(fleet._store.failed.device), read)
        except BaseException:
            fleet.remove_files()
            raise
        return fleet

    def remove_files(self) -> None:
        """Remove the folder of states, if there is one; the fleet cannot be used afterwards."""
        if self.folder is not None:
            remove_part(self.folder)

    def _places(self, names: Names, X: Tensor) -> Tensor:
        check_domain(X, self.ensemble.bounded_features(), ())
        given = listed(names)
        if len(given) != len(X):
            raise ValueError(f"names must have one entry per row of X, got {len(given)} names and {len(X)} rows")
        return self._slots.places(given).to(X.device)

    def _read(self) -> Step:
        if self._step is None:
            self._step = Step(self.ensemble, self._store, self._export)
        return self._step

    def _read_again(self) -> None:
        self._step = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles live in memory."""
        return {**self.__dict__, "_step": None, "folder": None}

    def __repr__(self) -> str:
        num = self.ensemble.num_experts
        return f"EnsembleFleet({len(self)} series, {num} experts each, {len(self.failures)} set aside)"


def listed(names: Names) -> Sequence[Hashable]:
    """Names as a sequence of Python objects, so that equal names are equal in every fleet.

    Raises:
        TypeError: If a single string is given, or a name is not hashable.
        ValueError: If a name is missing: ``None`` or NaN.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence with one name per row, got the string {names!r}")
    given: list[Any] = names.tolist() if isinstance(names, HasToList) else list(names)
    kinds = {type(name) for name in given}
    scalars = {kind for kind in kinds if kind.__module__ == "numpy" and kind.__hash__ is not None}
    if scalars:
        given = [name.item() if type(name) in scalars else name for name in given]
        kinds = {type(name) for name in given}
    if wrong := [kind for kind in kinds if kind.__hash__ is None]:
        raise TypeError(f"names of series must be strings or integers, got an unhashable {wrong[0].__name__}")
    if not kinds <= {str, int} and any(_is_missing(name) for name in given):
        row = next(row for row, name in enumerate(given) if _is_missing(name))
        raise ValueError(f"row {row} has no series name, got {given[row]!r}; drop the row or give it a name")
    return given


def _is_missing(name: Hashable) -> bool:
    is_nan = isinstance(name, float) and math.isnan(name)
    return name is None or is_nan or type(name).__name__ in ("NAType", "NaTType")  # pandas' missing values


def _variance_notes(ensemble: Ensemble) -> dict[str, Tensor]:
    """Initial variances of a series: those of the experts."""
    notes = {}
    for number, (expert, bound) in enumerate(zip(ensemble.experts, ensemble.bind(), strict=True)):
        if not isinstance(bound, BoundGaussian):
            raise TypeError(f"{type(expert).__name__} has no noise variance; omit own_variances")
        notes[f"noise_{number}"], notes[f"prior_{number}"] = bound.noise.detach(), bound.prior_variance.detach()
    return notes
