"""`OnlineModel.forecast`: its first row is `predict`, nothing changes, and what is refused."""

import copy
import functools
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gp_ensembles.distributions import Mixture, Recalibrated
from gp_ensembles.ensembles.bases import LinearBasis, RecurringBasis
from gp_ensembles.ensembles.presets import PRESETS, auto, forecaster, light
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.targets import BinaryTarget, RealTarget
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.forecasting.forecast import recalibrated_paths
from tests.refusals import refused

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def series(num_rows: int = 200) -> tuple[Tensor, Tensor]:
    """A season and a trend, in units of their own."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(num_rows, dtype=torch.float64)
    y = 1000 + rows + 20 * (2 * torch.pi * rows / 12).sin()
    return rows.unsqueeze(-1), y + 2 * torch.randn(num_rows, generator=generator, dtype=torch.float64)


@functools.cache
def fitted_once(name: str) -> OnlineModel:
    X, y = series()
    spec = PRESETS[name]
    model = OnlineModel(StreamConfig(replace(spec, fit_settings=replace(spec.fit_settings, method=None)), warmup=100))
    model.observe(X[:180], y[:180])
    return model


def fitted(spec: EnsembleSpec) -> OnlineModel:
    return copy.deepcopy(fitted_once(spec.name))


@pytest.mark.parametrize("spec", [light, auto, forecaster])
def test_the_first_row_is_predict_to_the_bit_and_nothing_changes(spec: EnsembleSpec) -> None:
    model, X = fitted(spec), series()[0]
    assert model.online is not None
    before = copy.deepcopy(model.content())
    forecast, predicted = (
        model.forecast(X[180:192], generator=torch.Generator().manual_seed(0)),
        model.predict(X[180:181]),
    )
    assert torch.equal(forecast.mean[:1], predicted.mean)
    assert torch.equal(forecast.variance[:1], predicted.variance)
    for place, level in enumerate(LEVELS):
        assert torch.equal(forecast.quantile(LEVELS)[place, :1], predicted.quantile(level))
    after = model.content()
    assert _flat(before).keys() == _flat(after).keys()
    assert all(_equal(value, _flat(after)[name]) for name, value in _flat(before).items())
    # The paths' own margin is a sample of it: 500 of them, to four deviations of a sample mean.
    error = forecast.paths[:, 0].mean() - predicted.mean
    assert float(error.abs()) < 4 * float(predicted.stddev) / 500**0.5


def test_a_season_with_a_trend_is_carried_on() -> None:
    X, y = series()
    forecast = fitted(forecaster).forecast(X[180:], generator=torch.Generator().manual_seed(0))
    lower, upper = forecast.interval(0.9)
    inside = ((y[180:] >= lower) & (y[180:] <= upper)).double().mean()
    assert float(inside) > 0.7
    assert float((forecast.mean - y[180:]).abs().mean()) < 4  # of a season of 20 and a noise of 2


def test_a_horizon_alone_and_one_generator_give_one_answer() -> None:
    model = fitted(light)
    one, other = (model.forecast(5, num_paths=40, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert one.paths.shape == (40, 5)
    assert torch.equal(one.paths, other.paths)
    assert one.quantile(0.5).shape == (5,)
    assert one.sample(7, generator=torch.Generator().manual_seed(1)).shape == (7, 5)


def test_what_is_refused() -> None:
    model, X = fitted(light), series()[0]
    refused(ValueError, "181 rows ahead are more than the 180 rows learned", lambda: model.forecast(181))
    refused(ValueError, "at least one future row", lambda: model.forecast(0))
    with pytest.raises(TypeError, match=r"give future rows .* got ndarray; of a frame X.to_numpy"):
        model.forecast(X[180:].numpy())  # type: ignore[arg-type]
    refused(ValueError, "num_paths must be between 2", lambda: model.forecast(3, num_paths=1))
    refused(ValueError, "must lie between 0 and 1", lambda: model.forecast(3).quantile([0.5, 1.5]))
    strict = OnlineModel(replace(model.config, on_bad_row="refuse")).fit(X[:180], series()[1][:180])
    with pytest.raises(ValueError, match="column 0"):
        strict.forecast(torch.cat([X[180:182], torch.full((1, 1), 1e300, dtype=torch.float64)]))
    refused(ValueError, "the warm-up is not complete: 0 of 100", lambda: OnlineModel(model.config).forecast(2))
    classes = EnsembleSpec("classes", (LinearBasis(),), target=BinaryTarget())
    labels = OnlineModel(StreamConfig(classes, warmup=20)).fit(X[:40], (X[:40, 0] % 3 == 0).double())
    refused(TypeError, "a single real target, not BinaryTarget; predict", lambda: labels.forecast(2))
    outputs = EnsembleSpec("outputs", (LinearBasis(),), target=RealTarget(num_outputs=2))
    both = OnlineModel(StreamConfig(outputs, warmup=20)).fit(X[:40], torch.randn(40, 2).double())
    refused(TypeError, "forecasts support a single real target", lambda: both.forecast(2))


def test_margins_go_through_the_map_and_ranks_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    levels = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    quantiles = 5 + 2 * torch.special.ndtri(levels)  # the margin itself, without the error of a sample
    paths = torch.stack([quantiles[torch.randperm(400, generator=generator)] for _ in range(3)], -1)
    one = torch.ones(1, 1, dtype=torch.float64)
    base = Mixture(0 * one[0], 5 * one, 4 * one)
    # A map that says that distributions are by half too narrow, and too low by a quarter of a deviation.
    first = Recalibrated(base, 0 * one[0], 0.25 * one[0], 1.5 * one[0])
    moved = recalibrated_paths(paths, first)
    assert torch.equal(moved.argsort(0), paths.argsort(0))
    wanted = first.quantile(levels.unsqueeze(-1))
    # Linear in normal scores, as this margin is; beyond its ends from the middle, which the shift is not a part of.
    inside = (levels > 0.08) & (levels < 0.92)
    torch.testing.assert_close(moved.sort(0).values[inside], wanted[inside].expand(-1, 3), rtol=0, atol=0.01)
    torch.testing.assert_close(moved.sort(0).values, wanted.expand(-1, 3), rtol=0, atol=0.05)
    assert recalibrated_paths(paths, base) is paths


def test_a_basis_of_what_comes_back_leaves_clocks_out() -> None:
    X = torch.stack([torch.arange(30.0), torch.arange(30.0) % 7, -torch.arange(30.0)], -1).double()
    [(name, features)] = RecurringBasis(LinearBasis()).build(X)
    assert (name, features(X).shape) == ("linear", (30, 2))
    assert RecurringBasis(LinearBasis()).build(X[:, [0, 2]]) == []
    with pytest.raises(TypeError, match="basis"):
        RecurringBasis("linear")  # type: ignore[arg-type]


def _flat(content: object, name: str = "") -> dict[str, object]:
    if isinstance(content, dict):
        return {key: leaf for part, value in content.items() for key, leaf in _flat(value, f"{name}/{part}").items()}
    if isinstance(content, list | tuple):
        return {key: leaf for n, value in enumerate(content) for key, leaf in _flat(value, f"{name}/{n}").items()}
    return {name: content}


def _equal(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    return one == other
