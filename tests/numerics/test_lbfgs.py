"""The memory of limited-memory BFGS against the dense update formula."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.numerics.lbfgs import inverse_hessian_product, no_pairs, remember


def dense_inverse(pairs, size):
    """H after each update H <- (I - r s y') H (I - r y s') + r s s', from the newest pair's scaled identity."""
    step, change = pairs[-1]
    identity = torch.eye(size, dtype=torch.float64, device="cpu")
    inverse = identity * (step @ change) / (change @ change)
    for step, change in pairs:
        weight = 1 / (step @ change)
        left = identity - weight * torch.outer(step, change)
        inverse = left @ inverse @ left.T + weight * torch.outer(step, step)
    return inverse


@settings(max_examples=50)
@given(seed=st.integers(0, 10_000), size=st.integers(1, 5), count=st.integers(1, 6), memory=st.integers(1, 4))
def test_the_product_is_that_of_the_dense_update(seed, size, count, memory):
    source = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(shape, generator=source, dtype=torch.float64)  # noqa: E731
    root = draw(2, size, size)
    hessian = root @ root.mT + torch.eye(size, dtype=torch.float64, device="cpu")
    vector, pairs, kept = draw(2, size), no_pairs(torch.zeros(2, size, dtype=torch.float64)), [[], []]
    for _ in range(count):
        step = draw(2, size)
        change = (hessian @ step.unsqueeze(-1)).squeeze(-1)
        pairs = remember(pairs, step, change, memory)
        for number in range(2):
            kept[number].append((step[number], change[number]))
    found = inverse_hessian_product(vector, pairs)
    for number in range(2):
        expected = dense_inverse(kept[number][-memory:], size) @ vector[number]
        torch.testing.assert_close(found[number], expected, rtol=1e-7, atol=1e-9)


def test_a_pair_of_wrong_curvature_changes_nothing():
    vector = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    step = torch.ones(2, 2, dtype=torch.float64)
    pairs = remember(no_pairs(vector), step, torch.stack([2 * step[0], -step[1]]), 5)
    torch.testing.assert_close(inverse_hessian_product(vector, pairs)[1], vector[1])
    torch.testing.assert_close(inverse_hessian_product(vector, pairs)[0], vector[0] / 2)


def test_without_memory_it_is_the_vector_itself():
    vector = torch.tensor([[1.0, -2.0]], dtype=torch.float64)
    assert torch.equal(inverse_hessian_product(vector, no_pairs(vector)), vector)
