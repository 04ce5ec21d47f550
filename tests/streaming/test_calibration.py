"""What comes after the mixture in the pipeline: recalibration and adaptive intervals, their state and their units."""

import math
from dataclasses import replace

import pytest
import torch

from gp_ensembles.calibration import IntervalLevels
from gp_ensembles.calibration.recalibration import init_recalibration, map_components, recalibrate_block
from gp_ensembles.distributions import Recalibrated
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import CountTarget, LevelTarget, OutlierTarget, RealTarget, UnknownNoiseTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.numerics.normal_scores import transform
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.refusals import refused

SMALL = replace(oebe, bases=(LinearBasis(),), fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1))
WARM = 40
NAN = math.nan


def rows(num_rows=240, seed=0):
    """A line whose noise shrinks to a fifth after the warm-up: what was fitted there is too wide from then on."""
    generator = torch.Generator().manual_seed(seed)
    X = 100 + 20 * torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    noise = 10 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    noise[WARM:] /= 5
    return X, 1000 + X[:, 0] + noise


def fitted(target=RealTarget(), **settings):  # noqa: B008
    X, y = rows()
    config = StreamConfig(replace(SMALL, target=target), warmup=WARM, **settings)
    return OnlineModel(config).fit(X[:WARM], y[:WARM]), X[WARM:], y[WARM:]


@pytest.mark.parametrize("target", [RealTarget(), UnknownNoiseTarget(), OutlierTarget()], ids=str)
def test_it_is_recalibration_of_the_plain_model(target):
    plain, X, y = fitted(target, recalibrate=False, coverages=())
    model, _, _ = fitted(target)
    y[[30, 31]] = NAN
    raw, got = plain.observe(X, y), model.observe(X, y)
    assert not isinstance(raw.distribution, Recalibrated)
    assert raw.intervals is None
    u = raw.distribution.cdf(y)
    _, (log_weights, *_) = recalibrate_block(init_recalibration(u), u)
    maps = log_weights, *map_components(u)
    want = Recalibrated(raw.distribution, *maps)
    torch.testing.assert_close(got.log_prob, want.log_prob(y), rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(got.distribution.log_prob(y), got.log_prob, rtol=1e-9, atol=1e-9, equal_nan=True)
    torch.testing.assert_close(got.mean, want.mean, rtol=1e-9, atol=1e-9)
    levels = IntervalLevels()
    after, output = levels.update_block(levels.init(u), transform(u, *maps), want.typical_width())
    torch.testing.assert_close(got.intervals.levels, output.levels, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got.intervals.covered, output.covered, equal_nan=True)
    lower, upper = got.interval()
    seen = ~y.isnan()
    assert torch.equal(((lower < y) & (y < upper))[seen].double(), got.intervals.covered[0][seen])
    # What is next: the map and the levels after the last row.
    ahead = model.predict(X[:3])
    torch.testing.assert_close(ahead.base.mean, plain.predict(X[:3]).mean)
    wanted = levels.probabilities(after).squeeze(-1)
    torch.testing.assert_close(wanted.new_tensor(model.interval_levels()), wanted, rtol=1e-9, atol=1e-12)
    wanted = levels.probabilities(after, ahead.typical_width()).squeeze(1)
    for end, level in zip(model.predict_interval(X[:3]), wanted, strict=True):
        torch.testing.assert_close(end, ahead.quantile(level), rtol=1e-7, atol=1e-7)
    # Recalibration: noise was five times too large, and the ensemble is static.
    assert float((got.log_prob - raw.log_prob)[seen].mean()) > 0.1
    assert float((upper - lower)[-50:].mean()) < 0.6 * float(
        raw.distribution.quantile(0.95)[-50:].mean() - raw.distribution.quantile(0.05)[-50:].mean()
    )


def test_each_part_can_be_left_out():
    model, X, y = fitted(recalibrate=False)
    got = model.observe(X, y)
    assert not isinstance(got.distribution, Recalibrated)
    assert got.intervals.coverages == (0.9,)
    model, _, _ = fitted(coverages=())
    got = model.observe(X, y)
    assert isinstance(got.distribution, Recalibrated)
    assert not model.has_intervals
    torch.testing.assert_close(got.interval(0.7)[1], got.distribution.quantile(0.85))
    torch.testing.assert_close(model.predict_interval(X[:2], 0.7)[0], model.predict(X[:2]).quantile(0.15))


@pytest.mark.parametrize("target", [LevelTarget(2), CountTarget(), RealTarget(2)], ids=str)
def test_other_targets_are_as_they_were(target):
    X, y = rows(100)
    y = torch.stack([y, -y], dim=-1) if target.num_outputs else (y > y.median()).double()
    made = [OnlineModel(StreamConfig(replace(SMALL, target=target), warmup=WARM, **off)) for off in (
        {}, {"recalibrate": False, "coverages": ()}
    )]  # fmt: skip
    a, b = (model.observe(X, y) for model in made)
    assert a.intervals is None
    assert torch.equal(a.log_prob, b.log_prob)
    assert type(a.distribution) is type(b.distribution)
    assert torch.equal(a.interval(0.8)[0], b.distribution.quantile((1 - 0.8) / 2))


def test_while_the_warm_up_lasts_intervals_are_those_of_the_targets_so_far():
    X, y = rows()
    model = OnlineModel(StreamConfig(SMALL, warmup=100))
    model.observe(X[:30], y[:30])
    lower, upper = model.predict_interval(X[:2])
    torch.testing.assert_close((upper - lower)[0], 2 * 1.6448536 * y[:30].std(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, NAN])
def test_coverages_out_of_range(coverage):
    model, X, y = fitted()
    got = model.observe(X[:5], y[:5])
    for call in (lambda: model.predict_interval(X[:2], coverage), lambda: got.interval(coverage)):
        with pytest.raises(ValueError, match="must be above 0 and below 1"):
            call()
    refused(ValueError, "must be above 0 and below 1", lambda: StreamConfig(coverages=(coverage,)))


def test_a_coverage_that_the_config_does_not_name():
    model, X, y = fitted(coverages=(0.9, 0.5))
    got = model.observe(X[:5], y[:5])
    with pytest.raises(ValueError, match=r"no interval of coverage 0\.8: coverages of the config are 0\.9, 0\.5"):
        got.interval(0.8)
    refused(TypeError, "a tuple of numbers", lambda: StreamConfig(coverages=0.9))
    refused(TypeError, "a tuple of numbers", lambda: StreamConfig(coverages="0.9"))
    refused(TypeError, "recalibrate of StreamConfig must be True or False", lambda: StreamConfig(recalibrate="yes"))
    assert StreamConfig(coverages=[0.5]).coverages == (0.5,)
