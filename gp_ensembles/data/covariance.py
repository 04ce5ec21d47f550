"""Exact draws of Gaussian processes, given what computes their covariance."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

CovarianceFunction = Callable[[Tensor, Tensor], Tensor]

# What keeps a float64 RBF covariance positive definite; it is part of the law that is drawn from.
_NUGGET = 1e-9


@dataclass(frozen=True)
class RBFCovariance:
    r"""``k(x, x') = outputscale exp(-|x - x'|^2 / (2 lengthscale^2))`` (Rasmussen and Williams 2006, equation 4.9).

    Attributes:
        lengthscale: In the inputs' units.
        outputscale: Prior variance of the function.

    Raises:
        ValueError: If a scale is not positive.

    Example:
        >>> import torch
        >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> RBFCovariance(lengthscale=1.0, outputscale=2.0)(X, X)[0]
        tensor([2.0000, 1.2131], dtype=torch.float64)
    """

    lengthscale: float = 1.0
    outputscale: float = 1.0

    def __post_init__(self) -> None:
        if not (self.lengthscale > 0 and self.outputscale > 0):
            raise ValueError(f"lengthscale {self.lengthscale:g} and outputscale {self.outputscale:g} must be positive")

    def __call__(self, X: Tensor, other: Tensor) -> Tensor:
        """Covariances of X (N, D) with other (K, D), shape (N, K)."""
        # Differences, not torch.cdist, whose matrix product loses the small distances.
        distance = (X[:, None] - other).div(self.lengthscale).square().sum(-1)
        return self.outputscale * (-0.5 * distance).exp()


def function_draw(X: Tensor, covariance: CovarianceFunction, generator: torch.Generator | None) -> Tensor:
    """A draw at X (N, D) by the Cholesky factor, a billionth of the mean diagonal added: shape (N,). Costs O(N^3).

    Raises:
        ValueError: If the covariance is not an (N, N) matrix that is finite and positive definite.
    """
    num_rows = X.shape[0]
    matrix = covariance(X, X).to(X).clone()
    if matrix.shape != (num_rows, num_rows):
        raise ValueError(f"the covariance of {num_rows} rows has shape {tuple(matrix.shape)}, not (N, N)")
    if not bool(matrix.isfinite().all()):
        raise ValueError("the covariance has entries that are not finite; look at its scales and inputs")
    matrix.diagonal().add_(_NUGGET * matrix.diagonal().mean())
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) > 0:
        raise ValueError(f"the covariance is not positive definite (leading minor {int(info)}); check the function")
    normal = torch.randn(X.shape[:1], dtype=X.dtype, device=X.device, generator=generator)
    drawn: Tensor = factor @ normal
    return drawn
