r"""Gaussian process priors of the functions of a fusion model, in whitened coordinates.

Means, log noise scales and logits of weights are functions of the inputs. Their values at N inputs are :math:`f = z B`
with coefficients :math:`z \sim N(0, I_P)` and a basis B (P, N), so that a sampler sees a standard normal prior whatever
the kernel. :class:`FourierPrior` has random Fourier features as its basis, interleaved, and with gradients in the
frequencies, unlike :class:`~gp_ensembles.features.RandomFourierFeatures`.
"""

import math
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.features.base import positive_like
from gp_ensembles.features.fourier import draw_for_kernel, kernel_frequencies
from gp_ensembles.numerics.draws import normal_draws
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.frequencies import FrequencyDraws, components_of


@final
class FourierPrior:
    r"""Functions made of M random cosines and sines, after Eqs. (6) and (7) of Ajirak et al. (2024).

    .. math:: f(x) = \frac{a}{\sqrt M} \sum_{m=1}^{M} z_{2m-1} \cos(\omega_m^\top x / \ell)
              + z_{2m} \sin(\omega_m^\top x / \ell), \qquad z \sim N(0, I_{2M})

    Features are interleaved, cosine and sine of one frequency next to each other. The paper's features have no factor
    :math:`1/\sqrt M`; it is in the prior of the coefficients here (the paper's :math:`\sigma_\psi = a / \sqrt M`),
    so the prior variance of f(x) is :math:`a^2` whatever M is. The frequencies are drawn once, shared by the
    functions, and never sampled.

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
        >>> frequencies = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> prior = FourierPrior(frequencies, lengthscale=0.5, amplitude=2.0)
        >>> B = prior.basis(torch.zeros(3, 1, dtype=torch.float64))
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
        if prior_stddev is not None and not 0 < prior_stddev < math.inf:
            raise ValueError(
                f"prior_stddev must be positive and finite, or None to keep hyperparameters fixed, got {prior_stddev}"
            )
        self.frequencies: Tensor = frequencies.detach()
        self.log_hyperparameters: Tensor = torch.cat([scale, spread]).log()
        self.prior_stddev = prior_stddev
        self.frequency_weights: Tensor = shares / shares.sum()

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
    ) -> "FourierPrior":
        """Frequencies from the spectral density of a GPyTorch kernel, with its hyperparameters as they are now.

        The kernel's output scale becomes the amplitude. The length scale of the prior is a factor of the kernel's own,
        and starts at one. Summands of a kernel share the frequencies out evenly and keep their output scales.

        Args:
            kernel: Kernel without a batch, of a registered class
                (``gp_ensembles.spectral.frequencies.spectral_components``).
            num_inputs: Number of input columns D.
            num_frequencies: Number of frequencies M.
            draws: How to draw; ``IIDDraws()`` if ``None``.
            prior_stddev: As for the class.
            generator: Source of randomness; torch's global one if ``None``.

        Raises:
            TypeError: If the kernel's class is not registered.
            ValueError: If the kernel has a batch, or more summands than frequencies.

        Example:
            >>> from gpytorch.kernels import MaternKernel, ScaleKernel
            >>> kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
            >>> kernel.outputscale = 4.0
            >>> prior = FourierPrior.from_kernel(kernel, 1, 30, generator=torch.Generator().manual_seed(0))
            >>> prior.num_coefficients, prior.log_hyperparameters.exp().round(decimals=4)
            (60, tensor([1., 2.], dtype=torch.float64))
        """
        if kernel.batch_shape:
            raise ValueError(f"the kernel must have no batch, got batch shape {tuple(kernel.batch_shape)}")
        with torch.no_grad():
            parts = components_of(kernel, num_inputs)
            base = draw_for_kernel(kernel, num_inputs, 2 * num_frequencies, draws=draws, generator=generator)
            frequencies = kernel_frequencies(parts, base)
            # Frequencies are in the order of the summands, the first ones having one more where shares are uneven.
            share, rest = divmod(num_frequencies, len(parts))
            counts = [share + (index < rest) for index in range(len(parts))]
            weights = torch.cat(
                [(part.weight / count).reshape(1).expand(count) for part, count in zip(parts, counts, strict=True)]
            )
        return cls(frequencies, 1.0, weights.sum().sqrt(), prior_stddev=prior_stddev, frequency_weights=weights)

    @property
    def num_coefficients(self) -> int:
        """Two for each frequency, 2 M."""
        return 2 * self.frequencies.shape[0]

    def basis(self, X: Tensor, hyperparameters: Tensor | None = None) -> Tensor:
        """Scaled features (..., 2 M, N) at inputs X (N, D), row 2m the cosine and 2m + 1 the sine.

        Raises:
            ValueError: If the inputs do not have as many columns as the frequencies.
        """
        logs = self.log_hyperparameters if hyperparameters is None else hyperparameters
        return fourier_basis(self._frequencies(X, logs), X) * self._scales(logs).unsqueeze(-1)

    def evaluate(self, coefficients: Tensor, X: Tensor, hyperparameters: Tensor) -> Tensor:
        """Sums of features (..., R, N) at inputs X (N, D); see :func:`fourier_sum`."""
        scaled = coefficients * self._scales(hyperparameters).unsqueeze(-2)
        return fourier_sum(scaled, self._frequencies(X, hyperparameters), X)

    def _frequencies(self, X: Tensor, logs: Tensor) -> Tensor:
        """Frequencies over length scales, shape (..., M, D)."""
        if X.shape[-1] != self.frequencies.shape[-1]:
            raise ValueError(f"the frequencies have {self.frequencies.shape[-1]} column(s), the inputs {X.shape[-1]}")
        return self.frequencies * (-logs[..., None, :-1]).exp()

    def _scales(self, logs: Tensor) -> Tensor:
        """Factors of the features, shape (..., 2 M)."""
        return self.frequency_weights.sqrt().repeat_interleave(2) * logs[..., -1:].exp()


def weight_prior(X: Tensor, num_frequencies: int = 30, *, generator: torch.Generator | None = None) -> FourierPrior:
    r"""Functions that change over :math:`\sqrt D` standard deviations of every input column, of amplitude one.

    Shapes: ``X`` (N, D).
    """
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    spread = X.std(0, unbiased=False)
    # A column that does not change has no effect, whatever its length scale.
    scale = torch.where(spread > 0, spread, torch.ones_like(spread)) * X.shape[1] ** 0.5
    return FourierPrior(normal_draws((num_frequencies, X.shape[1]), X, generator), scale)


def fourier_basis(frequencies: Tensor, X: Tensor) -> Tensor:
    """Cosines and sines of all angles, interleaved, shape (..., 2 M, N).

    Shapes: ``frequencies`` (..., M, D), ``X`` (N, D).
    """
    angles = frequencies @ X.mT
    return torch.stack([angles.cos(), angles.sin()], -2).flatten(-3, -2)


def fourier_sum(coefficients: Tensor, frequencies: Tensor, X: Tensor) -> Tensor:
    r"""Sums of cosines and sines, shape (..., R, N), the same as ``coefficients @ fourier_basis(frequencies, X)``.

    .. math:: f(x) = \sum_m z_{2m-1} \cos(\omega_m^\top x) + z_{2m} \sin(\omega_m^\top x)

    Shapes: ``coefficients`` (..., R, 2 M), ``frequencies`` (..., M, D), ``X`` (N, D).
    """
    result: Tensor = _FourierSum.apply(  # type: ignore[no-untyped-call]
        coefficients[..., 0::2].contiguous(), coefficients[..., 1::2].contiguous(), frequencies, X.detach()
    )
    return result


class _FourierSum(torch.autograd.Function):
    """The sum Z = A cos + B sin, which keeps its cosines and sines for the backward pass."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, B: Tensor, frequencies: Tensor, X: Tensor) -> Tensor:
        angles = frequencies @ X.mT
        sines, cosines = angles.sin(), angles.cos_()  # memory is what costs here
        ctx.save_for_backward(A, B, frequencies, X, cosines, sines)
        return A @ cosines + B @ sines

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        A, B, frequencies, X, cosines, sines = ctx.saved_tensors
        if torch.is_grad_enabled():
            # For second derivatives cosines and sines are functions of the frequencies, not constants.
            angles = frequencies @ X.mT
            cosines, sines = angles.cos(), angles.sin()
        # The gradient, and its products with each column of the inputs, against the whole basis at once.
        factors = torch.cat([torch.ones_like(X[:, :1]), X], -1).mT.unsqueeze(-2)  # (1 + D, 1, N)
        stacked = (gradient.unsqueeze(-3) * factors).flatten(-3, -2)
        rows = (factors.shape[0], gradient.shape[-2])
        with_cosines = (stacked @ cosines.mT).unflatten(-2, rows)  # (..., 1 + D, R, M)
        with_sines = (stacked @ sines.mT).unflatten(-2, rows)
        turned = B.unsqueeze(-3) * with_cosines[..., 1:, :, :] - A.unsqueeze(-3) * with_sines[..., 1:, :, :]
        return with_cosines[..., 0, :, :], with_sines[..., 0, :, :], turned.sum(-2).mT, None
