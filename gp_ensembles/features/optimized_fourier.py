"""Fourier features whose frequencies are themselves hyperparameters."""

import math
from typing import Self, final

import torch
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap, PriorVariance
from gp_ensembles.features.fourier import bind_fourier, draw_for_kernel, kernel_frequencies
from gp_ensembles.features.shapes import positive_like
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.frequencies import components_of, kernel_outputscale


@final
class OptimizedFourierFeatures(FeatureMap):
    r"""Sines and cosines at trainable frequencies (sparse spectrum GP; Lazaro-Gredilla et al., 2010).

    .. math:: \phi(x) = \sqrt{\tfrac{2}{F}} \big[\sin(\omega_r^\top x)_{r \le F/2},
              \cos(\omega_r^\top x)_{r \le F/2}\big]

    The frequencies are :class:`torch.nn.Parameter`; there are F D / 2 of them, so fit them on enough rows.

    Args:
        frequencies: Initial angular frequencies, radians per unit of the inputs, shape (\*batch, F/2, D).
        prior_variance: Initial prior variance of every weight, in squared units of the target: a number or
            shape (\*batch).

    Raises:
        TypeError: If the frequencies are not a floating point tensor.
        ValueError: If they have fewer than two axes or are not finite.

    Example:
        >>> import torch
        >>> features = OptimizedFourierFeatures(torch.tensor([[1.0], [2.0]]).double())
        >>> features(torch.zeros(1, 1).double()).detach()
        tensor([[0.0000, 0.0000, 0.7071, 0.7071]], dtype=torch.float64)
    """

    def __init__(self, frequencies: Tensor, prior_variance: float | Tensor = 1.0) -> None:
        if not frequencies.is_floating_point():
            raise TypeError(f"frequencies must be a floating point tensor, got {frequencies.dtype}")
        if frequencies.ndim < 2:
            raise ValueError(f"frequencies must have shape (*batch, F/2, D), got {tuple(frequencies.shape)}")
        if frequencies.device.type != "meta" and not bool(torch.isfinite(frequencies).all()):
            raise ValueError("frequencies must be finite, at least one is NaN or infinite")
        batch_shape = frequencies.shape[:-2]
        super().__init__(frequencies.shape[-1], 2 * frequencies.shape[-2], batch_shape)
        self.prior: PriorVariance = PriorVariance(
            batch_shape, positive_like(prior_variance, frequencies, "prior_variance")
        )
        self.frequencies: nn.Parameter = nn.Parameter(frequencies.detach().clone())

    @classmethod
    def from_kernel(
        cls,
        kernel: Kernel,
        num_inputs: int,
        num_features: int,
        *,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Start at independent draws from a kernel's spectral density; the kernel is not kept.

        Args:
            kernel: The kernel, of a registered class and without a sum; its batch is the map's.
            num_inputs: Number of input columns D.
            num_features: Number of features F, even.
            generator: Source of randomness; torch's global one if ``None``.

        Raises:
            TypeError: If the kernel's class is not registered.
            ValueError: If F is odd or the kernel is a sum.
        """
        with torch.no_grad():
            base = draw_for_kernel(kernel, num_inputs, num_features, generator=generator)
            components = components_of(kernel, num_inputs)
            if len(components) > 1:
                raise ValueError(
                    f"the kernel is a sum of {len(components)}, but these features have one prior variance; build one "
                    f"map for each summand and join them with Concatenate"
                )
            outputscale = kernel_outputscale(components, torch.Size(kernel.batch_shape))
            return cls(kernel_frequencies(components, base), outputscale)

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of each weight, shape (\*batch), differentiable."""
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Read the frequencies once and return the map as a plain function of tensors."""
        return bind_fourier(self.frequencies, math.sqrt(2.0 / self.num_features))
