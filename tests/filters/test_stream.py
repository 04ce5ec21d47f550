"""The in-place stream against the pure block filter; staging never touches the state."""

import itertools

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gp_ensembles.filters import RandomWalk, gaussian_state, update_block
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.stream import BlockStream
from gp_ensembles.numerics.cholesky import NumericalError


def problem(batch_shape, num_rows, num_features, seed=0):
    g = torch.Generator().manual_seed(seed)
    Phi = torch.randn(*batch_shape, num_rows, num_features, generator=g, dtype=torch.float64)
    y = torch.randn(num_rows, generator=g, dtype=torch.float64)
    noise = 0.1 + torch.rand(batch_shape, generator=g, dtype=torch.float64)
    return Phi, y, noise


def check(Phi, y, noise, q, size):
    """Rows in place and on the pure path, block after block."""
    state = gaussian_state(torch.ones_like(noise), Phi.shape[-1])
    moments, transition = state.moments.clone(), None if q is None else RandomWalk(q)
    stream = BlockStream(moments, noise, q, size)
    for start in range(0, len(y), size):
        rows = slice(start, start + size)
        state, want = update_block(state, Phi[..., rows, :], y[rows], transition, noise)
        stream.set_block(Phi[..., rows, :], y[rows], bool(y[rows].isnan().any()))
        got = stream.condition(Rows(y[rows]))
        stream.commit()
        close = {"rtol": 1e-9, "atol": 1e-11} if Phi.shape[-1] > 100 else {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close((*got, moments), (*want, state.moments), **close, equal_nan=True)


def test_stream_equals_the_pure_path():
    for batch_shape, walk, size in itertools.product([(), (4,), (2, 3)], (None, 1, 5), (1, 4, 20)):
        for missing in ((), (0, 5, 19)):
            Phi, y, noise = problem(batch_shape, 20, 5)
            y[list(missing)] = torch.nan
            q = None if walk is None else torch.full((*batch_shape, walk), 0.02, dtype=torch.float64)
            check(Phi, y, noise, q, size)


def test_many_features_take_another_road_to_the_same_numbers():
    Phi, y, noise = problem((2,), 96, 310)
    y[[3, 50]] = torch.nan
    check(Phi, y, noise, torch.full((2, 1), 1e-3, dtype=torch.float64), 32)


def test_what_counts_of_targets_may_change_after_the_products():
    """As if it had been known: shares down to nothing, further noise, walks, and many features."""
    for num_features, walk, size in itertools.product((5, 310), (None, 0.02), (1, 24)):
        Phi, y, noise = problem((2,), size, num_features)
        q = None if walk is None else torch.full((2, 1), walk, dtype=torch.float64)
        state = gaussian_state(torch.ones_like(noise), num_features)
        extra = torch.linspace(0, 2, size, dtype=torch.float64)
        share = torch.ones_like(y)
        share[[size // 2, -1]] = torch.tensor([1e-3, 1e-14], dtype=torch.float64)
        moments, walks = state.moments.clone(), None if q is None else RandomWalk(q)
        stream = BlockStream(moments, noise, q, size)
        stream.set_block(Phi, y, False)
        for known in (Rows(y), Rows(y, share=share), Rows(y, extra=extra), Rows(y, share=share, extra=extra)):
            found = stream.condition(known)
            after, wanted = update_block(state, Phi, known, walks, noise)
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)
        stream.commit()
        torch.testing.assert_close(moments, after.moments, rtol=1e-9, atol=1e-11)


def test_staging_does_not_touch_the_state():
    Phi, y, noise = problem((3,), 8, 5)
    moments = gaussian_state(torch.ones(3, dtype=torch.float64), 5).moments.clone()
    before = moments.clone()
    stream = BlockStream(moments, noise, torch.ones(3, 1, dtype=torch.float64), 8)
    stream.set_block(Phi, y, False)
    stream.condition(Rows(y))
    assert torch.equal(moments, before)
    for size in (1, 8):
        bad = BlockStream(moments, torch.tensor([0.1, -90.0, 0.1], dtype=torch.float64), None, size)
        bad.set_block(Phi[:, :size], y[:size], False)
        with pytest.raises(NumericalError, match="expert 1"):
            bad.condition(Rows(y[:size]))
        assert torch.equal(moments, before)


def test_a_long_stream_stays_exact():
    """20 000 rows in place end where batch regression ends."""
    Phi, y, noise = problem((2,), 20_000, 8)
    moments = gaussian_state(torch.ones(2, dtype=torch.float64), 8).moments.clone()
    stream = BlockStream(moments, noise, None, 32)
    for start in range(0, 20_000, 32):
        stream.set_block(Phi[:, start : start + 32], y[start : start + 32], False)
        stream.condition(Rows(y[start : start + 32]))
        stream.commit()
    precision = Phi.mT @ Phi / noise[:, None, None] + torch.diag_embed(torch.ones(2, 8, dtype=torch.float64))
    mean = torch.linalg.solve(precision, Phi.mT @ y / noise[:, None])
    torch.testing.assert_close(moments[..., -1], mean, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moments[..., :-1], torch.linalg.inv(precision), rtol=1e-8, atol=1e-14)


class CountOperators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def count(num_rows, num_experts):
    Phi, y, noise = problem((num_experts,), num_rows, 6)
    moments = gaussian_state(torch.ones(num_experts, dtype=torch.float64), 6).moments.clone()
    stream = BlockStream(moments, noise, None, num_rows)
    with CountOperators() as counter:
        stream.set_block(Phi, y, False)
        stream.condition(Rows(y))
        stream.commit()
    return counter.names


def test_operators_do_not_grow_with_rows_or_experts():
    """On a GPU every operator is a launch, and reading a value is a wait: one wait a block, for the Cholesky flag."""
    names = count(8, 3)
    assert names == count(64, 3) == count(8, 30)
    assert len(names) < 45
    assert names.count("_local_scalar_dense") <= 1
