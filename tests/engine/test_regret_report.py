"""The report of regret against the separate metrics, its bounds, and its symmetries, for every weight rule."""

import itertools
import math

import numpy as np
import pytest
import torch

from gp_ensembles.engine import regret_report
from gp_ensembles.engine.regret import StreamSize, mixture_bound, path_bound
from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DiscountedOnlineNewton,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    MetaLearner,
    OnlineNewton,
    ReferenceAveraging,
    SoftBayes,
)
from gp_ensembles.meta_learners.base import weigh_observed
from gp_ensembles.meta_learners.switching import group_transition
from gp_ensembles.metrics import best_expert, best_fixed_mixture, best_switching_path, cumulative_regret
from gp_ensembles.metrics.regret_bounds import averaging_bound, soft_bayes_bound
from gp_ensembles.numerics.cholesky import NumericalError

M, T = 6, 90
PRIOR = torch.arange(1.0, M + 1, dtype=torch.float64)
LABELS = ["a", "b", "a", "c", "a", "b"]
SAME = torch.arange(M)

# Rule for experts in another order, and to which of expert, mixture and sequence with switches it has a bound on
# densities within a factor of 4.
RULES = {
    "averaging": (lambda order: BayesianModelAveraging(), (True, False, False)),
    "averaging, prior": (lambda order: BayesianModelAveraging(PRIOR[order]), (True, False, False)),
    "averaging, pruned": (lambda order: BayesianModelAveraging(prune_below=1e-3), (False, False, False)),
    "fixed share": (lambda order: FixedShare(0.05), (True, False, True)),
    "fixed share, none": (lambda order: FixedShare(0.0), (True, False, False)),
    "forgetting": (lambda order: DynamicModelAveraging(0.95), (True, False, True)),
    "switching": (
        lambda order: MarkovSwitching((0.7 * torch.eye(M, dtype=torch.float64) + 0.05)[order][:, order], PRIOR[order]),
        (True, False, True),
    ),
    "groups": (
        lambda order: MarkovSwitching(group_transition([LABELS[number] for number in order], 0.05)),
        (True, False, False),
    ),
    "edoebe": (lambda order: MarkovSwitching(group_transition("abcabc", 0.05)[order][:, order]), (True, False, False)),
    "gradient": (lambda order: ExponentiatedGradient(0.1, 1e-3), (True, True, False)),
    "gradient, fast": (lambda order: ExponentiatedGradient(2.0, 0.0), (True, True, False)),
    "soft": (lambda order: SoftBayes(), (True, True, False)),
    "soft, fixed rate": (lambda order: SoftBayes(0.3), (True, True, False)),
    "newton": (lambda order: OnlineNewton(), (True, True, False)),
    "newton, fast": (lambda order: OnlineNewton(beta=1.0, delta=1.0), (False, False, False)),
    "discounted": (lambda order: DiscountedOnlineNewton(), (False, False, False)),
    "combined": (
        lambda order: CombinedRules([FixedShare(0.05), SoftBayes()], BayesianModelAveraging()),
        (True, True, True),
    ),
    "beside references": (
        lambda order: ReferenceAveraging(SoftBayes(), [number for number, m in enumerate(order) if m in (1, 3)]),
        (True, True, False),
    ),
    "references beside what has no bound": (
        lambda order: ReferenceAveraging(DiscountedOnlineNewton(), range(M)),
        (True, False, False),
    ),
    "combined by gradient": (
        lambda order: CombinedRules([OnlineNewton(), DiscountedOnlineNewton()], SoftBayes()),
        (True, True, False),
    ),
}


def streams():
    """Densities within a factor of 4: noise, an expert that is best, turns, regimes; with missing targets."""
    rng, reach = np.random.default_rng(0), math.log(4.0)
    steps, experts = np.arange(T), np.arange(M)[:, None]
    level = rng.normal(size=T)
    noise = rng.uniform(-reach, 0, size=(M, T))
    yield "noise", noise + level
    yield "one is best", np.where(experts == 3, 0.0, -reach) + level
    yield "turns", -reach * (steps % M != experts) + level
    yield "regimes", -reach * (steps * M // T != experts) + level
    holes = noise.copy()
    holes[:, rng.random(T) < 0.3] = np.nan
    yield "missing targets", holes


STREAMS = {name: torch.tensor(values) for name, values in streams()}


PATHS = {name: best_switching_path(log_prob, 5).path for name, log_prob in STREAMS.items()}


MIXTURES = {name: best_fixed_mixture(log_prob).log_prob for name, log_prob in STREAMS.items()}


def check_rule(make, known, stream):
    rule, log_prob, path = make(SAME), STREAMS[stream], PATHS[stream]
    report = regret_report(rule, log_prob, path)
    assert report == regret_report(rule, log_prob.nan_to_num(0.0), path)
    own = weigh_observed(rule, rule.init(M, log_prob), log_prob, log_prob.isnan().all(0))[1].log_prob
    rivals = best_expert(log_prob).log_prob, MIXTURES[stream], best_switching_path(log_prob, 5).log_prob
    for part, rival in zip(report, rivals, strict=True):
        assert part.regret == pytest.approx(float(cumulative_regret(own, rival)[-1]), abs=1e-9)
    assert report.mixture.regret >= report.expert.regret - 1e-6
    switches = bool((path[1:] != path[:-1]).any())
    if switches:
        assert tuple(part.bound is not None for part in report) == known
    else:
        assert report.switching == report.expert
    for part in report:
        assert part.bound is None or part.regret <= part.bound + 1e-6


@pytest.mark.parametrize(
    ("name", "streams"), [(name, [list(STREAMS)[(k + step) % 5] for step in (0, 2)]) for k, name in enumerate(RULES)]
)
def test_regrets_are_those_of_the_metrics_and_within_their_bounds(name, streams):
    for stream in streams:
        check_rule(*RULES[name], stream)


@pytest.mark.slow
def test_regrets_on_every_stream():
    for stream, (make, known) in itertools.product(STREAMS, RULES.values()):
        check_rule(make, known, stream)


def test_a_path_of_ones_own_choice():
    log_prob = STREAMS["noise"]
    path = torch.arange(T) % M
    regret = regret_report(BayesianModelAveraging(), log_prob, path).switching.regret
    own = BayesianModelAveraging()
    own_log_prob = own.update_block(own.init(M, log_prob), log_prob)[1].log_prob
    assert regret == pytest.approx(float((log_prob[path, torch.arange(T)] - own_log_prob).sum()))


def test_combined_rules_add_the_price_of_choosing():
    stream, path = StreamSize(M, T, 4.0), torch.zeros(T, dtype=torch.int64)
    rule = CombinedRules([SoftBayes(), SoftBayes(0.1), DiscountedOnlineNewton()], BayesianModelAveraging())
    best = min(soft_bayes_bound(M, T), soft_bayes_bound(M, T, 0.1))
    assert mixture_bound(rule, stream) == pytest.approx(math.log(3) + best)
    prior = torch.tensor([0.1, 0.9], dtype=torch.float64)
    rule = CombinedRules([BayesianModelAveraging(), SoftBayes()], BayesianModelAveraging(prior))
    assert path_bound(rule, stream, path) == pytest.approx(averaging_bound(M) + math.log(10))
    rule = ReferenceAveraging(BayesianModelAveraging(), [1], prior=0.2, share=0.5)
    kept = 0.8 * 0.9 ** (T - 1)  # of the weight of averaging, if its references are never better
    assert path_bound(rule, stream, path) == pytest.approx(averaging_bound(M) - math.log(kept))


def test_impossible_targets():
    lost = -torch.inf
    log_prob = STREAMS["noise"].clone()
    log_prob[:, 7] = lost  # for all: no regret, and no bound is touched
    path = best_switching_path(STREAMS["noise"], 2).path
    for rule in (BayesianModelAveraging(), FixedShare(0.05), SoftBayes(), ExponentiatedGradient(), OnlineNewton()):
        report = regret_report(rule, log_prob, path)
        holes = log_prob.clone()
        holes[:, 7] = torch.nan
        for first, second in zip(report, regret_report(rule, holes, path), strict=True):
            assert first.regret == pytest.approx(second.regret, abs=1e-9)
            assert first.bound == second.bound
    log_prob = STREAMS["noise"].clone()
    log_prob[0, 3] = lost  # for one: averaging never trusts it again
    path = torch.zeros(T, dtype=torch.int64)
    report = regret_report(FixedShare(0.05), log_prob, path)
    assert report.switching.regret == lost
    assert report.switching.bound is None
    assert report.expert.bound is not None
    assert regret_report(ExponentiatedGradient(), log_prob, path).mixture.bound is None  # no factor bounds the ratios
    log_prob[1:, 5] = lost  # now each has been impossible once, and so has the average: infinite losses cancel
    report = regret_report(BayesianModelAveraging(), log_prob, path + 1)
    assert math.isfinite(report.switching.regret)
    assert report.switching.bound is None


class EqualWeights(MetaLearner):
    """A rule of a user's own."""

    def init(self, num_experts, like):
        return BayesianModelAveraging().init(num_experts, like)

    def log_weights(self, state):
        return state.log_weights

    def update_block(self, state, log_prob):
        output = BayesianModelAveraging().update_block(state, torch.zeros_like(log_prob))[1]
        return state, output._replace(log_prob=(output.log_weights + log_prob).logsumexp(0))

    def grow(self, state, num_new, share):
        return state


def test_a_rule_of_ones_own_has_the_bounds_it_registers():
    log_prob = STREAMS["noise"]
    path = best_switching_path(log_prob, 2).path
    report = regret_report(EqualWeights(), log_prob, path)
    assert [part.bound for part in report] == [None, None, None]
    own = log_prob.logsumexp(0) - math.log(M)
    assert report.expert.regret == pytest.approx(float(log_prob.sum(1).max() - own.sum()))


@pytest.mark.parametrize(
    ("log_prob", "path", "message"),
    [
        (torch.zeros(0, 3), torch.zeros(3, dtype=torch.int64), "one expert and one step"),
        (torch.zeros(3, 0), torch.zeros(0, dtype=torch.int64), "one expert and one step"),
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), "one expert and one step"),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), "one index per step"),
        (torch.zeros(2, 3), torch.zeros(3), "one index per step"),
        (torch.zeros(2, 3), torch.tensor([0, 1, 2]), "0 to 1"),
    ],
)
def test_bad_input(log_prob, path, message):
    with pytest.raises(ValueError, match=message):
        regret_report(BayesianModelAveraging(), log_prob, path)


def test_undefined_densities_are_named():
    log_prob = STREAMS["noise"].clone()
    log_prob[2, 4] = torch.nan
    with pytest.raises(NumericalError, match="expert 2 at step 4"):
        regret_report(BayesianModelAveraging(), log_prob, torch.zeros(T, dtype=torch.int64))
