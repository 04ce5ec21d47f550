"""Weights of the evaluated kernels and nodes of integrals: golden values, loops, sums of shares, known integrals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.papers.quadrature.prior import EDGE, inferred
from gp_ensembles.papers.quadrature.quadrature import draw_nodes, positive_weights, root_weights
from tests.papers.quadrature.cases import prior_of, seeded, surrogate_for, tensor


def test_golden_weights_of_products_of_roots(archive, given_values, golden_surrogate, golden_nodes):
    values, expected = given_values, archive("maskerade_predictive")
    matrix = root_weights(golden_surrogate(), golden_nodes)
    torch.testing.assert_close(matrix, expected["W"], rtol=0, atol=1e-12)
    diagonal = matrix.diagonal() / matrix.diagonal().sum()
    torch.testing.assert_close(diagonal, expected["diag_weights"], rtol=0, atol=1e-12)
    quadratic = matrix * (values["integral_mean"] - values["alpha"])
    roots = values["likelihood"].sqrt()
    torch.testing.assert_close(quadratic / (roots.unsqueeze(-1) * roots), values["Q"], rtol=0, atol=1e-11)


def test_positive_weights_written_out():
    for choices in [{}, {"noise": inferred(1e-2, 1.0)}, {"num_inputs": 2}]:
        surrogate = surrogate_for(**choices)
        nodes = draw_nodes(surrogate.kernel_distance.prior, 6, generator=seeded(1))
        prepared = surrogate.kernel_distance.prepare(nodes.cube)
        r = (surrogate.cross(prepared) / surrogate.parameters.outputscale).numpy()
        L = np.exp((surrogate.evaluations.log_likelihood - surrogate.log_scale).numpy())
        expected = np.zeros(len(L))
        for s in range(len(r)):
            total = sum(r[s, j] ** 10 for j in range(len(L)))
            for i in range(len(L)):
                expected[i] += float(nodes.weights[s]) * L[i] * r[s, i] ** 10 / total
        found = positive_weights(surrogate, nodes)
        np.testing.assert_allclose(found.exp(), expected / expected.sum(), rtol=1e-9)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), spread=st.sampled_from([0.0, 1.0, 100.0, 1e5]))
def test_positive_weights_are_a_distribution(seed, spread):
    surrogate = surrogate_for(seed, spread=spread)
    around = surrogate.evaluations.best(3).cube
    nodes = draw_nodes(surrogate.kernel_distance.prior, 9, around=around, generator=seeded(seed))
    log_weights = positive_weights(surrogate, nodes)
    assert log_weights.shape == (12,)
    assert not bool(log_weights.isnan().any())
    assert log_weights.exp().sum().item() == pytest.approx(1.0, abs=1e-12)


def centers_of(prior, seed, sizes=(1, 2, 2)):
    generator = seeded(seed)
    return torch.cat([prior.draw(1, n, generator=generator) for n in sizes])


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    per_size=st.integers(3, 40),
    num_inputs=st.integers(1, 2),
    centered=st.booleans(),
    uneven=st.booleans(),
)
def test_the_weights_of_nodes_are_shares_of_the_prior(seed, per_size, num_inputs, centered, uneven):
    log_prob = tensor(0.6, 0.3, 0.1).log() if uneven else None
    prior = prior_of(num_inputs=num_inputs, log_prob_components=log_prob, noise=inferred(1e-2, 1.0))
    around = centers_of(prior, seed) if centered else None
    nodes = draw_nodes(prior, per_size, around=around, generator=seeded(seed))
    assert nodes.cube.shape == (3 * per_size, prior.num_columns)
    assert torch.equal(nodes.components, prior.num_components(nodes.cube))
    assert bool((nodes.weights > 0).all())
    lower, upper = prior.bounds
    assert bool(((nodes.cube >= lower) & (nodes.cube <= upper)).all())
    for some in (nodes, nodes.first(2), nodes.first(per_size), nodes.first(10**6)):
        for n in (1, 2, 3):
            share = some.weights[some.components == n].sum()
            assert share.item() == pytest.approx(prior.log_prob_components[n - 1].exp().item(), rel=1e-12)


FUNCTIONS = {
    "first moment": (lambda v: v[:, 0], 0.0, 1.0),
    "second moment": (lambda v: v[:, 1].square(), 1.0, math.sqrt(2.0)),
    "product": (lambda v: v[:, 0] * v[:, -1], 0.0, 1.0),
    "cosine": (lambda v: (v.sum(-1)).cos(), None, 0.7),
    "tail": (lambda v: (v[:, 0] > 1.0).double(), 0.158655, 0.365),
    "log-normal": (lambda v: (0.5 * v[:, 0]).exp(), math.exp(0.125), 0.6),
}


@pytest.mark.parametrize("centered", [False, True])
def test_nodes_integrate_functions_of_normal_quantiles(centered):
    """Averages over the cube of functions of independent standard normal numbers; errors as of so many plain draws."""
    for function, mean, sd in FUNCTIONS.values():
        prior = prior_of(2)
        columns = prior.active_columns(2)
        expected = math.exp(-len(columns) / 2) if mean is None else mean
        per_size, errors = 600, []
        for seed in range(8):
            around = centers_of(prior, seed, (2, 2, 2)) if centered else None
            nodes = draw_nodes(prior, per_size, around=around, generator=seeded(seed))
            mine = nodes.components == 2
            v = torch.special.ndtri(nodes.cube[mine][:, columns])
            errors.append(float(nodes.weights[mine] @ function(v) / nodes.weights[mine].sum()) - expected)
        # a plain draw's standard error; the bias of normalized weights and the clamped tails are far below it
        error = sd / math.sqrt(per_size)
        assert np.sqrt(np.mean(np.square(errors))) < 1.5 * error
        assert abs(np.mean(errors)) < 3 * 1.5 * error / math.sqrt(8)


def test_weights_around_centers_by_the_balance_heuristic():
    """Ratios of the weights, written out: prior over the mixture of prior and normals that nodes are drawn from."""
    prior = prior_of(1)
    centers = prior.draw(2, 1, generator=seeded(3))
    count = 30
    nodes = draw_nodes(prior, count, around=centers, generator=seeded(4))
    columns = prior.active_columns(1)
    v, c = (torch.special.ndtri(rows[:, columns]).numpy() for rows in (nodes.cube, centers))

    def density(x, center, width):
        return math.exp(-0.5 * np.sum((x - center) ** 2) / width**2) / (math.sqrt(2 * math.pi) * width) ** len(x)

    expected = []
    for x in v:
        near = np.mean([density(x, center, width) for center in c for width in (0.1, 0.3, 1.0)])
        own = density(x, np.zeros(len(x)), 1.0)
        expected.append(own / (20 / 30 * own + 10 / 30 * near))
    np.testing.assert_allclose(nodes.weights, np.array(expected) / np.sum(expected), rtol=1e-6)
    assert max(expected) <= 1.5 + 1e-9


def test_few_nodes_and_centers_at_the_edge_of_the_cube():
    prior = prior_of(2)
    for per_size in [1, 2]:  # a third of them around centers is none: all are draws of the prior
        nodes = draw_nodes(prior, per_size, around=centers_of(prior, 0), generator=seeded(0))
        torch.testing.assert_close(nodes.weights, torch.full((2 * per_size,), 0.5 / per_size, dtype=torch.float64))
    edge = prior.embed(torch.full((1, len(prior.active_columns(2))), 1.0 - EDGE, dtype=torch.float64), 2)
    nodes = draw_nodes(prior, 30, around=edge, generator=seeded(0))
    assert bool(nodes.weights.isfinite().all())
    assert nodes.weights.sum().item() == pytest.approx(1.0)
