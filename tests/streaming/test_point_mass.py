"""Targets with a point mass on streams: what counts as one, shares and sizes against the truth."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gp_ensembles.distributions import WithPointMass
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.external_models import ForecastColumns
from gp_ensembles.ensembles.presets import auto, light
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.estimators.scikit_learn import OnlineRegressor
from gp_ensembles.fleet import Fleet
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.health import health
from gp_ensembles.streaming.joint import joint_covariance
from gp_ensembles.streaming.late import LateTargets
from gp_ensembles.streaming.point_mass import find_point

QUICK = StreamConfig(replace(light, bases=(LinearBasis(),), extra_experts=(), lags=None), warmup=200)


def tensor(values):
    return torch.as_tensor(np.asarray(values, dtype=float), dtype=torch.float64)


def sales(num_rows=700, seed=0, share=0.2):
    """Weekly demand: more often at weekends, three to nine pieces."""
    r = np.random.default_rng(seed)
    t = np.arange(num_rows)
    p = np.where(t % 7 > 4, 2.5 * share, 0.4 * share)
    y = np.where(r.random(num_rows) < p, 1 + r.poisson(5, num_rows), 0)
    return tensor(np.c_[t % 7, t]), tensor(y), p


@pytest.mark.parametrize(
    ("values", "config", "point"),
    [
        ([0.0] * 30 + list(range(1, 31)), QUICK, 0.0),
        ([0.0] * 3 + list(range(1, 61)), QUICK, None),  # less than a twentieth
        ([0.0] * 90 + list(range(1, 10)), QUICK, None),  # nine others
        ([0.0] * 30 + [1.0] * 20 + [2.0] * 10, QUICK, None),  # a lattice, not three times as common as another value
        ([0.0] * 60 + [5.0] * 15, QUICK, None),  # nothing varies elsewhere
        ([0.0, 1.0] * 30, StreamConfig(replace(QUICK.ensemble, target=BinaryTarget(), innovations=())), None),
        ([17.3] * 50 + [torch.nan] * 5 + list(np.linspace(3, 4, 20)), QUICK, 17.3),
    ],
)
def test_what_counts_as_a_point(values, config, point):
    config = config if config is QUICK else replace(config, ensemble=replace(config.ensemble, outlier_threshold=None))
    assert find_point(tensor(values), config) == point


def test_shares_follow_inputs_and_means_are_those_of_the_targets():
    X, y, p = sales(1500)
    predicted = OnlineModel(StreamConfig(light, warmup=300)).observe(X, y)
    found, late = predicted.distribution, slice(-1000, None)
    assert isinstance(found, WithPointMass)
    share = 1 - found.log_share[0].exp().numpy()[late]
    assert np.corrcoef(share, p[late])[0, 1] > 0.9
    events = (y[late] > 0).numpy()
    log_score = np.where(events, np.log(share), np.log1p(-share)).mean()
    best = np.where(events, np.log(p[late]), np.log1p(-p[late])).mean()
    assert log_score > best - 0.015
    assert float(predicted.mean[late].mean()) == pytest.approx(float(y[late].mean()), rel=0.1)
    running = (y.cumsum(0) / torch.arange(1, 1501))[-1001:-1]
    assert float((predicted.mean - y[300:])[late].square().mean()) < float((running - y[late]).square().mean())
    for level in (0.5, 0.9, 0.95):
        covered = y[late] <= found.quantile(torch.full_like(predicted.mean, level))[late]
        assert level - 0.025 < float(covered.double().mean())
    sizes = y[late][y[late] > 0]
    assert float(found.base.mean[late][y[late] > 0].mean()) == pytest.approx(float(sizes.mean()), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [light, auto], ids=["light", "auto"])
@pytest.mark.parametrize("kind", ["rain", "wet spells", "stuck sensor", "five per cent", "nearly always"])
def test_rare_events_keep_their_mean_and_their_quantiles(kind, spec):
    r, n = np.random.default_rng(3), 1600
    x = r.normal(size=(n, 3))
    if kind == "rain":
        y = np.where(r.random(n) < 1 / (1 + np.exp(1.5 - 1.5 * x[:, 0])), r.gamma(2, 5 * np.exp(0.4 * x[:, 1])), 0)
    elif kind == "wet spells":
        wet = [0]
        for draw in r.random(n - 1):
            wet.append(int(draw < (0.75 if wet[-1] else 0.1)))
        y = np.where(wet, r.gamma(2, 4, n), 0)
    elif kind == "stuck sensor":
        y = np.where(r.random(n) < 0.3, 17.3, 20 + 5 * x[:, 0] + 0.3 * x[:, 1])
    else:
        y = np.where(r.random(n) < (0.06 if kind == "five per cent" else 0.94), 50 + 10 * r.normal(size=n), 0)
    y, late = tensor(y), slice(-1000, None)
    predicted = OnlineModel(StreamConfig(spec, warmup=400)).observe(tensor(x), y)
    running = (y.cumsum(0) / torch.arange(1, n + 1))[-1001:-1]
    target, mean = y[late], predicted.mean[late]
    # No closer than the mean of the targets before them is itself.
    off = max(0.1, 1.1 * abs(float(running.mean() / target.mean()) - 1))
    assert float(mean.mean()) == pytest.approx(float(target.mean()), rel=off)
    assert float((mean - target).square().mean()) < 1.01 * float((running - target).square().mean())
    high = predicted.distribution.quantile(torch.full_like(predicted.mean, 0.95))[late]
    assert float((target <= high).double().mean()) > 0.92


def test_rows_and_blocks_and_a_saved_model_say_the_same(tmp_path):
    X, y, _ = sales()
    y[[210, 300, 301]] = torch.nan
    whole = OnlineModel(QUICK).observe(X, y)
    model = OnlineModel(QUICK)
    model.observe(X[:200], y[:200])
    parts = []
    for row in range(200, 240):
        ahead = model.predict(X[row : row + 1])
        parts.append(model.observe(X[row : row + 1], y[row : row + 1]))
        torch.testing.assert_close(ahead.mean, parts[-1].mean)
    model.save(tmp_path / "model")
    rest = OnlineModel.load(tmp_path / "model").observe(X[240:], y[240:])
    torch.testing.assert_close(model.observe(X[240:], y[240:]).mean, rest.mean, rtol=0, atol=0)
    for name in ("mean", "stddev", "log_prob"):
        values = torch.cat([getattr(part, name) for part in (*parts, rest)])
        torch.testing.assert_close(values, getattr(whole, name), rtol=1e-7, atol=1e-7, equal_nan=True)
    assert bool(whole.log_prob.isnan().nonzero().flatten().tolist() == [10, 100, 101])


def test_a_call_that_fails_after_half_of_it_changes_nothing(monkeypatch):
    X, y, _ = sales()
    model, twin = (OnlineModel(QUICK).fit(X[:200], y[:200]) for _ in range(2))
    learn, calls = OnlineEnsemble.learn, []

    def failing(self, *args, **kwargs):
        calls.append(self)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return learn(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(OnlineEnsemble, "learn", failing)
        with pytest.raises(KeyboardInterrupt):
            model.observe(X[200:260], y[200:260])
    assert len(calls) == 2
    torch.testing.assert_close(model.observe(X[200:], y[200:]).mean, twin.observe(X[200:], y[200:]).mean)


def test_forecasts_late_targets_and_covariances_know_the_point():
    X, y, _ = sales()
    model = OnlineModel(QUICK).fit(X[:400], y[:400])
    forecast = model.forecast(X[400:407], num_paths=4000, generator=torch.Generator().manual_seed(0))
    wanted = model.predict(X[400:407]).log_share[0].exp()
    torch.testing.assert_close((forecast.paths == 0).double().mean(0), wanted, rtol=0, atol=0.03)
    covariance = joint_covariance(model, X[400:402])
    torch.testing.assert_close(covariance.diagonal(), model.predict(X[400:402]).variance)
    late = LateTargets(model)
    late.predict("first", X[400])
    second = late.predict("second", X[401])
    assert float(second.log_prob(tensor([0.0]))) == pytest.approx(float(wanted[1].log()), abs=0.1)
    again = LateTargets.restore(model, late.content())
    assert again.observe("second", 0.0).log_prob == pytest.approx(float(second.log_prob(tensor([0.0]))))


def test_an_estimator_has_the_mean_of_a_table_of_rare_events():
    r = np.random.default_rng(1)
    x = r.uniform(-1, 1, (900, 2))
    p = 0.12 + 0.1 * x[:, 0]
    y = np.where(r.random(900) < p, 1 + r.poisson(6, 900), 0).astype(float)
    found = OnlineRegressor(random_state=0).fit(x[:600], y[:600]).predict_distribution(x[600:])
    share, seen = 1 - found.log_share[0].exp().numpy(), (y[:600] > 0).mean()
    assert share.mean() == pytest.approx(seen * p[600:].mean() / p[:600].mean(), rel=0.06)
    assert np.corrcoef(share, p[600:])[0, 1] > 0.9
    assert float(found.base.mean.mean()) == pytest.approx(y[:600][y[:600] > 0].mean(), rel=0.12)


def test_series_of_a_fleet_have_points_of_their_own(tmp_path):
    _, first, _ = sales(900, seed=1)
    X, second, _ = sales(900, seed=2)
    third = 3 + X[:, 0] + 0.1 * torch.randn(900, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.stack([first, second + 5, third], 1)
    names, rows = ["a", "b", "c"] * 900, X.repeat_interleave(3, 0)
    fleet = Fleet(QUICK.ensemble, warmup=200)
    predicted = fleet.observe(names, rows, y.flatten())
    mean, covered = (part.reshape(900, 3)[200:] for part in (predicted.mean, predicted.covered[0]))
    torch.testing.assert_close(mean.mean(0), y[200:].mean(0), rtol=0.1, atol=0)
    lower, upper = (part.reshape(900, 3)[200:] for part in predicted.interval())
    inside = ((lower <= y[200:]) & (y[200:] <= upper)).double()
    torch.testing.assert_close(covered, inside)
    assert bool((inside.mean(0) > 0.87).all())
    is_zero = (first[200:] == 0).double().mean()
    shares = predicted.distribution.log_share[0].exp().reshape(-1, 3)
    torch.testing.assert_close(shares[:, 0].mean(), is_zero, rtol=0, atol=0.04)
    assert float(shares[:, 2].max()) == 0.0  # no point
    fleet.add(["copy"], fleet.export("a"))
    fleet.save(tmp_path / "fleet")
    asked = ["a", "c", "copy"], rows[:3]
    ahead, again = fleet.predict(*asked), Fleet.load(tmp_path / "fleet").predict(*asked)
    torch.testing.assert_close(ahead.mean, again.mean, rtol=0, atol=0)
    torch.testing.assert_close(ahead.levels, again.levels, rtol=0, atol=0)
    assert float(ahead.levels[1, 0, 0]) == pytest.approx(0.95)


def test_a_forecast_of_the_point_is_believed():
    r, n = np.random.default_rng(0), 800
    other, wet = r.normal(size=n), r.random(n) < 0.4
    y = np.where(wet, r.gamma(3, 2, n), 0)
    forecast = np.where(wet, y + 0.3 * r.normal(size=n), 0)
    spec = replace(light, extra_experts=(ForecastColumns("nwp"),))
    model = OnlineModel(StreamConfig(spec, warmup=300), ("other", "nwp"))
    predicted = model.observe(tensor(np.c_[other, forecast]), tensor(y))
    error = (predicted.mean - tensor(y)[300:]).square().mean().sqrt()
    assert float(error) < 1.3 * float(np.sqrt(np.mean((forecast - y)[300:] ** 2)))


def test_a_warm_up_at_one_value_goes_on_until_there_are_ten_others():
    X, y, _ = sales(600)
    y[:300] = torch.where(torch.arange(300) % 50 == 7, 4.0 + torch.arange(300) / 100, 0.0)
    places = (y != 0).nonzero().flatten()
    whole, parts = OnlineModel(QUICK), OnlineModel(QUICK)
    assert whole.observe(X, y).first_row == int(places[9]) + 1
    for X_part, y_part in zip(X.split(70), y.split(70), strict=True):
        parts.observe(X_part, y_part)
    torch.testing.assert_close(whole.predict(X[-1:]).mean, parts.predict(X[-1:]).mean)
    fleet = Fleet(QUICK.ensemble, warmup=200)
    first = fleet.observe(["shop"] * 600, X, y).mean.isfinite().nonzero()[0]
    assert int(first) == int(places[9]) + 1


def test_many_rows_beyond_the_threshold_are_learned_and_health_says_how_many_were_not():
    X, y, _ = sales(900)
    r = torch.Generator().manual_seed(4)
    y = X[:, 0] + 0.1 * torch.randn(900, generator=r, dtype=torch.float64)
    burst = torch.rand(900, generator=r) < 0.15
    burst[:200] = False
    model = OnlineModel(replace(QUICK, ensemble=replace(QUICK.ensemble, innovations=(), lags=None)))
    predicted = model.observe(X, torch.where(burst, y + 40, y))
    num = model.anomaly_counts.targets_discounted
    assert 30 <= num <= 36  # three per cent of a thousand, of which the first are half forgotten
    assert float(predicted.mean[-300:].mean() - y[-300:].mean()) > 2
    finding = {one.name: one for one in health(model)}["targets discounted"]
    assert not finding.ok
    assert finding.value == pytest.approx(num / 700)
