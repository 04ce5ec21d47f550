"""Spectral mixture kernels: mixtures padded to equal size, their covariance functions, and a GPyTorch kernel."""

import functools
import math
from typing import NamedTuple, final

import gpytorch
import torch
from gpytorch.constraints import Positive
from torch import Tensor

from gp_ensembles.spectral.frequencies import BaseDraws, Components, SpectralComponent, spectral_components


class SpectralMixtures(NamedTuple):
    r"""Spectral densities as mixtures of at most Q normal distributions; absent components have weight zero.

    .. math:: k(\tau) = \sum_q w_q \exp(-2\pi^2 \|s_q \circ \tau\|^2) \cos(2\pi\, m_q^\top \tau)
    """

    weights: Tensor  # w, (*batch, Q)
    means: Tensor  # mean frequencies m in cycles per input unit, (*batch, Q, D)
    scales: Tensor  # standard deviations s of the frequencies in the same unit, (*batch, Q, D)

    @property
    def num_inputs(self) -> int:
        """Number of inputs D."""
        return self.means.shape[-1]

    @property
    def num_components(self) -> Tensor:
        r"""Number of components of each mixture, shape (\*batch)."""
        return (self.weights != 0).sum(-1)

    def trim(self) -> "SpectralMixtures":
        """The same mixtures without unused columns (components come first, padding last)."""
        used = (self.weights != 0).flatten(0, -2).any(0) if self.weights.ndim > 1 else self.weights != 0
        size = max(int(used.nonzero().max()) + 1 if bool(used.any()) else 1, 1)
        return SpectralMixtures(self.weights[..., :size], self.means[..., :size, :], self.scales[..., :size, :])

    def take(self, index: int | slice | Tensor) -> "SpectralMixtures":
        """A subset of the mixtures, by an index into the batch."""
        return SpectralMixtures(self.weights[index], self.means[index], self.scales[index])


def covariance(mixtures: SpectralMixtures, x1: Tensor, x2: Tensor) -> Tensor:
    r"""Covariance matrices of the mixtures' processes, without noise.

    Shapes: ``x1`` (N1, D), ``x2`` (N2, D); returns (\*batch, N1, N2).
    """
    if mixtures.num_inputs == 1:
        return _stationary(mixtures, x1 - x2.mT)
    total = _component(mixtures, 0, x1, x2)
    for q in range(1, mixtures.weights.shape[-1]):
        total = total + _component(mixtures, q, x1, x2)
    return total


def covariance_at_lags(mixtures: SpectralMixtures, lags: Tensor) -> Tensor:
    r"""Covariances at given lags of one input, shape (U,); result (\*batch, U)."""
    return _stationary(mixtures, lags.unsqueeze(-2)).squeeze(-2)


def _stationary(mixtures: SpectralMixtures, lags: Tensor) -> Tensor:
    """One input: from lags (..., N1, N2), which avoids cancellation in a difference of squares."""
    total = lags.new_zeros(())
    for q in range(mixtures.weights.shape[-1]):
        weight = mixtures.weights[..., q, None, None]
        mean, scale = mixtures.means[..., q, :, None], mixtures.scales[..., q, :, None]
        decay = (-2.0 * math.pi**2 * (scale * lags).square()).exp()
        total = total + weight * decay * (2.0 * math.pi * mean * lags).cos()
    return total


def _component(mixtures: SpectralMixtures, q: int, x1: Tensor, x2: Tensor) -> Tensor:
    """One component for several inputs, by matrix products and one exponential for any D."""
    weight = mixtures.weights[..., q, None, None]
    mean, scale = mixtures.means[..., q, None, :], mixtures.scales[..., q, None, :]
    center = x1.mean(-2, keepdim=True).detach()  # stationary: only round-off depends on it
    x1, x2 = x1 - center, x2 - center
    decay = _decay(2.0 * math.pi * x1 * scale, 2.0 * math.pi * x2 * scale)
    phase1, phase2 = (2.0 * math.pi * (mean * x).sum(-1) for x in (x1, x2))
    left = torch.stack([phase1.cos(), phase1.sin()], -1)
    right = torch.stack([phase2.cos(), phase2.sin()], -1)
    return weight * decay * (left @ right.mT)


def _decay(a: Tensor, b: Tensor) -> Tensor:
    """exp(-|a - b|^2 / 2), with the exponent as one matrix product to save memory traffic."""
    if a.dtype != torch.float64:  # products lose precision with the distance from the center
        apart = ((a[..., d, None] - b[..., None, :, d]).square() for d in range(a.shape[-1]))
        return (-0.5 * functools.reduce(torch.add, apart)).exp()
    half_a, half_b = (-0.5 * points.square().sum(-1, keepdim=True) for points in (a, b))
    left = torch.cat([a, half_a, torch.ones_like(half_a)], -1)
    right = torch.cat([b, torch.ones_like(half_b), half_b], -1)
    # Equal points round to either side of zero, where a clamp would remove the derivatives.
    return (left @ right.mT).exp()


@final
class SpectralMixtureKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    r"""Spectral mixture kernel, or a batch of them, with trainable weights, means and scales.

    .. math:: k(\tau) = \sum_q w_q \exp(-2\pi^2 \|s_q \circ \tau\|^2) \cos(2\pi\, m_q^\top \tau)

    Components absent from all mixtures are dropped; the others must be present in all of them. The kernel's columns
    are ``active_dims``, all if ``None``.

    Raises:
        ValueError: If shapes do not match, a weight or scale of a component is not positive, or a value is not finite.
    """

    is_stationary = True

    def __init__(self, mixtures: SpectralMixtures, *, active_dims: tuple[int, ...] | None = None) -> None:
        weights, means, scales = (value.detach() for value in mixtures)
        if means.ndim < 2 or means.shape != scales.shape or means.shape[:-1] != weights.shape or not means.numel():
            raise ValueError(
                f"shapes of weights (*batch, Q), means (*batch, Q, D) and scales (*batch, Q, D) do not match: "
                f"{tuple(weights.shape)}, {tuple(means.shape)} and {tuple(scales.shape)}"
            )
        used = (weights != 0).reshape(-1, weights.shape[-1]).any(0)
        if not bool(used.any()):
            raise ValueError("a mixture has no component: all weights are zero")
        super().__init__(ard_num_dims=means.shape[-1], batch_shape=weights.shape[:-1], active_dims=active_dims)
        if not bool(means.isfinite().all()):
            raise ValueError("mean frequencies must be finite")
        self.register_parameter("raw_mixture_means", torch.nn.Parameter(means[..., used, :].clone()))
        for name, value in (("weights", weights[..., used]), ("scales", scales[..., used, :])):
            if not bool(((value > 0) & value.isfinite()).all()):
                raise ValueError(f"mixture {name} must be positive and finite")
            raw = torch.nn.Parameter(Positive().inverse_transform(value))
            self.register_parameter(f"raw_mixture_{name}", raw)
            self.register_constraint(f"raw_mixture_{name}", Positive())

    @property
    def num_components(self) -> int:
        """Number of components Q."""
        return int(self.raw_mixture_weights.shape[-1])

    @property
    def mixtures(self) -> SpectralMixtures:
        r"""The mixtures, differentiable in the parameters, of batch shape (\*batch)."""
        weights = self.raw_mixture_weights_constraint.transform(self.raw_mixture_weights)
        scales = self.raw_mixture_scales_constraint.transform(self.raw_mixture_scales)
        return SpectralMixtures(weights, self.raw_mixture_means, scales)

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False) -> Tensor:
        r"""Covariances of rows (\*batch, N1, D) and (\*batch, N2, D): (\*batch, N1, N2), or (\*batch, N) if ``diag``.

        Raises:
            ValueError: If the rows have another number of inputs, or ``last_dim_is_batch`` is set.
        """
        if last_dim_is_batch:
            raise ValueError("SpectralMixtureKernel has no last_dim_is_batch; use a separate kernel for each column")
        mixtures = self.mixtures
        if x1.shape[-1] != mixtures.num_inputs:
            raise ValueError(_misfit(mixtures.num_inputs, x1.shape[-1]))
        if not diag:
            return covariance(mixtures, x1, x2)
        each = SpectralMixtures(*(value.unsqueeze(depth) for value, depth in zip(mixtures, (-2, -3, -3), strict=True)))
        return covariance(each, x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]


def _misfit(has: int, sees: int) -> str:
    return (
        f"SpectralMixtureKernel has means for {has} column(s) but got {sees} input column(s); give mixtures for as "
        f"many inputs, or set active_dims"
    )


@spectral_components.register(SpectralMixtureKernel)
def _components(kernel: SpectralMixtureKernel, num_inputs: int) -> Components:
    r"""Spectral components of the mixture, :math:`\omega = 2\pi(m_q + s_q \circ z)`."""
    weights, means, scales = kernel.mixtures
    if means.shape[-1] != num_inputs:
        raise ValueError(_misfit(means.shape[-1], num_inputs))

    def component(q: int) -> SpectralComponent:
        mean, scale = means[..., q, None, :], scales[..., q, None, :]  # (*batch, 1, D)

        def frequencies(draws: BaseDraws) -> Tensor:
            return 2.0 * math.pi * (mean + scale * draws.normals)

        return SpectralComponent(weights[..., q], num_inputs, frequencies)

    return tuple(component(q) for q in range(kernel.num_components))
