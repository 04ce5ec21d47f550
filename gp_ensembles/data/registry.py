"""One place that knows every set by name."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch

from gp_ensembles.data.bundled import airline_passengers, bananas, diabetes, trump_approval, water_flow
from gp_ensembles.data.folder import folder_names, load_folder
from gp_ensembles.data.synthetic import drifting_sensor, friedman1, friedman2, gp_draw, switching_gps
from gp_ensembles.data.table import Table

_NUM_ROWS = 2000


def _seeded() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


def _gp_table() -> Table:
    X = torch.linspace(0, 10, 500, dtype=torch.float64, device="cpu")[:, None]
    return gp_draw(X, generator=_seeded()).table


LOADERS: Mapping[str, Callable[[], Table]] = MappingProxyType(
    {
        "airline_passengers": airline_passengers,
        "bananas": bananas,
        "diabetes": diabetes,
        "trump_approval": trump_approval,
        "water_flow": water_flow,
        "drifting_sensor": lambda: drifting_sensor(_NUM_ROWS, generator=_seeded()).table,
        "friedman1": lambda: friedman1(_NUM_ROWS, generator=_seeded()).table,
        "friedman2": lambda: friedman2(_NUM_ROWS, generator=_seeded()).table,
        "gp_draw": _gp_table,
        "switching_gps": lambda: switching_gps(_NUM_ROWS, generator=_seeded()).table,
    }
)


def available(folder: str | Path | None = None) -> list[str]:
    """Names that :func:`load` knows, those of a folder included if one is given.

    Example:
        >>> "trump_approval" in available()
        True
    """
    return sorted({*LOADERS, *(folder_names(folder) if folder is not None else ())})


def load(name: str, *, folder: str | Path | None = None) -> Table:
    """Load a set by name: from the folder if it has it, otherwise bundled or synthetic (always the same draw).

    Args:
        name: One of :func:`available`.
        folder: A folder with a manifest, as for :func:`~gp_ensembles.data.folder.load_folder`.

    Returns:
        The table.

    Raises:
        ValueError: If no set has this name.

    Example:
        >>> load("friedman1").X.shape
        torch.Size([2000, 10])
    """
    if folder is not None and name in folder_names(folder):
        return load_folder(folder, name)
    if name in LOADERS:
        return LOADERS[name]()
    known = available(folder)
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    raise ValueError(f"no set is named {name}; {hint}")
