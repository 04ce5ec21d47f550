"""Random frequencies of GPyTorch kernels: base draws, transformed to the spectral density of a kernel.

One registry, :func:`spectral_components`, knows the kernels; users can add kernels. The quantiles that draws
go through are differentiable in the distribution's parameters to third order: each root is found without gradients,
inside a guaranteed bracket; two Newton steps of plain operations then give the implicit function's derivatives, in
reverse and in forward mode. Everything is computed in double precision.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple, final

import torch
from gpytorch.kernels import AdditiveKernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel, SpectralMixtureKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.density import lengthscale_of, registered

_NUM_NODES = 140
_LOWER, _UPPER = -4.0, 5.5  # ends of the double-exponential rule, see _scaled_integral
_NUM_NEWTON = 40
_NUM_HALVINGS = 64
_SPARSE = 1e-8  # hazard, in units of the mixture's width, below which derivatives are dropped, see below


class BaseDraws(NamedTuple):
    r"""Draws that a kernel turns into frequencies."""

    normals: Tensor  # standard normal variables, (*batch, R, D)
    uniforms: Tensor  # uniform variables in (0, 1), one for each frequency (mixing variable), (*batch, R)


class FrequencyDraws(ABC):
    """A way to draw R base points: independent, orthogonal, or of low discrepancy."""

    @abstractmethod
    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Normals (R, D) and uniforms (R,) of R frequencies, in double precision on the generator's device."""


@final
class IIDDraws(FrequencyDraws):
    """Independent draws (Rahimi and Recht, 2007).

    Example:
        >>> IIDDraws().draw(6, 2).normals.shape
        torch.Size([6, 2])
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Independent normals and uniforms."""
        return BaseDraws(_randn(num_draws, num_inputs, generator), _rand(num_draws, generator))


@final
class OrthogonalDraws(FrequencyDraws):
    """Frequencies orthogonal to one another in blocks of D, with independent lengths (Yu et al., 2016).

    Each frequency by itself is standard normal. The variance of the kernel estimate falls for D > 1; in one
    dimension these are independent draws.

    Example:
        >>> normals = OrthogonalDraws().draw(2, 2).normals
        >>> bool((normals[0] @ normals[1]).abs() < 1e-12)
        True
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Uniformly distributed orthogonal bases, their rows with the lengths of normal vectors."""
        num_blocks = math.ceil(num_draws / num_inputs)
        square = _randn(num_blocks * num_inputs, num_inputs, generator).reshape(num_blocks, num_inputs, num_inputs)
        basis, triangle = torch.linalg.qr(square)
        basis = basis * triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # makes it Haar distributed
        directions = basis.reshape(-1, num_inputs)[:num_draws]
        lengths = _randn(num_draws, num_inputs, generator).norm(dim=-1, keepdim=True)
        return BaseDraws(directions * lengths, _rand(num_draws, generator))


@final
class SobolDraws(FrequencyDraws):
    """Scrambled Sobol points through the normal quantile function (Avron et al., 2016).

    Example:
        >>> draws = SobolDraws().draw(64, 1, generator=torch.Generator().manual_seed(0))
        >>> bool(draws.normals.mean().abs() < 0.02)
        True
    """

    def draw(self, num_draws: int, num_inputs: int, *, generator: torch.Generator | None = None) -> BaseDraws:
        """Scrambled Sobol points; the last dimension gives the uniforms."""
        if num_inputs + 1 > SobolEngine.MAXDIM:
            raise ValueError(
                f"Sobol points exist for up to {SobolEngine.MAXDIM - 1} inputs, got {num_inputs}; use IIDDraws()"
            )
        device = generator_device(generator)
        seed = int(torch.randint(2**31 - 1, (), generator=generator, device=device))
        engine = SobolEngine(num_inputs + 1, scramble=True, seed=seed)
        points = engine.draw(num_draws, dtype=torch.float64).to(device)
        points = (points + 2.0**-32).clamp_max(1.0 - 2.0**-32)  # off the ends of [0, 1]
        return BaseDraws(torch.special.ndtri(points[:, :-1]), points[:, -1].clone())


def draw_batch(
    draws: FrequencyDraws,
    num_draws: int,
    num_inputs: int,
    batch_shape: torch.Size,
    *,
    generator: torch.Generator | None = None,
) -> BaseDraws:
    r"""Independent base draws for every expert of a batch.

    Returns: normals (\*batch, R, D) and uniforms (\*batch, R), in double precision.
    """
    parts = [draws.draw(num_draws, num_inputs, generator=generator) for _ in range(batch_shape.numel())]
    normals = torch.stack([part.normals for part in parts]).reshape(*batch_shape, num_draws, num_inputs)
    uniforms = torch.stack([part.uniforms for part in parts]).reshape(*batch_shape, num_draws)
    return BaseDraws(normals, uniforms)


class SpectralComponent(NamedTuple):
    r"""One stationary summand of a kernel, :math:`w\,\mathrm{E}[\cos \omega^\top (x - x')]`."""

    weight: Tensor  # output scale w, (*batch) or one that broadcasts to it
    num_normals: int  # number of standard normals d that a frequency is made of
    # differentiable transform of base draws, normals (*batch, R, d) and uniforms (*batch, R), to angular frequencies
    # (*batch, R, D)
    frequencies: Callable[[BaseDraws], Tensor]


Components = tuple[SpectralComponent, ...]


@singledispatch
def spectral_components(kernel: Kernel, num_inputs: int) -> Components:
    r"""The stationary summands of a kernel; register a function for your own kernel class.

    The function is given the kernel and the number of columns that the kernel's ``forward`` sees (those of
    ``active_dims``), reads the hyperparameters, and returns components whose frequencies have as many entries.
    A subclass has to be registered by itself: it may compute another kernel than its parent.

    Args:
        kernel: The kernel.
        num_inputs: Number of columns D that the kernel's ``forward`` sees.

    Returns:
        One component for every summand.

    Raises:
        TypeError: If the kernel's class is not registered.

    Example:
        >>> class Broad(RBFKernel):
        ...     pass
        >>> @spectral_components.register(Broad)
        ... def _(kernel, num_inputs):
        ...     weight = kernel.lengthscale.new_ones(kernel.batch_shape)
        ...     scale = lambda draws: draws.normals / kernel.lengthscale
        ...     return (SpectralComponent(weight, num_inputs, scale),)
        >>> len(components_of(Broad(), num_inputs=2))
        1
    """
    return _forward_components(kernel, num_inputs)


def components_of(kernel: Kernel, num_inputs: int) -> Components:
    r"""The stationary summands of a kernel that is called on all D columns; ``active_dims`` are respected.

    Their frequencies have shape (\*batch, R, D).
    """
    active = kernel.active_dims
    if active is None:
        return _forward_components(kernel, num_inputs)
    if active.device.type == "cpu" and (int(active.max()) >= num_inputs or int(active.min()) < 0):
        raise ValueError(
            f"active_dims {active.tolist()} of {type(kernel).__name__} are not among the {num_inputs} input columns"
        )
    return tuple(
        SpectralComponent(part.weight, part.num_normals, _scattered(part.frequencies, active, num_inputs))
        for part in _forward_components(kernel, len(active))
    )


def _forward_components(kernel: Kernel, num_inputs: int) -> Components:
    components: Components = registered(spectral_components, kernel, "spectral form")(kernel, num_inputs)
    return components


def _scattered(inner: Callable[[BaseDraws], Tensor], active: Tensor, num_inputs: int) -> Callable[[BaseDraws], Tensor]:
    def frequencies(draws: BaseDraws) -> Tensor:
        value = inner(draws)
        return value.new_zeros(*value.shape[:-1], num_inputs).index_copy(-1, active, value)

    return frequencies


@spectral_components.register(RBFKernel)
def _rbf(kernel: RBFKernel, num_inputs: int) -> Components:
    lengthscale = lengthscale_of(kernel, num_inputs)
    weight = lengthscale.new_ones(kernel.batch_shape)
    return (SpectralComponent(weight, num_inputs, lambda draws: draws.normals / lengthscale),)


@spectral_components.register(MaternKernel)
def _matern(kernel: MaternKernel, num_inputs: int) -> Components:
    r"""Multivariate Student-t with :math:`2\nu` degrees of freedom: z / sqrt(gamma(nu) / nu)."""
    lengthscale = lengthscale_of(kernel, num_inputs)
    nu = float(kernel.nu)

    def frequencies(draws: BaseDraws) -> Tensor:
        log_gamma = log_gamma_quantile(draws.uniforms.new_full((), nu), draws.uniforms)
        stretch = (0.5 * (math.log(nu) - log_gamma)).exp().unsqueeze(-1)
        return draws.normals * stretch / lengthscale

    return (SpectralComponent(lengthscale.new_ones(kernel.batch_shape), num_inputs, frequencies),)


@spectral_components.register(RQKernel)
def _rational_quadratic(kernel: RQKernel, num_inputs: int) -> Components:
    r"""Normals with a random precision: z * sqrt(gamma(alpha) / alpha)."""
    lengthscale = lengthscale_of(kernel, num_inputs)
    alpha: Tensor = kernel.alpha  # (*batch, 1)

    def frequencies(draws: BaseDraws) -> Tensor:
        log_gamma = log_gamma_quantile(alpha, draws.uniforms)
        stretch = (0.5 * (log_gamma - alpha.log())).exp().unsqueeze(-1)
        return draws.normals * stretch / lengthscale

    return (SpectralComponent(lengthscale.new_ones(kernel.batch_shape), num_inputs, frequencies),)


@spectral_components.register(SpectralMixtureKernel)
def _spectral_mixture(kernel: SpectralMixtureKernel, num_inputs: int) -> Components:
    r"""One column: a component per mixture component, :math:`\omega = 2\pi(\mu_q + \sigma_q z)`; several: a product."""
    if kernel.ard_num_dims != num_inputs:
        raise ValueError(
            f"SpectralMixtureKernel has means for {kernel.ard_num_dims} column(s) but sees {num_inputs} input "
            f"column(s); set ard_num_dims or active_dims to match"
        )
    if num_inputs > 1:
        return (_mixture_product(kernel, num_inputs),)
    weights: Tensor = kernel.mixture_weights
    means: Tensor = kernel.mixture_means
    scales: Tensor = kernel.mixture_scales

    def component(q: int) -> SpectralComponent:
        mean, scale = means[..., q, :, :], scales[..., q, :, :]  # (*batch, 1, 1)
        return SpectralComponent(weights[..., q], 1, lambda draws: 2.0 * math.pi * (mean + scale * draws.normals))

    return tuple(component(q) for q in range(kernel.num_mixtures))


def _mixture_product(kernel: SpectralMixtureKernel, num_inputs: int) -> SpectralComponent:
    """Several columns: GPyTorch multiplies the columns' mixtures, which share the weights (it adds inside a column)."""
    weights: Tensor = kernel.mixture_weights  # (*batch, Q)
    total = weights.sum(-1)
    shares = (weights / total.unsqueeze(-1))[..., None, None, :]
    means, scales = (value.movedim(-3, -1) for value in (kernel.mixture_means, kernel.mixture_scales))

    def frequencies(draws: BaseDraws) -> Tensor:
        return 2.0 * math.pi * mixture_quantile(shares, means, scales, draws.normals)

    return SpectralComponent(total**num_inputs, num_inputs, frequencies)


@spectral_components.register(ScaleKernel)
def _scale(kernel: ScaleKernel, num_inputs: int) -> Components:
    # GPyTorch calls base_kernel.forward here: the base's own active_dims are those of the ScaleKernel
    outputscale = kernel.outputscale
    return tuple(
        part._replace(weight=outputscale * part.weight) for part in _forward_components(kernel.base_kernel, num_inputs)
    )


@spectral_components.register(AdditiveKernel)
def _additive(kernel: AdditiveKernel, num_inputs: int) -> Components:
    return tuple(part for summand in kernel.kernels for part in components_of(summand, num_inputs))


def kernel_outputscale(components: Components, batch_shape: torch.Size) -> Tensor:
    r"""Sum of the components' weights: the prior variance of the whole kernel, shape (\*batch)."""
    return torch.stack([part.weight.expand(batch_shape) for part in components]).sum(0)


def _randn(num_rows: int, num_columns: int, generator: torch.Generator | None) -> Tensor:
    shape = (num_rows, num_columns)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator_device(generator))


def _rand(num_rows: int, generator: torch.Generator | None) -> Tensor:
    value = torch.rand(num_rows, generator=generator, dtype=torch.float64, device=generator_device(generator))
    return value * (1.0 - 2.0**-51) + 2.0**-52  # the open interval


def log_gamma_quantile(shape: Tensor, probability: Tensor) -> Tensor:
    r"""Logarithm of the quantile of a gamma distribution of unit rate.

    .. math:: s(a, u) = \log t \quad\text{with}\quad P(a, t) = \frac{1}{\Gamma(a)} \int_0^t v^{a-1} e^{-v} dv = u
    """
    a, u = torch.broadcast_tensors(shape.double(), probability.detach().double())
    log_t = _solve_gamma(a.detach(), u)
    for _ in range(2):
        # (P - u) / dP/ds with s = log t, dP/ds = exp(a s - t) / Gamma(a)
        log_slope = a * log_t - log_t.exp() - torch.lgamma(a)
        log_t = log_t - (_scaled_integral(a, log_t) - (u.log() - log_slope).exp())
    return log_t.to(shape.dtype)


def mixture_quantile(weights: Tensor, means: Tensor, scales: Tensor, normals: Tensor) -> Tensor:
    r"""Map a standard normal variable z to a symmetric mixture of normals, by quantiles.

    .. math:: \sum_q \tfrac{p_q}{2} \Big[\Phi\Big(\frac{v - \mu_q}{s_q}\Big) + \Phi\Big(\frac{v + \mu_q}{s_q}\Big)\Big]
              = \Phi(z)

    Shapes: ``weights`` (..., Q), ``means`` (..., Q), ``scales`` (..., Q).
    """
    p, m, s = weights.double(), means.double(), scales.double()
    z = normals.detach().double()
    tail = 0.5 * torch.erfc(z.abs() / math.sqrt(2.0))  # torch.special.ndtr loses the digits of small tails
    width = (m.detach().abs() + s.detach() * z.abs().unsqueeze(-1)).amax(-1)
    root = _solve_mixture(p.detach(), m.detach(), s.detach(), tail, width)
    for _ in range(2):
        excess, density = _upper_tail(p, m, s, root) - tail, _density(p, m, s, root)
        steep = density.detach() * width > _SPARSE * tail
        root = root + torch.where(steep, excess / torch.where(steep, density, 1.0), 0.0)
    return (root * z.sign()).to(means.dtype)


def _solve_gamma(a: Tensor, u: Tensor) -> Tensor:
    """Root in log t, without derivatives; bracketed by P <= t^a / Gamma(a + 1) and a Chernoff bound on 1 - P."""
    lower = (u.log() + torch.lgamma(a + 1.0)) / a
    upper = torch.maximum((1.4 * a - 2.0 * torch.log1p(-u)).log(), lower)
    log_t = 0.5 * (lower + upper)
    for _ in range(_NUM_NEWTON):
        excess = torch.special.gammainc(a, log_t.exp()) - u
        upper = torch.where(excess > 0, log_t, upper)
        lower = torch.where(excess > 0, lower, log_t)
        proposal = log_t - excess * (torch.lgamma(a) + log_t.exp() - a * log_t).exp()
        inside = (proposal >= lower) & (proposal <= upper)
        log_t = torch.where(inside, proposal, 0.5 * (lower + upper))
    return log_t


def _scaled_integral(a: Tensor, log_t: Tensor) -> Tensor:
    """P(a, t) / (dP / d log t) = int_0^inf exp(-a y + t (1 - exp(-y))) dy by the trapezoidal rule."""
    step = (_UPPER - _LOWER) / (_NUM_NODES - 1)
    x = _LOWER + step * torch.arange(_NUM_NODES, dtype=a.dtype, device=a.device)
    scale = (1.0 / a + a.rsqrt()).detach().unsqueeze(-1)
    y = scale * (x - (-x).exp()).exp()
    jacobian = y * (1.0 + (-x).exp()) * step
    exponent = -a.unsqueeze(-1) * y - log_t.exp().unsqueeze(-1) * torch.expm1(-y)
    return (exponent + jacobian.clamp_min(math.exp(-700.0)).log()).exp().sum(-1)


def _solve_mixture(p: Tensor, m: Tensor, s: Tensor, tail: Tensor, width: Tensor) -> Tensor:
    """Root without derivatives: the upper tail is a half at zero, and at most ``tail`` at ``width``."""
    upper = width.clone()
    lower = torch.zeros_like(upper)
    for _ in range(_NUM_HALVINGS):
        middle = 0.5 * (lower + upper)
        below = _upper_tail(p, m, s, middle) > tail
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return 0.5 * (lower + upper)


def _upper_tail(p: Tensor, m: Tensor, s: Tensor, v: Tensor) -> Tensor:
    near, far = _standardized(m, s, v)
    # erfc and not the logarithm of a tail: the derivatives of all orders are finite for every argument
    return 0.25 * (p * (torch.erfc(near) + torch.erfc(far))).sum(-1)


def _density(p: Tensor, m: Tensor, s: Tensor, v: Tensor) -> Tensor:
    near, far = _standardized(m, s, v)
    heights = (-near.square()).exp() + (-far.square()).exp()
    return (p / s * heights).sum(-1) / math.sqrt(8.0 * math.pi)


def _standardized(m: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Distances from the two means of each component, over the square root of two scales."""
    scale, v = math.sqrt(2.0) * s, v.unsqueeze(-1)
    return (v - m) / scale, (v + m) / scale
