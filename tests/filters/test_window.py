"""The window of an exact Gaussian process against conditioning by hand, one row at a time."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel

from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.filters import RandomWalk, predict, update_block
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.window import Window, joint_window, window_state
from tests.filters.oracles import in_blocks

M, N, D, KEEP, ROOM = 2, 23, 2, 6, 8
NOISE = torch.tensor([0.3, 0.05], dtype=torch.float64)
MISSING = (0, 5, 9, 10, N - 1)


def kernel():
    base = MaternKernel(nu=1.5, ard_num_dims=D, batch_shape=torch.Size([M]))
    scaled = ScaleKernel(base, batch_shape=torch.Size([M])).double().requires_grad_(False)
    base.lengthscale = torch.tensor([[[0.5, 1.0]], [[2.0, 0.7]]], dtype=torch.float64)
    scaled.outputscale = torch.tensor([0.8, 2.0], dtype=torch.float64)
    return scaled


WINDOW = Window(bind_covariance(kernel()), NOISE, KEEP)
SHARE, EXTRA = torch.ones(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
SHARE[[3, 12]] = torch.tensor([0.25, 1e-6], dtype=torch.float64)
EXTRA[[4, 12, 17]] = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)


def problem(missing=MISSING, dtype=torch.float64):
    g = torch.Generator().manual_seed(1)
    X = torch.randn(N, D, generator=g, dtype=torch.float64)
    y = torch.randn(N, generator=g, dtype=torch.float64)
    y[list(missing)] = torch.nan
    Phi = torch.cat([X, torch.ones(N, 1)], dim=-1)
    return Phi.expand(M, -1, -1).to(dtype), y.to(dtype)


def run(Phi, y, sizes):
    given = Rows(y, SHARE, EXTRA)

    def learn(state, rows):
        return update_block(state, Phi[:, rows], given.part(rows), None, WINDOW)

    return in_blocks(learn, window_state(torch.Size([M]), D, ROOM, Phi), sizes)


def by_hand(Phi, y):
    """Moments and log densities of every row given the rows that the window has then: conditioning, row by row."""
    K, found, held, X, targets = kernel(), [], [], Phi[0, :, :-1], y
    for t in range(N):
        moments = []
        for m in range(M):
            index = [*held, t]
            noise = (NOISE[m] + EXTRA) / SHARE
            noise[t] = NOISE[m] + EXTRA[t]  # all of it is predicted, whatever will count of it
            cov = K(X[index], X[index]).to_dense()[m] + torch.diag(noise[index])
            gain = torch.linalg.solve(cov[:-1, :-1], cov[:-1, -1]) if held else torch.zeros(0, dtype=torch.float64)
            mean = gain @ targets[held]
            variance = cov[-1, -1] - gain @ cov[:-1, -1]
            log_prob = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(targets[t])
            moments.append(torch.stack([mean, variance, log_prob]))
        found.append(torch.stack(moments, dim=-1))
        if not torch.isnan(y[t]):
            held.append(t)
        if len(held) == ROOM:
            held = held[-KEEP:]
    return torch.stack(found, dim=-1), held


def assert_same(got, want, tolerance=1e-9):
    torch.testing.assert_close(tuple(got), tuple(want), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("sizes", [(1,) * N, (N,), (7, 1, 15)])
def test_every_prediction_is_that_of_conditioning_by_hand(sizes):
    Phi, y = problem()
    want, held = by_hand(Phi, y)
    state, steps = run(Phi, y, sizes)
    assert_same(steps, want)
    assert state.num_used.tolist() == [len(held)] * M
    torch.testing.assert_close(state.inputs[0, : len(held)], Phi[0, :, :-1][held])


def test_rows_that_come_next_are_predicted_as_they_are_observed():
    Phi, y = problem(missing=())
    for n in (0, 3, 7, 8, 15):
        state, _ = run(Phi, y, (n,)) if n else (window_state(torch.Size([M]), D, ROOM, Phi), None)
        before = [field.clone() for field in state]
        alone = predict(state, Phi[:, n : n + 1], None, WINDOW)
        _, step = update_block(state, Phi[:, n : n + 1], y[n : n + 1], None, WINDOW)
        torch.testing.assert_close(alone.mean, step.mean)
        assert_same(state, before, 0.0)


def test_joint_covariance_is_that_of_the_conditional():
    Phi, y = problem(missing=())
    state, _ = update_block(window_state(torch.Size([M]), D, ROOM, Phi), Phi[:, :6], y[:6], None, WINDOW)
    X, K = Phi[0, :, :-1], kernel()
    for m in range(M):
        cov = K(X[:10], X[:10]).to_dense()[m] + NOISE[m] * torch.eye(10, dtype=torch.float64)
        want = cov[6:, 6:] - cov[6:, :6] @ torch.linalg.solve(cov[:6, :6], cov[:6, 6:])
        torch.testing.assert_close(joint_window(state, Phi[:, 6:10], WINDOW)[m], want)


def test_a_window_has_no_transition():
    Phi, y = problem()
    state = window_state(torch.Size([M]), D, ROOM, Phi)
    with pytest.raises(TypeError, match="leave the transition out, got RandomWalk; it forgets by fewer rows"):
        update_block(state, Phi, y, RandomWalk(0.1), WINDOW)
    with pytest.raises(TypeError, match="the observation for a WindowState is a Window"):
        predict(state, Phi, None, NOISE)
