"""Knots from inputs and kernel: pivoted Cholesky, brute force, duplicates, memory."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.numerics.kmeans import kmeans
from gp_ensembles.papers.sparse import kmeans_knots
from gp_ensembles.papers.sparse.initialization import distinct_rows, greedy_variance_rows
from tests.papers.sparse.problems import isotropic


def rows(generator, count, num_inputs=2):
    return torch.rand(count, num_inputs, generator=generator, dtype=torch.float64)


@pytest.fixture
def kernel():
    return isotropic(2.0, 0.4, 0.1)[0]


@torch.no_grad()
def test_greedy_variance_is_pivoted_cholesky(generator, kernel):
    """Each row has the largest variance given those before it."""
    X = rows(generator, 60)
    for one, count in ((kernel, 8), (ScaleKernel(MaternKernel(nu=0.5)).double(), 25)):
        dense, chosen = one(X).to_dense(), []
        for row in greedy_variance_rows(X, count, one).tolist():
            explained = dense[:, chosen] @ torch.linalg.solve(dense[chosen][:, chosen], dense[chosen])
            left = (dense - explained).diagonal()
            assert float(left[row]) == pytest.approx(float(left.max()), abs=1e-8)
            chosen.append(row)
        assert len(chosen) == count


@torch.no_grad()
def test_greedy_variance_stops_where_the_kernel_is_explained(generator, kernel):
    X = rows(generator, 200)
    knots = X[greedy_variance_rows(X, 200, kernel)]
    assert 3 < len(knots) < 200
    dense, cross = kernel(knots).to_dense(), kernel(X, knots).to_dense()
    left = 2.0 - (cross * torch.linalg.solve(dense + 1e-12 * torch.eye(len(dense)), cross.mT).mT).sum(-1)
    assert float(left.max()) < 1e-8


@given(st.integers(1, 6), st.integers(1, 4))
def test_greedy_variance_takes_no_duplicate(distinct, copies):
    X = torch.arange(float(distinct), dtype=torch.float64).repeat(copies).unsqueeze(-1)
    found = greedy_variance_rows(X, distinct * copies, RBFKernel().double())
    assert sorted(X[found].squeeze(-1).tolist()) == list(range(distinct))


class Counting(RBFKernel):
    """A kernel that counts the entries it is asked for, and the most at a time."""

    most = total = 0

    def forward(self, x1, x2, diag=False, **settings):
        entries = x1.shape[-2] * (1 if diag else x2.shape[-2])
        self.most, self.total = max(self.most, entries), self.total + entries
        return super().forward(x1, x2, diag=diag, **settings)


def test_greedy_variance_needs_columns_only(generator):
    kernel = Counting().double()
    kernel.lengthscale = 0.05
    assert len(greedy_variance_rows(rows(generator, 5_000), 20, kernel)) == 20
    assert (kernel.most, kernel.total) == (5_000, 21 * 5_000)


def test_greedy_variance_keeps_no_graph(generator):
    kernel, saved = RBFKernel().double(), []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()), lambda tensor: tensor):
        greedy_variance_rows(rows(generator, 100), 10, kernel)
    assert sum(saved) == 0


def test_knots_are_centers_of_k_means_and_distinct(generator):
    X = rows(generator, 40).repeat(3, 1)
    for count in (1, 7, 40):
        knots, centers = (f(X, count, generator=torch.Generator().manual_seed(1)) for f in (kmeans_knots, kmeans))
        assert torch.equal(knots, centers)
        assert (knots.dtype, knots.shape, len(torch.unique(knots, dim=0))) == (X.dtype, (count, 2), count)
        assert bool(((knots >= X.amin(0) - 1e-12) & (knots <= X.amax(0) + 1e-12)).all())
    with pytest.raises(ValueError, match=r"41 knots are more than the 40 distinct row\(s\)"):
        kmeans_knots(X, 41, generator=generator)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20))
def test_distinct_rows_are_the_first_of_each(values):
    X = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
    found = distinct_rows(X, 1).tolist()
    assert sorted(found) == [row for row, value in enumerate(values) if value not in values[:row]]
