"""Fourier features of a stationary GPyTorch kernel: at random frequencies, and at frequencies that are trained."""

import math
from typing import Self, final

import torch
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap, PriorVariance, insert_batch, positive_like
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.frequencies import (
    BaseDraws,
    Components,
    FrequencyDraws,
    IIDDraws,
    components_of,
    draw_batch,
    kernel_outputscale,
)


@final
class RandomFourierFeatures(FeatureMap):
    r"""Sines and cosines at random frequencies, whose Gram matrix is an unbiased estimate of the kernel.

    .. math:: \phi(x) = \sqrt{\tfrac{2}{F}} \big[\sin(\omega_1^\top x), \dots, \sin(\omega_{F/2}^\top x),
              \cos(\omega_1^\top x), \dots, \cos(\omega_{F/2}^\top x)\big]

    with :math:`\omega_r` from the normalized spectral density of the kernel (Rahimi and Recht, 2007;
    Lazaro-Gredilla et al., 2010), so that :math:`\phi(x)^\top\phi(x) = 1`. The frequencies are a differentiable
    function of the kernel's hyperparameters and of base draws that never change.

    A sum of kernels shares the frequencies out evenly among its C summands, and the pair of summand c with
    :math:`R_c` frequencies is scaled by :math:`\sqrt{w_c / (R_c \sum_b w_b)}`, where w are the output scales;
    :attr:`prior_variance` is their sum.

    A ``SpectralMixtureKernel`` on one column is such a sum. On several columns it is a product of the columns' mixtures
    and one summand: the columns of a frequency are independent quantiles of the mixtures, right for every way to draw
    (orthogonal draws stay unbiased, but are no longer orthogonal nor better than independent ones). Where a mixture's
    components hardly overlap, few frequencies tell how their shares should change: start from good weights there.

    The kernel given is kept, not copied: its constraints and priors go on working. Use :meth:`from_kernel` or
    :meth:`from_kernels` to make the base draws.

    Args:
        kernel: The kernel, of a registered class (``gp_ensembles.spectral.frequencies.spectral_components``).
        num_inputs: Number of input columns D.
        base: Base draws in the kernel's dtype, normals (\*batch, F/2, D) and uniforms (\*batch, F/2); a summand
            that sees d columns uses the first d normals.

    Raises:
        TypeError: If the kernel's class is not registered.
        ValueError: If the shapes of the draws do not fit the kernel, or there are fewer frequencies than summands.

    Example:
        >>> from gpytorch.kernels import MaternKernel, ScaleKernel
        >>> kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)).double()
        >>> features = RandomFourierFeatures.from_kernel(kernel, 2, num_features=100)
        >>> Phi = features(torch.zeros(3, 2, dtype=torch.float64))
        >>> Phi.shape, bool((Phi.square().sum(-1) - 1).abs().max() < 1e-12)
        (torch.Size([3, 100]), True)
    """

    normals: Tensor
    uniforms: Tensor

    def __init__(self, kernel: Kernel, num_inputs: int, base: BaseDraws) -> None:
        batch_shape = torch.Size(kernel.batch_shape)
        num_frequencies = base.normals.shape[-2]
        super().__init__(num_inputs, 2 * num_frequencies, batch_shape)
        expected = (*batch_shape, num_frequencies, num_inputs)
        if base.normals.shape != expected or base.uniforms.shape != expected[:-1]:
            raise ValueError(
                f"base draws must have shapes {expected} and {expected[:-1]} for this kernel, got "
                f"{tuple(base.normals.shape)} and {tuple(base.uniforms.shape)}"
            )
        with torch.no_grad():
            components = components_of(kernel, num_inputs)
        _allocate(num_frequencies, len(components))
        self.kernel = kernel
        self.register_buffer("normals", base.normals)
        self.register_buffer("uniforms", base.uniforms)

    @classmethod
    def from_kernel(
        cls,
        kernel: Kernel,
        num_inputs: int,
        num_features: int,
        *,
        draws: FrequencyDraws | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        r"""Draw base points for a kernel.

        Args:
            kernel: The kernel, of a registered class; kept, not copied. Its batch is the map's.
            num_inputs: Number of input columns D.
            num_features: Number of features F, even: two for each frequency.
            draws: How to draw; ``IIDDraws()`` if ``None``. Every expert and every summand has its own draws.
            generator: Source of randomness; torch's global one if ``None``.

        Raises:
            TypeError: If the kernel's class is not registered.
            ValueError: If F is odd, or smaller than twice the number of summands.
        """
        base = draw_for_kernel(kernel, num_inputs, num_features, draws=draws, generator=generator)
        return cls(kernel, num_inputs, base)

    @property
    def prior_variance(self) -> Tensor:
        r"""Sum of the output scales of the kernel's summands, shape (\*batch), differentiable."""
        return kernel_outputscale(components_of(self.kernel, self.num_inputs), self.batch_shape)

    def frequencies(self) -> Tensor:
        r"""Angular frequencies in radians per unit of the inputs, shape (\*batch, F/2, D), differentiable."""
        components = components_of(self.kernel, self.num_inputs)
        return kernel_frequencies(components, BaseDraws(self.normals, self.uniforms))

    def bind(self) -> BoundFeatures:
        components = components_of(self.kernel, self.num_inputs)
        omega = kernel_frequencies(components, BaseDraws(self.normals, self.uniforms))
        num_frequencies = omega.shape[-2]
        if len(components) == 1:
            return bind_fourier(omega, 1.0 / math.sqrt(num_frequencies))
        total = kernel_outputscale(components, self.batch_shape)
        counts = _allocate(num_frequencies, len(components))
        scales = [
            (part.weight / total / count).sqrt().unsqueeze(-1).expand(*self.batch_shape, count)
            for part, count in zip(components, counts, strict=True)
        ]
        return bind_fourier(omega, torch.cat([*scales, *scales], dim=-1).unsqueeze(-2))


def draw_for_kernel(
    kernel: Kernel,
    num_inputs: int,
    num_features: int,
    *,
    draws: FrequencyDraws | None = None,
    generator: torch.Generator | None = None,
) -> BaseDraws:
    r"""Base draws for a kernel, in its dtype and on its device.

    Returns: normals (\*batch, F/2, D), in unused columns zero, and uniforms (\*batch, F/2).
    """
    if num_features < 2 or num_features % 2:
        raise ValueError(
            f"Fourier features come in pairs (sine, cosine): num_features must be even, got {num_features}"
        )
    with torch.no_grad():
        components = components_of(kernel, num_inputs)
    counts = _allocate(num_features // 2, len(components))
    how, batch_shape = IIDDraws() if draws is None else draws, torch.Size(kernel.batch_shape)
    like = components[0].weight
    normals, uniforms = [], []
    for part, count in zip(components, counts, strict=True):
        drawn = draw_batch(how, count, part.num_normals, batch_shape, generator=generator)
        padding = num_inputs - part.num_normals
        normals.append(torch.nn.functional.pad(drawn.normals, (0, padding)).to(like))
        uniforms.append(drawn.uniforms.to(like))
    return BaseDraws(torch.cat(normals, dim=-2), torch.cat(uniforms, dim=-1))


def kernel_frequencies(components: Components, base: BaseDraws) -> Tensor:
    r"""Angular frequencies of a kernel's components from base draws, shape (\*batch, F/2, D), differentiable."""
    counts = _allocate(base.normals.shape[-2], len(components))
    parts = zip(components, base.normals.split(counts, dim=-2), base.uniforms.split(counts, dim=-1), strict=True)
    return torch.cat(
        [part.frequencies(BaseDraws(normals[..., : part.num_normals], uniforms)) for part, normals, uniforms in parts],
        dim=-2,
    )


def bind_fourier(omega: Tensor, scale: float | Tensor) -> BoundFeatures:
    r"""Sines, then cosines, at fixed frequencies, as a plain function of X.

    Shapes: ``omega`` (\*batch, R, D), ``scale`` (\*batch, 1, 2 R).
    """
    batch_shape, (num_frequencies, num_inputs) = omega.shape[:-2], omega.shape[-2:]
    num_experts, num_features = batch_shape.numel(), 2 * num_frequencies
    flat = omega.reshape(num_experts, num_frequencies, num_inputs)
    weight = torch.cat([flat, flat], dim=-2).mT.contiguous()  # (batch, D, 2 R)
    # A cosine is a sine a quarter of a turn ahead: so nothing has to be put together, which costs as much as the sines.
    phase = omega.new_zeros(num_features)
    phase[num_frequencies:] = 0.5 * math.pi

    def features(X: Tensor) -> Tensor:
        if X.ndim == 2:
            angles = torch.baddbmm(phase, X.expand(num_experts, *X.shape), weight)
            shape = (*batch_shape, X.shape[0], num_features)
        else:
            angles = insert_batch(X, batch_shape) @ weight.reshape(*batch_shape, num_inputs, num_features) + phase
            shape = angles.shape
        # In place only where nothing is differentiated: autograd copies what is overwritten.
        return (angles.sin() if angles.requires_grad else angles.sin_()).reshape(shape) * scale

    return features


def fourier_features(omega: Tensor, X: Tensor) -> Tensor:
    r"""Sines, then cosines, where every expert has inputs of its own, so that :math:`\phi(x)^\top \phi(x) = 1`.

    .. math:: \phi(x) = R^{-1/2} \big[\sin(\omega_1^\top x), \dots, \sin(\omega_R^\top x),
              \cos(\omega_1^\top x), \dots, \cos(\omega_R^\top x)\big]

    Shapes: ``omega`` (\*batch, R, D), ``X`` (\*batch, N, D); returns (\*batch, N, 2 R).
    """
    angles = X @ omega.mT
    return torch.cat([angles.sin(), angles.cos()], dim=-1) / math.sqrt(omega.shape[-2])


def _allocate(num_frequencies: int, num_components: int) -> list[int]:
    """Shares of the frequencies, as even as can be, the first summands first."""
    if num_frequencies < num_components:
        raise ValueError(
            f"{num_frequencies} frequencies are too few for a kernel of {num_components} summands; use at least "
            f"{2 * num_components} features"
        )
    share, rest = divmod(num_frequencies, num_components)
    return [share + (index < rest) for index in range(num_components)]


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
        cls, kernel: Kernel, num_inputs: int, num_features: int, *, generator: torch.Generator | None = None
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
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Read the frequencies once and return the map as a plain function of tensors."""
        return bind_fourier(self.frequencies, math.sqrt(2.0 / self.num_features))
