"""Data drawn from known distributions, each with the noise-free truth, in float64, and the messy table of the demo."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.data.table import Table
from gp_ensembles.files.replacing import write_text
from gp_ensembles.numerics.display import fields_text

# It keeps a float64 RBF covariance positive definite, and is part of the distribution.
_NUGGET = 1e-9
_FRIEDMAN2_RANGES = ((0.0, 100.0), (40 * math.pi, 560 * math.pi), (0.0, 1.0), (1.0, 11.0))
TARGET = "load"
_HEADER = ("time", "weather", "temperature", "solar", "holiday", TARGET)
_WEATHER = ("sunny", "cloudy", "rain")
_NEW_WEATHER = "fog"  # first occurs late
_START = datetime(2024, 1, 1)


class Draw(NamedTuple):
    """Rows drawn from a known distribution."""

    table: Table  # inputs (N, D) and noisy targets (N,), NaN in a gap
    truth: Tensor  # values without noise, shape (N,), in a gap as well
    noise_variance: float  # variance of the noise
    parts: Mapping[str, Tensor] = {}  # what the truth hangs on at each row, by name, each (N,)

    def __repr__(self) -> str:
        own = {"table": self.table, "truth": self.truth, "noise_variance": self.noise_variance}
        return fields_text("Draw", {**own, **self.parts})


def friedman1(num_rows: int, noise: float = 1.0, *, generator: torch.Generator | None = None) -> Draw:
    r"""Friedman's first function: ten uniform inputs, of which five matter.

    ``y = 10 sin(pi x1 x2) + 20 (x3 - 1/2)^2 + 10 x4 + 5 x5 + e`` on the unit cube (Friedman 1991, section 4.3).

    Args:
        num_rows: Number of rows N.
        noise: Standard deviation of e, in the target's units.
        generator: Source of randomness.

    Returns:
        X (N, 10) and y (N,), the values without noise, and the noise VARIANCE.

    Raises:
        ValueError: If there is no row, or the noise is negative.

    Example:
        >>> draw = friedman1(100, generator=torch.Generator().manual_seed(0))
        >>> draw.table.X.shape, draw.noise_variance
        (torch.Size([100, 10]), 1.0)
    """
    _check(num_rows, noise)
    X = _uniform(num_rows, 10, generator)
    truth = 10 * (math.pi * X[:, 0] * X[:, 1]).sin() + 20 * (X[:, 2] - 0.5).square() + 10 * X[:, 3] + 5 * X[:, 4]
    return _observe("friedman1", X, truth, noise, generator)


def friedman2(num_rows: int, noise: float = 125.0, *, generator: torch.Generator | None = None) -> Draw:
    r"""Friedman's second function: the impedance of a circuit, from four inputs of very different scales.

    ``y = sqrt(x1^2 + (x2 x3 - 1 / (x2 x4))^2) + e`` with inputs uniform on [0, 100], [40 pi, 560 pi], [0, 1] and
    [1, 11] (Friedman 1991, section 4.4, equation 61).

    Args:
        num_rows: Number of rows N.
        noise: Standard deviation of e, in the target's units; about a third of the function's by default.
        generator: Source of randomness.

    Returns:
        X (N, 4) and y (N,), the values without noise, and the noise VARIANCE.

    Raises:
        ValueError: If there is no row, or the noise is negative.

    Example:
        >>> friedman2(
        ...     100, noise=0.0, generator=torch.Generator().manual_seed(0)
        ... ).table.X.shape
        torch.Size([100, 4])
    """
    _check(num_rows, noise)
    ranges = torch.tensor(_FRIEDMAN2_RANGES, dtype=torch.float64, device="cpu")
    X = ranges[:, 0] + (ranges[:, 1] - ranges[:, 0]) * _uniform(num_rows, 4, generator)
    truth = (X[:, 0].square() + (X[:, 1] * X[:, 2] - 1 / (X[:, 1] * X[:, 3])).square()).sqrt()
    return _observe("friedman2", X, truth, noise, generator)


def switching_gps(
    num_rows: int,
    *,
    lengthscales: Sequence[float] = (1.0, 0.1, 1.0, 0.1),
    noise: float = 0.1,
    generator: torch.Generator | None = None,
) -> Draw:
    r"""A stream cut into equal segments, each drawn from a GP with its own length scale and unit variance.

    No single kernel fits all of it; an ensemble that forgets which expert was best follows it (after the synthetic
    test of the dynamic IE-GP, Lu, Karanikolas, Shen and Giannakis 2020, appendix; scales here are our own).
    The input is one-dimensional and uniform on [0, 5] in every segment, so that the function truly changes.

    Args:
        num_rows: N; the last segments are one row shorter if it is not divisible by their number.
        lengthscales: One for each segment.
        noise: Standard deviation of the noise.
        generator: Source of randomness.

    Returns:
        X (N, 1) and y (N,), with the parts ``segment``, its number at each row, and ``lengthscale``.

    Raises:
        ValueError: If there are fewer rows than segments, or a scale is not positive.

    Example:
        >>> switching_gps(8, generator=torch.Generator().manual_seed(0)).parts["segment"]
        tensor([0, 0, 1, 1, 2, 2, 3, 3])
    """
    if not lengthscales or any(scale <= 0 for scale in lengthscales):
        raise ValueError(f"at least one length scale is needed, and all must be positive, got {tuple(lengthscales)}")
    if num_rows < len(lengthscales):
        raise ValueError(f"{num_rows} rows are fewer than the {len(lengthscales)} segments; use more rows")
    _check(num_rows, noise)
    X = 5 * _uniform(num_rows, 1, generator)
    parts = torch.tensor_split(X, len(lengthscales))
    pairs = list(zip(parts, lengthscales, strict=True))
    truth = torch.cat([_function_draw(part, scale, generator) for part, scale in pairs])
    segment = torch.cat([part.new_full(part.shape[:1], i).long() for i, part in enumerate(parts)])
    drawn = _observe("switching_gps", X, truth, noise, generator)
    return drawn._replace(parts={"segment": segment, "lengthscale": X.new_tensor(lengthscales)[segment]})


def drifting_sensor(
    num_rows: int,
    jump_at: int | None = None,
    *,
    gap: tuple[int, int] | None = None,
    noise: float = 0.1,
    generator: torch.Generator | None = None,
) -> Draw:
    r"""A sensor whose gain drifts slowly, whose offset jumps once, and that is silent for a while.

    ``y_t = gain_t (sin(2 pi load_t) + load_t temperature_t) + offset_t + e_t``; the gain rises by half along the
    stream, the offset goes from 0 to 2 at the jump, and targets in the gap are NaN. Load and temperature are uniform
    on [0, 1] and [-1, 1].

    Args:
        num_rows: Number of rows N.
        jump_at: First row with the new offset; the middle by default.
        gap: First silent row, and the row after the last; the tenth of the rows after three quarters by default.
        noise: Standard deviation of e.
        generator: Source of randomness.

    Returns:
        X (N, 2) and y (N,) with NaN in the gap, the truth at every row, and the parts ``gain`` and ``offset``.

    Raises:
        ValueError: If the jump or the gap lies outside the rows.

    Example:
        >>> draw = drifting_sensor(
        ...     100, jump_at=60, gap=(20, 30), generator=torch.Generator().manual_seed(0)
        ... )
        >>> int(draw.table.y.isnan().sum()), *draw.parts["offset"][[59, 60]].tolist()
        (10, 0.0, 2.0)
    """
    _check(num_rows, noise)
    jump = num_rows // 2 if jump_at is None else jump_at
    start, stop = (3 * num_rows // 4, 3 * num_rows // 4 + num_rows // 10) if gap is None else gap
    if not 0 <= jump <= num_rows:
        raise ValueError(f"the jump at row {jump} lies outside the {num_rows} rows")
    if not 0 <= start <= stop <= num_rows:
        raise ValueError(f"the gap ({start}, {stop}) lies outside the {num_rows} rows, or ends before it begins")
    X = _uniform(num_rows, 2, generator)
    X[:, 1] = 2 * X[:, 1] - 1
    time = torch.arange(num_rows, device=X.device).to(X)
    gain, offset = 1 + 0.5 * time / num_rows, 2.0 * (time >= jump).to(X)
    truth = gain * ((2 * math.pi * X[:, 0]).sin() + X[:, 0] * X[:, 1]) + offset
    drawn = _observe("drifting_sensor", X, truth, noise, generator)
    y = drawn.table.y.clone()
    y[start:stop] = math.nan
    table = drawn.table._replace(y=y, feature_names=("load", "temperature"), target_name="reading")
    return drawn._replace(table=table, parts={"gain": gain, "offset": offset})


def _check(num_rows: int, noise: float) -> None:
    if num_rows < 1:
        raise ValueError(f"{num_rows} rows were requested; at least one is needed")
    if not (noise >= 0 and math.isfinite(noise)):
        raise ValueError(f"the noise's standard deviation is {noise:g}; it must be finite and not negative")


def _function_draw(X: Tensor, lengthscale: float, generator: torch.Generator | None) -> Tensor:
    r"""A draw at X (N, D), shape (N,), of the process with the kernel :math:`\exp(-|x - x'|^2 / (2 \ell^2))`."""
    # Differences, not torch.cdist, whose matrix product loses the small distances.
    matrix = (-0.5 * (X[:, None] - X).div(lengthscale).square().sum(-1)).exp()
    matrix.diagonal().add_(_NUGGET * matrix.diagonal().mean())
    drawn: Tensor = torch.linalg.cholesky(matrix) @ _normal(X, generator)
    return drawn


def _uniform(num_rows: int, num_columns: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(num_rows, num_columns, dtype=torch.float64, device="cpu", generator=generator)


def _normal(like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.randn(like.shape[:1], dtype=like.dtype, device=like.device, generator=generator)


def _observe(name: str, X: Tensor, truth: Tensor, noise: float, generator: torch.Generator | None) -> Draw:
    y = truth + noise * _normal(X, generator)
    names = tuple(f"x{j + 1}" for j in range(X.shape[1]))
    return Draw(Table(X, y, names, "y", name), truth, noise**2)


def write_messy_load(path: Path, num_rows: int = 2500, *, seed: int = 0) -> None:
    """Write an hourly load, raw meter readings in a European dialect: semicolons, decimal commas, day first."""
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
    write_text(path, "\n".join(lines) + "\n")


def _decimal(number: float) -> str:
    return f"{number:.2f}".replace(".", ",")
