"""Rules from the kernel matrix, ridge leverage scores and k-DPPs, against dense algebra; and all rules in BoTorch."""

import itertools
from collections import Counter
from functools import partial

import pytest
import torch
from botorch.models import SingleTaskVariationalGP
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from gp_ensembles.sparse import (
    KnotAllocator,
    dpp_knots,
    greedy_variance_knots,
    kmeans_knots,
    leverage_knots,
    random_knots,
    ridge_leverage_scores,
)

RULES = {
    "k-means": kmeans_knots,
    "random": random_knots,
    "greedy variance": greedy_variance_knots,
    "k-DPP": dpp_knots,
    "leverage": partial(leverage_knots, noise=0.1),
}


def rows(count, columns=2, seed=0):
    return torch.rand(count, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def targets(count, columns=1):
    y = rows(count, columns, seed=1)
    return (y - y.mean(0)) / y.std(0)


def dense(kernel, X):
    with torch.no_grad():
        return kernel(X).to_dense()


def test_leverage_scores_are_those_of_dense_algebra():
    X, kernel = rows(40), ScaleKernel(MaternKernel(nu=1.5)).double()
    K = dense(kernel, X)
    exact = torch.linalg.solve(K + 0.05 * torch.eye(40, dtype=torch.float64), K).diagonal()
    assert torch.allclose(ridge_leverage_scores(X, kernel, 0.05), exact, atol=1e-8)
    rough = ridge_leverage_scores(X.float(), ScaleKernel(MaternKernel(nu=1.5)), 0.05)
    assert torch.allclose(rough.double(), exact, atol=1e-3)


def test_determinants_decide_which_rows_a_process_draws():
    X = torch.tensor([[0.0], [0.2], [0.5], [1.5]], dtype=torch.float64)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.5
    K = dense(kernel, X)
    pairs = list(itertools.combinations(range(4), 2))
    weights = torch.stack([torch.linalg.det(K[list(pair)][:, list(pair)]) for pair in pairs])
    expected = weights / weights.sum()
    generator, counts, draws = torch.Generator().manual_seed(0), Counter(), 600
    for _ in range(draws):
        knots = dpp_knots(X, 2, kernel, generator=generator)
        counts[tuple(sorted((knot == X).nonzero()[0, 0].item() for knot in knots))] += 1
    found = torch.tensor([counts[pair] for pair in pairs], dtype=torch.float64)
    statistic = float(((found - draws * expected).square() / (draws * expected)).sum())
    assert statistic < 25.0  # the 99.98 % quantile of chi-squared with five degrees of freedom is 24.5


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_rules_are_allocators(rule):
    X = rows(50)
    allocator = KnotAllocator(rule)
    settings = {"inducing_point_allocator": allocator, "learn_inducing_points": False}
    model = SingleTaskVariationalGP(X, targets(50), inducing_points=7, **settings)
    knots = model.model.variational_strategy.inducing_points
    assert knots.shape == (7, 2)
    batch = allocator.allocate_inducing_points(
        X.expand(3, 50, 2), ScaleKernel(RBFKernel(batch_shape=torch.Size([3]))).double(), 5, torch.Size([3])
    )
    assert batch.shape == (3, 5, 2)
    several = SingleTaskVariationalGP(X, targets(50, 2), num_outputs=2, inducing_points=6, **settings)
    assert several.posterior(X[:3]).mean.shape == (3, 2)


def test_fewer_knots_where_the_kernel_is_explained():
    X = torch.linspace(0, 1, 60, dtype=torch.float64).unsqueeze(-1)
    knots = KnotAllocator(greedy_variance_knots).allocate_inducing_points(
        X, ScaleKernel(RBFKernel()).double(), 40, torch.Size()
    )
    assert 3 < len(knots) < 40
