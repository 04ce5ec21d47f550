"""Gaussian processes of many kernels at once, conditioned on the data."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.papers.quadrature.prior import Hyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import AT_ORIGIN, Reflection, covariance


class Processes(Protocol):
    """Gaussian processes with R kernels, conditioned on the data; any class with these members will do."""

    @property
    def X(self) -> Tensor:
        """Training inputs, shape (N, D)."""

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""


class ConditionedProcesses(NamedTuple):
    r"""Gaussian processes with R kernels, conditioned on the data.

    Args:
        hyperparameters: The kernels, of batch shape (R,).
        X: Training inputs, shape (N, D).
        factor: Cholesky factors of the training covariances, shape (R, N, N).
        solved: Their inverses times the targets, shape (R, N).
        reflection: How components are made symmetric.
    """

    hyperparameters: Hyperparameters
    X: Tensor
    factor: Tensor
    solved: Tensor
    reflection: Reflection

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""
        kernels, scale, _ = self.hyperparameters
        scale = scale[:, None, None]
        batch, q = X.shape[:-2], X.shape[-2]
        flat = X.reshape(-1, X.shape[-1])  # one solve for all batches: no copies of the factor
        cross = scale * covariance(kernels, self.X, flat, self.reflection)  # (R, N, batch * q)
        white = torch.linalg.solve_triangular(self.factor, cross, upper=False)
        mean = (self.solved.unsqueeze(-2) @ cross).squeeze(-2)
        mean, white = (part.unflatten(-1, (*batch, q)) for part in (mean, white))
        mean, white = mean.movedim(0, -2), white.movedim((0, 1), (-3, -2))  # (*batch, R, q) and (*batch, R, N, q)
        points = X.unsqueeze(-3)
        own = scale * covariance(kernels, points, points, self.reflection)
        return mean, own - white.mT @ white

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""
        means, variances = [], []
        for r in range(self.solved.shape[0]):  # one kernel at a time: memory for one table of test and training points
            kernel, scale = self.hyperparameters.mixtures.take(r), self.hyperparameters.outputscale[r]
            cross = scale * covariance(kernel, X, self.X, self.reflection)
            white = torch.linalg.solve_triangular(self.factor[r], cross.mT, upper=False)
            means.append(cross @ self.solved[r])
            variances.append((scale * kernel.weights.sum() - white.square().sum(0)).clamp_min(0.0))
        return torch.stack(means), torch.stack(variances)


def condition(
    hyperparameters: Hyperparameters, X: Tensor, y: Tensor, reflection: Reflection = AT_ORIGIN
) -> ConditionedProcesses:
    """Gaussian processes with R kernels, conditioned on rows X (N, D) and targets y (N,).

    Raises:
        NumericalError: If a covariance cannot be factorized.
    """
    factors = []
    for r in range(hyperparameters.noise.shape[0]):
        matrix = hyperparameters.outputscale[r] * covariance(hyperparameters.mixtures.take(r), X, X, reflection)
        noise = torch.diag_embed(hyperparameters.noise[r].expand(y.shape[0]))
        factors.append(cholesky(matrix + noise, f"the covariance of the training rows under kernel {r}"))
    factor = torch.stack(factors)
    solved = torch.cholesky_solve(y.unsqueeze(-1).expand(factor.shape[0], -1, 1), factor).squeeze(-1)
    trimmed = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
    return ConditionedProcesses(trimmed, X, factor, solved, reflection)
