r"""Likelihoods by conjugate gradients and stochastic Lanczos quadrature, of linear_operator (Gardner et al., 2018).

A likelihood is products of the covariance with vectors, O(N^2) each, which accelerators do well: solves by conjugate
gradients, preconditioned by a pivoted Cholesky factorization, and the log determinant as an average over random probes.
The covariance of one kernel is in memory at a time.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, final

import torch
from botorch.utils.sampling import manual_seed
from linear_operator import settings, to_linear_operator
from linear_operator.operators import LinearOperator
from torch import Tensor

from gp_ensembles.bayesian_quadrature.conditioning import Processes
from gp_ensembles.bayesian_quadrature.likelihoods import check_data, check_memory
from gp_ensembles.bayesian_quadrature.prior import Hyperparameters
from gp_ensembles.bayesian_quadrature.spectral_mixture import Reflection, SpectralMixtures, covariance

_MOST_ITERATIONS = 2000
_LANCZOS = 100  # steps of the quadrature of the log determinant


@final
class ConjugateGradientLikelihood(NamedTuple):
    r"""Likelihoods that are exact to a tolerance, with a log determinant that is known to a standard error only.

    The log determinant of the covariance over its preconditioner is :math:`z^\top \log(\cdot) z` averaged over probes.
    Its standard deviation falls with the root of their number and with the preconditioner's rank: on 500 rows, with a
    noise variance of a hundredth and ten probes, it was 4 to 13 nats without a preconditioner and 0 to 2 with rank 50.
    Probes are the same for every kernel, so that ascents see one function, and evidences are wrong by about that much.
    Where iterations do not reach the tolerance, linear_operator warns. Use it where nothing else fits.

    Args:
        num_probes: Random probes of the log determinant.
        tolerance: Of residuals, relative.
        preconditioner_rank: Rank of the pivoted Cholesky factorization.
        seed: Of the probes.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import RegressionProblem
        >>> X = torch.linspace(0, 3, 40, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)), likelihood=ConjugateGradientLikelihood())
        >>> problem.evaluate(problem.prior.draw(2, 1)).shape
        torch.Size([2])
    """

    num_probes: int = 10
    tolerance: float = 1e-4
    preconditioner_rank: int = 50
    seed: int = 0

    def bind(self, X: Tensor, y: Tensor, reflection: Reflection) -> "IterativeLikelihoods":
        """The likelihoods of data X (N, D) and y (N,).

        Raises:
            ValueError: If a setting is out of range.
            MemoryError: If a covariance does not fit into memory.
        """
        if self.num_probes < 1 or not 0 < self.tolerance < 1 or self.preconditioner_rank < 0:
            raise ValueError(
                f"conjugate gradients need at least one probe, a tolerance in (0, 1) and a rank of at least 0, got "
                f"{self}"
            )
        check_memory(X)
        return IterativeLikelihoods(X, y, reflection, self)

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Settings of linear_operator, and probes of this seed."""
        with ExitStack() as stack:
            for setting in (
                settings.fast_computations(covar_root_decomposition=False, log_prob=True, solves=True),
                settings.max_cholesky_size(0),
                settings.min_preconditioning_size(1),
                settings.max_preconditioner_size(self.preconditioner_rank),
                settings.num_trace_samples(self.num_probes),
                settings.cg_tolerance(self.tolerance),
                settings.max_cg_iterations(_MOST_ITERATIONS),
                settings.max_lanczos_quadrature_iterations(_LANCZOS),
                manual_seed(self.seed),
            ):
                stack.enter_context(setting)
            yield


def _operator(
    mixture: SpectralMixtures, outputscale: Tensor, noise: Tensor, X: Tensor, reflection: Reflection
) -> LinearOperator:
    """The covariance of the rows under one kernel, noise included."""
    matrix = outputscale * covariance(mixture, X, X, reflection)
    return to_linear_operator(matrix).add_diagonal(noise)


class IterativeProcesses(NamedTuple):
    r"""Gaussian processes with R kernels, conditioned on the data by conjugate gradients.

    Args:
        hyperparameters: The kernels, of batch shape (R,).
        X: Training inputs, shape (N, D).
        method: Settings of the solves.
        solved: Inverses of the covariances times the targets, shape (R, N).
        reflection: How components are made symmetric.
    """

    hyperparameters: Hyperparameters
    X: Tensor
    method: ConjugateGradientLikelihood
    solved: Tensor
    reflection: Reflection

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint predictions of the function at points (\*batch, q, D): (\*batch, R, q) and (\*batch, R, q, q)."""
        batch, q = X.shape[:-2], X.shape[-2]
        means, covariances = [], []
        for r, cross, solved in self._solves(X.reshape(-1, X.shape[-1])):
            kernel, scale = self.hyperparameters.mixtures.take(r), self.hyperparameters.outputscale[r]
            means.append((cross @ self.solved[r]).unflatten(0, (*batch, q)))
            cross, solved = (part.unflatten(0, (*batch, q)) for part in (cross, solved))
            covariances.append(scale * covariance(kernel, X, X, self.reflection) - cross @ solved.mT)
        return torch.stack(means, -2), torch.stack(covariances, -3)

    def marginals(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the function at points (M, D), one at a time: (R, M) each."""
        means, variances = [], []
        for r, cross, solved in self._solves(X):
            prior = self.hyperparameters.outputscale[r] * self.hyperparameters.mixtures.take(r).weights.sum()
            means.append(cross @ self.solved[r])
            variances.append((prior - (cross * solved).sum(-1)).clamp_min(0.0))
        return torch.stack(means), torch.stack(variances)

    def _solves(self, X: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """For each kernel, covariances (M, N) of points with the rows, and those times the inverse."""
        for r in range(len(self.solved)):
            kernel, scale = self.hyperparameters.mixtures.take(r), self.hyperparameters.outputscale[r]
            cross = scale * covariance(kernel, X, self.X, self.reflection)
            operator = _operator(kernel, scale, self.hyperparameters.noise[r], self.X, self.reflection)
            with self.method.settings():
                solved = operator.solve(cross.mT).mT
            yield r, cross, solved


@final
class IterativeLikelihoods:
    """Log marginal likelihoods of one data set under many kernels: what :class:`ConjugateGradientLikelihood` makes.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        reflection: How components are made symmetric.
        method: The settings.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.spectral_mixture import AT_ORIGIN
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> IterativeLikelihoods(X, X.squeeze(-1), AT_ORIGIN, ConjugateGradientLikelihood()).bytes_each
        288
    """

    def __init__(self, X: Tensor, y: Tensor, reflection: Reflection, method: ConjugateGradientLikelihood) -> None:
        check_data(X, y)
        self.X = X
        self.y = y
        self.reflection = reflection
        self.method = method

    @property
    def bytes_each(self) -> int:
        """Bytes of a covariance matrix."""
        return self.y.element_size() * self.y.shape[0] ** 2

    def __call__(self, mixtures: SpectralMixtures, outputscale: Tensor, noise: Tensor) -> Tensor:
        """Log marginal likelihoods of B mixtures, shape (B,), differentiable; NaN where there is none."""
        values = []
        for b in range(len(noise)):
            operator = _operator(mixtures.take(b).trim(), outputscale[b], noise[b], self.X, self.reflection)
            with self.method.settings():
                square, log_determinant = operator.inv_quad_logdet(self.y.unsqueeze(-1), logdet=True)
            values.append(-0.5 * (square + log_determinant + len(self.y) * math.log(2.0 * math.pi)))
        value = torch.stack(values) if values else self.y.new_zeros(0)
        return torch.where(value.isfinite(), value, torch.nan)

    def condition(self, hyperparameters: Hyperparameters) -> Processes:
        """Gaussian processes with R kernels, conditioned on the data."""
        trimmed = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
        solved = []
        for r in range(len(trimmed.noise)):
            parts = trimmed.mixtures.take(r), trimmed.outputscale[r], trimmed.noise[r]
            with self.method.settings():
                solved.append(_operator(*parts, self.X, self.reflection).solve(self.y.unsqueeze(-1)).squeeze(-1))
        return IterativeProcesses(trimmed, self.X, self.method, torch.stack(solved), self.reflection)
