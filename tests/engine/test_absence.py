"""External models that fail or stay silent: against a plain loop over rows in which experts are absent."""

import copy
import itertools
import math

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble, add_experts
from gp_ensembles.engine.external_report import external_reports
from gp_ensembles.engine.weighing import weigh_awake
from gp_ensembles.experts import GaussianExpert
from gp_ensembles.experts.adapters import (
    FAILED_PREDICTION,
    FAILED_TRAINING,
    ILLEGAL_DEVIATION,
    ILLEGAL_MEAN,
    SILENT,
    UNTRAINED,
    WRONG_LENGTH,
    ModelAdapter,
    described,
)
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.innovations.bank import InnovationBank
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    OnlineNewton,
    ReferenceAveraging,
    SoftBayes,
    sticky_transition,
)
from gp_ensembles.metrics.regret_bounds import fixed_share_bound
from gp_ensembles.numerics.cholesky import NumericalError

D, FIRST = 2, 10
NAN = float("nan")
MODELS = (InnovationModel(degrees_of_freedom=4, rate=0.1), InnovationModel(rate=0.05, autoregressive=False))


class Moody(ModelAdapter):
    """The mean of the targets; where the first input is beyond a number it does what it likes."""

    def __init__(self, mood="silent", beyond=0.6):
        self.mood, self.beyond = mood, beyond

    def fit(self, rows):
        if self.mood == "no training":
            raise RuntimeError("cannot be trained")
        center = rows.targets.mean()

        def forecast(X):
            mean, deviation = center + 0.3 * X[:, 1], torch.full_like(X[:, 0], 0.8)
            bad = X[:, 0] > self.beyond
            if self.mood == "silent":
                mean = torch.where(bad, NAN, mean)
            elif self.mood == "far":
                mean = torch.where(bad, -math.inf, mean)
            elif self.mood in ("negative", "zero", "infinite", "nan"):
                value = {"negative": -1.0, "zero": 0.0, "infinite": math.inf, "nan": NAN}[self.mood]
                deviation = torch.where(bad, value, deviation)
            elif bad.any() and self.mood == "raises":
                raise ValueError("no idea")
            elif bad.any() and self.mood == "long":
                mean = torch.cat([mean, mean])
            return mean, deviation

        return forecast


CODES = {
    "silent": SILENT,
    "nan": SILENT,
    "far": ILLEGAL_MEAN,
    "negative": ILLEGAL_DEVIATION,
    "zero": ILLEGAL_DEVIATION,
    "infinite": ILLEGAL_DEVIATION,
    "raises": FAILED_PREDICTION,
    "long": WRONG_LENGTH,
}


def rows(num_rows=70, dtype=torch.float64):
    g = torch.Generator().manual_seed(3)
    X = torch.randn(num_rows, D, generator=g, dtype=torch.float32).double()
    y = 0.5 * X[:, 1] + 0.4 * torch.randn(num_rows, generator=g, dtype=torch.float64)
    y[[20, 40]] = NAN
    return X.to(dtype), y.to(dtype)


def adapter(mood="silent", beyond=0.6, dtype=torch.float64):
    return ExternalExpert(Moody(mood, beyond), InputFeatures(D, torch.ones((), dtype=dtype)), FIRST, 30)


def ensemble(rule, mood="silent", *, innovations=(), threshold=None, dtype=torch.float64):
    linear = GaussianExpert(LinearFeatures(D, torch.ones((), dtype=dtype)))
    experts = [linear, adapter(mood, dtype=dtype), adapter("silent", 1.2, dtype=dtype)]
    return Ensemble(
        experts, rule, ["linear", "external", "other"], innovations=innovations, outlier_threshold=threshold
    )


def by_rows(rule, log_prob, y):
    """Log densities (M, T), NaN for the absent, one row after the other; ``rule`` takes and gives a list of weights."""
    weights, before, densities = torch.full((len(log_prob),), 1 / len(log_prob), dtype=torch.float64), [], []
    for t in range(len(y)):
        awake = ~torch.isnan(log_prob[:, t]) if not math.isnan(y[t]) else None
        if awake is None:
            before.append(None)
            densities.append(NAN)
            weights = rule(weights, torch.ones_like(weights))
            continue
        share = torch.where(awake, weights, 0.0) / weights[awake].sum()
        density = float((share[awake] * log_prob[awake, t].exp()).sum())
        before.append(share)
        densities.append(math.log(density))
        weights = rule(weights, torch.where(awake, log_prob[:, t].exp(), density))
    return before, torch.tensor(densities, dtype=torch.float64)


def fixed_share(weights, likelihood, share=0.05):
    after = weights * likelihood / (weights * likelihood).sum()
    return (1 - share) * after + share / len(weights)


def averaging(weights, likelihood):
    return weights * likelihood / (weights * likelihood).sum()


def soft_bayes(weights, likelihood, rate=0.2):
    return weights * (1 - rate + rate * likelihood / (weights * likelihood).sum())


ORACLES = {
    "fixed share": (FixedShare(0.05), fixed_share),
    "averaging": (BayesianModelAveraging(), averaging),
    "soft bayes": (SoftBayes(0.2), soft_bayes),
}
RULES = [
    FixedShare(0.05),
    SoftBayes(),
    DynamicModelAveraging(0.98),
    ExponentiatedGradient(0.05, 0.01),
    OnlineNewton(),
    DiscountedOnlineNewton(),
    MarkovSwitching(sticky_transition(9, 0.95)),
    CombinedRules([FixedShare(0.05), SoftBayes(0.1)], FixedShare(0.01)),
    ReferenceAveraging(FixedShare(0.05), [0]),
]


@pytest.mark.parametrize(("mood", "name"), list(zip(CODES, itertools.cycle(ORACLES))))
def test_a_plain_loop_gives_the_same_weights_and_densities(name, mood):
    rule, oracle = ORACLES[name]
    X, y = rows()
    online = OnlineEnsemble(ensemble(rule, mood), block_size=16)
    predictions = online.observe(X, y)
    trained = torch.arange(len(y)) >= FIRST
    for place, beyond in ((1, 0.6), (2, 1.2)):
        assert torch.equal(predictions.experts.mean[place].isnan(), ~trained | (X[:, 0] > beyond))
    before, want = by_rows(oracle, predictions.experts.log_prob, y)
    torch.testing.assert_close(predictions.log_prob, want, equal_nan=True)
    for t, share in enumerate(before):
        if share is not None:
            torch.testing.assert_close(predictions.log_weights[:, t].exp(), share)
    torch.testing.assert_close(predictions.log_weights.exp().sum(0), torch.ones(len(y), dtype=torch.float64))
    mixture = predictions.mixture
    torch.testing.assert_close(mixture.mean, predictions.mean)
    torch.testing.assert_close(mixture.log_prob(y)[trained & ~y.isnan()], want[trained & ~y.isnan()])
    assert external_reports(online)[0].num_absent == int((~trained | (X[:, 0] > 0.6)).sum())
    assert int(online.state.experts[1].reason) == CODES[mood]


@pytest.mark.parametrize(
    ("rule", "mood", "size"), list(zip(RULES, itertools.cycle(["silent", "raises"]), itertools.cycle([7, 1, 13])))
)
def test_any_blocks_give_the_same_numbers_under_every_rule(rule, mood, size):
    X, y = rows(45)
    y[33] = 40.0
    built = ensemble(rule, mood, innovations=MODELS, threshold=5.0)
    _, want = built.update(built.init(), X, y)
    assert bool(torch.isfinite(want.log_prob[~y.isnan()]).all())
    online = OnlineEnsemble(copy.deepcopy(built), block_size=size)
    parts = [online.observe(X[t : t + size], y[t : t + size]) for t in range(0, len(y), size)]
    torch.testing.assert_close(torch.cat([p.log_prob for p in parts]), want.log_prob, equal_nan=True)
    torch.testing.assert_close(torch.cat([p.log_weights for p in parts], 1), want.log_weights)
    torch.testing.assert_close(torch.cat([p.variance for p in parts]), want.variance)
    single = OnlineEnsemble(ensemble(rule, mood, innovations=MODELS, threshold=5.0, dtype=torch.float32))
    got = single.observe(X.float(), y.float())
    torch.testing.assert_close(got.log_prob.double(), want.log_prob, rtol=2e-3, atol=2e-3, equal_nan=True)


def test_innovation_models_of_the_absent_rest():
    """Against a bank for each expert alone, which skips the rows of which its expert said nothing."""
    X, y = rows()
    built = ensemble(FixedShare(0.05), innovations=MODELS)
    _, found = built.update(built.init(), X, y)
    plain = ensemble(FixedShare(0.05))
    _, own = plain.update(plain.init(), X, y)
    bank = InnovationBank(MODELS)
    for m in range(3):
        state, kept = bank.init(1, y), []
        for t in range(len(y)):
            if own.experts.mean[m, t].isnan():
                kept.append(torch.full((2,), NAN, dtype=torch.float64))
                age = torch.zeros_like(state.age) if not y[t].isnan() else state.age + 1
                state = state._replace(last_error=torch.zeros_like(state.last_error), age=age)
                continue
            mean, variance = own.experts.mean[m : m + 1, t : t + 1], own.experts.variance[m : m + 1, t : t + 1]
            missing = torch.isnan(y[t : t + 1])
            state, copies = bank.update_block(state, mean, variance, y[t : t + 1], missing=missing)
            kept.append(copies.log_prob[0, :, 0])
        want = torch.stack(kept, 1)
        torch.testing.assert_close(found.experts.log_prob[3 * m + 1 : 3 * m + 3], want, equal_nan=True)


def test_predicting_ahead_is_predicting_the_next_row():
    X, y = rows()
    online = OnlineEnsemble(ensemble(FixedShare(0.05), innovations=MODELS))
    for start, stop in ((0, 33), (33, 34), (34, 35), (35, 60)):
        online.observe(X[start:stop], y[start:stop])
        ahead = online.predict(X)
        for t in range(len(y)):
            assert torch.equal(torch.isneginf(ahead.log_weights[3:6, t]), (X[t, 0] > 0.6).expand(3))  # trained by now
        then = copy.deepcopy(online).observe(X[stop : stop + 1], y[stop : stop + 1])
        torch.testing.assert_close(ahead.mean[stop : stop + 1], then.mean)
        torch.testing.assert_close(ahead.variance[stop : stop + 1], then.variance)
    many = torch.cat([X, X, X, X, X, X.clamp_max(0.5)])  # more than are predicted at once, some without absence
    torch.testing.assert_close(online.predict(many).mean[:70], ahead.mean * 0 + online.predict(X).mean)


def test_one_that_cannot_be_trained_is_absent_until_it_can():
    X, y = rows(100)
    built = ensemble(FixedShare(0.05), "no training")
    online = OnlineEnsemble(built)
    first = online.observe(X[:FIRST], y[:FIRST])
    assert bool(first.experts.mean[1:].isnan().all())
    assert int(online.state.experts[1].reason) == UNTRAINED
    then = online.observe(X[FIRST:35], y[FIRST:35])
    assert bool(then.experts.mean[1].isnan().all())
    assert int(online.state.experts[1].reason) == FAILED_TRAINING
    reason, _ = described(FAILED_TRAINING, online.state.experts[1].words)
    assert reason == "it failed to train (RuntimeError: cannot be trained)"
    built.experts[1].adapter.mood = "well"
    back = online.observe(X[35:], y[35:])
    assert bool(back.experts.mean[1, :5].isnan().all())  # rows 35 to 39: training is due after row 40
    assert not bool(back.experts.mean[1, 5:].isnan().any())
    weights = back.log_weights.exp()
    assert float(weights[1, 4]) == 0.0
    assert float(weights[1, 5]) > 0.05  # its weight of before


def test_somebody_has_to_speak():
    X, y = rows()
    online = OnlineEnsemble(Ensemble([adapter()], FixedShare(), ["external"]), block_size=8)
    with pytest.raises(NumericalError, match="no expert with weight predicts"):
        online.observe(X, y)
    assert int(online.state.experts[0].num_seen) == 0  # nothing was learned


def test_reports_say_who_was_ahead_and_who_was_absent():
    X, y = rows()
    online = OnlineEnsemble(ensemble(FixedShare(0.05), "raises", innovations=MODELS), block_size=9)
    parts = [online.observe(X[:30], y[:30]), online.observe(X[30:], y[30:])]
    own, mixed = torch.cat([p.experts.log_prob for p in parts], 1), torch.cat([p.log_prob for p in parts])
    weights = torch.cat([p.log_weights for p in parts], 1).exp()
    reports = external_reports(online)
    for report, place, beyond, name in zip(reports, (3, 6), (0.6, 1.2), ("external", "other"), strict=True):
        answered = (torch.arange(len(y)) >= FIRST) & (X[:, 0] <= beyond)
        scored = answered & ~y.isnan()
        assert report.name == name
        assert (report.num_answered, report.num_absent) == (int(answered.sum()), int((~answered).sum()))
        assert report.num_targets == int(scored.sum())
        assert report.log_score == pytest.approx(float(own[place][scored].mean()))
        assert report.ensemble_log_score == pytest.approx(float(mixed[scored].mean()))
        assert report.regret.regret == pytest.approx(float((own[place] - mixed)[scored].sum()))
        assert report.regret.regret < report.regret.bound == pytest.approx(fixed_share_bound(9, 70, 0, 0.05))
        assert report.mean_weight == pytest.approx(float(weights[place : place + 3].sum(0)[answered].mean()))
        raw = FixedShare(0.05).log_weights(online.state.meta).exp()
        assert report.weight == pytest.approx(float(raw[place : place + 3].sum()) if answered[-1] else 0.0)
    assert reports[0].reason == "it failed to predict (ValueError: no idea)"
    assert reports[0].fix.startswith("try model.fit(rows)(X) on inputs")
    loaded = OnlineEnsemble(ensemble(FixedShare(0.05), "raises", innovations=MODELS))
    loaded.load_state_dict(online.state_dict())
    assert external_reports(loaded) == reports
    grown = add_experts(online, [adapter()], 0.1, ["third"])
    assert [report.name for report in external_reports(grown)] == ["external", "other", "third"]
    assert external_reports(grown)[0].num_targets == reports[0].num_targets
    assert external_reports(grown)[2].reason == ""  # no row has come since
    plain = OnlineEnsemble(Ensemble([ensemble(FixedShare()).experts[0]], FixedShare()))
    assert external_reports(plain) == ()
    (first,) = external_reports(add_experts(plain, [adapter("no training")], 0.1, ["first"], rows=(X, y)))
    assert (first.name, first.num_answered, first.num_absent) == ("first", 0, 0)
    assert first.reason == "it failed to train (RuntimeError: cannot be trained)"


def test_weights_shown_are_those_of_who_is_awake():
    X, y = rows()
    online = OnlineEnsemble(ensemble(FixedShare(0.05), "no training", innovations=MODELS), block_size=16)
    torch.testing.assert_close(online.log_weights.exp()[:3], torch.full((3,), 1 / 3, dtype=torch.float64))
    assert bool((online.log_weights[3:] == -math.inf).all())  # neither of the external models is trained
    for start, stop in ((0, 8), (8, 40), (40, 60), (60, 70)):
        online.observe(X[start:stop], y[start:stop])
        raw = FixedShare(0.05).log_weights(online.state.meta).exp().unflatten(0, (3, 3))
        awake = torch.tensor([True, False, stop > FIRST and bool(X[stop - 1, 0] <= 1.2)])
        want = torch.where(awake.unsqueeze(-1), raw, 0.0)
        torch.testing.assert_close(online.log_weights.exp(), (want / want.sum()).flatten())
        # The same as those that a row like the last one meets.
        met = copy.deepcopy(online).observe(X[stop - 1 : stop], y[stop - 1 : stop]).log_weights[:, 0]
        if stop != FIRST:
            torch.testing.assert_close(online.log_weights, met)
    report = external_reports(online)[0]
    assert (report.num_answered, report.weight, report.mean_weight, report.log_score) == (0, 0.0, None, None)
    lone = OnlineEnsemble(Ensemble([adapter()], FixedShare(), ["external"]))
    assert float(lone.log_weights) == 0.0  # nobody else is there


def test_an_outlier_counts_as_much_less_to_the_rule_where_experts_are_absent():
    g = torch.Generator().manual_seed(4)
    log_prob = torch.randn(4, 1, generator=g, dtype=torch.float64) - 1
    absent, share = torch.tensor([[False], [True], [False], [True]]), torch.tensor([0.3], dtype=torch.float64)
    rule = FixedShare(0.1)
    state = rule.init(4, log_prob)._replace(log_weights=torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).log())
    after, output = weigh_awake(rule, state, log_prob.masked_fill(absent, NAN), absent, None, share)
    awake = torch.tensor([0.25, 0.0, 0.75, 0.0], dtype=torch.float64)
    torch.testing.assert_close(output.log_weights[:, 0].exp(), awake)
    torch.testing.assert_close(output.log_prob.exp(), (awake @ log_prob.exp()))
    counted = (0.3 * log_prob[:, 0]).exp()
    counted[[1, 3]] = awake @ counted
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64) * counted
    torch.testing.assert_close(after.log_weights.exp(), 0.9 * weights / weights.sum() + 0.1 / 4)


@pytest.mark.parametrize("seed", range(5))
def test_the_regret_to_an_absent_expert_keeps_to_the_bound(seed):
    """Whatever the densities and whoever is absent: here the expert is far ahead whenever it predicts."""
    g = torch.Generator().manual_seed(seed)
    num, steps, rule = 3, 200, FixedShare(0.02)
    log_prob = 0.3 * torch.randn(num, steps, generator=g, dtype=torch.float64)
    log_prob[0] += 2
    absent = torch.rand(num, steps, generator=g, dtype=torch.float64) < 0.5
    absent[1] = False
    state, ahead = rule.init(num, log_prob), 0.0
    for t in range(steps):
        predicted = log_prob[:, t : t + 1].masked_fill(absent[:, t : t + 1], NAN)
        state, output = weigh_awake(rule, state, predicted, absent[:, t : t + 1], None, None)
        ahead += 0.0 if absent[0, t] else float(log_prob[0, t] - output.log_prob)
    assert 0 < ahead < fixed_share_bound(num, steps, 0, 0.02)
