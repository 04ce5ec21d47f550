"""An exact Gaussian process of the last rows: Matern-5/2 with a length scale for each column, and a linear part."""

from contextlib import suppress
from typing import final

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import LinearKernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import GammaPrior
from torch import Tensor, nn

from studies.arena.learners import Distributional
from studies.arena.scores import Array, LocationScale

_LEAST_NOISE = 1e-5
FIRST_STEPS, STEPS = 40, 15  # of L-BFGS; later fits start where the last one ended
_SUB_BLOCK = 250  # rows added to the window at once


@final
class WindowGP(Distributional):
    r"""Regression on the last rows, with hyperparameters of largest posterior density given fewer of them.

    One-step-ahead predictions of a block come from one factor L of the covariance of window and block, noise included:
    with z = L⁻¹ (y - m), row t is normal with mean m plus the sum of L_ts z_s over s < t, and variance L_tt².

    Args:
        window: Rows kept.
        fit_rows: Rows that hyperparameters are fitted to.
        period: Rows between two fits.
    """

    def __init__(self, window: int = 2000, fit_rows: int = 1000, period: int = 2000) -> None:
        self.window = window
        self.fit_rows = fit_rows
        self.period = period
        self.X = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self.y = torch.empty(0, dtype=torch.float64, device="cpu")
        self.covariance = torch.empty(0, 0, dtype=torch.float64, device="cpu")
        self.process: _Process | None = None
        self.rows_since_fit = 0

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        self.X, self.y = _observed(X, y)
        self._fit()

    def step(self, X: Array, y: Array) -> LocationScale:
        """See :meth:`Distributional.step`."""
        parts = []
        for start in range(0, len(y), _SUB_BLOCK):
            rows = slice(start, start + _SUB_BLOCK)
            if self.rows_since_fit >= self.period:
                self._fit()
            parts.append(self._step(X[rows], y[rows]))
            self.rows_since_fit += len(y[rows])
        mean, stddev = (np.concatenate(part) for part in zip(*parts, strict=True))
        return LocationScale(mean, stddev, np.full(len(y), np.inf))

    @torch.no_grad()
    def _step(self, X: Array, y: Array) -> tuple[Array, Array]:
        assert self.process is not None
        new_X, new_y = _observed(X, y)
        old, joint_X, joint_y = len(self.y), torch.cat([self.X, new_X]), torch.cat([self.y, new_y])
        across = self.process.covariance(joint_X, new_X)
        joint = torch.cat([torch.cat([self.covariance, across[:old].T]), across], dim=1)
        center = self.process.mean.constant
        factor = torch.linalg.cholesky(joint + torch.diag(self.process.noise.expand(len(joint_y))))
        z = torch.linalg.solve_triangular(factor, (joint_y - center).unsqueeze(-1), upper=False).squeeze(-1)
        mean = center + factor.tril(-1)[old:] @ z
        means, stddevs = np.zeros(len(y)), np.ones(len(y))
        seen = ~np.isnan(y)
        means[seen], stddevs[seen] = mean.numpy(), factor.diagonal()[old:].numpy()
        self.X, self.y = joint_X[-self.window :], joint_y[-self.window :]
        self.covariance = joint[-self.window :, -self.window :]
        return means, stddevs

    def _fit(self) -> None:
        X, y = self.X[-self.fit_rows :], self.y[-self.fit_rows :]
        steps = FIRST_STEPS if self.process is None else STEPS
        process = _Process(X.shape[1]) if self.process is None else self.process
        self.process = process
        best = (torch.inf, {name: value.clone() for name, value in process.state_dict().items()})
        search = torch.optim.LBFGS(process.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            nonlocal best
            search.zero_grad()
            value = -process.log_posterior(X, y) / len(y)
            if float(value.detach()) < best[0]:
                best = (float(value.detach()), {name: part.clone() for name, part in process.state_dict().items()})
            value.backward()
            return value

        with suppress(torch.linalg.LinAlgError):  # type: ignore[attr-defined]  # a search that went astray ends at the best place it has seen
            search.step(loss)
        process.load_state_dict(best[1])
        with torch.no_grad():
            self.covariance = process.covariance(self.X, self.X)
        self.rows_since_fit = 0


class _Process(nn.Module):
    """The process: a constant mean, the kernel, the noise, and priors that keep hyperparameters from running away."""

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        scale_prior = GammaPrior(3.0, 6.0 / num_inputs**0.5)
        self.mean = ConstantMean()
        self.matern = ScaleKernel(MaternKernel(2.5, ard_num_dims=num_inputs, lengthscale_prior=scale_prior))
        self.linear = ScaleKernel(LinearKernel())
        self.likelihood = GaussianLikelihood(GammaPrior(1.1, 0.05), noise_constraint=GreaterThan(_LEAST_NOISE))
        self.double()
        with torch.no_grad():
            self.matern.base_kernel.lengthscale = num_inputs**0.5
            self.likelihood.noise = 0.1
            self.linear.outputscale = 0.1

    @property
    def noise(self) -> Tensor:
        """The noise variance, shape (1,)."""
        value: Tensor = self.likelihood.noise
        return value

    def covariance(self, X: Tensor, other: Tensor) -> Tensor:
        """Covariances of the function at rows (N, D) and (K, D), shape (N, K)."""
        weights = self.linear.outputscale * self.linear.base_kernel.variance.squeeze()
        value: Tensor = self.matern(X, other).to_dense() + weights * X @ other.T
        return value

    def log_posterior(self, X: Tensor, y: Tensor) -> Tensor:
        """Log marginal likelihood and log density of the priors."""
        factor = torch.linalg.cholesky(self.covariance(X, X) + torch.diag(self.noise.expand(len(y))))
        z = torch.linalg.solve_triangular(factor, (y - self.mean.constant).unsqueeze(-1), upper=False)
        value: Tensor = -z.square().sum() / 2 - factor.diagonal().log().sum()
        for prior, at in (
            (self.matern.base_kernel.lengthscale_prior, self.matern.base_kernel.lengthscale),
            (self.likelihood.noise_covar.noise_prior, self.noise),
        ):
            value = value + prior.log_prob(at).sum()
        return value


def _observed(X: Array, y: Array) -> tuple[Tensor, Tensor]:
    seen = ~np.isnan(y)
    return torch.from_numpy(X[seen]), torch.from_numpy(y[seen])
