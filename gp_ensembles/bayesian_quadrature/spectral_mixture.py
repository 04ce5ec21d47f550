"""Spectral mixtures of varying size in one padded tensor, and their covariance functions."""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


class SpectralMixtures(NamedTuple):
    r"""Spectral densities that are mixtures of at most Q normal distributions; absent components have weight zero.

    .. math:: k(\tau) = \sum_q w_q \exp(-2\pi^2 \|s_q \circ \tau\|^2) \cos(2\pi\, m_q^\top \tau)

    (Wilson and Adams, 2013, with the reflection at the origin of Hamid et al., 2022, section 2.2).

    Args:
        weights: Weights w, shape (\*batch, Q).
        means: Mean frequencies m in cycles per unit of the inputs, shape (\*batch, Q, D).
        scales: Standard deviations s of the frequencies in the same unit, shape (\*batch, Q, D).

    Example:
        >>> import torch
        >>> theta = torch.tensor([0.7, 0.3, 1.0, 2.0, 0.1, 0.2], dtype=torch.float64)
        >>> mixtures = SpectralMixtures.unflatten(theta, num_inputs=1)
        >>> mixtures.means.shape, bool((mixtures.flatten() == theta).all())
        (torch.Size([2, 1]), True)
    """

    weights: Tensor
    means: Tensor
    scales: Tensor

    @classmethod
    def unflatten(cls, theta: Tensor, num_inputs: int) -> "SpectralMixtures":
        r"""Mixtures from rows (w, m, s), shape (\*batch, Q (1 + 2 D)).

        Raises:
            ValueError: If the length of a row is no multiple of 1 + 2 D.
        """
        num_components, rest = divmod(theta.shape[-1], 1 + 2 * num_inputs)
        if rest or not num_components:
            raise ValueError(
                f"rows of {theta.shape[-1]} numbers are no mixtures over {num_inputs} input(s): Q weights, Q D means "
                f"and Q D scales make a multiple of {1 + 2 * num_inputs}"
            )
        weights, means, scales = theta.split([num_components] + [num_components * num_inputs] * 2, -1)
        shape = (*theta.shape[:-1], num_components, num_inputs)
        return cls(weights, means.reshape(shape), scales.reshape(shape))

    def flatten(self) -> Tensor:
        r"""Rows (w, m, s), shape (\*batch, Q (1 + 2 D))."""
        return torch.cat([self.weights, self.means.flatten(-2), self.scales.flatten(-2)], -1)

    @property
    def num_inputs(self) -> int:
        """Number of inputs D."""
        return self.means.shape[-1]

    @property
    def num_components(self) -> Tensor:
        r"""Number of components of each mixture, shape (\*batch)."""
        return (self.weights != 0).sum(-1)

    def trim(self) -> "SpectralMixtures":
        """The same mixtures without the columns that none of them uses (components come first, padding last)."""
        used = (self.weights != 0).flatten(0, -2).any(0) if self.weights.ndim > 1 else self.weights != 0
        size = max(int(used.nonzero().max()) + 1 if bool(used.any()) else 1, 1)
        return SpectralMixtures(self.weights[..., :size], self.means[..., :size, :], self.scales[..., :size, :])

    def take(self, index: int | slice | Tensor) -> "SpectralMixtures":
        """Some of the mixtures; the index runs over the batch."""
        return SpectralMixtures(self.weights[index], self.means[index], self.scales[index])


class Reflection(NamedTuple):
    """How a component off the origin is made symmetric, as a spectral density has to be.

    Args:
        each_input: ``False`` reflects it at the origin (two bumps, the cosine of a sum); ``True`` reflects it in every
            input on its own (a bump in every orthant, a product of cosines). They are the same for one input.
    """

    each_input: bool = False


AT_ORIGIN = Reflection()
IN_EACH_INPUT = Reflection(each_input=True)


def covariance(mixtures: SpectralMixtures, x1: Tensor, x2: Tensor, reflection: Reflection = AT_ORIGIN) -> Tensor:
    r"""Covariance matrices of the mixtures' processes, without noise.

    Args:
        mixtures: Mixtures of any batch shape.
        x1: Inputs, shape (N1, D), or (\*batch, N1, D) with dimensions that broadcast to the mixtures'.
        x2: Inputs, shape (N2, D), likewise.
        reflection: How components are made symmetric.

    Returns:
        Covariances, shape (\*batch, N1, N2), differentiable in the mixtures and in the inputs.

    Example:
        >>> import torch
        >>> theta = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
        >>> x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> covariance(SpectralMixtures.unflatten(theta, 1), x, x)  # a whole period apart, less the decay
        tensor([[1.0000, 0.4540],
                [0.4540, 1.0000]], dtype=torch.float64)
    """
    if mixtures.num_inputs == 1:
        return _stationary(mixtures, x1 - x2.mT)
    total = _component(mixtures, 0, x1, x2, reflection)
    for q in range(1, mixtures.weights.shape[-1]):
        total = total + _component(mixtures, q, x1, x2, reflection)
    return total


def at_lags(mixtures: SpectralMixtures, lags: Tensor) -> Tensor:
    r"""Covariances at given lags of one input, shape (U,); result (\*batch, U).

    Example:
        >>> import torch
        >>> theta = torch.tensor([1.0, 0.5, 0.1], dtype=torch.float64)
        >>> at_lags(SpectralMixtures.unflatten(theta, 1), torch.tensor([0.0, 2.0], dtype=torch.float64))
        tensor([1.0000, 0.4540], dtype=torch.float64)
    """
    return _stationary(mixtures, lags.unsqueeze(-2)).squeeze(-2)


def _stationary(mixtures: SpectralMixtures, lags: Tensor) -> Tensor:
    """One input: lags (..., N1, N2) themselves, which loses no digits to a difference of squares."""
    total = lags.new_zeros(())
    for q in range(mixtures.weights.shape[-1]):
        weight = mixtures.weights[..., q, None, None]
        mean, scale = mixtures.means[..., q, :, None], mixtures.scales[..., q, :, None]
        decay = (-2.0 * math.pi**2 * (scale * lags).square()).exp()
        total = total + weight * decay * (2.0 * math.pi * mean * lags).cos()
    return total


def _component(mixtures: SpectralMixtures, q: int, x1: Tensor, x2: Tensor, reflection: Reflection) -> Tensor:
    """Several inputs: everything is a matrix product and one exponential, whatever D."""
    weight = mixtures.weights[..., q, None, None]
    mean, scale = mixtures.means[..., q, None, :], mixtures.scales[..., q, None, :]
    center = x1.mean(-2, keepdim=True).detach()  # stationary: only rounding depends on it
    x1, x2 = x1 - center, x2 - center
    decay = _decay(2.0 * math.pi * x1 * scale, 2.0 * math.pi * x2 * scale)
    phase1, phase2 = 2.0 * math.pi * mean * x1, 2.0 * math.pi * mean * x2
    if not reflection.each_input:
        return weight * decay * _cosine_of_difference(phase1.sum(-1), phase2.sum(-1))
    for d in range(mixtures.num_inputs):
        decay = decay * _cosine_of_difference(phase1[..., d], phase2[..., d])
    return weight * decay


def _cosine_of_difference(phase1: Tensor, phase2: Tensor) -> Tensor:
    left = torch.stack([phase1.cos(), phase1.sin()], -1)
    right = torch.stack([phase2.cos(), phase2.sin()], -1)
    return left @ right.mT


def _decay(a: Tensor, b: Tensor) -> Tensor:
    """exp(-|a - b|^2 / 2): the exponent is one matrix product, for memory traffic is what this costs."""
    if a.dtype != torch.float64:  # products lose as many digits as the points are far from the center
        apart = ((a[..., d, None] - b[..., None, :, d]).square() for d in range(a.shape[-1]))
        return (-0.5 * functools.reduce(torch.add, apart)).exp()
    half_a, half_b = (-0.5 * points.square().sum(-1, keepdim=True) for points in (a, b))
    left = torch.cat([a, half_a, torch.ones_like(half_a)], -1)
    right = torch.cat([b, torch.ones_like(half_b), half_b], -1)
    # Equal points round to either side of zero. A clamp there would take the derivatives away.
    return (left @ right.mT).exp()
