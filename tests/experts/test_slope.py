"""A slope that walks, damped or not: against a Kalman filter written out with its matrices, row by row."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts.structural import StructuralExpert, WalkingSlope
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.streaming.forecasting.paths import sample_paths

VARIANCES, WARM_UP = (0.02, 0.003, 1e-4), 100
LEAST = 1e-3  # of a Kolmogorov-Smirnov probability: seeds are fixed


class Textbook:
    """States are level, straight trend a row, waves and, last, what the slope is beyond the straight trend."""

    def __init__(self, season, slope):
        slope = slope or (0.0, 1.0)
        self.waves = np.arange(1, min((season or 0) // 2, 6) + 1)
        self.season, count = season, 2 * len(self.waves)
        self.mean = np.zeros(3 + count)
        self.covariance = np.diag([4.0, 16.0 / WARM_UP**2, *np.ones(count), 0.0])
        self.transition = np.eye(3 + count)
        self.transition[0, -1], self.transition[-1, -1] = 1.0, slope[1]
        self.walk = np.diag([VARIANCES[1], 0.0, *np.full(count, VARIANCES[2]), slope[0]])

    def design(self, row):
        angles = 2 * np.pi * self.waves * row / (self.season or 1)
        return np.concatenate([[1.0, row], np.cos(angles), np.sin(angles), [0.0]])

    def go_on(self):
        self.mean = self.transition @ self.mean
        self.covariance = self.transition @ self.covariance @ self.transition.T + self.walk

    def predict(self, row):
        h = self.design(row)
        return h @ self.mean, h @ self.covariance @ h + VARIANCES[0]

    def learn(self, row, target):
        mean, spread = self.predict(row)
        if not math.isnan(target):
            gain = self.covariance @ self.design(row) / spread
            self.mean = self.mean + gain * (target - mean)
            self.covariance = self.covariance - np.outer(gain, self.design(row) @ self.covariance)


def made(season, slope, num_inputs=1):
    slopes = None if slope is None else torch.tensor([slope], dtype=torch.float64)
    return StructuralExpert(torch.tensor([VARIANCES], dtype=torch.float64), season, num_inputs, WARM_UP, slopes)


def series(num_rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, num_rows, generator=generator, dtype=torch.float64)
    y = 0.1 * noise[0] + 0.05 * noise[1].cumsum(0) + 0.01 * noise[2].cumsum(0).cumsum(0)
    y[[0, 3, 4, num_rows - 2]] = torch.nan
    return y


SLOPES = [(0.001, 1.0), (0.004, 0.8), (2.0, 0.3)]


@pytest.mark.parametrize(
    ("season", "slope"),
    [(None, SLOPES[0]), (2, SLOPES[1]), (7, SLOPES[2]), (12, SLOPES[0]), (None, SLOPES[2]), (7, SLOPES[1])]
    + [(season, None) for season in (2, 5, 12, 40)],
)
def test_equals_a_kalman_filter_in_any_blocks_with_gaps(season, slope):
    y, textbook, expert = series(80), Textbook(season, slope), made(season, slope)
    wanted = []
    for row, target in enumerate(y.tolist()):
        textbook.go_on()
        wanted.append(textbook.predict(row))
        textbook.learn(row, target)
    X = torch.zeros(80, 1, dtype=torch.float64)
    for size in (1, 17, 80):
        state, mean, variance = expert.init(), [], []
        for rows, targets in zip(X.split(size), y.split(size), strict=True):
            ahead = expert.predict(state, rows[:1])
            state, steps = expert.update(state, rows, targets)
            mean.append(steps.mean[0])
            variance.append(steps.variance[0])
            assert abs(float(ahead[0] - steps.mean[0, 0])) < 1e-9
            assert abs(float(ahead[1] - steps.variance[0, 0])) < 1e-9
        assert np.allclose(torch.cat(mean), [one[0] for one in wanted], rtol=1e-8, atol=1e-9)
        assert np.allclose(torch.cat(variance), [one[1] for one in wanted], rtol=1e-9, atol=1e-9)
    if slope is not None:  # in units of the level, which is two
        assert abs(float(state.moments[0, -1, -1]) * 2 - textbook.mean[-1]) < 1e-9


def test_parts_of_a_step_walk_the_level_and_leave_the_slope():
    expert, one = made(None, (0.01, 0.9)), torch.ones(1, 1, 1, dtype=torch.float64)
    state, _ = expert.update(expert.init(), torch.zeros(30, 1, dtype=torch.float64), series(30))
    rest = expert.bind().predict(state, one, torch.tensor([0.3], dtype=torch.float64))
    level = 2 * state.moments[0, 0, -1] + 4 * state.moments[0, 1, -1] * 29 / WARM_UP
    assert abs(float(rest.mean) - float(level)) < 1e-12
    h = torch.tensor([2.0, 4.0 * 29 / WARM_UP, 0.0], dtype=torch.float64)
    wanted = h @ state.moments[0, :, :-1] @ h + 0.3 * VARIANCES[1] + VARIANCES[0]
    assert abs(float(rest.variance) - float(wanted)) < 1e-12


@pytest.mark.parametrize("damping", [1.0, 0.97, 0.2])
def test_a_passage_is_the_power_of_the_transition_with_all_its_noise(damping):
    counts = torch.tensor([0, 1, 2, 5, 13, 64, 1000])
    variance = torch.tensor([0.3], dtype=torch.float64)
    found = WalkingSlope(variance, torch.full_like(variance, damping)).over(counts)
    F, Q = np.array([[1.0, 1.0], [0.0, damping]]), np.diag([0.0, 0.3])
    power, noise, number = np.eye(2), np.zeros((2, 2)), 0
    for place, count in enumerate(counts.tolist()):
        for _ in range(number, count):
            power, noise = F @ power, F @ noise @ F.T + Q
        number = count
        numbers = [float(value[0, place]) for value in found]
        wanted = [power[0, 1], power[1, 1], noise[0, 0], noise[0, 1], noise[1, 1]]
        assert np.allclose(numbers, wanted, rtol=1e-11, atol=1e-300)


@pytest.mark.parametrize("damping", [1.0, 0.9])
def test_no_variance_of_the_slope_is_the_straight_trend_to_the_bit(damping):
    y, X = series(100), torch.zeros(100, 1, dtype=torch.float64)
    variances = torch.tensor([VARIANCES], dtype=torch.float64)
    straight, same = made(12, None), made(12, (0.0, damping))
    (state, steps), (other, others) = straight.update(straight.init(), X, y), same.update(same.init(), X, y)
    assert torch.equal(state.moments, other.moments)
    assert torch.equal(steps.mean, others.mean)
    assert torch.equal(steps.variance, others.variance)
    # And beside one that has some, in one object, to round-off.
    slopes = torch.tensor([[0.0, damping], [0.1, 0.5]], dtype=torch.float64)
    both = StructuralExpert(variances.expand(2, 3), 12, 1, WARM_UP, slopes)
    found = both.update(both.init(), X, y)[1].mean
    assert torch.allclose(found[0], steps.mean[0], rtol=0, atol=1e-10)
    second = both.take(torch.tensor([1]))
    assert torch.allclose(second.update(second.init(), X, y)[1].mean, found[1:], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("season", "slope"), [(None, (0.01, 1.0)), (6, (0.02, 0.7)), (6, (0.0, 1.0))])
def test_paths_have_the_mean_and_covariance_of_the_textbook(season, slope):
    y, num, horizon = series(60, seed=2), 20_000, 9
    expert, textbook = made(season, slope), Textbook(season, slope)
    for row, target in enumerate(y.tolist()):
        textbook.go_on()
        textbook.learn(row, target)
    # All targets to come at once: y = H x + noise with x_1, ..., x_h one after the other.
    means, covariances = [], np.zeros((horizon, horizon))
    designs = [textbook.design(60 + step) for step in range(horizon)]
    for step in range(horizon):
        textbook.go_on()
        means.append(designs[step] @ textbook.mean)
        power = np.eye(len(textbook.mean))
        for later in range(step, horizon):
            shared = designs[later] @ power @ textbook.covariance @ designs[step]
            covariances[step, later] = covariances[later, step] = shared
            power = textbook.transition @ power
    covariances += VARIANCES[0] * np.eye(horizon)
    inputs = torch.zeros(60 + horizon, 1, dtype=torch.float64)
    online = OnlineEnsemble(Ensemble([expert], BayesianModelAveraging()))
    online.observe(inputs[:60], y)
    log_weights = online.predict(inputs[:1]).log_weights
    to_come, generator = inputs[60:], torch.Generator().manual_seed(3)
    paths = sample_paths(online, to_come, log_weights, num, generator=generator)
    mean, covariance = expert.bind().ahead(online.state.experts[0], horizon)
    assert np.allclose(mean[0], means, rtol=1e-9, atol=1e-9)
    assert np.allclose(covariance[0], covariances, rtol=1e-9, atol=1e-9)
    for step in range(horizon):
        law = stats.norm(means[step], math.sqrt(covariances[step, step]))
        assert stats.kstest(paths[:, step].numpy(), law.cdf).pvalue > LEAST
    # The deviation of a sample covariance of normal numbers: sqrt((c_ii c_jj + c_ij²) / S).
    spread = np.diag(covariances)
    deviation = np.sqrt((np.outer(spread, spread) + covariances**2) / num)
    assert (np.abs(torch.cov(paths.mT).numpy() - covariances) < 4.5 * deviation).all()


def test_illegal_slopes_are_refused():
    for slope in ((-0.1, 1.0), (0.1, 0.0), (0.1, -0.5), (0.1, 1.1), (math.nan, 1.0), (math.inf, 1.0)):
        with pytest.raises(ValueError, match="a variance, at least zero, and a damping"):
            made(12, slope)
    one = torch.tensor([VARIANCES], dtype=torch.float64)
    with pytest.raises(ValueError, match="for each expert"):
        StructuralExpert(one, 12, 1, 10, one[0, :2])
