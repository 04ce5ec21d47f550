r"""What gives the unknown functions of a fusion model: linear in standard normal coefficients.

A fusion model needs functions of the inputs in a few roles: means, log noise scales, logits of weights. All functions
of one role share a prior. Values at N inputs are :math:`f = z B` with coefficients :math:`z \sim N(0, I_P)` and a basis
B (P, N), so that a sampler meets the same prior everywhere (whitening) whatever the kernel.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self, final

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from gp_ensembles.features.fourier import draw_for_kernel, kernel_frequencies
from gp_ensembles.features.shapes import positive_like
from gp_ensembles.fusion.waves import sum_of_waves, waves
from gp_ensembles.spectral.draws import FrequencyDraws
from gp_ensembles.spectral.frequencies import components_of


class Extension(NamedTuple):
    r"""Values of a role's functions at new inputs, given their coefficients.

    Args:
        basis: The conditional mean is the coefficients times this, shape (..., P, N).
        residual_variance: Variance that the coefficients leave, the same for each function of the role, shape
            (..., N); ``None`` if they leave none.
    """

    basis: Tensor
    residual_variance: Tensor | None


class Role(ABC):
    """A prior of functions, shared by all functions in one role.

    The hyperparameters are logarithms of length scales and, last, of the amplitude. They are fixed, or sampled
    with independent normal priors of their logarithms about the values given.

    Attributes:
        center: Logarithms of the length scales and of the amplitude, shape (H,): the values if they are fixed, the
            prior means if they are sampled.
        prior_stddev: Prior standard deviation of each logarithm; ``None`` keeps them fixed.
    """

    center: Tensor
    prior_stddev: float | None

    @property
    def num_hyperparameters(self) -> int:
        """Number of sampled hyperparameters: H, or none if they are fixed."""
        return 0 if self.prior_stddev is None else self.center.shape[0]

    @abstractmethod
    def num_coefficients(self, num_rows: int) -> int:
        """Number of coefficients P of each function of a model with so many training rows."""

    @abstractmethod
    def basis(self, X: Tensor, hyperparameters: Tensor | None = None) -> Tensor:
        """Basis at the training inputs.

        Args:
            X: Training inputs, shape (N, D).
            hyperparameters: Logarithms, shape (..., H); ``None`` for :attr:`center`.

        Returns:
            Basis, shape (..., P, N), differentiable in the hyperparameters; NaN where they admit none.
        """

    @abstractmethod
    def evaluate(self, coefficients: Tensor, X: Tensor, hyperparameters: Tensor) -> Tensor:
        """Coefficients times basis, as fast as can be with the gradient in both; the inputs are constants.

        Args:
            coefficients: Coefficients of some functions, shape (..., R, P).
            X: Training inputs, shape (N, D).
            hyperparameters: Logarithms, shape (..., H).

        Returns:
            Values, shape (..., R, N).
        """

    @abstractmethod
    def extend(self, X_new: Tensor, X: Tensor, hyperparameters: Tensor | None = None) -> Extension:
        """Basis at new inputs, and the variance that the coefficients leave there.

        Args:
            X_new: New inputs, shape (N', D).
            X: Training inputs, shape (N, D).
            hyperparameters: Logarithms, shape (..., H); ``None`` for :attr:`center`.
        """

    @abstractmethod
    def fixed_at(self, hyperparameters: Tensor) -> Self:
        """The same role with its hyperparameters fixed at these logarithms, shape (H,)."""


@final
class FourierRole(Role):
    r"""Functions made of M random cosines and sines, after Eqs (6) and (7) of Ajirak et al. (2024).

    .. math:: f(x) = \frac{a}{\sqrt M} \sum_{m=1}^{M} z_{2m-1} \cos(\omega_m^\top x / \ell)
              + z_{2m} \sin(\omega_m^\top x / \ell), \qquad z \sim N(0, I_{2M})

    Features are interleaved, cosine and sine of one frequency beside each other. The paper's features have no factor
    :math:`1/\sqrt M`; it stands in the prior of the coefficients here (the paper's :math:`\sigma_\psi = a / \sqrt M`),
    so the prior variance of f(x) is :math:`a^2` whatever M is. The frequencies are drawn once for the role, shared by
    its functions, and never sampled.

    Args:
        frequencies: Angular frequencies for unit length scale, in radians per unit of the inputs, shape (M, D).
        lengthscale: Length scale by which the inputs are divided, a number or shape (D,).
        amplitude: Prior standard deviation a of a function, a number.
        prior_stddev: Prior standard deviation of the logarithms of length scale and amplitude, which are then
            sampled (0.5 is a usual choice); ``None`` keeps them fixed.
        frequency_weights: Shares of the prior variance, positive, shape (M,), made to sum to one; even if ``None``.

    Raises:
        TypeError: If the frequencies are not floating point.
        ValueError: If a shape does not fit, frequencies are not finite, or a scale is not positive.

    Example:
        >>> import torch
        >>> frequencies = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> role = FourierRole(frequencies, lengthscale=0.5, amplitude=2.0)
        >>> B = role.basis(torch.zeros(3, 1, dtype=torch.float64))
        >>> B.shape, round(float(B[:, 0].square().sum()), 6)
        (torch.Size([4, 3]), 4.0)
    """

    def __init__(
        self,
        frequencies: Tensor,
        lengthscale: float | Tensor = 1.0,
        amplitude: float | Tensor = 1.0,
        *,
        prior_stddev: float | None = None,
        frequency_weights: Tensor | None = None,
    ) -> None:
        if not frequencies.is_floating_point():
            raise TypeError(f"frequencies must be floating point, got {frequencies.dtype}")
        if frequencies.ndim != 2 or not frequencies.numel() or not bool(frequencies.isfinite().all()):
            raise ValueError(
                f"frequencies must be finite, of shape (M, D) with M and D at least 1, got {tuple(frequencies.shape)}"
            )
        num_frequencies, num_inputs = frequencies.shape
        scale = positive_like(lengthscale, frequencies, "lengthscale").reshape(-1)
        if scale.shape[0] not in (1, num_inputs):
            raise ValueError(f"lengthscale must be a number or have {num_inputs} entries, got {scale.shape[0]}")
        spread = positive_like(amplitude, frequencies, "amplitude").reshape(-1)
        if spread.shape[0] != 1:
            raise ValueError(f"amplitude must be one number, got {spread.shape[0]}")
        shares = frequencies.new_ones(num_frequencies)
        if frequency_weights is not None:
            shares = positive_like(frequency_weights, frequencies, "frequency_weights")
        if shares.shape != (num_frequencies,):
            raise ValueError(f"frequency_weights must have shape ({num_frequencies},), got {tuple(shares.shape)}")
        self.frequencies = frequencies.detach()
        self.center = torch.cat([scale, spread]).log()
        self.prior_stddev = checked_stddev(prior_stddev)
        self.frequency_weights = shares / shares.sum()

    @classmethod
    def from_kernel(
        cls,
        kernel: Kernel,
        num_inputs: int,
        num_frequencies: int,
        *,
        draws: FrequencyDraws | None = None,
        prior_stddev: float | None = None,
        generator: torch.Generator | None = None,
    ) -> "FourierRole":
        """Frequencies from the spectral density of a GPyTorch kernel, with its hyperparameters as they are now.

        The kernel's output scale becomes the amplitude. The length scale of the role is a factor of the kernel's own,
        and starts at one. Summands of a kernel share the frequencies out evenly and keep their output scales.

        Args:
            kernel: Kernel without a batch, of a registered class (``gp_ensembles.spectral.spectral_components``).
            num_inputs: Number of input columns D.
            num_frequencies: Number of frequencies M.
            draws: How to draw; ``IIDDraws()`` if ``None``.
            prior_stddev: As for the class.
            generator: Source of randomness; torch's global one if ``None``.

        Raises:
            TypeError: If the kernel's class is not registered.
            ValueError: If the kernel has a batch, or more summands than frequencies.

        Example:
            >>> import torch
            >>> from gpytorch.kernels import MaternKernel, ScaleKernel
            >>> kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
            >>> kernel.outputscale = 4.0
            >>> role = FourierRole.from_kernel(kernel, 1, 30, generator=torch.Generator().manual_seed(0))
            >>> role.num_coefficients(num_rows=100), role.center.exp().round(decimals=4)
            (60, tensor([1., 2.], dtype=torch.float64))
        """
        if kernel.batch_shape:
            raise ValueError(f"a role takes one kernel, but this one has a batch of shape {tuple(kernel.batch_shape)}")
        with torch.no_grad():
            parts = components_of(kernel, num_inputs)
            base = draw_for_kernel(kernel, num_inputs, 2 * num_frequencies, draws=draws, generator=generator)
            frequencies = kernel_frequencies(parts, base)
            # Frequencies stand in the order of the summands, the first ones having one more where shares are uneven.
            share, rest = divmod(num_frequencies, len(parts))
            counts = [share + (index < rest) for index in range(len(parts))]
            weights = torch.cat(
                [(part.weight / count).reshape(1).expand(count) for part, count in zip(parts, counts, strict=True)]
            )
        return cls(frequencies, 1.0, weights.sum().sqrt(), prior_stddev=prior_stddev, frequency_weights=weights)

    def num_coefficients(self, num_rows: int) -> int:
        """Two for each frequency, 2 M, whatever the number of rows."""
        return 2 * self.frequencies.shape[0]

    def basis(self, X: Tensor, hyperparameters: Tensor | None = None) -> Tensor:
        """Scaled features (..., 2 M, N) at inputs X (N, D), row 2m the cosine and 2m + 1 the sine.

        Raises:
            ValueError: If the inputs do not have as many columns as the frequencies.
        """
        logs = self.center if hyperparameters is None else hyperparameters
        return waves(self._rates(X, logs), X) * self._scales(logs).unsqueeze(-1)

    def evaluate(self, coefficients: Tensor, X: Tensor, hyperparameters: Tensor) -> Tensor:
        """Sums of features (..., R, N) at inputs X (N, D); see :func:`sum_of_waves`."""
        scaled = coefficients * self._scales(hyperparameters).unsqueeze(-2)
        return sum_of_waves(scaled, self._rates(X, hyperparameters), X)

    def extend(self, X_new: Tensor, X: Tensor, hyperparameters: Tensor | None = None) -> Extension:
        """The same features at the new inputs; the coefficients leave no variance."""
        return Extension(self.basis(X_new, hyperparameters), None)

    def fixed_at(self, hyperparameters: Tensor) -> "FourierRole":
        """The same frequencies with length scale and amplitude fixed at these logarithms, shape (H,)."""
        scales = checked_logs(hyperparameters, self.center).exp()
        return FourierRole(self.frequencies, scales[:-1], scales[-1], frequency_weights=self.frequency_weights)

    def _rates(self, X: Tensor, logs: Tensor) -> Tensor:
        """Frequencies over length scales, shape (..., M, D)."""
        if X.shape[-1] != self.frequencies.shape[-1]:
            raise ValueError(
                f"the frequencies of a role have {self.frequencies.shape[-1]} column(s), the inputs {X.shape[-1]}"
            )
        return self.frequencies * (-logs[..., None, :-1]).exp()

    def _scales(self, logs: Tensor) -> Tensor:
        """Factors of the features, shape (..., 2 M)."""
        return self.frequency_weights.sqrt().repeat_interleave(2) * logs[..., -1:].exp()


def checked_stddev(value: float | None) -> float | None:
    """A positive prior standard deviation, or ``None``.

    Raises:
        ValueError: If the number is not positive and finite.
    """
    if value is not None and not (0 < value < math.inf):
        raise ValueError(
            f"prior_stddev must be positive and finite, or None to keep hyperparameters fixed, got {value}"
        )
    return value


def checked_logs(values: Tensor, like: Tensor) -> Tensor:
    """Logarithms of hyperparameters (H,), detached.

    Raises:
        ValueError: If the shape is not that of ``like``, or a value is not finite.
    """
    if values.shape != like.shape or not bool(values.isfinite().all()):
        raise ValueError(f"hyperparameters must be {like.shape[0]} finite logarithms, got shape {tuple(values.shape)}")
    return values.detach().to(like)


def checked_roles(roles: Sequence[Role], X: Tensor) -> None:
    """Refuse roles that do not share the dtype and the device of the inputs.

    Raises:
        TypeError: If one does not.
    """
    for role in roles:
        if role.center.dtype != X.dtype or role.center.device != X.device:
            raise TypeError(
                f"a role is {role.center.dtype} on {role.center.device}, the inputs are {X.dtype} on {X.device}; "
                "make both of one kind"
            )
