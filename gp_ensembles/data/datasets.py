"""Data sets by name: small real ones of this package and of river, and synthetic ones."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.data.synthetic import drifting_sensor, friedman1, friedman2, switching_gps
from gp_ensembles.data.table import Table, read_csv

_TABLES = Path(__file__).parent / "tables"  # SOURCES.md there says where they are from, and their licenses
_NUM_ROWS = 2000
_AIRLINE_LAGS = (1, 12)
_WATER_LAGS = (1, 24)


def available() -> list[str]:
    """Names that :func:`load` knows, sorted; for those of a folder see :func:`~gp_ensembles.data.folder.folder_names`.

    Example:
        >>> "trump_approval" in available()
        True
    """
    return sorted(_LOADERS)


def load(name: str) -> Table:
    """Load a data set by name, bundled or synthetic (always the same draw).

    Args:
        name: One of :func:`available`.

    Returns:
        The table.

    Raises:
        ValueError: If no data set has this name.

    Example:
        >>> load("friedman1").X.shape
        torch.Size([2000, 10])
    """
    if name in _LOADERS:
        return _LOADERS[name]()
    known = available()
    close = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    raise ValueError(f"no data set is named {name}; {hint}")


def trump_approval() -> Table:
    """Daily approval of a president from five pollsters, with slow drift: 1001 rows, 6 inputs.

    Inputs are the day (counted from the first row) and the latest figure of each pollster, in percent; the target is
    the weighted average by FiveThirtyEight. Rows are in the order of time. The table is bundled here; it is
    that of ``river.datasets.TrumpApproval`` (data: FiveThirtyEight, CC BY 4.0).

    Returns:
        The table, X (1001, 6) and y (1001,).

    Example:
        >>> trump_approval().X.shape
        torch.Size([1001, 6])
    """
    names = ("ordinal_date", "gallup", "ipsos", "morning_consult", "rasmussen", "you_gov")
    table = read_csv(_TABLES / "trump_approval.csv.gz", "five_thirty_eight", names)
    # Days since the first row: as ordinals they differ by a thousandth of their size.
    table.X[:, 0] -= table.X[0, 0].clone()
    return table._replace(feature_names=("day", *names[1:]))


def airline_passengers() -> Table:
    """Monthly airline passengers 1949-1960 from what was known a month before: 132 rows, 4 inputs.

    Inputs are the figures of 1 and 12 months before (in thousands) and the sine and cosine of the month's place in
    the year, so every input of a row is known before its target; the first 12 months serve as history only.
    Source: ``river.datasets.AirlinePassengers`` (Box and Jenkins).

    Returns:
        The table, X (132, 4) and y (132,).

    Raises:
        ImportError: If river is not installed.

    Example:
        >>> airline_passengers().feature_names
        ('lag_1', 'lag_12', 'month_sin', 'month_cos')
    """
    rows = _river("AirlinePassengers")
    series = [float(y) for _, y in rows]
    first = max(_AIRLINE_LAGS)
    X = [
        [*(series[t - lag] for lag in _AIRLINE_LAGS), *_circle((rows[t][0]["month"].month - 1) / 12)]
        for t in range(first, len(rows))
    ]
    names = (*(f"lag_{lag}" for lag in _AIRLINE_LAGS), "month_sin", "month_cos")
    return Table(_float64(X), _float64(series[first:]), names, "passengers", "airline_passengers")


def water_flow() -> Table:
    """Hourly flow through a water pipe, with four anomalous periods, from the day before: 1190 rows, 4 inputs.

    Inputs are the flow 1 and 24 hours before (liters per second), and sine and cosine of the local hour of the day.
    Some hours are missing from the record: a lag is the value at that very hour, not a number of
    rows before, and a row without both is left out. Source: ``river.datasets.WaterFlow``.

    Returns:
        The table, X (1190, 4) and y (1190,).

    Raises:
        ImportError: If river is not installed.

    Example:
        >>> water_flow().feature_names
        ('lag_1h', 'lag_24h', 'hour_sin', 'hour_cos')
    """
    rows = _river("WaterFlow")
    # Seconds since 1970 are free of the change to summer time within the record.
    flow = {x["Time"].timestamp(): float(y) for x, y in rows}
    X, y = [], []
    for x, target in rows:
        time = x["Time"]
        before = [flow.get(time.timestamp() - 3600 * lag, math.nan) for lag in _WATER_LAGS]
        if not any(math.isnan(value) for value in before):
            X.append([*before, *_circle(time.hour / 24)])
            y.append(float(target))
    names = (*(f"lag_{lag}h" for lag in _WATER_LAGS), "hour_sin", "hour_cos")
    return Table(_float64(X), _float64(y), names, "flow", "water_flow")


def bananas() -> Table:
    """Two interlocked classes in the plane: 5300 rows, 2 inputs, a target that is 0 or 1.

    A classification set: the target is the label as a number, which a Gaussian likelihood takes as a regression.
    Source: ``river.datasets.Bananas``.

    Returns:
        The table, X (5300, 2) and y (5300,).

    Raises:
        ImportError: If river is not installed.

    Example:
        >>> bananas().y.unique()
        tensor([0., 1.], dtype=torch.float64)
    """
    rows = _river("Bananas")
    X = _float64([[float(x["1"]), float(x["2"])] for x, _ in rows])
    return Table(X, _float64([float(y) for _, y in rows]), ("x1", "x2"), "label", "bananas")


def _river(name: str) -> list[tuple[dict[str, Any], Any]]:
    try:
        from river import datasets
    except ImportError as error:
        raise ImportError(
            "this data set is part of river, which is not installed; pip install 'gp_ensembles[river]'"
        ) from error
    return list(getattr(datasets, name)())


def _circle(turn: float) -> tuple[float, float]:
    return math.sin(2 * math.pi * turn), math.cos(2 * math.pi * turn)


def _float64(values: Sequence[Any]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def _seeded() -> torch.Generator:
    return torch.Generator("cpu").manual_seed(0)


_LOADERS: Mapping[str, Callable[[], Table]] = MappingProxyType(
    {
        "airline_passengers": airline_passengers,
        "bananas": bananas,
        "trump_approval": trump_approval,
        "water_flow": water_flow,
        "drifting_sensor": lambda: drifting_sensor(_NUM_ROWS, generator=_seeded()).table,
        "friedman1": lambda: friedman1(_NUM_ROWS, generator=_seeded()).table,
        "friedman2": lambda: friedman2(_NUM_ROWS, generator=_seeded()).table,
        "switching_gps": lambda: switching_gps(_NUM_ROWS, generator=_seeded()).table,
    }
)
