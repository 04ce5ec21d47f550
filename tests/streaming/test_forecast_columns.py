"""Forecasts that stand in the table: units, gaps, deviations, and what the other experts see."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import ForecastColumns
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto_for
from gp_ensembles.ensembles.records import spec_from_plain, spec_to_plain
from gp_ensembles.ensembles.targets import RealTarget
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.joint import joint_covariance

NAMES = ("wind", "nwp", "spread", "low", "high", "humidity")
NAN = float("nan")
WARM = 60


def table(num_rows=400):
    """Targets of mean 100 and scale 20 that a forecast knows up to an error of 3."""
    g = torch.Generator().manual_seed(1)
    wind, humidity = (torch.randn(num_rows, generator=g, dtype=torch.float64) for _ in range(2))
    nwp = 100 + 20 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    y = nwp + 3 * torch.randn(num_rows, generator=g, dtype=torch.float64) + humidity
    spread = 3 + 0.5 * torch.rand(num_rows, generator=g, dtype=torch.float64)
    return torch.stack([wind, nwp, spread, nwp - 4, nwp + 4, humidity], dim=1), y


def spec(*records, lags=None):
    plain = auto_for(RealTarget(), one_step=False)
    return replace(
        plain, bases=(LinearBasis(),), random_walk_variances=(1e-3,), innovations=(), lags=lags, extra_experts=records
    )


def model(*records, dtype="float64", lags=None):
    config = StreamConfig(spec(*records, lags=lags), warmup=WARM, dtype=dtype, recalibrate=False)
    return OnlineModel(config, NAMES)


def moments(one, X, y, place=-1):
    """What an expert says of each row, in the target's units, heard from the ensemble itself."""
    one.fit(X[:WARM], y[:WARM])
    heard, learn = [], one.online.learn

    def listening(*arguments, **more):
        heard.append(learn(*arguments, **more))
        return heard[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.online, "learn", listening)
        one.observe(X[WARM:], y[WARM:])
    (predicted,) = (predictions.experts for predictions in heard)
    return predicted.mean[place] * one.scales.y_scale + one.scales.y_mean, predicted.variance[
        place
    ].sqrt() * one.scales.y_scale


def test_a_column_of_means_has_the_size_of_its_past_errors_for_deviation():
    X, y = table()
    X[WARM + 10 : WARM + 20, 1] = NAN
    y[WARM + 30] = NAN
    mean, deviation = moments(model(ForecastColumns("nwp")), X, y)
    gaps = torch.isnan(X[WARM:, 1])
    assert torch.equal(mean.isnan(), gaps)
    torch.testing.assert_close(mean[~gaps], X[WARM:, 1][~gaps], rtol=1e-5, atol=1e-5)
    errors = (y - X[:, 1]).tolist()
    sizes, due, size = [], 10, None
    for t in range(len(y)):
        sizes.append(size)
        if t + 1 == due:
            due += min(due, 50)
            known = [e for e in errors[: t + 1] if not math.isnan(e)][-500:]
            size = math.sqrt(sum(e * e for e in known) / len(known))
    want = torch.tensor(sizes[WARM:], dtype=torch.float64)
    torch.testing.assert_close(deviation[~gaps], want[~gaps], rtol=1e-4, atol=1e-4)


def test_deviations_quantiles_and_draws():
    X, y = table()
    mean, deviation = moments(model(ForecastColumns("nwp", deviation="spread")), X, y)
    torch.testing.assert_close(mean, X[WARM:, 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(deviation, X[WARM:, 2], rtol=1e-5, atol=1e-5)
    mean, deviation = moments(model(ForecastColumns(("low", "nwp", "high"), levels=(0.1, 0.5, 0.9))), X, y)
    torch.testing.assert_close(mean, X[WARM:, 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(deviation, torch.full_like(deviation, 4 / 1.2815515655), rtol=1e-5, atol=1e-5)
    mean, deviation = moments(model(ForecastColumns(("low", "nwp", "high"))), X, y)
    torch.testing.assert_close(mean, X[WARM:, 1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(deviation, torch.full_like(deviation, 4.0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("lags", [None, TargetLags(lags=(1, 3), bases=())])
def test_other_experts_do_not_see_forecasts(lags):
    X, y = table()
    with_one = model(ForecastColumns("nwp"), ForecastColumns("nwp", deviation="spread", name="second"), lags=lags)
    with_one.fit(X[:WARM], y[:WARM])
    plain = OnlineModel(
        StreamConfig(spec(lags=lags), warmup=WARM, recalibrate=False), ["wind", "low", "high", "humidity"]
    )
    plain.fit(X[:WARM, [0, 3, 4, 5]], y[:WARM])
    assert with_one.used_features == ("wind", "low", "high", "humidity")
    assert with_one.names[:-2] == plain.names
    predicted, want = (
        one.online.predict(one.next_inputs(part)) for one, part in ((with_one, X), (plain, X[:, [0, 3, 4, 5]]))
    )
    torch.testing.assert_close(predicted.component_mean[:-2], want.component_mean)
    predictions = with_one.observe(X[WARM:], y[WARM:])
    rivals = plain.observe(X[WARM:][:, [0, 3, 4, 5]], y[WARM:])
    assert float(predictions.log_prob.mean()) >= float(rivals.log_prob.mean()) - 0.02  # two of its inputs know as much
    report = {adapter.name: adapter for adapter in with_one.external_models}["forecast/0"]
    assert report.num_absent == 0
    assert report.regret.regret < report.regret.bound


def test_the_ensemble_wins_where_only_the_forecast_knows():
    X, y = table()
    X = X[:, [0, 1, 2, 5]]
    config = StreamConfig(spec(ForecastColumns("nwp")), warmup=WARM)
    one = OnlineModel(config, ["wind", "nwp", "spread", "humidity"])
    X[:, 2] = torch.randn(len(y), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    predictions = one.observe(X, y)
    assert float((predictions.mean - y[WARM:]).square().mean().sqrt()) < 4
    assert one.weights["forecast/0"] > 0.5
    X[:, 1] = NAN  # from now on there is none
    ahead = one.predict(X[:5])
    assert bool(torch.isfinite(ahead.mean).all())
    assert bool((ahead.stddev > 10).all())
    plain = OnlineModel(replace(config, recalibrate=False), one.feature_names).fit(X[:WARM], y[:WARM])
    torch.testing.assert_close(joint_covariance(plain, X[:5]).diagonal(), plain.predict(X[:5]).variance)


def test_forecasts_in_other_units_are_told_of_once():
    X, y = table(200)
    X[::5, 1], y[3] = NAN, NAN
    good = X[:, 1].clone()
    known = ~(good.isnan() | y.isnan())[:WARM]
    for wrong in (good + 273.15, 1.8 * good + 32, good.roll(1)):
        X[:, 1] = wrong
        one = model(ForecastColumns("nwp"))
        errors = (wrong - y)[:WARM][~(wrong.isnan() | y.isnan())[:WARM]]
        with pytest.warns(UserWarning, match="the forecasts 'nwp' were off by") as reported:
            one.observe(X[:WARM], y[:WARM])
        assert len(reported) == 1
        assert f"off by {float(errors.square().mean().sqrt()):.4g} in the warm-up" in str(reported[0].message)
        here = ~(wrong.isnan() | y.isnan())[:WARM]
        line = np.polyfit(wrong[:WARM][here].numpy(), y[:WARM][here].numpy(), 1, full=True)[1]
        assert f"through the forecasts by {math.sqrt(line.item() / int(here.sum())):.4g}:" in str(reported[0].message)
        one.observe(X[WARM:], y[WARM:])  # warnings are errors here: there is no second one
    X[:, 1] = good
    model(ForecastColumns("nwp")).observe(X, y)
    draws = torch.stack([good + 300, good + 310], dim=1)
    X[:, 3:5] = draws
    spread = float(y[:WARM][known].std(correction=0))
    with pytest.warns(UserWarning, match=f"'low', 'high' were off by .* targets is off by {spread:.4g} and the best"):
        model(ForecastColumns(("low", "high")), ForecastColumns("nwp", name="other")).observe(X, y)
    X[9:, 1] = NAN  # nine forecasts are too few to tell
    X[:9, 1] = 1e3
    model(ForecastColumns("nwp")).observe(X, y)


def test_what_cannot_be_is_refused():
    X, y = table()
    with pytest.raises(ValueError, match="no column 'rain' of forecasts; the columns are wind, nwp"):
        model(ForecastColumns("rain")).fit(X, y)
    with pytest.raises(ValueError, match="no column 'rain'"):
        model(ForecastColumns("rain")).observe(X[:3], y[:3])  # with the first rows
    unnamed = OnlineModel(StreamConfig(spec(ForecastColumns("nwp")), warmup=WARM))
    with pytest.raises(ValueError, match=r"are column 0, column 1, .* name them by feature_names, or by the columns"):
        unnamed.observe(X[:3], y[:3])
    assert unnamed.num_rows == 0
    alone = OnlineModel(StreamConfig(spec(ForecastColumns("nwp")), warmup=WARM), ["nwp"])
    with pytest.raises(ValueError, match="at least one input is needed"):
        alone.fit(X[:, 1:2], y)
    for settings in (
        {"columns": ()},
        {"columns": ("nwp", "nwp")},
        {"columns": ("low", "high"), "deviation": "spread"},
        {"columns": ("low", "high"), "levels": (0.1, 0.5, 0.9)},
        {"columns": ("low", "high"), "levels": (0.1, 1.5)},
        {"columns": ("nwp",), "name": ""},
    ):
        with pytest.raises(ValueError, match=r"ForecastColumns|levels|deviations"):
            ForecastColumns(**settings)
    with pytest.raises(TypeError, match="names such as 'nwp'"):
        ForecastColumns((3,))
    with pytest.raises(ValueError, match="followed by the forecasts"):
        spec(ForecastColumns("nwp")).fit(X[:, :1], y)
    with pytest.raises(ValueError, match=r"X must have shape \(\.\.\., N, 3\)"):
        spec(ForecastColumns("nwp")).fit(X[:, [0, 5, 1]], (y - 100) / 20).predict(X[:, :2])


def test_the_record_stands_in_files():
    one = spec(ForecastColumns("nwp", deviation="spread"), ForecastColumns(("a", "b"), levels=(0.1, 0.9), name="other"))
    assert spec_from_plain(spec_to_plain(one)).extra_experts == one.extra_experts
    read = spec_from_plain({"like": "oebe", "extra_experts": [{"ForecastColumns": {"columns": ["nwp"]}}]})
    assert read.extra_experts == (ForecastColumns("nwp"),)
