"""Raw hourly meter readings: dates, categories, gaps, a sensor that is constant at first, a drifting level."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from gp_ensembles.files.replacing import write_text

TARGET = "load"
_HEADER = ("time", "weather", "temperature", "solar", "holiday", TARGET)
_WEATHER = ("sunny", "cloudy", "rain")
_NEW_WEATHER = "fog"  # first occurs late
_START = datetime(2024, 1, 1)


def messy_load(num_rows: int = 2500, *, seed: int = 0) -> str:
    """An hourly load as text in a European dialect: semicolons, decimal commas, day first."""
    generator = np.random.default_rng(seed)
    hours = np.arange(num_rows) + 8 * (np.arange(num_rows) >= num_rows // 4)
    times = [_START + timedelta(hours=int(hour)) for hour in hours]
    day, year = 2 * np.pi * (hours % 24) / 24, 2 * np.pi * hours / (365.25 * 24)
    working = np.array([time.weekday() < 5 for time in times])
    kinds = np.repeat(generator.integers(0, len(_WEATHER), num_rows // 12 + 1), 12)[:num_rows]
    weather = np.array(_WEATHER, dtype=object)[kinds]
    weather[(kinds == 2) & (np.arange(num_rows) > 3 * num_rows // 4)] = _NEW_WEATHER
    temperature = 10 - 8 * np.cos(year) - 4 * np.cos(day - 0.5) + np.cumsum(generator.normal(0, 0.15, num_rows))
    solar = np.maximum(-np.cos(day), 0) * np.array([30.0, 12.0, 5.0])[kinds] * (np.arange(num_rows) >= num_rows // 2)
    holiday = np.isin([time.date().toordinal() % 37 for time in times], [0])
    level = 200 + np.cumsum(generator.normal(0, 0.15, num_rows)) + 15 * (np.arange(num_rows) >= 2 * num_rows // 3)
    busy = working & ~holiday
    shape = -30 * np.cos(day - 0.6) + 25 * busy * np.maximum(np.sin(day - np.pi / 2), 0)
    load = level + shape + 1.5 * np.abs(temperature - 16) - 0.8 * solar + generator.normal(0, 3, num_rows)
    cold = generator.random(num_rows) < 0.04
    cold[num_rows // 3 : num_rows // 3 + 48] = True
    silent = generator.random(num_rows) < 0.01
    lines = [";".join(_HEADER)]
    for row, time in enumerate(times):
        cells = (
            f"{time:%d.%m.%Y %H:%M}",
            weather[row],
            "" if cold[row] else _decimal(temperature[row]),
            _decimal(solar[row]),
            "yes" if holiday[row] else "no",
            "NA" if silent[row] else _decimal(load[row]),
        )
        lines.append(";".join(cells))
    return "\n".join(lines) + "\n"


def write_messy_load(path: Path, num_rows: int = 2500, *, seed: int = 0) -> None:
    """Write :func:`messy_load` to a file."""
    write_text(path, messy_load(num_rows, seed=seed))


def _decimal(number: float) -> str:
    return f"{number:.2f}".replace(".", ",")
