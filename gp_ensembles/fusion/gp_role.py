"""Functions of a fusion model as exact Gaussian processes at the training inputs."""

import copy
from typing import final

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.fusion.roles import Extension, Role, checked_logs, checked_stddev
from gp_ensembles.numerics.cholesky import cholesky


@final
class GPRole(Role):
    r"""Functions with a Gaussian process prior, as many coefficients as training rows.

    .. math:: f = L u, \qquad L L^\top = K + \tau I, \qquad u \sim N(0, I_N)

    Elsewhere f is normal given its values at the data, with mean :math:`k_* (K + \tau I)^{-1} f` and covariance
    :math:`k_{**} - k_* (K + \tau I)^{-1} k_*^\top` (Rasmussen and Williams, 2006, Eq. 2.19), the same for all
    functions. Exact, but a gradient costs :math:`O(N^2)` for each function and, with sampled hyperparameters,
    :math:`O(N^3)` for each chain. For more than some hundred rows take :class:`FourierRole`.

    The hyperparameters are two logarithms of factors, on the kernel's length scales and on the prior standard
    deviation, about zero: the kernel's own values stand. Inputs are divided by the first factor.

    Args:
        kernel: Any GPyTorch kernel without a batch; copied as it is now.
        jitter: Variance :math:`\tau` added to the diagonal.
        prior_stddev: Prior standard deviation of the logarithms, which are then sampled; ``None`` keeps them at zero.

    Raises:
        TypeError: If the kernel has no parameter to take dtype and device from.
        ValueError: If the kernel has a batch, or a scale is not positive.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> role = GPRole(RBFKernel().double(), jitter=1e-8)
        >>> X = torch.linspace(0, 1, 4, dtype=torch.float64).unsqueeze(-1)
        >>> B = role.basis(X)
        >>> bool(((B.mT @ B) - RBFKernel().double()(X).to_dense()).abs().max() < 1e-7)
        True
    """

    def __init__(self, kernel: Kernel, *, jitter: float = 1e-6, prior_stddev: float | None = None) -> None:
        if kernel.batch_shape:
            raise ValueError(f"a role takes one kernel, but this one has a batch of shape {tuple(kernel.batch_shape)}")
        if not jitter > 0:
            raise ValueError(f"jitter must be positive, got {jitter}")
        parameter = next(kernel.parameters(), None)
        if parameter is None:
            raise TypeError(f"{type(kernel).__name__} has no parameters to take the dtype from; wrap it in ScaleKernel")
        self.kernel = copy.deepcopy(kernel).requires_grad_(False)
        self.jitter = jitter
        self.center = parameter.detach().new_zeros(2)
        self.prior_stddev = checked_stddev(prior_stddev)

    def num_coefficients(self, num_rows: int) -> int:
        """One for each training row."""
        return num_rows

    def basis(self, X: Tensor, hyperparameters: Tensor | None = None) -> Tensor:
        """Transposed Cholesky factor (..., N, N) at training inputs X (N, D).

        Raises:
            NumericalError: If the kernel matrix of fixed hyperparameters is not positive definite.
        """
        return self._factor(X, hyperparameters).mT

    def evaluate(self, coefficients: Tensor, X: Tensor, hyperparameters: Tensor) -> Tensor:
        """Coefficients times the transposed factor, shape (..., R, N)."""
        return coefficients @ self.basis(X, hyperparameters)

    def extend(self, X_new: Tensor, X: Tensor, hyperparameters: Tensor | None = None) -> Extension:
        """Weights of the coefficients, and marginal conditional variances, at new inputs."""
        lower = self._factor(X, hyperparameters)
        basis = torch.linalg.solve_triangular(lower, self._covariance(X, X_new, hyperparameters), upper=False)
        prior = self._variance(X_new, hyperparameters)
        # Below zero by round-off only: the Schur complement of a positive definite matrix.
        return Extension(basis, (prior - basis.square().sum(-2)).clamp_min(0.0))

    def conditional_covariance(self, X_new: Tensor, X: Tensor, hyperparameters: Tensor | None = None) -> Tensor:
        """Joint covariance (..., N', N') of one function at new inputs, given its values at X."""
        lower = self._factor(X, hyperparameters)
        basis = torch.linalg.solve_triangular(lower, self._covariance(X, X_new, hyperparameters), upper=False)
        left: Tensor = basis.mT @ basis
        return self._covariance(X_new, X_new, hyperparameters) - left

    def fixed_at(self, hyperparameters: Tensor) -> "GPRole":
        """The same kernel with both factors fixed at these logarithms, shape (2,)."""
        fixed = GPRole(self.kernel, jitter=self.jitter)
        fixed.center = checked_logs(hyperparameters, self.center).clone()
        return fixed

    def _covariance(self, X: Tensor, X_other: Tensor, hyperparameters: Tensor | None) -> Tensor:
        logs = self.center if hyperparameters is None else hyperparameters
        shrink = (-logs[..., 0, None, None]).exp()
        if X_other.requires_grad:  # GPyTorch's own distances lose their second derivatives where rows coincide
            matrix = bind_covariance(self.kernel).between(X * shrink, X_other * shrink)
        else:
            matrix = self.kernel(X * shrink, X_other * shrink).to_dense()
        return matrix * (2.0 * logs[..., 1, None, None]).exp()

    def _variance(self, X: Tensor, hyperparameters: Tensor | None) -> Tensor:
        logs = self.center if hyperparameters is None else hyperparameters
        diagonal: Tensor = self.kernel(X * (-logs[..., 0, None, None]).exp(), diag=True)
        scaled: Tensor = diagonal * (2.0 * logs[..., 1, None]).exp()
        return scaled

    def _factor(self, X: Tensor, hyperparameters: Tensor | None) -> Tensor:
        matrix = self._covariance(X, X, hyperparameters)
        matrix = matrix + self.jitter * torch.eye(X.shape[0], dtype=X.dtype, device=X.device)
        if hyperparameters is None:
            return cholesky(matrix, "the kernel matrix of a role (a larger jitter mends it)")
        # A sampler rejects the chain whose proposal has no factor; the other chains go on.
        lower, info = torch.linalg.cholesky_ex(matrix)
        return torch.where((info == 0)[..., None, None], lower, torch.nan)
