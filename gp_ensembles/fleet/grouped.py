"""Many series in groups: those of one group share length scales, a fleet for each group."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import torch
from torch import Tensor

from gp_ensembles.distributions import Mixture, StudentTMixture
from gp_ensembles.ensembles.spec_checks import check_made
from gp_ensembles.ensembles.turns import Turns, in_turns
from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.files.operations import make_folder
from gp_ensembles.fleet.calls import Begun, CallRows, checked_rows, divided
from gp_ensembles.fleet.checkpoint import part_folder, remove_part
from gp_ensembles.fleet.ensemble_fleet import Names, listed
from gp_ensembles.fleet.exported import SeriesModel
from gp_ensembles.fleet.model import Fleet
from gp_ensembles.fleet.predictions import FleetPredictions, in_order, place_of, together

Groups = Mapping[Any, str] | Callable[[Any], str]

HEAD = "groups.pt"
_KIND = Kind("gp_ensembles grouped fleet", 1, "a grouped fleet", "give a folder that a GroupedFleet was saved in")
_PART: Final = re.compile(r"(\d+)-\d+")


@final
@in_turns(learning=["fit", "observe", "add", "retire"], reading=["predict", "predict_interval", "export", "save"])
class GroupedFleet:
    """A :class:`Fleet` for each group of series, with the verbs of one fleet and the numbers of each group's own.

    Args:
        fleet: The settings of every group's fleet; it stays as it is.
        groups: The group of each series: a mapping, or a function of the name. A series stays in its group.

    Attributes:
        settings: A fleet that has learned nothing, with the settings of every group's.
        groups: What was given: a mapping may grow.
        fleets: The fleets of the groups.

    Raises:
        TypeError: If this is no fleet, or groups are neither a mapping nor a function.
        ValueError: If the states of the fleet live in a folder.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import e_doebe
        >>> fleet = Fleet(replace(e_doebe, bases=(LinearBasis(),)), warmup=20)
        >>> grouped = GroupedFleet(fleet, {"pump 1": "pumps", "pump 2": "pumps", "fan 1": "fans"})
        >>> X = torch.linspace(0, 9, 90, dtype=torch.float64).unsqueeze(-1)
        >>> said = grouped.observe(["pump 1", "fan 1", "pump 2"] * 30, X, X.squeeze(-1).sin())
        >>> sorted(grouped.fleets), grouped.names, len(said.rows)
        (['fans', 'pumps'], ('pump 1', 'pump 2', 'fan 1'), 30)
    """

    def __init__(self, fleet: Fleet, groups: Groups) -> None:
        check_made("fleet", fleet, Fleet, "Fleet(warmup=200)")
        if not isinstance(groups, Mapping) and not callable(groups):
            raise TypeError(f"groups must be a mapping or a function of a series' name, got {groups!r}")
        if fleet.folder is not None:
            raise ValueError(f"states of several fleets cannot live in {fleet.folder}; leave the fleet's folder out")
        self.turns: Turns = Turns()
        self.settings: Fleet = fleet.fresh()
        self.groups: Groups = groups
        self.fleets: dict[str, Fleet] = {}

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of the series that have begun, group by group."""
        return tuple(name for fleet in self.fleets.values() for name in fleet.names)

    @property
    def waiting(self) -> dict[Hashable, int]:
        """As :attr:`Fleet.waiting`."""
        return {name: num for fleet in self.fleets.values() for name, num in fleet.waiting.items()}

    @property
    def failures(self) -> dict[Hashable, int]:
        """As :attr:`Fleet.failures`."""
        return {name: num for fleet in self.fleets.values() for name, num in fleet.failures.items()}

    @property
    def weights(self) -> dict[Hashable, dict[str, float]]:
        """As :attr:`Fleet.weights`."""
        return {name: own for fleet in self.fleets.values() for name, own in fleet.weights.items()}

    def fit(self, names: Names, X: Tensor, y: Tensor, *, progress: bool = False) -> None:
        """Forget everything, and fit the hyperparameters of each group to its rows.

        Args:
            names: As in :meth:`Fleet.fit`.
            X: As there.
            y: As there.
            progress: Show a progress bar for each group.

        Raises:
            KeyError: If a series has no group.
            ValueError: As there, in any group; then nothing is forgotten.
            NumericalError: As there.
        """
        rows = checked_rows(names, X, y, None)
        _, parts = divided(rows, self._owners(rows.names))
        fleets = {group: self.settings.fresh() for group in parts}
        for group, part in parts.items():
            try:
                fleets[group].fit(*part, progress=progress)
            except ValueError as error:
                raise ValueError(f"group {group!r}: {error}") from error
        self.fleets = fleets

    def observe(self, names: Names, X: Tensor, y: Tensor) -> FleetPredictions:
        """Predict each target, then learn it; a rejected call changes nothing in any group.

        An interruption by Ctrl-C takes effect between groups, too: see :meth:`EnsembleFleet.observe`.

        Args:
            names: As in :meth:`Fleet.observe`.
            X: As there.
            y: As there.

        Returns:
            Predictions in the order of the rows.

        Raises:
            KeyError: If a series has no group.
            ValueError: As there.
        """
        rows = checked_rows(names, X, y, self._num_inputs)
        places, parts = divided(rows, self._owners(rows.names))
        fleets = {group: self.fleets.get(group) or self.settings.fresh() for group in parts}
        begun: dict[str, Begun] = {}
        try:
            for group, part in parts.items():  # what may be refused or fail comes first, in all groups
                begun[group] = fleets[group].begin(*part)
            said = {group: fleets[group].learn(call) for group, call in begun.items()}
        except BaseException:
            for call in begun.values():
                call.undo()
            raise
        self.fleets |= fleets
        return in_order([(places[group], said[group]) for group in parts], rows.y)

    def predict(self, names: Names, X: Tensor) -> Mixture | StudentTMixture:
        """Distributions of the next target of a series at each row, as :meth:`Fleet.predict`.

        Groups may have different experts, as where lags were found in one of them: components that a series does not
        have come last and have no weight.

        Raises:
            KeyError: If a series is unknown or has no group, or its warm-up is not over.
            ValueError: If rows are malformed.
        """
        places, parts = self._to_predict(names, X)
        return together([self.fleets[group].predict(*part[:2]) for group, part in parts.items()], _order(places))

    def predict_interval(self, names: Names, X: Tensor, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Lower and upper ends, (N,) each, of intervals, as :meth:`Fleet.predict_interval`."""
        place_of(coverage, self.settings.intervals.coverages)
        places, parts = self._to_predict(names, X)
        order = _order(places)
        ends = [self.fleets[group].predict_interval(*part[:2], coverage) for group, part in parts.items()]
        lower, upper = (torch.cat(end)[order] for end in zip(*ends, strict=True))
        return lower, upper

    def retire(self, names: Names) -> None:
        """Take series out, as :meth:`Fleet.retire`.

        Raises:
            KeyError: If one is unknown; then all stay.
        """
        given = listed(names)
        owners = self._owners(given)
        for name, group in zip(given, owners, strict=True):
            self._check_known(name, group)
        for group in dict.fromkeys(owners):
            self.fleets[group].retire([name for name, own in zip(given, owners, strict=True) if own == group])

    def export(self, name: Hashable) -> SeriesModel:
        """A series by itself, as :meth:`Fleet.export`.

        Raises:
            KeyError: As there, or if it has no group.
        """
        given = listed([name])[0]
        group = self._owners([given])[0]
        self._check_known(given, group)
        return self.fleets[group].export(given)

    def add(self, names: Names, model: SeriesModel) -> None:
        """Add series, each as a copy of one by itself, as :meth:`Fleet.add`.

        Args:
            names: Their names, new and distinct, all of one group: hyperparameters are a group's own.
            model: One of that group, or of a fleet with the same hyperparameters and settings.

        Raises:
            KeyError: If a series has no group.
            ValueError: As there, or if series are of several groups; then none is added.
        """
        given = listed(names)
        owners = list(dict.fromkeys(self._owners(given)))
        if len(owners) > 1:
            raise ValueError(f"series of groups {owners} have no model in common; add those of one group at a time")
        for group in owners:
            self.fleets.get(group, self.settings).add(given, model)

    def save(self, folder: str | Path, *, notes: Mapping[str, Any] | None = None) -> None:
        """Write all groups into a folder, a fleet in each of its folders; a save that fails leaves the one before.

        A mapping of groups is kept with them; of a function what it said of the series that are known.

        Args:
            folder: Where; made if it is not there.
            notes: Plain containers to be kept with it, see :meth:`notes_in`.

        Raises:
            TypeError: If a series' name is neither a string nor a whole number, or a group's name no string.
            OSError: If a file cannot be written.
            ValueError: If no group has begun.
        """
        folder = Path(folder)
        begun = [group for group, fleet in self.fleets.items() if fleet.series is not None]
        if not begun:
            raise ValueError("nothing is fitted yet: no series has had its warm-up; observe more rows before saving")
        if any(not isinstance(group, str) for group in self.fleets):
            raise TypeError(f"groups in files have strings for names, got {list(self.fleets)}")
        make_folder(folder)
        earlier = [(path, match) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))]
        generation = 1 + max((int(match[1]) for _, match in earlier), default=-1)
        for number, group in enumerate(begun):
            self.fleets[group].save(part_folder(folder, generation, number))
        known = self.groups if isinstance(self.groups, Mapping) else self._known()
        waiting = [
            {"name": name, **own._asdict()}
            for group, fleet in self.fleets.items()
            if group not in begun
            for name, own in fleet.warm_ups.items()
        ]
        head = {"generation": generation, "begun": begun, "waiting": waiting, "notes": dict(notes or {})}
        write_checkpoint(folder / HEAD, _KIND, {**head, "names": list(known), "groups": list(known.values())})
        for path, _ in earlier:
            remove_part(path)

    @classmethod
    def load(
        cls, folder: str | Path, groups: Groups | None = None, *, device: str | torch.device = "cpu"
    ) -> "GroupedFleet":
        """The fleets that were saved in a folder, to the bit.

        Args:
            folder: Where they were saved.
            groups: The group of each series, as it was then; by default what was kept.
            device: Where it goes on.

        Raises:
            FileNotFoundError: If there is no grouped fleet in the folder.
            ValueError: If a file is damaged, or a series was in another group then.
        """
        folder = Path(folder)
        head = _read(folder)
        kept = dict(zip(head["names"], head["groups"], strict=True))
        fleets = {
            group: Fleet.load(part_folder(folder, head["generation"], number), device=device)
            for number, group in enumerate(head["begun"])
        }
        found = cls(next(iter(fleets.values())), kept if groups is None else groups)
        found.fleets = fleets
        waiting = found._owners([row["name"] for row in head["waiting"]])
        for row, group in zip(head["waiting"], waiting, strict=True):
            fleet = found.fleets.setdefault(group, found.settings.fresh())
            fleet.observe([row["name"]] * len(row["y"]), row["X"], row["y"])
        for name, group in found._known().items():
            if found._owners([name]) != [group]:
                raise ValueError(
                    f"series {name!r} was in group {group!r} when {folder} was written; give groups as then"
                )
        return found

    @staticmethod
    def notes_in(folder: str | Path) -> dict[str, Any]:
        """What was kept with a fleet that was saved in a folder; raises as :meth:`load`."""
        notes: dict[str, Any] = _read(Path(folder)).get("notes", {})
        return notes

    def __repr__(self) -> str:
        return f"GroupedFleet({', '.join(f'{group}: {fleet!r}' for group, fleet in self.fleets.items())})"

    @property
    def _num_inputs(self) -> int | None:
        return next((num for fleet in self.fleets.values() if (num := fleet.num_inputs) is not None), None)

    def _owners(self, names: Sequence[Hashable]) -> list[str]:
        """The group of each series; KeyError for those that have none."""
        if callable(self.groups):
            return [self.groups(name) for name in names]
        try:
            return [self.groups[name] for name in names]
        except KeyError as error:
            raise KeyError(f"series {error.args[0]!r} has no group; add it to groups") from error

    def _known(self) -> dict[Hashable, str]:
        return {name: group for group, fleet in self.fleets.items() for name in (*fleet.names, *fleet.waiting)}

    def _check_known(self, name: Hashable, group: str) -> None:
        fleet = self.fleets.get(group)
        if fleet is None or not (name in fleet.warm_ups or (fleet.series is not None and name in fleet.series)):
            raise KeyError(f"unknown series {name!r} of group {group!r}")

    def _to_predict(self, names: Names, X: Tensor) -> tuple[dict[str, Tensor], dict[str, CallRows]]:
        rows = checked_rows(names, X, None, self._num_inputs)
        owners = self._owners(rows.names)
        for name, group in zip(rows.names, owners, strict=True):
            self._check_known(name, group)
        return divided(rows, owners)


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / HEAD).exists():
        raise FileNotFoundError(f"{folder} holds no grouped fleet: there is no {HEAD} in it; {_KIND.advice}")
    return read_checkpoint(folder / HEAD, _KIND)


def _order(places: Mapping[str, Tensor]) -> Tensor:
    """Where each row of a call stands among the rows of all groups, one after the other."""
    return torch.cat(list(places.values())).argsort()
