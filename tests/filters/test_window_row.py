"""A row by itself in a window, against the Gaussian conditional of all rows at once."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.means import LinearMean

from gp_ensembles.features.covariance import bind_covariance, bind_mean
from gp_ensembles.filters.window import RowWindow, Window, window_state

F64 = torch.float64
D, N = 3, 7


def batch(kernel_class, **settings):
    shape = torch.Size([2])
    kernel = ScaleKernel(kernel_class(ard_num_dims=D, batch_shape=shape, **settings), batch_shape=shape).double()
    kernel.base_kernel.lengthscale = torch.tensor([[[0.7, 1.1, 2.0]], [[1.5, 0.4, 0.9]]])
    kernel.outputscale = torch.tensor([0.8, 2.5])
    return kernel


KERNELS = {
    "rbf": lambda: RBFKernel(ard_num_dims=D).double(),
    "two matern": lambda: batch(MaternKernel, nu=1.5),
    "two rough matern": lambda: batch(MaternKernel, nu=0.5),
    "sum": lambda: (RBFKernel() + LinearKernel()).double(),
    "product": lambda: ScaleKernel(PeriodicKernel() * RBFKernel()).double(),
    "some columns": lambda: ScaleKernel(RBFKernel(active_dims=[0, 2])).double(),
}


@pytest.mark.parametrize(
    ("name", "has_mean"), [*((name, False) for name in KERNELS), ("two matern", True), ("some columns", True)]
)
@torch.no_grad()
def test_rows_one_after_another_are_the_conditional_of_the_rows_before(name: str, has_mean: bool) -> None:
    kernel, draw = KERNELS[name](), np.random.default_rng(1)
    mean = LinearMean(D, batch_shape=kernel.batch_shape).double() if has_mean else None
    noise = torch.tensor([0.1, 0.3], dtype=F64)[: max(1, len(kernel.batch_shape) * 2)].reshape(kernel.batch_shape)
    window = Window(bind_covariance(kernel), noise, N, None if mean is None else bind_mean(mean))
    state = window_state(kernel.batch_shape, D, N + 3, noise)
    rows, X, y = RowWindow(state, window, np.arange(D)), draw.normal(size=(N, D)), draw.normal(size=N)
    whole = torch.from_numpy(X)
    # GPyTorch's own matrix and a dense solve.
    covariance = kernel(whole).to_dense() + noise[..., None, None] * torch.eye(N, dtype=F64)
    prior = torch.zeros(N, dtype=F64) if mean is None else mean(whole)
    errors = torch.from_numpy(y) - prior
    for t in range(N):
        rows.predict(draw.normal(size=D))  # what is asked of other rows leaves no trace
        predicted = rows.predict(X[t])
        past, across = covariance[..., :t, :t], covariance[..., :t, t : t + 1]
        solved = torch.linalg.solve(past, across)
        expected = prior[..., t] + (solved.squeeze(-1) * errors[..., :t]).sum(-1)
        variance = covariance[..., t, t] - (solved * across).sum((-2, -1))
        np.testing.assert_allclose(predicted[0], expected.reshape(-1).numpy(), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(predicted[1], variance.reshape(-1).numpy(), rtol=1e-8)
        rows.learn(y[t])
    factor = torch.linalg.cholesky(covariance)
    torch.testing.assert_close(state.factor[..., :N, :N], factor, rtol=1e-8, atol=1e-9)
    assert (state.num_used == N).all()
