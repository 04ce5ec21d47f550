"""Arrays that the freeze writes of streams: every preset on made-up sets, in calls of many rows, one row and series.

Names of the library are reached through ``gpe`` and the packages of its functions, so that what moves is found.
"""

import functools
import importlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import gp_ensembles as gpe

Arrays = Mapping[str, Any]  # numbers, tensors and sequences by name
Entry = Callable[[], Arrays]

PAPERS = ("oebe", "doebe", "soebe", "sdoebe", "e_doebe", "ie_gp", "sie_gp", "die_gp", "dsie_gp")
WARM_UP, NUM_ROWS, BY_THEMSELVES = 140, 220, 20
FLEET_WARM_UP, FLEET_ROWS = 60, 90
QUANTILES = (0.05, 0.5, 0.95)


class Stream(NamedTuple):
    """Rows of a set, what kind of target they have, and the time between them."""

    X: Tensor
    y: Tensor
    target: Any
    steps: Tensor | None = None


def stream_entries() -> dict[str, Entry]:
    """What is written, by name."""
    return {
        **_single_streams(),
        **_many_series(),
        **{f"estimators/{name}": entry for name, entry in _ESTIMATORS.items()},
    }


# Sets


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _curve(X: Tensor) -> Tensor:
    return (3 * X[:, 0]).sin() + 0.5 * X[:, 0] * X[:, 1]


def plain(generator: torch.Generator, num_columns: int = 2) -> tuple[Tensor, Tensor]:
    X = 2 * torch.rand(NUM_ROWS, num_columns, generator=generator, dtype=torch.float64) - 1
    return X, _curve(X) + 0.1 * normal(generator, NUM_ROWS)


def _drift() -> Stream:
    table = gpe.data.drifting_sensor(NUM_ROWS, jump_at=170, gap=(180, 190), generator=seeded(1)).table
    return Stream(table.X, table.y, gpe.targets.RealTarget())


def _gaps() -> Stream:
    generator = seeded(2)
    X, y = plain(generator)
    X[torch.rand(X.shape, generator=generator, dtype=torch.float64) < 0.08] = math.nan
    X[60:70, 1], X[160:175, 0] = math.nan, math.nan
    y[torch.rand(y.shape, generator=generator, dtype=torch.float64) < 0.1] = math.nan
    return Stream(X, y, gpe.targets.RealTarget())


def _constant() -> Stream:
    generator = seeded(3)
    X, y = plain(generator)
    inactive, still = torch.zeros_like(y), torch.full_like(y, 7.0)
    inactive[170:] = normal(generator, NUM_ROWS - 170)
    return Stream(
        torch.cat([X, inactive[:, None], still[:, None]], 1), 50 + 20 * y + inactive, gpe.targets.RealTarget()
    )


def _outliers() -> Stream:
    X, y = plain(seeded(4))
    y[[40, 90, 150, 151, 185]] += torch.tensor([30.0, -50.0, 40.0, -8.0, 1e3], dtype=torch.float64)
    X[[70, 165, 200], 0] += torch.tensor([40.0, -25.0, 300.0], dtype=torch.float64)
    return Stream(X, y, gpe.targets.RealTarget())


def _switch() -> Stream:
    table = gpe.data.synthetic.switching_gps(NUM_ROWS, generator=seeded(5)).table
    return Stream(table.X, table.y, gpe.targets.RealTarget())


def _sines() -> Stream:
    time = torch.arange(NUM_ROWS, dtype=torch.float64)
    y = (time / 4).sin() + 0.5 * (time / 11).cos() + 0.1 * normal(seeded(6), NUM_ROWS)
    return Stream(time[:, None] / 10, y, gpe.targets.RealTarget())


def _seasonal() -> Stream:
    generator = seeded(7)
    steps = torch.randint(1, 4, (NUM_ROWS,), generator=generator).double()
    steps[:WARM_UP] = 1.0
    time = steps.cumsum(0)
    turn = 2 * math.pi * time / 12
    X = torch.stack([time, turn.sin(), turn.cos()], 1)
    y = 100 + 0.3 * time + 10 * turn.sin() + normal(generator, NUM_ROWS)
    return Stream(X, y, gpe.targets.RealTarget(), steps)


def _table() -> Stream:
    table = gpe.data.friedman1(NUM_ROWS, generator=seeded(8)).table
    return Stream(table.X, table.y, gpe.targets.RealTarget())


def _tails() -> Stream:
    generator = seeded(9)
    X, y = plain(generator)
    chi = normal(generator, NUM_ROWS, 2).square().mean(-1)
    return Stream(X, y + 0.2 * normal(generator, NUM_ROWS) / chi.sqrt(), gpe.targets.RealTarget())


def _classes() -> Stream:
    X, y = plain(seeded(10))
    return Stream(X, (y > 0).double() + (y > 0.6).double(), gpe.targets.ClassTarget(3))


def _two_classes() -> Stream:
    X, y = plain(seeded(11))
    return Stream(X, (y > 0).double(), gpe.targets.BinaryTarget())


def _levels() -> Stream:
    X, y = plain(seeded(12))
    levels = (y > -0.5).double() + (y > 0).double() + (y > 0.5).double()
    return Stream(X, levels, gpe.targets.LevelTarget(4))


def _counts() -> Stream:
    generator = seeded(13)
    X, y = plain(generator)
    return Stream(X, torch.poisson((1 + y).exp(), generator=generator), gpe.targets.CountTarget())


def _outputs() -> Stream:
    generator = seeded(14)
    X, y = plain(generator)
    other = (2 * X[:, 1]).cos() + 0.1 * normal(generator, NUM_ROWS)
    return Stream(X, torch.stack([y, other], 1), gpe.targets.RealTarget(num_outputs=2))


SETS: dict[str, Callable[[], Stream]] = {
    "drift": _drift,
    "gaps": _gaps,
    "constant": _constant,
    "outliers": _outliers,
    "switch": _switch,
    "sines": _sines,
    "seasonal": _seasonal,
    "table": _table,
    "tails": _tails,
    "classes": _classes,
    "two_classes": _two_classes,
    "levels": _levels,
    "counts": _counts,
    "outputs": _outputs,
}


# One stream


def _specs(name: str) -> dict[str, Any]:
    """The ensembles that meet a set."""
    target = SETS[name]().target
    if not target.is_real or target.num_outputs is not None:
        some = {"light": gpe.light, "e_doebe": gpe.e_doebe}
        return {"auto": gpe.auto_for(target), **{key: replace(spec, target=target) for key, spec in some.items()}}
    specs = {"light": gpe.light, "auto": gpe.auto}
    if name in ("drift", "gaps"):
        specs |= {key: getattr(gpe, key) for key in PAPERS}
    if name in ("drift", "sines"):
        specs["deep"] = gpe.deep
    if name in ("drift", "gaps", "sines", "seasonal"):
        specs["forecaster"] = _forecaster()
    if name in ("table", "gaps"):
        specs["auto_of_tables"] = gpe.auto_for(target, one_step=False)
    if name == "tails":
        specs["unknown_noise"] = replace(gpe.oebe, target=gpe.targets.UnknownNoiseTarget())
    if name == "outliers":
        specs["robust"] = replace(gpe.doebe, target=gpe.targets.OutlierTarget())
    if name == "table":
        column = gpe.external_models.ForecastColumns(("x10",))
        specs["forecast_column"] = replace(gpe.light, extra_experts=(*gpe.light.extra_experts, column))
    return specs


def _forecaster() -> Any:
    """The preset for several rows ahead, which has no name of its own in ``gpe``."""
    return importlib.import_module(gpe.auto_for.__module__).forecaster


def _single_streams() -> dict[str, Entry]:
    ways = {"blocks": _blocks, "rows": _rows, "ahead": _ahead, "saved": _saved}
    return {
        f"stream/{name}/{preset}/{way}": functools.partial(call, name, preset)
        for name in SETS
        for preset in _specs(name)
        for way, call in ways.items()
    }


@functools.lru_cache(maxsize=1)
def _fitted(name: str, preset: str) -> Any:
    """A model after the warm-up of a set."""
    stream = SETS[name]()
    names = [f"x{column + 1}" for column in range(stream.X.shape[1])]
    model = gpe.OnlineModel(gpe.StreamConfig(_specs(name)[preset], warmup=WARM_UP, coverages=(0.9, 0.5)), names)
    steps = None if stream.steps is None else stream.steps[:WARM_UP]
    model.observe(stream.X[:WARM_UP], stream.y[:WARM_UP], steps)
    return model


def _learn(model: Any, stream: Stream, rows: slice) -> Any:
    steps = None if stream.steps is None else stream.steps[rows]
    return model.observe(stream.X[rows], stream.y[rows], steps)


def _blocks(name: str, preset: str) -> Arrays:
    model, stream = deepcopy(_fitted(name, preset)), SETS[name]()
    return {**_predicted(_learn(model, stream, slice(WARM_UP, None))), "weights": list(model.weights.values())}


def _rows(name: str, preset: str) -> Arrays:
    model, stream = deepcopy(_fitted(name, preset)), SETS[name]()
    first = NUM_ROWS - BY_THEMSELVES
    _learn(model, stream, slice(WARM_UP, first))
    predicted = [_predicted(_learn(model, stream, slice(row, row + 1))) for row in range(first, NUM_ROWS)]
    together = {key: np.stack([one[key] for one in predicted]) for key in predicted[0]}
    return {**together, "weights": list(model.weights.values())}


def _ahead(name: str, preset: str) -> Arrays:
    model, stream = deepcopy(_fitted(name, preset)), SETS[name]()
    _learn(model, stream, slice(WARM_UP, NUM_ROWS - 10))
    X, y = stream.X[-10:], stream.y[-10:]
    found = {f"next/{key}": value for key, value in distribution(model.predict(X), y).items()}
    found |= {f"one/{key}": value for key, value in distribution(model.predict(X[:1]), y[:1]).items()}
    if stream.steps is not None:
        later = distribution(model.predict(X, stream.steps[-10:]), y)
        found |= {f"later/{key}": value for key, value in later.items()}
    if not stream.target.is_real or stream.target.num_outputs is not None:
        return found
    forecast = model.forecast(X[:6], num_paths=60, generator=seeded(20))
    blind = model.forecast(3, num_paths=40, generator=seeded(21))
    return {
        **found,
        "interval": torch.stack(model.predict_interval(X)),
        "paths": forecast.paths,
        "forecast": torch.cat([forecast.mean[None], forecast.stddev[None], forecast.quantile(QUANTILES)]),
        "blind_paths": blind.paths,
    }


def _saved(name: str, preset: str) -> Arrays:
    model, stream = deepcopy(_fitted(name, preset)), SETS[name]()
    half = (WARM_UP + NUM_ROWS) // 2
    _learn(model, stream, slice(WARM_UP, half))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        model.save(path)
        model = gpe.OnlineModel.load(path)
    predicted = _predicted(_learn(model, stream, slice(half, NUM_ROWS - 1)))
    last = _predicted(_learn(model, stream, slice(NUM_ROWS - 1, None)))
    return {**predicted, "last": last["mean"], "weights": list(model.weights.values())}


def _predicted(predicted: Any) -> dict[str, Any]:
    """What was said of rows that were learned."""
    found = distribution(predicted.distribution) | {
        "log_prob": predicted.log_prob,
        "log_weights": predicted.log_weights[:, -1],
    }
    if predicted.intervals is not None:
        found["interval"] = torch.stack(predicted.interval(0.5))
    return found


def distribution(predicted: Any, y: Tensor | None = None) -> dict[str, Any]:
    """Moments, quantiles where there is an order; of targets that are given log densities, and draws of them."""
    found = {"mean": predicted.mean, "stddev": predicted.stddev}
    if predicted.mean.ndim == 1 or not hasattr(predicted, "class_probabilities"):
        found["quantiles"] = torch.stack([predicted.quantile(level) for level in QUANTILES])
    if y is None:
        return found
    return {**found, "log_prob": predicted.log_prob(y), "draws": predicted.sample(4, generator=seeded(50))}


# Many series


def _many_series() -> dict[str, Entry]:
    specs = {"small": None, "light": gpe.light, "forecaster": _forecaster(), "auto": gpe.auto, "deep": gpe.deep}
    specs |= {name: getattr(gpe, name) for name in PAPERS}
    ways = {"calls": _many_calls, "saved": _many_saved}
    found = {f"many/{name}/{way}": functools.partial(call, name) for name in specs for way, call in ways.items()}
    return found | {"many/own_length_scales/calls": functools.partial(_many_calls, "small", own_length_scales=True)}


@functools.cache
def _series() -> tuple[list[str], Tensor, Tensor]:
    """Rows of four series with two columns each, one row of each after the other."""
    names = ("drift", "gaps", "outliers", "tails")
    streams = [SETS[name]() for name in names]
    rows = slice(NUM_ROWS - FLEET_ROWS, None)
    X = torch.stack([stream.X[rows] for stream in streams], 1).flatten(0, 1)
    y = torch.stack([scale * stream.y[rows] for scale, stream in enumerate(streams, 1)], 1).flatten()
    return list(names) * FLEET_ROWS, X, y


@functools.lru_cache(maxsize=1)
def _fleet(preset: str, **settings: bool) -> Any:
    spec = _forecaster() if preset == "forecaster" else getattr(gpe, preset, None)
    fleet = gpe.Fleet(**({} if spec is None else {"spec": spec}), warmup=FLEET_WARM_UP, **settings)
    names, X, y = _series()
    first = 4 * FLEET_WARM_UP
    fleet.observe(names[:first], X[:first], y[:first])
    return fleet


def _many_calls(preset: str, **settings: bool) -> Arrays:
    fleet, (names, X, y) = deepcopy(_fleet(preset, **settings)), _series()
    first, then = 4 * FLEET_WARM_UP, len(y) - 20
    found = {f"block/{key}": value for key, value in _of_series(fleet, names, X, y, slice(first, then)).items()}
    predicted = [_of_series(fleet, names, X, y, slice(row, row + 4)) for row in range(then, len(y) - 8, 4)]
    predicted += [_of_series(fleet, names, X, y, slice(row, row + 1)) for row in range(len(y) - 8, len(y))]
    for key in predicted[0]:
        found[f"rows/{key}"] = np.concatenate([np.asarray(one[key]) for one in predicted], -1)
    coming = distribution(fleet.predict(names[:4], X[:4]).distribution, y[:4])
    fleet.add(["another"], fleet.export(names[0]))
    return {
        **found,
        **{f"next/{key}": value for key, value in coming.items()},
        "interval": torch.stack(fleet.predict(names[:4], X[:4]).interval()),
        "added": fleet.observe(["another"], X[:1], y[:1]).mean,
        "weights": [list(weights.values()) for weights in fleet.weights.values()],
    }


def _of_series(fleet: Any, names: Sequence[str], X: Tensor, y: Tensor, rows: slice) -> dict[str, Any]:
    predicted = fleet.observe(names[rows], X[rows], y[rows])
    return {
        "mean": predicted.mean,
        "variance": predicted.variance,
        "log_prob": predicted.log_prob,
        "quantiles": torch.stack([predicted.distribution.quantile(level) for level in QUANTILES]),
        "interval": torch.stack(predicted.interval()),
    }


def _many_saved(preset: str) -> Arrays:
    fleet, (names, X, y) = deepcopy(_fleet(preset)), _series()
    first, half = 4 * FLEET_WARM_UP, len(y) - 60
    _of_series(fleet, names, X, y, slice(first, half))
    with tempfile.TemporaryDirectory() as folder:
        fleet.save(Path(folder) / "fleet")
        fleet = gpe.Fleet.load(Path(folder) / "fleet")
    return _of_series(fleet, names, X, y, slice(half, None))


# Estimators


def _regressor() -> Arrays:
    stream = _table()
    X, y = stream.X.numpy(), stream.y.numpy()
    model = gpe.OnlineRegressor(gpe.light, warmup=WARM_UP, random_state=0).fit(X[:200], y[:200])
    before = model.predict(X[200:], return_std=True)
    after = model.partial_fit(X[200:210], y[200:210]).predict(X[210:])
    return {"mean": before[0], "stddev": before[1], "after": after}


def _classifier() -> Arrays:
    stream = _classes()
    X, y = stream.X.numpy(), stream.y.numpy()
    spec = replace(gpe.light, target=stream.target)
    model = gpe.OnlineClassifier(spec, warmup=WARM_UP, random_state=0).fit(X[:200], y[:200])
    return {"probabilities": model.predict_proba(X[200:]), "labels": model.predict(X[200:])}


def _river_regressor() -> Arrays:
    stream = _drift()
    model, predicted = gpe.RiverRegressor(gpe.light, warmup=WARM_UP), []
    for x, y in zip(stream.X[:170].tolist(), stream.y[:170].tolist(), strict=True):
        row = dict(zip("ab", x, strict=True))
        predicted.append(model.predict_one(row))
        model.learn_one(row, y)
    return {"mean": predicted}


def _river_classifier() -> Arrays:
    stream = _two_classes()
    model, predicted = gpe.RiverClassifier(warmup=WARM_UP), []
    for x, y in zip(stream.X[:160].tolist(), stream.y[:160].tolist(), strict=True):
        row = dict(zip("ab", x, strict=True))
        probabilities = model.predict_proba_one(row)
        predicted.append([probabilities.get(False, math.nan), probabilities.get(True, math.nan)])
        model.learn_one(row, bool(y))
    return {"probabilities": predicted}


_ESTIMATORS: dict[str, Entry] = {
    "regressor": _regressor,
    "classifier": _classifier,
    "river_regressor": _river_regressor,
    "river_classifier": _river_classifier,
}
