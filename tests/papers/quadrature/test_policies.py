"""Where to look next: policies, draws, peaks of the spectrum, ascents."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature import (
    Budget,
    InformationPolicy,
    PriorPolicy,
    RegressionProblem,
    UncertaintyPolicy,
    marginalize,
)
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood
from gp_ensembles.papers.quadrature.policies import AcquisitionOptimizer, InformationGain
from gp_ensembles.papers.quadrature.prior import EDGE, default_prior, draw_stratified, inferred
from gp_ensembles.papers.quadrature.quadrature import draw_nodes
from gp_ensembles.papers.quadrature.search import gradient_ascent, harmonic_starts, periodogram_starts
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
    return DenseLikelihood(X[:40], y[:40] - y[:40].mean()), prior, start


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


def harmonics(num_rows=190, frequency=0.8):
    """Slow waves, and three multiples of a frequency; twelve rows to a unit."""
    x = torch.arange(num_rows, dtype=torch.float64) / 12.0
    y = 0.75 * torch.sin(0.6 * x + 0.3) + 0.5 * torch.cos(1.0 * x + 2.0) + 0.4 * torch.sin(1.45 * x + 1.0)
    for multiple, size, phase in ((1, 0.6, 0.0), (2, 0.4, 1.0), (3, 0.25, 0.5)):
        y = y + size * torch.sin(2 * torch.pi * multiple * frequency * x + phase)
    return x.unsqueeze(-1), y + 0.05 * torch.randn(num_rows, generator=seeded(0), dtype=torch.float64)


def test_multiples_of_a_frequency_are_among_the_starts():
    X, y = harmonics()
    prior = default_prior(X, y, 4)
    starts = harmonic_starts(X, y, prior)
    for row, mixture in zip(starts, map(prior.mixtures, starts), strict=True):
        count = int(prior.num_components(row))
        expected = 0.8 * torch.arange(count, dtype=torch.float64)
        torch.testing.assert_close(mixture.means[:count, 0], expected, rtol=0, atol=0.03)
    assert prior.num_components(starts).max() == 4
    noise = torch.randn(len(y), generator=seeded(1), dtype=torch.float64)
    for other_X, other_y, components in ((X, noise, 4), (X, y, 2), (torch.cat([X, X], -1), y, 4), (X[:2], y[:2], 4)):
        other = default_prior(other_X, other_y, components)
        assert harmonic_starts(other_X, other_y, other).shape == (0, other.num_columns)


def test_a_short_search_finds_multiples_and_predicts_with_them():
    """Kernels of one wave, or none, cannot tell the next two units."""
    X, y = harmonics()
    seen, ahead = slice(0, 166), slice(166, 190)
    errors, found = [], None
    for components in (1, 2, 4):
        problem = RegressionProblem(X[seen], y[seen], default_prior(X[seen], y[seen], components))
        found = marginalize(problem, Budget(100, draws=0), generator=seeded(0))
        errors.append(-float(found.predict(X[ahead]).log_prob(y[ahead]).mean()))
    assert errors[2] < min(errors[:2]) - 0.3
    mixture = found.hyperparameters(found.top()[0]).mixtures.take(0)
    for multiple in (1, 2, 3):
        near = (mixture.means[:, 0] - 0.8 * multiple).abs() < 0.05
        assert float(mixture.weights[near].sum()) > 5e-3
