"""The evidence of regression problems by importance sampling: beside brute force, invariants, and what is refused."""

import itertools
import math

import pytest
import torch

from gp_ensembles.papers.quadrature import Budget, PriorPolicy, RegressionProblem, Search, marginalize
from gp_ensembles.papers.quadrature.evidence import EvidenceSampler, best_apart, integrand_for, nested_kernels
from gp_ensembles.papers.quadrature.importance import (
    ImportanceDraws,
    Relabeling,
    draw_round,
    estimate,
    log_permanent,
    round_size,
    start_draws,
)
from gp_ensembles.papers.quadrature.kernel_mixture import KernelMixtureModel
from gp_ensembles.papers.quadrature.prior import default_prior, inferred
from gp_ensembles.papers.quadrature.problem import WeightedKernels
from gp_ensembles.papers.quadrature.surrogate import Evaluations
from tests.papers.quadrature.cases import F64, prior_of, seeded


def problem_of(max_components=2, num_rows=14, noise=0.25, signed=False, num_inputs=1):
    X = torch.linspace(0.0, 4.0, num_rows, dtype=F64).unsqueeze(-1)
    X = torch.cat([X, torch.rand(num_rows, num_inputs - 1, generator=seeded(3), dtype=F64)], -1)
    y = torch.sin(2 * torch.pi * 0.8 * X[:, 0] + 3.0 * X[:, -1])
    y = y + noise * torch.randn(num_rows, generator=seeded(0), dtype=F64)
    return RegressionProblem(X, y, prior_of(max_components, num_inputs, signed=signed, noise=inferred(1e-1, 1.0)))


def by_brute_force(problem, components, count=2**17):
    """The average likelihood of draws of the prior, and the standard deviation of its logarithm."""
    values = problem.evaluate(problem.prior.draw(count, components, generator=seeded(9)))
    effective = float((2 * values.logsumexp(0) - (2 * values).logsumexp(0)).exp())
    assert effective > 150, "brute force has to be exact enough to compare with"
    return float(values.logsumexp(0)) - math.log(count), effective**-0.5


NEVER_COVERED = Search(PriorPolicy(), coverage_threshold=1.1)


def run(problem, seed=0, draws=20_000, evaluations=60, search=NEVER_COVERED, **choices):
    return marginalize(problem, Budget(evaluations, draws=draws), search, generator=seeded(seed), **choices)


SETTINGS = {
    "one input": {"noise": 0.5},
    "three components": {"max_components": 3, "noise": 0.5},
    "signed means of two inputs": {"signed": True, "num_inputs": 2},
    "two inputs": {"num_inputs": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_the_evidence_is_that_of_brute_force(setting, seed):
    """Every part and the total, within four standard deviations of both or 0.15 nats."""
    problem = problem_of(**setting)
    found = run(problem, seed)
    assert found.doubt == ""
    assert found.log_evidence_sd <= 0.1
    truths = [by_brute_force(problem, n) for n in range(1, problem.prior.max_components + 1)]
    logs = problem.prior.log_prob_components + torch.tensor([value for value, _ in truths], dtype=F64)
    parts = zip(found.evidence.log_parts, found.evidence.log_parts_sd, logs, truths, strict=True)
    for part, own, log, (_, other) in parts:
        if math.isfinite(own):
            assert abs(float(part - log)) < max(4.0 * math.hypot(own, other), 0.15)
    assert abs(found.log_evidence - float(logs.logsumexp(0))) < 0.4
    torch.testing.assert_close(found.posterior_components, logs.softmax(0), rtol=0, atol=0.12)


@pytest.mark.slow
def test_predictions_are_those_of_brute_force():
    problem = problem_of()
    budget = Budget(60, draws=30_000, log_evidence_sd=0.02)  # enough draws for predictions as exact as is asked for
    found = marginalize(problem, budget, NEVER_COVERED, generator=seeded(0))
    X = torch.linspace(0.1, 4.4, 6, dtype=F64).unsqueeze(-1)
    cube = torch.cat([problem.prior.draw(2**13, n, generator=seeded(2)) for n in (1, 2)])
    kernels = WeightedKernels(cube, problem.evaluate(cube), problem.evaluate(cube).log_softmax(0))
    kernels = kernels.thin(400, generator=seeded(0))
    mixed = KernelMixtureModel(problem, problem.prior.hyperparameters(kernels.cube), kernels.log_weights)
    predicted, truth = (one.posterior(X.unsqueeze(-2), observation_noise=True) for one in (found.model(), mixed))
    assert float(((predicted.mean - truth.mean) / truth.variance.sqrt()).abs().max()) < 0.15
    ratio = (predicted.variance / truth.variance).flatten()
    torch.testing.assert_close(ratio, torch.ones(6, dtype=F64), rtol=0, atol=0.2)


def test_inputs_of_predictions_are_checked():
    found = run(problem_of(), draws=0)
    for X, message in [
        (torch.full((2, 1), math.nan, dtype=F64), "inputs must be finite"),
        (torch.zeros(2, 1), "torch.float32, but the problem's inputs are torch.float64"),
        (torch.zeros(2, 2, dtype=F64), r"shape \(M, 1\), got \(2, 2\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            found.predict(X)


def test_a_mode_that_the_draws_miss_is_found_and_drawn_again():
    """A proposal at one mode alone: its estimate looks trusted; the search for modes finds the heavier ones."""
    problem = problem_of(2, num_rows=20, noise=0.05)
    truth = run(problem, 3, search=Search())
    sampler = EvidenceSampler(problem, truth.state.evaluations, [])
    state, generator = truth.state.importance, seeded(4)
    assert not truth.doubt
    index = int(truth.evidence.log_parts.argmax())
    best = state.draws[index]
    flat = torch.zeros(1, best.points.shape[-1], dtype=F64)
    away = best.proposals[-1]._replace(means=best.proposals[-1].means * 0.0 + 2.0 + flat)
    nothing = {"points": best.points[:0], "log_likelihood": best.log_likelihood[:0], "counts": ()}
    missed = best._replace(**nothing, proposals=(away,), is_kept=True)
    missed = draw_round(sampler.integrands[index], missed, 500, generator=generator)
    draws = (*state.draws[:index], missed, *state.draws[index + 1 :])
    clean = (9,) * index + (0,) + (9,) * (1 - index)
    after = sampler.search_modes(state._replace(draws=draws, clean=clean), index, generator)
    assert after.clean[index] == 0
    assert len(after.draws[index].proposals) > 1
    assert sampler.evidence(after).doubt


def test_an_interrupted_sampling_goes_on_as_if_nothing_had_been(tmp_path, monkeypatch):
    problem, real, calls = problem_of(1), EvidenceSampler.step, []
    whole = run(problem, draws=8_000, evaluations=20)

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(EvidenceSampler, "step", interrupted)
        with pytest.warns(UserWarning, match="interrupted after"), pytest.warns(UserWarning, match="is a guess"):
            part = run(problem, draws=8_000, evaluations=20, checkpoint=tmp_path / "search.pt")
    assert part.num_evaluations < whole.num_evaluations
    again = run(problem, seed=5, draws=8_000, evaluations=20, checkpoint=tmp_path / "search.pt")
    assert again.log_evidence == whole.log_evidence
    assert again.log_evidence_sd == whole.log_evidence_sd
    assert torch.equal(again.kernels.cube, whole.kernels.cube)
    assert torch.equal(again.log_weights, whole.log_weights)


def test_shares_sum_to_the_number_of_copies():
    """Over all permutations and reflections of a point, whatever the proposal."""
    for setting in SETTINGS.values():
        problem = problem_of(**setting)
        num_inputs, n, signed = problem.prior.num_inputs, 2, problem.prior.has_signed_means
        relabeling, integrand = Relabeling(problem.prior, n), integrand_for(problem, n)
        starts = torch.randn(3, integrand.dimension, generator=seeded(0), dtype=F64)
        mixture = start_draws(integrand, starts, 3).proposals[0]
        point = torch.randn(integrand.dimension, generator=seeded(1), dtype=F64)
        stick, means, scales, rest = point.split([1, n * num_inputs, n * num_inputs, 1])
        means, scales, level = means.reshape(n, -1), scales.reshape(n, -1), torch.special.ndtr(stick)
        levels = level, 1.0 - level  # the first of two weights is uniform
        copies = []
        for signs in itertools.product([1.0, -1.0] if signed else [1.0], repeat=n):
            sign = torch.tensor(signs, dtype=F64).reshape(n, 1)
            for order, own in zip(([0, 1], [1, 0]), levels, strict=True):
                parts = torch.special.ndtri(own), (sign * means)[order].flatten(), scales[order].flatten(), rest
                copies.append(torch.cat(parts))
        copies = torch.stack(copies)
        values = integrand.evaluate(copies)
        torch.testing.assert_close(values, values[:1].expand(len(copies)), rtol=1e-9, atol=1e-9)
        assert len(copies) == relabeling.num_copies
        shares = relabeling.log_share(copies, mixture).exp()
        assert float(shares.sum()) == pytest.approx(relabeling.num_copies, rel=1e-9)


def test_nested_kernels_are_nearly_the_kernel():
    X = torch.linspace(0.0, 4.0, 14, dtype=F64).unsqueeze(-1)
    prior = default_prior(X, X.squeeze(-1).sin(), max_components=4)
    row = prior.draw(1, 3, generator=seeded(0))[0]
    more = prior.mixtures(nested_kernels(prior, row, 6, generator=seeded(1)))
    less = prior.mixtures(row)
    for k, share in enumerate((0.02, 0.1, 0.3, 0.02, 0.1, 0.3)):
        torch.testing.assert_close(more.weights[k, :3], (1.0 - share) * less.weights[:3])
        torch.testing.assert_close(more.means[k, :3], less.means[:3])
        torch.testing.assert_close(more.scales[k, :3], less.scales[:3])
    scalars = [prior.hyperparameters(rows).noise for rows in (nested_kernels(prior, row, 1), row.unsqueeze(0))]
    torch.testing.assert_close(*scalars)


def test_thinning_keeps_expectations():
    """The mean over many seeds of the weights that a kernel gets is its weight, to four standard errors."""
    weights = torch.rand(30, generator=seeded(0), dtype=F64).pow(4)
    weights = weights / weights.sum()
    kernels = WeightedKernels(torch.arange(30.0).unsqueeze(-1), torch.zeros(30), weights.log())
    total = torch.zeros(30, dtype=F64)
    for seed in range(1000):
        few = kernels.thin(7, generator=seeded(seed))
        assert len(few.cube) == 7
        total[few.cube.squeeze(-1).long()] += few.log_weights.exp() / 1000
    error = (weights * (weights.max() / 2 + 1 / 7) / 1000).sqrt()
    assert bool(((total - weights).abs() < 4.0 * error + 1e-3).all())


def test_one_component_beside_a_grid():
    """The likelihood of one component on a grid of the cube, by the midpoint rule, with the noise fixed by the grid."""
    problem = problem_of(1)
    integrand = integrand_for(problem, 1)
    levels = (torch.arange(30, dtype=F64) + 0.5) / 30
    grid = torch.cartesian_prod(levels, levels, levels)
    values = problem.evaluate(problem.prior.embed(grid, 1))
    truth = float(values.logsumexp(0)) - math.log(len(grid))
    draws = start_draws(integrand, torch.randn(4, 3, generator=seeded(0), dtype=F64))
    generator = seeded(1)
    for _ in range(8):
        draws = draw_round(integrand, draws, round_size(3), generator=generator)
    found = estimate(integrand, draws)
    assert found.is_trusted
    assert abs(found.log_integral - truth) < 4.0 * found.log_sd + 0.02


def test_the_permanent_is_the_sum_over_permutations():
    for size in [1, 2, 3, 5]:
        logs = 300.0 * torch.randn(4, 3, size, size, generator=seeded(0), dtype=F64)
        rows = torch.arange(size)
        each = [logs[..., rows, list(order)].sum(-1) for order in itertools.permutations(range(size))]
        torch.testing.assert_close(log_permanent(logs), torch.stack(each).logsumexp(0), rtol=1e-13, atol=1e-13)


def drawn(effective, pareto_k, is_kept=False, dimension=40):
    points = torch.zeros(10, dimension, dtype=F64)
    return ImportanceDraws(points, points[:, 0], (5,) * len(effective), (), is_kept, 99, effective, pareto_k)


def test_what_is_hopeless():
    """The traces are those of yacht with three components (given up) and of series that came out well."""
    assert drawn((13.7, 5.1), 1.44).is_hopeless
    assert drawn((11.0, 16.4, 6.7), 1.64).is_hopeless
    assert not drawn((13.7,), 1.44).is_hopeless  # one refit tells nothing
    assert not drawn((5.0, 9.0), 1.44).is_hopeless  # growing
    assert not drawn((32.3, 6.7), 0.88, dimension=16).is_hopeless  # the tail has a mean
    assert not drawn((21.0, 27.4, 40.0), 1.2, dimension=14).is_hopeless
    assert not drawn((13.7, 5.1), 1.44, is_kept=True).is_hopeless


def forced(wanted, **values):
    """Rounds of draws that go wrong for so many components of one input, with the noise inferred."""

    def drawing(integrand, draws, count, *, generator):
        after = draw_round(integrand, draws, count, generator=generator)
        bad = after._replace(effective=(3.0, 0.2)[: len(after.counts)], pareto_k=2.5, is_kept=False)
        return bad if integrand.dimension in {3 * n for n in wanted} else after

    return drawing


def test_the_evidence_is_that_of_the_parts_before_one_that_fails(monkeypatch):
    """The first part beside brute force; the posterior probabilities are those given one component."""
    problem = problem_of(2, noise=0.5)
    monkeypatch.setattr("gp_ensembles.papers.quadrature.evidence.draw_round", forced({2}))
    with pytest.warns(UserWarning, match="the evidence omits 2 components") as warned:
        found = run(problem)
    assert len(warned) == 1
    assert str(warned[0].message) == found.doubt
    assert "given up: 0 effective draws in 6 dimensions and k = 2.50 after 2 refits" in found.doubt
    assert found.doubt.endswith("use a prior with at most 1 component(s)")
    truth, deviation = by_brute_force(problem, 1)
    truth += math.log(0.5)
    assert abs(found.log_evidence - truth) < 4.0 * math.hypot(found.log_evidence_sd, deviation)
    assert found.log_evidence_sd <= 0.2
    assert found.posterior_components.tolist() == [1.0, 0.0]
    largest = max(float(one.log_likelihood.max()) for one in found.state.importance.draws)
    largest = max(largest, float(found.state.evaluations.log_likelihood.max()))
    assert found.evidence.log_rest == pytest.approx(largest + math.log(0.5))
    share = 1.0 / (1.0 + math.exp(found.log_evidence - found.evidence.log_rest))
    assert f"may contribute up to {share:.0%} of it" in found.doubt
    assert bool(found.predict(problem.X[:3]).mean.isfinite().all())


def test_an_evidence_of_no_part_is_a_guess_and_finite(monkeypatch):
    monkeypatch.setattr("gp_ensembles.papers.quadrature.evidence.draw_round", forced({1, 2}))
    with pytest.warns(UserWarning, match="no evidence is reliable"):
        found = run(problem_of(2, noise=0.5), draws=6_000)
    assert math.isfinite(found.log_evidence_sd)
    assert found.posterior_components.tolist() == [1.0, 0.0]
    assert len(found.state.importance.draws[0].counts) > 2, "one component has more patience"


def test_starts_are_apart_from_one_another():
    """Steps of one ascent are one start, however likely; kernels without a likelihood are none."""
    cube = torch.tensor([[0.50, 0.0], [0.52, 0.9], [0.55, 0.0], [0.8, 0.0], [0.1, 0.0]], dtype=torch.float64)
    values = torch.tensor([3.0, 4.0, 5.0, 1.0, math.nan], dtype=torch.float64)
    evaluations, first = Evaluations(cube, values), torch.tensor([0])
    torch.testing.assert_close(best_apart(evaluations, first, 8), cube[[2, 3]])
    torch.testing.assert_close(best_apart(evaluations, torch.tensor([0, 1]), 2), cube[[2, 1]])
    assert best_apart(Evaluations(cube[:0], values[:0]), first, 2).shape == (0, 2)


WHOLE = r"the (evaluations|draws) of a budget must be an integer, got "
TOO_SMALL = [
    (Budget(4), ValueError, "at least 5"),
    (Budget(10, draws=-1), ValueError, "draws of a budget must not be negative"),
    (Budget(10, seconds=-1.0), ValueError, "seconds of a budget must not be negative"),
    (Budget(10, seconds=math.nan), ValueError, "seconds of a budget must not be negative"),
    (Budget(10, log_evidence_sd=0.0), ValueError, "log_evidence_sd of a budget must be positive"),
    (Budget(10.5), TypeError, WHOLE),
    (Budget(10, draws=0.5), TypeError, WHOLE),
    (Budget(math.nan), TypeError, WHOLE),
]


def test_impossible_budgets_are_refused():
    for budget, error, message in TOO_SMALL:
        with pytest.raises(error, match=message):
            marginalize(problem_of(), budget)


SMALL = {
    "no draws": (Budget(5, draws=0), "no draws for importance sampling"),
    "no seconds": (Budget(10, seconds=0.0, draws=0), "has no draws"),
}


@pytest.mark.parametrize(("budget", "message"), SMALL.values(), ids=SMALL)
def test_a_budget_without_draws_says_so_and_predicts_all_the_same(budget, message):
    problem = problem_of(2)
    found = marginalize(problem, budget, NEVER_COVERED, generator=seeded(0))
    assert math.isinf(found.log_evidence_sd)
    assert message in found.doubt
    assert found.doubt.startswith("the time limit of the budget was reached: ") == (budget.seconds is not None)
    assert found.log_evidence <= found.history[-1].best_log_likelihood
    assert bool(found.posterior_components.isnan().all())
    assert bool(found.posterior_components_sd.isinf().all())
    assert float(found.log_weights.exp().sum()) == pytest.approx(1.0)
    prediction = found.predict(problem.X[:3] + 0.01)
    assert bool(prediction.mean.isfinite().all())
    assert bool((prediction.variance > 0).all())
    assert bool(found.model().posterior(problem.X[:2]).mean.isfinite().all())
    assert len(found.top_kernels(2).kernels) >= 1


@pytest.mark.parametrize("draws", [1, 300])
def test_a_few_draws_give_a_guess_and_a_warning(draws):
    with pytest.warns(UserWarning, match=r"that of one component is a guess; use a larger budget") as warned:
        found = marginalize(problem_of(2), Budget(60, draws=draws), NEVER_COVERED, generator=seeded(0))
    assert len(warned) == 1
    assert math.isfinite(found.log_evidence_sd)
    assert found.log_evidence <= found.history[-1].best_log_likelihood
