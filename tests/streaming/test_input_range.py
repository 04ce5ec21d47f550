"""The range of inputs against a plain loop."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.streaming.input_states import InputRange


def oracle(X, new):
    lower, upper = min(X), max(X)
    width = upper - lower
    moved = []
    for value in new:
        moved.append(min(max(value, lower - width), upper + width))
        upper, lower = max(upper, min(value, upper + width / 10)), min(lower, max(value, lower - width / 10))
    return moved, lower, upper


values = st.lists(st.floats(-40, 40) | st.sampled_from([1e6, -1e9, 0.0]), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(values, st.integers(0, 30))
def test_equals_a_plain_loop_in_any_blocking(new, cut):
    warm = torch.tensor([[0.0], [3.0], [10.0]], dtype=torch.float64)
    X = torch.tensor(new, dtype=torch.float64).unsqueeze(-1)
    after, moved, counts = InputRange.of(warm).follow(X)
    wanted, lower, upper = oracle([0.0, 3.0, 10.0], new)
    torch.testing.assert_close(moved.squeeze(-1), torch.tensor(wanted, dtype=torch.float64))
    torch.testing.assert_close(after.lower, torch.tensor([lower], dtype=torch.float64))
    torch.testing.assert_close(after.upper, torch.tensor([upper], dtype=torch.float64))
    assert counts.tolist() == [int(a != b) for a, b in zip(wanted, new, strict=True)]
    middle, first, _ = InputRange.of(warm).follow(X[:cut])
    last, second, _ = middle.follow(X[cut:])
    torch.testing.assert_close(torch.cat([first, second]), moved)
    torch.testing.assert_close(last.upper, after.upper)
