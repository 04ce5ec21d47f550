"""Refitted experts against a sequential oracle, and in streams: blocks, gaps, outliers, causality, changes."""

import copy
import math
from functools import partial

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.experts import LBFGS, GaussianExpert, refitted
from gp_ensembles.experts.empirical_bayes import get_vectors, gradient_ascent, set_vectors_
from gp_ensembles.experts.refitted import InitialFit, RefittedExpert
from gp_ensembles.experts.window import Refit
from gp_ensembles.features import HilbertAdditiveFeatures, LinearFeatures, RandomFourierFeatures
from gp_ensembles.features.compose import Concatenate
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.lag_selection import find_lags
from gp_ensembles.streaming.joint import expert_covariance

D, L, SPEEDS = 2, 3, (0.0, 1e-2)


def rows(num_rows=260, dtype=torch.float64, gaps=True):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, D, generator=g, dtype=torch.float64)
    noise, y = 0.2 * torch.randn(num_rows, generator=g, dtype=torch.float64), []
    for t in range(num_rows):
        past = (y[t - 1] if t else 0.0) * 0.4 - (y[t - 6] if t > 5 else 0.0) * 0.4
        y.append(float(past + (2 * X[t, 0]).sin() + noise[t]))
    y = torch.tensor(y, dtype=torch.float64)
    if gaps:
        y[torch.rand(num_rows, generator=g) < 0.1] = torch.nan
    return X.to(dtype), y.to(dtype)


def model(dtype=torch.float64, num_columns=D + L):
    kernel = ScaleKernel(RBFKernel(ard_num_dims=num_columns)).to(dtype)
    smooth = RandomFourierFeatures.from_kernel(kernel, num_columns, 12, generator=torch.Generator().manual_seed(1))
    return GaussianExpert(Concatenate([LinearFeatures(num_columns, torch.tensor(0.1, dtype=dtype)), smooth]))


def expert(dtype=torch.float64, first=40, every=70, num_rows=60, lags=(1, 0, 0), num_inputs=D):
    refit = Refit(every, first=first, num_rows=num_rows)
    return RefittedExpert(model(dtype), num_inputs, InitialFit(lags, 2.0), torch.tensor(SPEEDS), refit)


def oracle(one, X, y, num_remembered):
    """Row by row, with all rows kept and lagged columns looked up in them."""
    now, speeds = copy.deepcopy(one.model), one.speeds
    lags, due, walks = list(one.lags), one.refit.first, speeds / one.mean_square
    filled, means, variances = [], [], []

    def column(t):
        past = [filled[t - lag] if lag and t >= lag else 0.0 for lag in lags]
        return torch.cat([X[t], torch.tensor(past, dtype=torch.float64)])

    def start():
        bound = now.bind()
        eye = torch.eye(now.features.num_features, dtype=torch.float64)
        return [(0 * eye[0], bound.prior_variance * eye) for _ in speeds]

    def step(posteriors, x, target):
        bound, after, predicted = now.bind(), [], []
        phi = bound.features(x.unsqueeze(0)).reshape(-1)
        for (mean, covariance), walk in zip(posteriors, walks, strict=True):
            covariance = covariance + walk * torch.eye(len(phi), dtype=torch.float64)
            v = phi @ covariance @ phi + bound.noise.squeeze()
            predicted.append((phi @ mean, v))
            if not math.isnan(target):
                gain = covariance @ phi / v
                mean, covariance = mean + gain * (target - phi @ mean), covariance - v * torch.outer(gain, gain)
            after.append((mean, covariance))
        return after, predicted

    with torch.no_grad():
        posteriors = start()
    for t in range(len(y)):
        with torch.no_grad():
            posteriors, predicted = step(posteriors, column(t), float(y[t]))
        means.append([m for m, _ in predicted])
        variances.append([v for _, v in predicted])
        filled.append(float(y[t]) if not math.isnan(y[t]) else (filled[-1] if filled else 0.0))
        if t + 1 < due:
            continue
        due += min(due, one.refit.every)
        oldest = max(0, t + 1 - num_remembered)
        first = oldest + 200 if oldest else 0
        series = torch.tensor(filled[oldest:], dtype=torch.float64)
        found = find_lags(series, len(lags) - 1, 200)[: len(lags)]
        new = [lag for lag in found if lag not in lags]
        lags = [lag if lag in found else 0 for lag in lags]
        lags = [lag or (new.pop(0) if new else 0) for lag in lags]
        columns = torch.stack([column(s) for s in range(t + 1)])
        seen = [s for s in range(first, t + 1) if not math.isnan(y[s])][-one.refit.num_rows :]
        Z, targets = columns[seen], y[seen]
        trials = []
        for prepare in [get_vectors(now), one.start.unsqueeze(0)][: 2 if t + 1 < one.refit.every else 1]:
            trial = copy.deepcopy(now)
            set_vectors_(trial, prepare)
            evidence = partial(trial.log_evidence, Z, targets)
            found = gradient_ascent(trial, evidence, LBFGS(15, 1e-5, 1e-5), 0.5, len(seen))
            set_vectors_(trial, found)
            trials.append((float(evidence().detach()), found))
        found = max(trials, key=lambda pair: pair[0])[1]
        set_vectors_(now, found)
        with torch.no_grad():
            walks = speeds / now.features(columns[first:]).square().sum(-1).mean()
            posteriors = start()
            for s in range(first, t + 1):
                posteriors, _ = step(posteriors, columns[s], float(y[s]))
    return torch.tensor(means).T, torch.tensor(variances).T, lags


@pytest.mark.parametrize("num_rows", [260, pytest.param(620, marks=pytest.mark.slow)])
def test_predictions_are_those_of_a_plain_loop_over_rows(num_rows):
    X, y = rows(num_rows)
    one = expert(every=70 if num_rows < 500 else 300)
    mean, variance, lags = oracle(one, X, y, num_remembered=400)
    state, steps = one.update(one.init(), X, y)
    assert state.lags.tolist() == lags
    assert {1, 6} <= set(lags)
    torch.testing.assert_close(steps.mean, mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(steps.variance, variance, rtol=1e-8, atol=0)
    assert int(state.num_rows) == num_rows < int(state.due)


def test_a_refit_of_too_few_rows_only_passes():
    X, y = rows(80)
    one = expert(first=40)
    y[5:] = torch.nan
    state, _ = one.update(one.init(), X, y)
    assert torch.equal(state.hyperparameters, one.init().hyperparameters)
    assert int(state.due) == 150


def failing_ascent(trial, *arguments):
    raise NumericalError("the covariance is not positive definite")


def ascent_to_nowhere(trial, *arguments):
    return torch.full_like(get_vectors(trial), torch.nan)


@pytest.mark.parametrize("ascent", [failing_ascent, ascent_to_nowhere])
def test_a_numerical_failure_leaves_the_expert_unchanged(ascent, monkeypatch):
    X, y = rows(60, gaps=False)
    one, never = expert(first=40), expert(first=70)
    monkeypatch.setattr(refitted, "gradient_ascent", ascent)
    (kept, _), (state, _) = (some.update(some.init(), X, y) for some in (one, never))
    assert (int(kept.due), int(state.due)) == (80, 70)  # one of them has tried
    assert torch.equal(kept.lags, state.lags)  # others would help
    torch.testing.assert_close(kept.moments, state.moments, rtol=1e-12, atol=1e-12)
    assert torch.equal(kept.hyperparameters, state.hyperparameters)


@pytest.mark.parametrize(("every", "is_start"), [(41, True), (40, False)])
def test_only_the_first_fits_go_back_to_the_start_as_well(every, is_start, monkeypatch):
    """Without any ascent, what is found is the best of what is tried."""
    monkeypatch.setattr(refitted, "gradient_ascent", lambda model, *_: get_vectors(model))
    one, (X, y) = expert(first=40, every=every), rows(40)
    state = one.init()
    far = state._replace(hyperparameters=state.hyperparameters + 5.0)
    found, _ = one.update(far, X, y)
    assert torch.equal(found.hyperparameters, one.start if is_start else far.hyperparameters)


def test_a_lag_that_does_not_help_makes_room():
    refit = Refit(70, first=40, num_rows=60)
    one = RefittedExpert(model(num_columns=D + 1), D, InitialFit((2,), 2.0), torch.tensor(SPEEDS), refit)
    assert one.update(one.init(), *rows(60))[0].lags.tolist() == [1]


def test_outliers_teach_little_and_are_not_remembered():
    X, y = rows(150, gaps=False)
    wild = y.clone()
    wild[75] = 1e6
    results = []
    for targets, threshold in ((y, None), (wild, 8.0)):
        online = OnlineEnsemble(Ensemble([expert()], FixedShare(0.01), outlier_threshold=threshold))
        results.append((online.observe(X, targets), online.state.experts[0]))
    (clean, _), (robust, state) = results
    assert torch.isnan(state.targets[75])
    assert float(state.remembered.abs().max()) < 10
    assert float((robust.mean - clean.mean)[76:].abs().max()) < 1.0


def test_single_precision_rows_are_learned_in_double():
    X, y = rows()
    one, single = expert(), expert(torch.float32)
    set_vectors_(single.model, get_vectors(one.model))
    for ours, theirs in zip(single.model.buffers(), one.model.buffers(), strict=True):
        ours.copy_(theirs)
    state, steps = single.update(single.init(), X.float(), y.float())
    _, exact = one.update(one.init(), X, y)
    assert (steps.mean.dtype, state.moments.dtype) == (torch.float32, torch.float64)
    # Inputs are known to 1e-7, and the search for hyperparameters is cut off at 1e-5 nats.
    torch.testing.assert_close(steps.mean.double()[:, :40], exact.mean[:, :40], rtol=0, atol=1e-4)
    torch.testing.assert_close(steps.mean.double(), exact.mean, rtol=0, atol=0.05)


def test_joint_covariances_have_the_predictions_on_their_diagonal():
    X, y = rows()
    one = expert()
    state, _ = one.update(one.init(), X, y)
    bound = one.bind()
    Phi = bound.features(X[:4])
    joint = expert_covariance(bound, state, Phi)
    torch.testing.assert_close(joint.diagonal(dim1=-2, dim2=-1), bound.predict(state, Phi).variance)
    torch.testing.assert_close(joint, joint.mT)


def test_taking_experts_and_sharing_the_model():
    X, y = rows(60)
    one = expert()
    second = one.take(torch.tensor([1]))
    _, steps = second.update(second.init(), X, y)
    torch.testing.assert_close(steps.mean[0], one.update(one.init(), X, y)[1].mean[1])
    assert one.with_transition(None).model is one.model
    assert one.bind().take(torch.tensor([0])).prior_variance.shape == (1,)
    with pytest.raises(ValueError, match="takes no transition"):
        one.with_transition(RandomWalk(torch.ones(1, 1)))


def test_evidence_is_that_of_the_model_on_rows_in_their_order():
    X, y = rows(30, gaps=False)
    one = expert(lags=(2, 0, 0))
    past = torch.cat([y.new_zeros(2), y[:-2]])
    columns = torch.cat([X, past.unsqueeze(-1), y.new_zeros(30, 2)], -1)
    expected = one.model.log_evidence(columns, y).detach().expand(2)
    torch.testing.assert_close(one.log_evidence(X, y).detach(), expected)


def test_columns_behind_its_own_are_not_looked_at():
    X, y = rows(60)
    wider = torch.cat([X, torch.full_like(X, 7.0)], -1)
    wide = expert(num_inputs=4)
    _, steps = wide.update(wide.init(), wider, y)
    torch.testing.assert_close(steps.mean, expert().update(expert().init(), X, y)[1].mean)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": GaussianExpert(LinearFeatures(D + L, torch.ones(2)))}, "single model"),
        ({"model": GaussianExpert(LinearFeatures(D + L, torch.ones(())), transition=RandomWalk(0.1))}, "transition"),
        ({"speeds": torch.tensor([-1.0])}, "non-negative"),
        ({"initial_fit": InitialFit((1, 2, 201))}, "at most 200"),
        ({"initial_fit": InitialFit((1,) * (D + L))}, "fewer than"),
        ({"num_inputs": 1}, "takes 2 inputs"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given = {"model": model(), "num_inputs": D, "initial_fit": InitialFit((1, 0, 0))}
    given |= {"speeds": torch.zeros(1), "refit": Refit(10)}
    with pytest.raises(ValueError, match=message):
        RefittedExpert(**(given | change))


def test_features_with_a_box_are_refused():
    X, _ = rows()
    kernel = ScaleKernel(RBFKernel(ard_num_dims=D)).double()
    boxed = GaussianExpert(HilbertAdditiveFeatures.from_data(kernel, X, 4))
    with pytest.raises(ValueError, match="valid only in a box"):
        RefittedExpert(boxed, D, InitialFit(), torch.zeros(1), Refit(10))
