"""Late targets: whatever the order of arrival, the model of a stream in order, and scores by what was said before."""

import copy
import functools
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from scipy import stats

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, CountTarget
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.content import STREAMS
from gp_ensembles.streaming.late import LateTargets, smoothed_draws
from tests.pretend_device import pretend_device
from tests.refusals import refused

LINEAR = replace(oebe, bases=(LinearBasis(),))
WALKING = replace(LINEAR, random_walk_variances=(0.01,))
WARMUP, ROWS = 30, 50


def stream(seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(ROWS, 2, dtype=torch.float64, generator=generator)
    return X, X @ torch.tensor([2.0, -1.0], dtype=torch.float64) + 0.3 * torch.randn(ROWS, generator=generator)


@functools.cache
def fitted_once(walks, **settings):
    X, y = stream()
    spec = {None: LINEAR, "with": WALKING, "only": replace(WALKING, static=False)}[walks]
    return OnlineModel(StreamConfig(spec, warmup=WARMUP, **settings)).fit(X[:WARMUP], y[:WARMUP])


def fitted(walks=None, **settings):
    return copy.deepcopy(fitted_once(walks, **settings))


def same_state(first, second):
    ours, theirs = first.online.state_dict(), second.online.state_dict()
    return all(torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-11, rtol=1e-11) for name in ours)


@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(WARMUP, ROWS)), missing=st.sets(st.integers(WARMUP, ROWS - 1), max_size=4))
def test_any_order_of_arrival_is_the_stream_in_order_with_gaps(order, missing):
    X, y = stream()
    y = y.clone()
    y[list(missing)] = torch.nan
    late, in_order = LateTargets(fitted()), fitted()
    in_order.observe(X[WARMUP:], y[WARMUP:])
    for row in range(WARMUP, ROWS):
        late.predict(row, X[row])
    for row in order:
        late.observe(row, float(y[row]))
    assert late.num_waiting == 0
    assert late.model.num_rows == ROWS
    assert same_state(late.model, in_order)


def test_a_target_is_scored_by_what_was_said_of_it_however_late():
    X, y = stream()
    late = LateTargets(fitted())
    first = late.predict("first", X[WARMUP])
    for row in range(WARMUP + 1, ROWS):
        late.predict(row, X[row])
        late.observe(row, float(y[row]))
    assert late.model.num_rows == WARMUP  # all wait for the first
    scored = late.observe("first", float(y[WARMUP]))
    assert scored.log_prob == float(first.log_prob(y[WARMUP : WARMUP + 1])[0])
    assert late.model.num_rows == ROWS


def test_steps_are_those_of_the_rows():
    X, y = stream()
    steps = torch.tensor([1.0, 3.0, 0.5, 2.0], dtype=torch.float64)
    late, in_order = LateTargets(fitted("with")), fitted("with")
    in_order.observe(X[WARMUP : WARMUP + 4], y[WARMUP : WARMUP + 4], steps)
    for row in range(4):
        late.predict(row, X[WARMUP + row], steps=float(steps[row]))
    for row in (3, 0, 2, 1):
        late.observe(row, float(y[WARMUP + row]))
    assert same_state(late.model, in_order)
    refused(ValueError, "steps", lambda: late.predict("back", X[0], steps=-1.0))


def test_a_gap_in_time_is_in_what_is_said_behind_rows_that_wait():
    X, _ = stream()
    late, near = LateTargets(fitted("only")), LateTargets(fitted("only"))
    far = late.predict("a", X[WARMUP], steps=20.0)
    after = late.predict("b", X[WARMUP])
    near.predict("a", X[WARMUP])
    soon = near.predict("b", X[WARMUP])
    assert float(after.stddev) > 0.7 * float(far.stddev)
    assert float(after.stddev) > 1.3 * float(soon.stddev)


def test_patience():
    X, y = stream()
    late = LateTargets(fitted(), patience=2)
    for row in range(WARMUP, WARMUP + 5):
        late.predict(row, X[row])
    late.observe(WARMUP + 1, float(y[WARMUP + 1]))
    late.observe(
        WARMUP + 3, float(y[WARMUP + 3])
    )  # now two rows behind the first have theirs, and one behind the third
    assert (late.waiting, late.num_given_up) == ((WARMUP + 2, WARMUP + 4), 1)
    in_order = fitted()
    y = y.clone()
    y[WARMUP] = torch.nan
    in_order.observe(X[WARMUP : WARMUP + 2], y[WARMUP : WARMUP + 2])
    assert same_state(late.model, in_order)
    refused(ValueError, "patience must be at least one row", lambda: LateTargets(fitted(), patience=0))


def test_beyond_the_window_a_target_is_given_up():
    X, y = stream()
    late, in_order = LateTargets(fitted(), window=3), fitted()
    y = y.clone()
    for row in range(WARMUP, WARMUP + 3):
        late.predict(row, X[row])
    late.observe(WARMUP + 1, float(y[WARMUP + 1]))
    late.predict("new", X[WARMUP + 3])  # gives up the first row, and learns the one behind it
    assert late.waiting == (WARMUP + 2, "new")
    y[WARMUP] = torch.nan
    in_order.observe(X[WARMUP : WARMUP + 2], y[WARMUP : WARMUP + 2])
    assert same_state(late.model, in_order)
    with pytest.raises(ValueError, match=rf"no row {WARMUP} is pending: it was never predicted, is learned"):
        late.observe(WARMUP, 1.0)


def test_what_is_wrong_changes_nothing():
    X, y = stream()
    late = LateTargets(fitted(on_bad_row="refuse"))
    late.predict("a", X[WARMUP])
    before = late.content()
    refused(ValueError, "a row 'a' is already pending", lambda: late.predict("a", X[WARMUP + 1]))
    refused(ValueError, "infinite", lambda: late.predict("b", X[WARMUP + 1] / 0))
    refused(ValueError, "no row 'b' is pending", lambda: late.observe("b", 1.0))
    refused(ValueError, f"the target of row {WARMUP + 1} is infinite", lambda: late.observe("a", float("inf")))
    refused(ValueError, "deviations", lambda: late.observe("a", 1e12))
    assert late.waiting == ("a",)
    assert late.content()["objects"] == before["objects"]
    late.observe("a", float(y[WARMUP]))
    refused(ValueError, "window must be at least one row", lambda: LateTargets(fitted(), window=0))


def test_rows_may_wait_while_the_warm_up_lasts():
    X, y = stream()
    late = LateTargets(OnlineModel(StreamConfig(LINEAR, warmup=WARMUP)))
    for row in range(WARMUP):
        late.predict(row, X[row])
    for row in reversed(range(WARMUP)):
        late.observe(row, float(y[row]))
    assert late.model.is_fitted
    assert same_state(late.model, fitted())


@pytest.mark.parametrize("target", [None, BinaryTarget(), ClassTarget(3), CountTarget()])
def test_saved_and_read_back_with_rows_that_wait(target):
    X, y = stream()
    if target is not None:
        y = (y > 0).double() + ((y > 1).double() if not isinstance(target, BinaryTarget) else 0)
    spec = LINEAR if target is None else replace(LINEAR, target=target)
    late = LateTargets(OnlineModel(StreamConfig(spec, warmup=WARMUP)).fit(X[:WARMUP], y[:WARMUP]), window=20)
    for row in range(WARMUP, WARMUP + 6):
        late.predict(row, X[row])
    late.observe(WARMUP + 2, float(y[WARMUP + 2]))
    model = OnlineModel.from_content(late.model.content())
    again = LateTargets.restore(model, late.content())
    assert again.waiting == late.waiting
    for row in (WARMUP, WARMUP + 4, WARMUP + 1):
        ours, theirs = late.observe(row, float(y[row])), again.observe(row, float(y[row]))
        assert ours.log_prob == pytest.approx(theirs.log_prob, rel=1e-9)
    assert late.model.num_rows == again.model.num_rows == WARMUP + 3
    states = late.model.online.state_dict(), again.model.online.state_dict()
    assert all(torch.equal(value, states[1][name]) or bool(value.isnan().any()) for name, value in states[0].items())


@pytest.mark.parametrize("has_point", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_saved_and_read_back_on_another_device_than_the_host(has_point):
    X, y = stream()
    y = torch.where(y < 0, 0.0, y) if has_point else y
    with pretend_device():
        late = LateTargets(OnlineModel(StreamConfig(LINEAR, warmup=WARMUP, device="cuda")))
        late.model.observe(X[: WARMUP + 2], y[: WARMUP + 2])
        assert (late.model.point is not None) == has_point
        for row in range(WARMUP + 2, WARMUP + 5):
            late.predict(row, X[row])
        again = LateTargets.restore(OnlineModel.from_content(late.model.content()), late.content())
        for row in (WARMUP + 3, WARMUP + 2):
            assert again.observe(row, float(y[row])).log_prob == late.observe(row, float(y[row])).log_prob


def test_draws_become_a_density_with_their_moments_near_that_of_scipy():
    draws = torch.as_tensor(np.random.default_rng(0).gamma(4.0, size=800))
    predicted = smoothed_draws(draws)
    assert float(predicted.mean) == pytest.approx(float(draws.mean()), rel=1e-12)
    assert float(predicted.variance) == pytest.approx(float(draws.var(correction=0)), rel=1e-12)
    y = torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64)
    spread = min(float(draws.std()), float(stats.iqr(draws.numpy())) / 1.349)
    plain = stats.gaussian_kde(draws.numpy(), 0.9 * spread * 800**-0.2 / float(draws.std()))
    np.testing.assert_allclose(predicted.log_prob(y.unsqueeze(-1)).exp().squeeze(-1), plain(y.numpy()), rtol=0.1)
    for same in (torch.full((9,), 2.0, dtype=torch.float64), torch.tensor([1.0] * 9 + [2.0], dtype=torch.float64)):
        assert bool(torch.isfinite(smoothed_draws(same).log_prob(same[:1])).all())
    back = from_plain(to_plain(predicted, STREAMS), STREAMS)
    assert torch.equal(back.log_prob(y.unsqueeze(-1)), predicted.log_prob(y.unsqueeze(-1)))
