"""Scores against quadrature, scipy and their definitions; streaming scores against whole-stream ones."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles import metrics
from gp_ensembles.metrics.scores import running_nmse
from gp_ensembles.metrics.streaming import ScoreSummary, StreamScores
from gp_ensembles.numerics import mixtures, normal


def stream(seed, num_components=4, num_rows=30, missing=True):
    rng = np.random.default_rng(seed)
    log_weights = torch.tensor(rng.normal(size=(num_components, num_rows)) * 2).log_softmax(0)
    mean = torch.tensor(rng.normal(size=(num_components, num_rows)) * 2)
    variance = torch.tensor(np.exp(rng.normal(size=(num_components, num_rows))))
    y = torch.tensor(rng.normal(size=num_rows) * 2 + 5)
    if missing:
        y[rng.random(num_rows) < 0.2] = torch.nan
    return log_weights, mean, variance, y


def crps_by_quadrature(weights, mean, stddev, y):
    below = lambda x: float((weights * scipy.stats.norm.cdf(x, mean, stddev)).sum())  # noqa: E731
    low, high = float((mean - 12 * stddev).min()), float((mean + 12 * stddev).max())
    left = scipy.integrate.quad(lambda x: below(x) ** 2, min(low, y), y, limit=500, epsabs=1e-12)[0]
    right = scipy.integrate.quad(lambda x: (1 - below(x)) ** 2, y, max(high, y), limit=500, epsabs=1e-12)[0]
    return left + right


def test_crps_equals_quadrature():
    log_weights, mean, variance, y = stream(0, num_rows=6, missing=False)
    scores = metrics.crps_mixture(log_weights, mean, variance, y)
    for n in range(6):
        row = (part[:, n].numpy() for part in (log_weights.exp(), mean, variance.sqrt()))
        exact = crps_by_quadrature(*row, float(y[n]))
        assert float(scores[n]) == pytest.approx(exact, abs=1e-8)
        one = mean.new_zeros(1, 1)
        single = metrics.crps_mixture(one, mean[:1, n : n + 1], variance[:1, n : n + 1], y[n : n + 1])
        exact = crps_by_quadrature(np.ones(1), mean[:1, n].numpy(), variance[:1, n].sqrt().numpy(), float(y[n]))
        assert float(single) == pytest.approx(exact, abs=1e-8)


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), exponent=st.floats(-12, 1), spread=st.floats(0, 60))
def test_crps_tolerance_bounds_the_error(seed, exponent, spread):
    log_weights, mean, variance, y = stream(seed, num_components=40, num_rows=50, missing=False)
    log_weights = (log_weights * spread).log_softmax(0)
    exact = metrics.crps_mixture(log_weights, mean, variance, y)
    rough = metrics.crps_mixture(log_weights, mean, variance, y, tolerance=10**exponent)
    assert float((rough - exact).abs().max()) <= 10**exponent + 1e-13


def test_crps_of_equal_components_and_dead_ones():
    log_weights = torch.tensor([[0.25], [0.75], [0.0]], dtype=torch.float64).log()
    mean = torch.tensor([[1.0], [1.0], [1e9]], dtype=torch.float64)
    variance = torch.full_like(mean, 2.0)
    y = torch.tensor([0.3], dtype=torch.float64)
    expected = metrics.crps_mixture(log_weights.new_zeros(1, 1), mean[:1], variance[:1], y)
    torch.testing.assert_close(metrics.crps_mixture(log_weights, mean, variance, y), expected)
    with pytest.raises(ValueError, match="at least zero"):
        metrics.crps_mixture(log_weights, mean, variance, y, tolerance=-1.0)


@pytest.mark.parametrize("num_rows", [3, 400])
def test_crps_gradient(num_rows):
    log_weights, mean, variance, y = stream(2, num_components=12, num_rows=num_rows, missing=False)
    inputs = [t.requires_grad_() for t in (log_weights, mean, variance)]
    total = metrics.crps_mixture(*inputs, y).sum()
    gradients = torch.autograd.grad(total, inputs)
    generator = torch.Generator().manual_seed(0)
    for k, gradient in enumerate(gradients):
        direction = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        ends = []
        for sign in (-1, 1):
            moved = [t.detach() for t in inputs]
            moved[k] = moved[k] + sign * 1e-6 * direction
            ends.append(float(metrics.crps_mixture(*moved, y).sum()))
        assert float((gradient * direction).sum()) == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-5)


def test_point_errors_follow_their_definitions():
    _, mean, variance, y = stream(4)
    mean, variance = mean[0], variance[0]
    seen = ~torch.isnan(y).numpy()
    targets, center = y.numpy()[seen], mean.numpy()[seen]
    expected = ((targets - center) ** 2).sum() / (targets.size * targets.var())
    assert float(metrics.nmse(mean, y)) == pytest.approx(expected)
    log_prob = normal.log_prob(y, mean, variance)
    assert float(metrics.log_score(log_prob, y)) == pytest.approx(np.nanmean(log_prob.numpy()))
    curve = running_nmse(mean, y)
    assert float(curve[-1]) == pytest.approx(expected)
    tenth = np.nansum((y[:10] - mean[:10]).numpy() ** 2) / seen[:10].sum() / targets.var()
    assert float(curve[9]) == pytest.approx(tenth)


def coverage(pit, level):
    return metrics.scores.observed_mean(metrics.covered(pit, level), pit)


def test_calibration_of_right_and_overconfident_predictions(generator):
    y = torch.randn(20_000, generator=generator, dtype=torch.float64)
    one = torch.ones(1, 20_000, dtype=torch.float64)
    right = metrics.pit(0 * one, 0 * one, one, y)
    for level in (0.1, 0.5, 0.9):
        assert float((right <= level).double().mean()) == pytest.approx(level, abs=0.02)
        assert float(coverage(right, level)) == pytest.approx(level, abs=0.02)
    sure = metrics.pit(0 * one, 0 * one, one / 4, y)
    assert float(coverage(sure, 0.9)) < 0.7
    right[:5] = torch.nan
    assert float(coverage(right, 1.0)) == 1.0
    assert bool(metrics.covered(right, 1.0)[:5].isnan().all())
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.covered(right, 1.5)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 30), max_size=8), seed=st.integers(0, 1000), offset=st.sampled_from([0.0, 1e4]))
def test_streaming_is_the_same_for_any_blocking(cuts, seed, offset):
    log_weights, mean, variance, y = stream(seed)
    mean, y = mean + offset, y + offset
    whole = metrics.streaming.update_scores(metrics.streaming.init_scores(y), y, log_weights, mean, variance)
    state, edges = metrics.streaming.init_scores(y), sorted({0, 30, *cuts})
    center = mixtures.moments(log_weights, mean, variance)[0]
    for start, stop in itertools.pairwise(edges):
        part = slice(start, stop)
        state = StreamScores(**state._asdict())  # as a checkpoint would
        state = metrics.streaming.update_scores(state, y[part], log_weights[:, part], mean[:, part], variance[:, part])
    exact = 1e-12 if offset == 0 else 1e-10
    torch.testing.assert_close(tuple(state), tuple(whole), rtol=exact, atol=exact)
    summary = metrics.summarize(state)
    torch.testing.assert_close(summary.nmse, metrics.nmse(center, y), rtol=1e-9, atol=0)
    absolute = (y - center).abs().nanmean()
    torch.testing.assert_close(summary.mean_absolute_error, absolute, rtol=1e-12, atol=1e-12)


def test_stream_summary_equals_whole_stream_scores():
    log_weights, mean, variance, y = stream(5)
    center, spread = mixtures.moments(log_weights, mean, variance)
    state = metrics.streaming.update_scores(metrics.streaming.init_scores(y), y, log_weights, mean, variance, level=0.8)
    summary = metrics.summarize(state)
    assert (int(state.num_rows), int(state.num_scored)) == (30, int((~torch.isnan(y)).sum()))
    expected = ScoreSummary(
        log_score=metrics.log_score(mixtures.log_prob(log_weights, mean, variance, y), y),
        log_score_gaussian=metrics.log_score(normal.log_prob(y, center, spread), y),
        crps=metrics.scores.observed_mean(metrics.crps_mixture(log_weights, mean, variance, y), y),
        coverage=coverage(metrics.pit(log_weights, mean, variance, y), 0.8),
        mean_absolute_error=(y - center).abs().nanmean(),
        nmse=metrics.nmse(center, y),
        mean_squared_z=((y - center).square() / spread).nanmean(),
    )
    torch.testing.assert_close(tuple(summary), tuple(expected))


@pytest.mark.parametrize("num_rows", [1, 2, 7, 30])
def test_the_median_is_numpy_s_over_observed_rows(num_rows):
    rng = np.random.default_rng(num_rows)
    log_prob, y = rng.normal(size=(3, num_rows)), rng.normal(size=num_rows)
    if num_rows > 2:
        y[1] = np.nan
    found = metrics.median_mnlp(torch.tensor(log_prob), torch.tensor(y))
    np.testing.assert_allclose(found.numpy(), np.median(-log_prob[:, ~np.isnan(y)], axis=-1), rtol=1e-12)


def test_a_median_of_nothing_is_missing_and_outliers_do_not_move_it():
    log_prob = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    assert math.isnan(float(metrics.median_mnlp(log_prob, torch.full_like(log_prob, torch.nan))))
    missed = torch.tensor([-1.0, -2.0, -1e9], dtype=torch.float64)
    y = torch.zeros_like(log_prob)
    assert float(metrics.median_mnlp(log_prob, y)) == float(metrics.median_mnlp(missed, y)) == 2.0
    assert float(metrics.log_score(missed, y)) < -1e8


def test_errors_are_standardized_by_the_sample_deviation():
    rng = np.random.default_rng(4)
    mean, y = rng.normal(size=(2, 9)), rng.normal(size=9) + 3
    found = metrics.sample_srmse(torch.tensor(mean), torch.tensor(y))
    exact = np.sqrt(np.mean((y - mean) ** 2, axis=-1)) / np.std(y, ddof=1)
    np.testing.assert_allclose(found.numpy(), exact, rtol=1e-13)
    ratio = metrics.nmse(torch.tensor(mean), torch.tensor(y)).sqrt() / found
    np.testing.assert_allclose(ratio.numpy(), math.sqrt(9 / 8), rtol=1e-13)
    missing = torch.tensor(np.append(y, np.nan))
    longer = torch.tensor(np.append(mean, np.full((2, 1), 1e6), axis=-1))
    torch.testing.assert_close(metrics.sample_srmse(longer, missing), found)
    assert math.isnan(float(metrics.sample_srmse(torch.zeros(1), torch.zeros(1))))
