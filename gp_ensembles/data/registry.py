"""Tables by name."""

import difflib
from collections.abc import Callable

from gp_ensembles.data.bundled import airline_passengers, bananas, diabetes, trump_approval, water_flow
from gp_ensembles.data.table import Table

_LOADERS: dict[str, Callable[[], Table]] = {
    "airline_passengers": airline_passengers,
    "bananas": bananas,
    "diabetes": diabetes,
    "trump_approval": trump_approval,
    "water_flow": water_flow,
}


def available() -> list[str]:
    """Names that :func:`load` knows.

    Example:
        >>> "trump_approval" in available()
        True
    """
    return sorted(_LOADERS)


def load(name: str) -> Table:
    """A table that travels with an installed package.

    Args:
        name: One of :func:`available`.

    Raises:
        ValueError: If the name is unknown.
        ImportError: If the package that brings the table is not installed.

    Example:
        >>> load("diabetes").X.shape
        torch.Size([442, 10])
    """
    if name not in _LOADERS:
        close = difflib.get_close_matches(name, _LOADERS, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(available())}"
        raise ValueError(f"no table is named {name}; {hint}")
    return _LOADERS[name]()
