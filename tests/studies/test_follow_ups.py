"""Papers that came after: models of returns against a plain loop, consensus against the filter of all rows."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from gp_ensembles.distributions import Mixture
from gp_ensembles.filters import gaussian_state, textbook_filter
from studies.follow_ups import active_learning, consensus, stacking
from studies.follow_ups.garch import EXPERTS, Garch, fit
from studies.follow_ups.particles import Prior, particle_log_prob, rejuvenated
from studies.ie_gp.theory import rbf_features


def drawn(num, omega, alpha, beta, seed=0):
    rng = np.random.default_rng(seed)
    h, rows = omega / (1 - alpha - beta), []
    for _ in range(num):
        rows.append(math.sqrt(h) * rng.standard_normal())
        h = omega + alpha * rows[-1] ** 2 + beta * h
    return np.array(rows)


def test_densities_of_garch_are_those_of_a_plain_loop():
    for tails in [5.0, math.inf]:
        returns = drawn(50, 0.1, 0.2, 0.7)
        found = Garch(0.1, 0.1, 0.2, 0.6, tails, 0.9).log_prob(returns)
        h = 0.1 + (0.2 + 0.6) * 0.9
        for number, value in enumerate(returns):
            if math.isinf(tails):
                expected = -0.5 * (math.log(2 * math.pi * h) + (value - 0.1) ** 2 / h)
            else:
                scale = math.sqrt(h * (tails - 2) / tails)
                expected = stats.t(tails).logpdf((value - 0.1) / scale) - math.log(scale)
            assert found[number] == pytest.approx(expected, rel=1e-10)
            h = 0.1 + 0.2 * (value - 0.1) ** 2 + 0.6 * h


def test_the_fit_of_a_constant_is_the_closed_form_and_that_of_garch_finds_what_was_drawn():
    returns = drawn(4000, 0.1, 0.15, 0.75)
    constant = fit(returns, EXPERTS["constant, normal"])
    assert constant.mean == pytest.approx(returns.mean(), abs=1e-4)
    assert constant.omega == pytest.approx(returns.var(), rel=1e-3)
    model = fit(returns, EXPERTS["GARCH(1,1), normal"])
    # Standard errors of four thousand rows are about .02 for α and .04 for β.
    assert model.alpha == pytest.approx(0.15, abs=0.06)
    assert model.beta == pytest.approx(0.75, abs=0.12)
    with pytest.raises(ValueError, match="ten rows or more that differ"):
        fit(np.ones(20), EXPERTS["constant, normal"])


@pytest.mark.parametrize(
    ("name", "p", "q", "dist"), [("GARCH(1,1), normal", 1, 1, "normal"), ("ARCH(1), t", 1, 0, "t")]
)
def test_variances_and_fits_agree_with_another_package(name, p, q, dist):
    arch = pytest.importorskip("arch")
    returns = drawn(800, 0.1, 0.15, 0.75)
    start = float(np.var(returns))
    other = arch.arch_model(returns, mean="Constant", vol="GARCH", p=p, q=q, dist=dist, rescale=False)
    result = other.fit(disp="off", backcast=start)
    mean, omega, alpha, *more = result.params
    beta = more[0] if q else 0.0
    same = Garch(mean, omega, alpha, beta, more[-1] if dist == "t" else math.inf, start)
    np.testing.assert_allclose(np.sqrt(same.variances(returns)), result.conditional_volatility, rtol=1e-8)
    assert same.log_prob(returns).sum() == pytest.approx(result.loglikelihood, abs=1e-6)
    # A flat valley: neither search ends at the very top of it.
    assert fit(returns, EXPERTS[name]).log_prob(returns).sum() == pytest.approx(result.loglikelihood, abs=0.02)


def test_experts_know_nothing_of_the_days_they_predict_and_rules_are_scored_before_they_learn():
    returns = drawn(120, 0.1, 0.15, 0.75)
    before = stacking.expert_log_prob(returns, 60)
    changed = returns.copy()
    changed[90] += 1.0
    after = stacking.expert_log_prob(changed, 60)
    assert torch.equal(before[:, :30], after[:, :30])
    assert not torch.equal(before[:, 30], after[:, 30])
    found = stacking.rule_scores(before)
    w, by_hand = np.full(len(before), 1 / len(before)), []
    for column in before.exp().numpy().T:
        by_hand.append(math.log(w @ column))
        w = w * column / (w @ column)
    assert found["BMA"] == pytest.approx(np.mean(by_hand), rel=1e-10)
    assert found["best expert"] == pytest.approx(float(before.mean(1).max()))
    assert found["best mixture"] >= max(found["best expert"], found["BMA"] - math.log(6) / 60)
    with pytest.raises(ValueError, match="leave none of 120"):
        stacking.expert_log_prob(returns, 120)


def test_particles_that_are_all_alike_are_one_model_whose_variance_moves_twice():
    for tails in [3.0 + 1e-9, math.inf]:
        returns = drawn(40, 0.1, 0.2, 0.7)
        h = 0.6
        prior = Prior(np.array([0.1, 0.2, 0.3, 0.5, h]), np.full(5, 1e-10), tails)
        found = particle_log_prob(returns, prior, np.random.default_rng(0), num_particles=20, num_moves=0)
        if math.isfinite(tails):  # only the first variances differ then: they are forgotten by half a day
            assert found[30:] == pytest.approx(twice(returns, h, stats.t(3))[30:], rel=1e-6)
        else:
            assert found == pytest.approx(twice(returns, h, stats.norm), rel=1e-6)


def twice(returns, h, errors):
    found, before = [], 0.0
    for value in returns:
        ahead = 0.1 + (0.2 + 0.3 * (before < 0)) * before**2 + 0.5 * h
        found.append(errors.logpdf(value / math.sqrt(ahead)) - 0.5 * math.log(ahead))
        h = 0.1 + (0.2 + 0.3 * (value < 0)) * value**2 + 0.5 * h
        before = value
    return np.array(found)


def test_metropolis_steps_come_to_the_posterior():
    prior = Prior(np.array([0.0, 0.0, 0.0, 0.0, 0.05]), np.array([0.0, 0.0, 0.0, 0.0, 0.02]), math.inf)
    particles = np.zeros((6, 2000))
    particles[4], particles[5] = 0.02, math.inf
    found = rejuvenated(particles, 0.3, prior, np.random.default_rng(0), 300)[4]
    h = np.linspace(1e-6, 0.2, 20001)
    density = stats.norm.pdf(h, 0.05, 0.02) * stats.norm.pdf(0.3, 0.0, np.sqrt(h))
    density /= np.trapezoid(density, h)
    mean = np.trapezoid(h * density, h)
    deviation = math.sqrt(np.trapezoid((h - mean) ** 2 * density, h))
    # Three hundred steps of half a deviation forget where they began; 2 000 particles, four standard errors.
    assert found.mean() == pytest.approx(mean, abs=4 * deviation / math.sqrt(2000))
    assert found.std() == pytest.approx(deviation, rel=4 / math.sqrt(2 * 2000))
    assert abs(mean - 0.05) > 0.002


def problem(generator):
    X = torch.rand(90, 1, dtype=torch.float64, generator=generator)
    Phi = rbf_features(X, (0.1, 0.3, 1.0), 10, generator)
    return Phi, (5 * X[:, 0]).sin() + 0.3 * torch.randn(90, dtype=torch.float64, generator=generator)


def test_every_agent_comes_to_know_what_the_filter_of_all_rows_knows(generator):
    for edges in [consensus.ring(6), consensus.star(6), consensus.complete(6)]:
        Phi, y = problem(generator)
        own = consensus.of_agents(Phi, y, 6)
        found = consensus.learned(consensus.exchanged(own, consensus.metropolis(edges), 300), 0.1)
        one = torch.ones(3, dtype=torch.float64)
        state, steps = textbook_filter(gaussian_state(one, 10), Phi, y.expand(3, -1), 0.1 * one)
        evidence = steps.log_prob.sum(-1)
        assert found.mean.shape == (6, 3, 10)
        torch.testing.assert_close(found.mean, state.mean.expand_as(found.mean), rtol=0, atol=1e-8)
        torch.testing.assert_close(found.covariance, state.covariance.expand_as(found.covariance), rtol=0, atol=1e-8)
        torch.testing.assert_close(found.log_evidence, evidence.expand(6, -1), rtol=0, atol=1e-8)
        torch.testing.assert_close(found.weights, evidence.softmax(0).expand(6, -1), rtol=0, atol=1e-8)
        early = consensus.learned(consensus.exchanged(own, consensus.metropolis(edges), 0), 0.1)
        assert float((early.mean - state.mean).abs().max()) > 0.01


def test_weights_of_consensus_keep_the_average_and_a_graph_in_two_parts_has_none():
    weights = consensus.metropolis(consensus.star(5))
    torch.testing.assert_close(weights, weights.T)
    torch.testing.assert_close(weights.sum(0), torch.ones(5, dtype=torch.float64))
    rate = torch.linalg.eigvalsh(consensus.metropolis(consensus.ring(8)))[-2]
    assert float(rate) == pytest.approx(1 / 3 + 2 / 3 * math.cos(2 * math.pi / 8))
    apart = torch.block_diag(*[consensus.complete(3).double()] * 2).bool()
    with pytest.raises(ValueError, match="agent 3 is not connected to agent 0"):
        consensus.metropolis(apart)
    with pytest.raises(ValueError, match="symmetric matrix of booleans"):
        consensus.metropolis(torch.tensor([[False, True], [False, False]]))


def test_scores_of_rows_are_those_of_a_plain_sum_and_of_integrals():
    log_weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    mean = torch.tensor([[0.0, 1.0], [2.0, 1.0]], dtype=torch.float64)
    spread = torch.tensor([[1.0, 0.5], [0.25, 2.0]], dtype=torch.float64)
    mixture = Mixture(log_weights, mean, spread)
    w = log_weights.exp()
    average = w @ mean
    torch.testing.assert_close(active_learning.variance(mixture), w @ spread)
    torch.testing.assert_close(active_learning.disagreement(mixture), w @ (mean - average).square())
    assert float(active_learning.disagreement(mixture)[1]) == pytest.approx(0.0, abs=1e-14)
    grid = np.linspace(-15, 15, 20001)
    for row, bound in enumerate(active_learning.entropy(mixture)):
        parts = [stats.norm.pdf(grid, float(mean[m, row]), math.sqrt(spread[m, row])) for m in range(2)]
        density = 0.3 * parts[0] + 0.7 * parts[1]
        overlaps = [np.trapezoid(part * density, grid) for part in parts]
        assert float(bound) == pytest.approx(-0.3 * math.log(overlaps[0]) - 0.7 * math.log(overlaps[1]), rel=1e-9)
        assert float(bound) <= -np.trapezoid(density * np.log(density), grid)


def test_a_bandit_comes_to_try_the_rule_that_pays():
    generator = torch.Generator().manual_seed(0)
    bandit = active_learning.Bandit(3)
    for _ in range(200):
        rule = int(torch.multinomial(bandit.probabilities, 1, generator=generator))
        bandit.learn(rule, 0.3 if rule == 1 else -0.1)
    assert float(bandit.probabilities[1]) > 0.8
    assert float(bandit.probabilities.min()) >= 0.2 / 3 - 1e-12
    assert float(bandit.probabilities.sum()) == pytest.approx(1.0)
    by_hand = active_learning.Bandit(2, learning_rate=0.5, share=0.2)
    by_hand.learn(0, 5.0)  # counts as one, over its probability of a half
    expected = 0.8 * math.e / (math.e + 1) + 0.1
    assert float(by_hand.probabilities[0]) == pytest.approx(expected)


@pytest.mark.parametrize("method", ["variance", "weighted"])
def test_labels_are_read_only_of_rows_that_were_chosen(method):
    problem = active_learning.crowded(100, torch.Generator().manual_seed(1))
    scores, rows = active_learning.learn_actively(problem, method, torch.Generator().manual_seed(2))
    assert len(set(rows)) == 80
    others = [row for row in range(100) if row not in rows]
    unknown = problem.y.clone()
    unknown[others] = torch.nan
    blind = problem._replace(y=unknown)
    if method == "variance":  # the bandit alone looks at these
        blind = blind._replace(y_validation=torch.full_like(problem.y_validation, torch.nan))
    assert active_learning.learn_actively(blind, method, torch.Generator().manual_seed(2)) == (scores, rows)
