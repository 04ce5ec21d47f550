"""A fault-tolerant fleet on a Ray cluster, with an actor for each shard.

Ray starts processes, sends rows to them and reports lost ones. Every shard has a folder with a saved fleet, and the
driver keeps the rows since that save. An actor that replaces a lost one reads the folder and learns these rows again.
"""

import zlib
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.engine.access_lock import AccessLock, guarded
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.files.operations import make_folder
from gp_ensembles.fleet.calls import CallRows, divided
from gp_ensembles.fleet.checkpoint import part_folder, remove_part
from gp_ensembles.fleet.ensemble_fleet import Names, listed
from gp_ensembles.fleet.exported import SeriesModel
from gp_ensembles.fleet.model import Fleet
from gp_ensembles.fleet.predictions import FleetPredictions, merge_predictions
from gp_ensembles.numerics.arguments import check_made

_HEAD = "shards.pt"
_KIND = Kind("gp_ensembles divided fleet", 2, "a divided fleet", "give a folder that divide_fleet wrote")
_ATTEMPTS = 5  # to restart a shard


class ShardLostError(RuntimeError):
    """A shard could not be restarted: its actor ends repeatedly, or its folder cannot be read."""


class ShardActor:
    """The state of an actor: a fleet, from the folder in which it was saved."""

    def __init__(self, folder: str) -> None:
        torch.set_num_threads(1)
        self._fleet = Fleet.load(folder)

    def call(self, what: str, *given: Any) -> Any:
        """Call a method of the fleet."""
        return getattr(self._fleet, what)(*given)


def divide_fleet(fleet: Fleet, folder: str | Path, num_shards: int) -> None:
    """Write a fleet into a folder, its series divided among shards, each of them a fleet.

    The hash of its name assigns a series, old or new, to a shard. Every shard can be read by
    :meth:`Fleet.load`, all of them are run by :class:`RayFleet`.

    Args:
        fleet: A fitted fleet; it is not changed.
        folder: A new or empty folder.
        num_shards: How many.

    Raises:
        ValueError: If there is no shard, nothing is fitted yet, or the folder is not empty.
        OSError: If a file cannot be written.

    Example:
        >>> import tempfile
        >>> X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
        >>> fleet = Fleet(warmup=20)
        >>> fleet.fit(["north", "south"] * 30, X, X.squeeze(-1).sin())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     divide_fleet(fleet, folder, num_shards=2)
        ...     [Fleet.load(f"{folder}/0-{number}").names for number in range(2)]
        [(), ('north', 'south')]
    """
    check_made("fleet", fleet, Fleet, "Fleet(warmup=200)")
    folder = _new_folder(folder, num_shards)
    whole = folder / "whole"
    fleet.save(whole)
    for number in range(num_shards):
        shard = Fleet.load(whole)
        shard.retire([name for name in (*shard.names, *shard.waiting) if shard_of(name, num_shards) != number])
        shard.save(part_folder(folder, 0, number))
    _write_head(folder, num_shards, 0)
    remove_part(whole)


def _new_folder(folder: str | Path, num_shards: int) -> Path:
    """A folder for a divided fleet; ValueError if there is no shard, or the folder is not empty."""
    folder = Path(folder)
    if num_shards < 1:
        raise ValueError(f"num_shards must be positive, got {num_shards}")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; give a new folder, or open it with RayFleet")
    make_folder(folder)
    return folder


def _write_head(folder: Path, num_shards: int, generation: int) -> None:
    """Write which of the shards in a folder are the fleet."""
    write_checkpoint(folder / _HEAD, _KIND, {"num_shards": num_shards, "generation": generation})


def shard_of(name: Hashable, num_shards: int) -> int:
    """The shard of a series, the same in every process."""
    return zlib.crc32(repr(name).encode()) % num_shards


@final
@guarded(writes=["observe", "predict", "add", "retire", "export", "save"], reads=[])
class RayFleet:
    """A divided fleet on a Ray cluster, an actor for each shard; it predicts what the shards' fleets do, bit for bit.

    A lost actor, with its machine or by itself, is restarted from its shard's folder and learns again the rows since
    :meth:`save`, which the driver keeps: the result is the same, bit for bit. Folders must have the same name on all
    machines.

    Args:
        folder: What :func:`divide_fleet` wrote.
        num_cpus: Processors of each actor.
        most_unsaved_rows: Rows that the driver keeps; beyond them everything is saved.

    Raises:
        ImportError: If Ray is not installed.
        FileNotFoundError: If there is no divided fleet in the folder.
        ShardLostError: If an actor cannot be started.

    Example:
        >>> fleet = RayFleet("/shared/meters")  # doctest: +SKIP
        >>> fleet.observe(names, X, y).interval()  # doctest: +SKIP
    """

    num_shards: int

    def __init__(self, folder: str | Path, *, num_cpus: float = 1.0, most_unsaved_rows: int = 1_000_000) -> None:
        self._ray = import_ray()
        self._folder, self._num_cpus, self._most_unsaved_rows = Path(folder), num_cpus, most_unsaved_rows
        if not (self._folder / _HEAD).exists():
            raise FileNotFoundError(f"{folder} contains no divided fleet; create one with divide_fleet")
        head = read_checkpoint(self._folder / _HEAD, _KIND)
        self.num_shards, self._generation = int(head["num_shards"]), int(head["generation"])
        self.access: AccessLock = AccessLock()
        self._checks = Fleet.load(part_folder(self._folder, self._generation, 0))
        self._checks.retire([*self._checks.names, *self._checks.waiting])
        self._unsaved: list[list[tuple[str, tuple[Any, ...]]]] = [[] for _ in range(self.num_shards)]
        self.actors: list[Any] = [self._start(number) for number in range(self.num_shards)]

    @classmethod
    def fit(
        cls, fleet: Fleet, names: Names, X: Tensor, y: Tensor, folder: str | Path, num_shards: int, **options: Any
    ) -> "RayFleet":
        """Fit to rows as :meth:`Fleet.fit` and :func:`divide_fleet` do, with a task for each shard.

        Shared hyperparameters are fitted here, to at most fifty series. Noise and prior variances of each series are
        fitted in the task of its shard, which also learns its rows and writes the shard. Ray runs a task again whose
        machine is lost.

        Args:
            fleet: The settings; it is not changed.
            names: As in :meth:`Fleet.fit`.
            X: As there.
            y: As there.
            folder: A new or empty folder, which all machines find under this name.
            num_shards: How many.
            **options: Those of :class:`RayFleet`.

        Raises:
            ImportError: If Ray is not installed.
            ValueError: As :meth:`Fleet.fit` and :func:`divide_fleet`.
            NumericalError: As :meth:`Fleet.fit`.
            ShardLostError: If the process of a task ends whenever it is run. After any error the folder is empty.

        Example:
            >>> fleet = RayFleet.fit(Fleet(), names, X, y, "/shared/meters", num_shards=16)  # doctest: +SKIP
        """
        check_made("fleet", fleet, Fleet, "Fleet(warmup=200)")
        ray, shared = import_ray(), fleet.fresh()
        rows = CallRows(*shared.checked(names, X, y))
        shared.fit_shared(*rows)
        folder = _new_folder(folder, num_shards)
        parts = divided(rows, [shard_of(name, num_shards) for name in rows.names])[1]
        places = [part_folder(folder, 0, number) for number in range(num_shards)]
        task, settled = ray.remote(_fit_shard), ray.put(shared)
        asked = [task.remote(settled, parts.get(number), str(place.absolute())) for number, place in enumerate(places)]
        try:
            ray.get(asked)
            _write_head(folder, num_shards, 0)
        except BaseException as error:
            ray.wait(asked, num_returns=len(asked))
            for place in filter(Path.exists, places):
                remove_part(place)
            if isinstance(error, ray.exceptions.RayTaskError):
                raise error.cause from error
            if isinstance(error, ray.exceptions.RayError):
                raise ShardLostError(f"the fit of a shard failed repeatedly: {error}") from error
            raise
        return cls(folder, **options)

    def observe(self, names: Names, X: Tensor, y: Tensor) -> FleetPredictions:
        """Predict each target, then learn it, as :meth:`Fleet.observe` does.

        Raises:
            ValueError: If rows are malformed; then no shard has learned anything.
            ShardLostError: If a lost actor cannot be restarted.
        """
        given, X, y = self._checks.checked(names, X, y)
        places, parts = self._divided(CallRows(given, X, y))
        predicted = self._teach("observe", parts)
        return merge_predictions([(places[number], predicted[number]) for number in parts], y)

    def predict(self, names: Names, X: Tensor) -> FleetPredictions:
        """Predictions of the next target of a series at each row, as :meth:`Fleet.predict`.

        Raises:
            KeyError: If a series is unknown.
            ValueError: If rows are malformed.
            ShardLostError: If a lost actor cannot be restarted.
        """
        given, X, y = self._checks.checked(names, X)
        places, parts = self._divided(CallRows(given, X, y))
        predicted = self._ask("predict", {number: (part.names, part.X) for number, part in parts.items()})
        return merge_predictions([(places[number], predicted[number]) for number in parts], y)

    def add(self, names: Names, model: SeriesModel) -> None:
        """Add series, as :meth:`Fleet.add`.

        Raises:
            ValueError: As there; then no shard has any of them.
            ShardLostError: If a lost actor cannot be restarted.
        """
        self._teach("add", {number: (own, model) for number, own in self._owned(names).items()})

    def retire(self, names: Names) -> None:
        """Remove series, as :meth:`Fleet.retire`.

        Raises:
            KeyError: If one is unknown; then all stay.
            ShardLostError: If a lost actor cannot be restarted.
        """
        self._teach("retire", {number: (own,) for number, own in self._owned(names).items()})

    def export(self, name: Hashable) -> SeriesModel:
        """A series by itself, as :meth:`Fleet.export`.

        Raises:
            KeyError: As there.
            ShardLostError: If a lost actor cannot be restarted.
        """
        number = shard_of(listed([name])[0], self.num_shards)
        model: SeriesModel = self._ask("export", {number: (name,)})[number]
        return model

    def save(self) -> None:
        """Write all shards into their folders; a failed save leaves the previous one.

        Raises:
            OSError: If a file cannot be written.
            ShardLostError: If a lost actor cannot be restarted.
        """
        generation = self._generation + 1
        everyone = range(self.num_shards)
        self._ask("save", {number: (str(part_folder(self._folder, generation, number)),) for number in everyone})
        _write_head(self._folder, self.num_shards, generation)
        before, self._generation = self._generation, generation
        self._unsaved = [[] for _ in everyone]
        for number in everyone:
            remove_part(part_folder(self._folder, before, number))

    def _divided(self, rows: CallRows) -> tuple[dict[int, Tensor], dict[int, CallRows]]:
        """Numbers of the rows of each shard, and these rows."""
        return divided(rows, [shard_of(name, self.num_shards) for name in rows.names])

    def _owned(self, names: Names) -> dict[int, list[Hashable]]:
        """Names by the shards to which they belong."""
        found: dict[int, list[Hashable]] = {}
        for name in listed(names):
            found.setdefault(shard_of(name, self.num_shards), []).append(name)
        return found

    def _teach(self, what: str, given: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Answers of shards to a call that changes all of them or none, which is kept until the next save."""
        try:
            predicted = self._ask(what, given)
        except BaseException:  # some may have learned what others have not
            for number in given:
                self.actors[number] = self._restart(number)
            raise
        for number, part in given.items():
            self._unsaved[number].append((what, part))
        if sum(len(given[0]) for calls in self._unsaved for _, given in calls) > self._most_unsaved_rows:
            self.save()
        return predicted

    def _ask(self, what: str, given: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Answers of shards; lost ones are restarted and called again."""
        lost = self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError
        asked = {number: self.actors[number].call.remote(what, *part) for number, part in given.items()}
        answers = {}
        for number, answer in asked.items():
            for _ in range(_ATTEMPTS):
                try:
                    answers[number] = self._ray.get(answer)
                    break
                except lost:
                    self.actors[number] = self._restart(number)
                    answer = self.actors[number].call.remote(what, *given[number])
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from error
            else:
                raise ShardLostError(f"shard {number} was lost {_ATTEMPTS} times during one call; check Ray's logs")
        return answers

    def _start(self, number: int) -> Any:
        """An actor with the fleet in the folder of a shard."""
        remote = self._ray.remote(num_cpus=self._num_cpus, scheduling_strategy="SPREAD")(ShardActor)
        return remote.remote(str(part_folder(self._folder, self._generation, number).absolute()))

    def _restart(self, number: int) -> Any:
        """An actor with the fleet in the folder of a shard and all that it has learned since."""
        self._ray.kill(self.actors[number])  # one that cannot be reached may still run
        error: Exception | None = None
        for _ in range(_ATTEMPTS):
            actor = self._start(number)
            try:
                self._ray.get([actor.call.remote(what, *given) for what, given in self._unsaved[number]])
            except self._ray.exceptions.RayError as found:
                error = found
            else:
                return actor
        raise ShardLostError(f"shard {number} cannot be restarted: {error}") from error

    def __repr__(self) -> str:
        return f"RayFleet({str(self._folder)!r}, {self.num_shards} shards)"


def _fit_shard(shared: Fleet, rows: CallRows | None, folder: str) -> None:
    """Fit the series of a shard, of which there may be none, and write it."""
    torch.set_num_threads(1)
    fleet = shared if rows is None else shared.fresh()
    if rows is not None:
        fleet.fit(*rows, shared=shared)
    fleet.save(folder)


def import_ray() -> Any:
    """The package."""
    try:
        import ray
    except ImportError:
        raise ImportError("this needs Ray; install gp_ensembles[ray]") from None
    return ray
