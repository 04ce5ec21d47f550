"""The fleet of a run in the folder ``fleet``: one for all series, or one for each group of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gp_ensembles.cli.run_ids import partial_table
from gp_ensembles.files.operations import remove_if_possible
from gp_ensembles.fleet import Fleet, GroupedFleet
from gp_ensembles.fleet.checkpoint import HEAD as FLEET_HEAD
from gp_ensembles.fleet.grouped import HEAD as GROUPS_HEAD

FLEET, PREDICTIONS = "fleet", "predictions.csv"
AnyFleet = Fleet | GroupedFleet


def settings_of(fleet: AnyFleet) -> Fleet:
    """The fleet, or one with the settings of every group's."""
    return fleet.settings if isinstance(fleet, GroupedFleet) else fleet


def is_there(out: Path) -> bool:
    """Whether a folder of results holds a fleet of either kind."""
    return any((out / FLEET / head).exists() for head in (FLEET_HEAD, GROUPS_HEAD))


def notes_in(out: Path) -> dict[str, Any]:
    """What was kept with the fleet in a folder of results.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If a file is damaged.
    """
    return _kind_in(out).notes_in(out / FLEET)


def load_fleet(out: Path, device: str) -> AnyFleet:
    """The fleet in a folder of results; raises as :func:`notes_in`, and ValueError if the device is not there."""
    return _kind_in(out).load(out / FLEET, device=device)


def save_fleet(fleet: AnyFleet, out: Path, notes: Mapping[str, Any]) -> None:
    """Write a fleet into a folder of results, in the place of one of either kind.

    Raises:
        OSError: If a file cannot be written; then the one before is still there.
    """
    fleet.save(out / FLEET, notes=notes)
    other = out / FLEET / (FLEET_HEAD if isinstance(fleet, GroupedFleet) else GROUPS_HEAD)
    if other.exists():
        remove_if_possible(other)


def _kind_in(out: Path) -> type[Fleet] | type[GroupedFleet]:
    """Of which kind the fleet is: where a run was killed in the place of one of the other kind, its own."""
    heads: dict[str, type[Fleet] | type[GroupedFleet]] = {FLEET_HEAD: Fleet, GROUPS_HEAD: GroupedFleet}
    found = [kind for head, kind in heads.items() if (out / FLEET / head).exists()]
    for kind in found:
        run_id = kind.notes_in(out / FLEET).get("run_id", "")
        if len(found) == 1 or partial_table(out / PREDICTIONS, run_id).exists():
            return kind
    return Fleet
