"""Many series, each with its own ensemble, in one object that learns them together."""

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
    """An array or an index of names."""

    def tolist(self) -> list[Hashable]:
        """The names."""


Names = Sequence[Hashable] | HasToList


class AllSetAsideError(ValueError):
    """Every series of a call has failed, before it or in it."""


@guarded(writes=["observe", "add", "retire"], reads=["predict", "log_weights", "export", "save"])
class EnsembleFleet:
    """An ensemble for each of many series, with shared hyperparameters and a state of its own for each.

    A series learns what its own :class:`~gp_ensembles.engine.online.OnlineEnsemble` would learn, in whatever order rows
    arrive, but rows that arrive together are learned together.

    An expert of a series that fails is put into quarantine, see :attr:`expert_failures`; until it is back the series is
    run by itself, which takes longer. A series of which no expert is left is set aside and the others continue: it
    keeps the state before that row, predictions of its rows are NaN, :attr:`failures` names it, and :meth:`retire` and
    :meth:`add` restart it.

    Args:
        ensemble: The ensemble that every series has; its hyperparameters are read when this object is made. Experts are
            :class:`~gp_ensembles.experts.GaussianExpert`, Student-t experts or such with another likelihood, whose
            states have a fixed size.
        names: Names of the first series.
        start: State of a series before its first row; by default, the ensemble's before any data.
        folder: Where states live as memory-mapped files, an empty or new folder; by default they live in memory.
        notes: Further numbers kept for each series, by name, with their initial values.
        own_variances: Whether series have noise and prior variances of their own, see :meth:`add`.

    Attributes:
        folder: Where states live; ``None`` for memory.

    Raises:
        TypeError: If this is no ensemble, or an expert cannot be one of a fleet.
        ValueError: If there are several outputs or external models, or the folder holds anything.

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
        """Names of all series, in the order of their places: a new series takes the place of a retired one."""
        return self._slots.names

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._slots

    @property
    def failures(self) -> dict[Hashable, int]:
        """Series that were set aside, and how many rows each had learned."""
        names = self._slots.names
        found = self._store.failed[self._slots.places(names)].tolist() if names else []
        return {name: rows for name, rows in zip(names, found, strict=True) if rows >= 0}

    @property
    def expert_failures(self) -> dict[Hashable, tuple[QuarantineReport, ...]]:
        """Experts that have failed, of each series that has such, in rows as its weight rule counts them."""
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
                variances where series have their own); by default, that before any data.
            variances: For each expert object those of the S series, before any data; ``None`` for the expert's own.
                None of them by default.

        Raises:
            ValueError: If a series is there already or named twice, or the state is one of another ensemble, or there
                is no memory for them, or no space on the disk.
            TypeError: If a name cannot be one.
        """
        names = listed(names)
        given = state.state if isinstance(state, OnlineEnsemble) else state
        self._slots.check_new(names)
        if given is not None:
            self._store.checked(given)
        if variances and (given is not None or not self.has_own_variances):
            raise ValueError("a series may be given variances only before any data, and in a fleet with own_variances")
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
            KeyError: If a series is unknown; then all stay.
        """
        self._slots.retire(listed(names))

    def export(self, name: Hashable) -> OnlineEnsemble:
        """An ensemble with the hyperparameters of one series and a copy of its state; feature maps and rule are shared.

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
        """Variances for which the form of the states is numerically accurate."""
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

        An interruption by Ctrl-C takes effect between two batches: every series has learned its rows up to some row,
        see :meth:`export`.

        Args:
            names: The series of each row, N of them. The rows of one series are in the order of time.
            X: Inputs, shape (N, D).
            y: Targets, shape (N,); NaN where missing.
            steps: Steps since the row before of the same series, at least zero, shape (N,); one each by default.
            extra: Further noise variance of each row, at least zero, shape (N,); none by default.

        Returns:
            Predictions made before each target, in the order of the rows; NaN for series that are set aside.

        Raises:
            KeyError: If a series is unknown.
            ValueError: If a shape is wrong, an input is not finite or outside a feature map's domain, a target is
                infinite, or steps or further noise are not numbers of zero and more.
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
        """Predict the next target of a series at each row on its own, learning nothing.

        Args:
            names: The series of each row, N of them; one may come several times.
            X: Inputs, shape (N, D).
            extra: Further noise variance of each row, at least zero, shape (N,); none by default.

        Raises:
            KeyError: As in :meth:`observe`.
            ValueError: As there.
            TypeError: As there.
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
        """A copy of the further numbers of a name of each series, shape (S, ...)."""
        return self._store.note(note)[self._slots.places(listed(names)).to(self._store.failed.device)]

    def write_note(self, note: str, names: Names, values: Tensor) -> None:
        """Write further numbers (S, ...) of series, which are distinct."""
        places = self._slots.places(listed(names)).to(self._store.failed.device)
        self._store.note(note)[places] = values

    def save(self, folder: str | Path, *, about: Mapping[str, Any] | None = None, progress: bool = False) -> None:
        """Write hyperparameters and all series into a folder, in shards; a failed save leaves the previous one.

        Args:
            folder: Where; made if it does not exist.
            about: Further tensors and plain containers for the head.
            progress: Show a progress bar.

        Raises:
            TypeError: If a series' name is neither a string nor a whole number, or a part of the ensemble, such as a
                kernel, has no name in files.
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
        """The fleet that was saved in a folder, equal to the bit; one shard at a time is in memory.

        Args:
            folder: Where it was saved.
            states: Where states live as memory-mapped files, an empty or new folder; by default they live in memory.
            device: Where it continues.

        Raises:
            FileNotFoundError: If there is no fleet in the folder.
            ValueError: If a file is damaged, or there is no room; then no states are left behind.
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
            raise ValueError(f"there must be one name for each of the {len(X)} rows of X, got {len(given)}")
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
    """Names as a sequence of Python objects, so that one series has one name in every fleet.

    Raises:
        TypeError: If they are one string, or a name cannot be hashed.
        ValueError: If a name is missing: ``None`` or NaN.
    """
    if isinstance(names, str):
        raise TypeError(f"names must be a sequence with a name for each row, got the string {names!r}")
    given: list[Any] = names.tolist() if isinstance(names, HasToList) else list(names)
    kinds = {type(name) for name in given}
    scalars = {kind for kind in kinds if kind.__module__ == "numpy" and kind.__hash__ is not None}
    if scalars:
        given = [name.item() if type(name) in scalars else name for name in given]
        kinds = {type(name) for name in given}
    if wrong := [kind for kind in kinds if kind.__hash__ is None]:
        raise TypeError(f"names of series are strings or whole numbers, got a {wrong[0].__name__}, which has no hash")
    if not kinds <= {str, int} and any(_is_missing(name) for name in given):
        row = next(row for row, name in enumerate(given) if _is_missing(name))
        raise ValueError(f"row {row} has no name of a series, got {given[row]!r}; leave the row out or give it a name")
    return given


def _is_missing(name: Hashable) -> bool:
    is_nan = isinstance(name, float) and math.isnan(name)
    return name is None or is_nan or type(name).__name__ in ("NAType", "NaTType")  # those of pandas


def _variance_notes(ensemble: Ensemble) -> dict[str, Tensor]:
    """Initial variances of a series: the experts' own."""
    notes = {}
    for number, (expert, bound) in enumerate(zip(ensemble.experts, ensemble.bind(), strict=True)):
        if not isinstance(bound, BoundGaussian):
            raise TypeError(f"{type(expert).__name__} has no noise variance; leave own_variances out")
        notes[f"noise_{number}"], notes[f"prior_{number}"] = bound.noise.detach(), bound.prior_variance.detach()
    return notes
