"""A row's numbers have the same bits whatever rows stand beside it."""

import pytest
import torch

from gp_ensembles.distributions import Mixture, StudentTMixture
from gp_ensembles.numerics.reductions import logsumexp_over_experts, sum_over_experts

pytestmark = pytest.mark.processor

NUM_ROWS = 61  # fills no vector register
CUTS = [3, 16, 48]


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def normals(num_experts):
    weights = drawn(num_experts, NUM_ROWS).log_softmax(0)
    return Mixture(weights, drawn(num_experts, NUM_ROWS), drawn(num_experts, NUM_ROWS).exp())


def students(num_experts):
    degrees = 2.5 + drawn(num_experts, NUM_ROWS).exp()
    return StudentTMixture(*normals(num_experts), degrees)


def rows_of(mixture, start, stop):
    return type(mixture)(*(field[:, start:stop] for field in mixture))


def numbers(mixture, y):
    level = torch.tensor([[0.05], [0.95]], dtype=torch.float64)
    values = [*mixture.moments(), mixture.log_prob(y), mixture.cdf(y), *mixture.quantile(level)]
    return torch.stack(values)


@pytest.mark.parametrize("num_experts", [1, 8, 57])
@pytest.mark.parametrize("make", [normals, students])
def test_a_row_does_not_know_its_neighbors(make, num_experts):
    mixture, y = make(num_experts), drawn(NUM_ROWS)
    together = numbers(mixture, y)
    for size in CUTS:
        starts = range(0, NUM_ROWS, size)
        parts = [numbers(rows_of(mixture, at, at + size), y[at : at + size]) for at in starts]
        assert torch.equal(torch.cat(parts, dim=-1), together), size


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_over_experts(dtype):
    for num_experts in (1, 2, 7, 8, 9, 31, 64, 100):
        values = drawn(num_experts, NUM_ROWS).to(dtype)
        for reduce, plain in ((sum_over_experts, torch.sum), (logsumexp_over_experts, torch.logsumexp)):
            together = reduce(values)
            torch.testing.assert_close(together, plain(values, 0))
            assert torch.equal(together, torch.cat([reduce(part) for part in values.split(3, dim=1)]))
