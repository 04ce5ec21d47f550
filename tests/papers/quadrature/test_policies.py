"""Where to look next: policies, draws, peaks of the spectrum, ascents."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature import InformationPolicy, PriorPolicy, RegressionProblem, UncertaintyPolicy
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihoods
from gp_ensembles.papers.quadrature.policies import AcquisitionOptimizer, InformationGain
from gp_ensembles.papers.quadrature.prior import EDGE, default_prior, draw_stratified, inferred
from gp_ensembles.papers.quadrature.quadrature import draw_nodes
from gp_ensembles.papers.quadrature.search import gradient_ascent, periodogram_starts
from gp_ensembles.papers.quadrature.surrogate import Evaluations, Surrogate
from tests.papers.quadrature.cases import draws_of_every_size, flatten, prior_of, seeded, tensor, uniform


def surrogate_for(prior, num_rows=12, each=5):
    """The surrogate of a small data set's likelihood under draws of every number of components."""
    generator = seeded(0)
    X = 4.0 * torch.rand(num_rows, prior.num_inputs, dtype=torch.float64, generator=generator)
    problem = RegressionProblem(X, torch.sin(3.0 * X.sum(-1)), prior)
    cube = draws_of_every_size(prior, each, generator)
    surrogate = Surrogate(Evaluations(cube, problem.evaluate(cube)), problem.kernel_distance)
    return surrogate, draw_nodes(prior, 32, generator=generator)


POLICIES = {
    "information": InformationPolicy(AcquisitionOptimizer(raw_samples=4, max_iterations=2), num_nodes=8),
    "uncertainty": UncertaintyPolicy(AcquisitionOptimizer(raw_samples=4, max_iterations=2)),
    "prior": PriorPolicy(),
}


def within(prior, rows):
    return bool(((rows >= prior.bounds[0]) & (rows <= prior.bounds[1])).all())


every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
PRIORS = {
    "one input": prior_of(),
    "one component": prior_of(1),
    "two inputs, all inferred": prior_of(2, 2, noise=inferred(1e-2, 1.0), outputscale=inferred(1.0, 0.5)),
}


@every_policy
@pytest.mark.parametrize(("name", "count"), [("one input", 1), ("one component", 4), ("two inputs, all inferred", 3)])
def test_selections_are_legal_rows(policy, name, count):
    prior = PRIORS[name]
    rows = policy.select(*surrogate_for(prior), count, generator=seeded(1))
    assert (rows.shape, rows.dtype) == ((count, prior.num_columns), torch.float64)
    assert within(prior, rows)
    for row in rows:
        n = float(row[0])
        assert n in range(1, prior.max_components + 1)
        assert all(row[column].item() == value for column, value in prior.fixed_features(int(n)).items())
    assert bool(flatten(prior.mixtures(rows)).isfinite().all())


@every_policy
def test_the_points_of_a_batch_differ_and_may_have_several_sizes(policy):
    surrogate, nodes = surrogate_for(prior_of())
    selections = [policy.select(surrogate, nodes, 6, generator=seeded(seed)) for seed in range(3)]
    assert any(len(rows[:, 0].unique()) > 1 for rows in selections)
    rows = policy.select(*surrogate_for(prior_of(1)), 4, generator=seeded(1))
    assert (torch.cdist(rows, rows) + 9.0 * torch.eye(4)).min() > 1e-4


def test_the_points_chosen_are_better_than_draws():
    surrogate, nodes = surrogate_for(prior_of())
    acquisition = InformationGain(surrogate, nodes.first(32))
    generator = seeded(3)
    chosen = InformationPolicy(num_nodes=32).select(surrogate, nodes, 3, generator=generator)
    with torch.no_grad():
        draws = (draw_stratified(surrogate.kernel_distance.prior, 3, generator=generator) for _ in range(30))
        assert acquisition(chosen) > max(acquisition(rows) for rows in draws)


@settings(max_examples=40)
@given(count=st.integers(0, 50), odds=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5))
def test_draws_share_out_the_numbers_of_components(count, odds):
    prior = prior_of(len(odds), log_prob_components=tensor(*odds).log())
    rows = draw_stratified(prior, count, generator=seeded(0))
    assert rows.shape == (count, prior.num_columns)
    found = prior.num_components(rows).bincount(minlength=len(odds) + 1)[1:]
    assert int(found.sum()) == count
    wanted = prior.log_prob_components.exp() * count
    assert bool(((found - wanted).abs() < 1.0 + 1e-9).all())


def two_sinusoids(seed, frequencies=(0.7, 2.3)):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 20.0, 120))  # uneven
    y = 2.0 * np.sin(2 * np.pi * frequencies[0] * x) + np.cos(2 * np.pi * frequencies[1] * x) + 0.1 * x
    return torch.tensor(x).unsqueeze(-1), torch.tensor(y + 0.1 * rng.normal(size=120))


def test_starts_stand_at_planted_frequencies():
    for seed in range(3):
        X, y = two_sinusoids(seed)
        prior = default_prior(X, y, max_components=3)
        rows = periodogram_starts(X, y - y.mean(), prior)
        assert rows.shape == (12, prior.num_columns)
        assert within(prior, rows)
        assert prior.num_components(rows).bincount().tolist() == [0, 4, 4, 4]
        weights, means, _ = prior.mixtures(rows)
        torch.testing.assert_close(weights.sum(-1), torch.ones(12, dtype=torch.float64), rtol=0, atol=1e-9)
        frequencies = [mean.round(decimals=1).tolist() for mean in means.squeeze(-1)]
        pairs = [pair[:2] for pair, n in zip(frequencies, prior.num_components(rows), strict=True) if n == 2]
        assert any(set(pair) == {0.7, 2.3} for pair in pairs)
        # weights in proportion to the power: 2^2 against 1^2
        first = next(row for row, pair in enumerate(frequencies) if pair[:2] == [0.7, 2.3])
        assert 2.5 < weights[first, 0] / weights[first, 1] < 6.0


def test_starts_of_several_inputs_and_of_a_few_rows():
    X = uniform(20, 2)
    prior = default_prior(X, X.sum(-1))
    assert periodogram_starts(X, X.sum(-1), prior).shape == (0, prior.num_columns)
    for num_rows in [2, 3, 5]:
        X = torch.linspace(0, 1, num_rows, dtype=torch.float64).unsqueeze(-1)
        y = tensor(0.3, -1.0, 0.4, 2.0, 0.0)[:num_rows]
        prior = default_prior(X, y)
        assert within(prior, periodogram_starts(X, y - y.mean(), prior))


def ascent_case(components=2):
    X, y = two_sinusoids(1)
    prior = default_prior(X[:40], y[:40], max_components=3)
    start = prior.draw(1, components, generator=seeded(2))[0]
    return DenseLikelihoods(X[:40], y[:40] - y[:40].mean()), prior, start


def target_of(prior, path, components):
    v = torch.special.ndtri(path.cube[:, prior.active_columns(components)])
    return path.log_likelihood - 0.5 * v.square().sum(-1) - 0.5 * v.shape[-1] * math.log(2 * math.pi)


@pytest.mark.parametrize("components", [1, 2, 3])
def test_an_ascent_increases_its_target_and_keeps_everything(components):
    likelihoods, prior, start = ascent_case(components)
    path = gradient_ascent(likelihoods, prior, start, 25)
    assert path.cube.shape[0] == path.log_likelihood.shape[0] <= 25
    torch.testing.assert_close(path.cube[0], start, rtol=0, atol=1e-9)
    target = target_of(prior, path, components)
    assert target.max() > target[0] + 1.0
    assert target.argmax() > 0
    with torch.no_grad():
        again = likelihoods(*prior.hyperparameters(path.cube))
    torch.testing.assert_close(path.log_likelihood, again, rtol=1e-8, atol=1e-6)
    assert bool((path.cube[:, 0] == components).all())
    assert within(prior, path.cube)
    assert not path.cube.requires_grad


def test_an_ascent_keeps_to_its_budget():
    likelihoods, prior, start = ascent_case()
    for budget in [1, 2, 7]:
        assert gradient_ascent(likelihoods, prior, start, budget).log_likelihood.numel() == budget


def test_an_ascent_ends_where_it_has_converged():
    likelihoods, prior, start = ascent_case(1)
    path = gradient_ascent(likelihoods, prior, start, 2000)
    assert path.log_likelihood.numel() < 500
    best = path.cube[target_of(prior, path, 1).argmax()]
    v = torch.special.ndtri(best[prior.active_columns(1)]).requires_grad_()
    cube = prior.embed(torch.special.ndtr(v), 1).unsqueeze(0)
    value = likelihoods(*prior.hyperparameters(cube)).squeeze() - 0.5 * v.square().sum()
    (slope,) = torch.autograd.grad(value, v)
    assert slope.abs().max() < 0.05, "the slope where it ends is next to none"


def test_a_likelihood_that_fails_ends_an_ascent():
    likelihoods, prior, start = ascent_case()
    calls = []

    def failing(mixtures, outputscale, noise):
        calls.append(1)
        value = likelihoods(mixtures, outputscale, noise)
        return value if len(calls) < 4 else value * torch.nan

    path = gradient_ascent(failing, prior, start, 30)
    assert path.log_likelihood.isnan().tolist() == [False, False, False, True]
    assert path.cube.shape[0] == 4


def test_an_ascent_from_the_edge_of_the_cube():
    likelihoods, prior, _ = ascent_case()
    edge = prior.embed(torch.full((len(prior.active_columns(2)),), 1.0 - EDGE, dtype=torch.float64), 2)
    path = gradient_ascent(likelihoods, prior, edge, 10)
    assert bool(path.log_likelihood.isfinite().all())
    assert within(prior, path.cube)
