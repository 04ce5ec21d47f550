"""Lags, innovation models, the rule and outliers in an ensemble, against a plain loop over rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.weighing import run_block
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, MultiOutputExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare

NUM_INPUTS, LAGS, THRESHOLD = 2, (1, 4), 5.0
MODELS = (InnovationModel(degrees_of_freedom=4, rate=0.1), InnovationModel(rate=0.05, autoregressive=False))


def rows(seed=0, num_rows=60):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    y = X @ torch.tensor([0.7, -0.4], dtype=torch.float64) + noise
    y[1:] += 0.5 * y[:-1]
    return X, y


def ensemble(dtype=torch.float64, *, memory=True, innovations=MODELS, threshold=THRESHOLD, rule=None):
    past = TargetMemory(LAGS, rows(1)[1].to(dtype)) if memory else None
    features = LinearFeatures(NUM_INPUTS + (len(LAGS) if memory else 0), torch.ones(2, dtype=dtype))
    experts = [GaussianExpert(features), GaussianExpert(features, transition=RandomWalk(1e-3))]
    with torch.no_grad():
        for expert in experts:
            expert.likelihood.noise = torch.tensor([[0.05], [0.2]], dtype=dtype)
    return Ensemble(
        experts,
        FixedShare(0.02) if rule is None else rule,
        ["a", "b", "c", "d"],
        innovations=innovations,
        memory=past,
        outlier_threshold=threshold,
    )


def oracle(ensemble, X, y, threshold):
    """Row after row: Kalman filters in the open, innovation models one row at a time, fixed share."""
    memory, bank, share = ensemble.memory, ensemble.layers.bank, ensemble.meta_learner.share
    num = ensemble.num_experts
    means = torch.zeros(4, X.shape[1] + len(LAGS) + 1, dtype=torch.float64)
    covariances = torch.eye(means.shape[1], dtype=torch.float64).repeat(4, 1, 1)
    noises, walks = [0.05, 0.2, 0.05, 0.2], [0.0, 0.0, 1e-3, 1e-3]
    weights = torch.full((num,), 1 / num, dtype=torch.float64)
    history, innovations = memory.init(y), bank.init(4, y)
    scores, centers, spreads = [], [], []
    for x, target in zip(X, y, strict=True):
        phi = torch.cat([x, memory.next_columns(history, 1)[0], x.new_ones(1)])
        moments = []
        for m in range(4):
            covariances[m] += walks[m] * torch.eye(len(phi), dtype=torch.float64)
            moments.append((phi @ means[m], phi @ covariances[m] @ phi + noises[m]))
        mean, variance = (torch.stack(part) for part in zip(*moments, strict=True))
        copies = bank.predict(innovations, mean.unsqueeze(1), variance.unsqueeze(1))
        all_means = torch.cat([mean.unsqueeze(1), copies.mean[..., 0]], 1).flatten()
        all_variances = torch.cat([variance.unsqueeze(1), copies.variance[..., 0]], 1).flatten()
        center = weights @ all_means
        spread = (weights @ (all_variances + (all_means - center) ** 2)).sqrt()
        centers.append(center)
        spreads.append(spread)
        is_missing = bool(target.isnan())
        counts = 1.0
        if not is_missing and abs(target - center) > threshold * spread:
            counts = float((threshold * spread / (target - center)) ** 4)
        after, met = bank.update_block(
            innovations,
            mean.unsqueeze(1),
            variance.unsqueeze(1),
            target.reshape(1),
            share=torch.tensor([counts], dtype=torch.float64),
            missing=target.isnan().reshape(1) if is_missing else None,
        )
        innovations = after
        if is_missing:
            scores.append(target)
            history = memory.columns(history, target.reshape(1))[0]
            weights = (1 - share) * weights + share / num
            continue
        own = torch.distributions.Normal(mean, variance.sqrt()).log_prob(target)
        log_prob = torch.cat([own.unsqueeze(1), met.log_prob[..., 0]], 1).flatten()
        density = weights @ log_prob.exp()
        scores.append(density.log())
        tempered = weights * (counts * (log_prob - log_prob.max())).exp()
        weights = (1 - share) * tempered / tempered.sum() + share / num
        for m in range(4):
            gain = covariances[m] @ phi / (variance[m] - noises[m] + noises[m] / counts)
            means[m] += gain * (target - mean[m])
            covariances[m] -= torch.outer(gain, covariances[m] @ phi)
        lower, upper = memory.bounds.tolist()
        is_usual = 2 * lower - upper <= float(target) <= 2 * upper - lower
        remembered = target if is_usual or counts == 1.0 else center + counts * (target - center)
        history = memory.columns(history, remembered.reshape(1))[0]
    return torch.stack(scores), torch.stack(centers), torch.stack(spreads)


def spoiled(y, outliers, gaps):
    y = y.clone()
    for place, value in outliers.items():
        y[place] = value
    y[list(gaps)] = torch.nan
    return y


CASES = {
    "clean": ({}, ()),
    "one outlier": ({20: 100.0}, ()),
    "neighbors": ({20: 1e4, 21: -50.0, 23: 9e5}, ()),
    "ends": ({0: 1e3, 59: -1e3}, ()),
    "a usual one": ({30: 5.0}, ()),
    "with gaps": ({20: 1e3, 40: -30.0}, (19, 21, 22, 41)),
}


@pytest.mark.parametrize("case", CASES)
def test_equals_row_after_row(case):
    X, y = rows()
    y = spoiled(y, *CASES[case])
    scores, centers, spreads = oracle(ensemble(), X, y, THRESHOLD)
    state, predictions = ensemble().update(ensemble().init(), X, y)
    torch.testing.assert_close(predictions.log_prob, scores, rtol=1e-8, atol=1e-8, equal_nan=True)
    torch.testing.assert_close(predictions.mean, centers, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(predictions.variance.sqrt(), spreads, rtol=1e-8, atol=1e-8)
    assert state.history.isfinite().all()


@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.integers(1, 17), min_size=2, max_size=6),
    st.dictionaries(st.integers(0, 50), st.sampled_from([30.0, -100.0, 1e6])),
    st.sets(st.integers(0, 50), max_size=6),
)
def test_any_blocking_gives_the_same_numbers(sizes, outliers, gaps):
    num_rows = sum(sizes)
    X, y = (part[:num_rows] for part in rows(num_rows=110))
    y = spoiled(y, {k: v for k, v in outliers.items() if k < num_rows}, [k for k in gaps if k < num_rows])
    whole = OnlineEnsemble(ensemble(), block_size=num_rows).observe(X, y)
    online = OnlineEnsemble(ensemble(), block_size=7)
    parts = [online.observe(*block) for block in zip(X.split(sizes), y.split(sizes), strict=True)]
    for field in ("mean", "variance", "log_prob"):
        together = torch.cat([getattr(part, field) for part in parts])
        torch.testing.assert_close(together, getattr(whole, field), rtol=1e-7, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize("case", CASES)
def test_shell_and_pure_ensemble_agree_and_predict_is_the_next_row(case):
    X, y = rows()
    y = spoiled(y, *CASES[case])
    pure, predictions = ensemble().update(ensemble().init(), X, y)
    online = OnlineEnsemble(ensemble())
    observed = online.observe(X, y)
    torch.testing.assert_close(observed.log_prob, predictions.log_prob, rtol=1e-9, atol=1e-9, equal_nan=True)
    new_X, new_y = (part[:1] for part in rows(7))
    predicted = online.predict(new_X)
    torch.testing.assert_close(predicted.mean, ensemble().predict(pure, new_X).mean, rtol=1e-9, atol=1e-9)
    met = online.observe(new_X, new_y)
    torch.testing.assert_close(predicted.mean, met.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(predicted.log_prob(new_y), met.log_prob, rtol=1e-8, atol=1e-8)


def test_no_prediction_knows_its_target():
    X, y = rows()
    before = OnlineEnsemble(ensemble()).observe(X, y)
    for value in (50.0, torch.nan, 0.1):
        changed = y.clone()
        changed[30] = value
        after = OnlineEnsemble(ensemble()).observe(X, changed)
        torch.testing.assert_close(after.mean[:31], before.mean[:31], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(after.log_weights[:, :31], before.log_weights[:, :31], rtol=1e-9, atol=1e-9)
        assert not torch.allclose(after.mean[31:], before.mean[31:], rtol=1e-9)


@pytest.mark.parametrize("size", [30.0, 1e4, 9e5, 1e300])
def test_one_gross_target_hardly_matters_afterwards(size):
    X, y = rows(num_rows=400)
    clean = OnlineEnsemble(ensemble()).observe(X, y)
    y[200] = size
    spoiled = OnlineEnsemble(ensemble()).observe(X, y)

    def error(predictions):
        return float((predictions.mean - y)[201:301].square().mean().sqrt())

    assert error(spoiled) < 1.1 * error(clean)
    assert bool(spoiled.log_prob.isfinite().all())


def test_a_shift_for_good_is_learned_all_the_same():
    X, y = rows(num_rows=600)
    y[300:] += 100
    predictions = OnlineEnsemble(ensemble()).observe(X, y)
    assert float((predictions.mean - y)[450:].abs().mean()) < 3


def test_the_state_loads_into_a_fresh_ensemble_to_the_bit():
    X, y = rows()
    online = OnlineEnsemble(ensemble())
    online.observe(X, y)
    other = OnlineEnsemble(ensemble())
    other.load_state_dict(online.state_dict())
    more_X, more_y = rows(5)
    assert torch.equal(other.observe(more_X, more_y).log_prob, online.observe(more_X, more_y).log_prob)


def test_a_rejected_block_leaves_the_state(monkeypatch):
    X, y = rows()
    online = OnlineEnsemble(ensemble(), block_size=10)
    online.observe(X, y)
    before = {name: value.clone() for name, value in online.state_dict().items()}
    with pytest.raises(ValueError, match="must be finite"):
        online.observe(torch.full_like(X, torch.inf), y)
    with monkeypatch.context() as patch:
        patch.setattr("gp_ensembles.engine.online.run_block", _failing(run_block))
        with pytest.raises(ArithmeticError):
            online.observe(X, y)
    for name, value in online.state_dict().items():
        assert torch.equal(value, before[name]), name


def _failing(run):
    calls = []

    def run_until_third(*arguments, **options):
        calls.append(1)
        if len(calls) == 3:
            raise ArithmeticError
        return run(*arguments, **options)

    return run_until_third


def test_single_precision_stays_close():
    X, y = rows(num_rows=300)
    y[100] = 1e5
    double = OnlineEnsemble(ensemble()).observe(X, y)
    single = OnlineEnsemble(ensemble(torch.float32)).observe(X.float(), y.float())
    torch.testing.assert_close(single.log_prob.double(), double.log_prob, rtol=2e-2, atol=2e-2)


def test_experts_that_died_stay_out_of_the_mixture():
    X, y = rows(num_rows=300)
    prior = torch.ones(4 * 3, dtype=torch.float64)
    prior[3:6] = 0.0  # the second expert and its innovation models
    rule = BayesianModelAveraging(prior)
    online = OnlineEnsemble(ensemble(rule=rule), block_size=20)
    predictions = online.observe(X, y)
    kept = [k for k in range(12) if not 3 <= k < 6]
    assert bool(predictions.experts.mean[3:6].isnan().all())
    assert bool(predictions.experts.mean[kept].isfinite().all())
    assert bool(predictions.log_prob.isfinite().all())


def test_every_prediction_has_a_name():
    assert ensemble().names[:4] == ("a", "a + ar t4 rate 0.1", "a + normal rate 0.05", "b")
    assert ensemble().num_experts == 12
    assert ensemble().num_inputs == NUM_INPUTS


def test_layers_are_for_one_real_number():
    features = LinearFeatures(NUM_INPUTS, torch.ones((), dtype=torch.float64))
    for expert in (LaplaceExpert(features, LogisticLikelihood()), MultiOutputExpert(features, 2)):
        with pytest.raises(ValueError, match="are for targets of one real number"):
            Ensemble([expert], BayesianModelAveraging(), innovations=MODELS)
        with pytest.raises(ValueError, match="are for targets of one real number"):
            Ensemble([expert], BayesianModelAveraging(), outlier_threshold=5)


@pytest.mark.parametrize("threshold", [0.5, math.inf, math.nan])
def test_an_illegal_threshold_is_refused(threshold):
    with pytest.raises(ValueError, match="at least one standard deviation"):
        ensemble(threshold=threshold)
