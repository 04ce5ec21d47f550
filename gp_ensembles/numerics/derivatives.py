"""First and second derivatives of log densities in their latent value, by automatic differentiation."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

LogDensity = Callable[[Tensor, Tensor], Tensor]
_Traced = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_LONG_LOOP = 64  # evaluations before one is recorded, which costs as much as the next 80 to 500 of them save
_SHAPES = 8  # streams have few block lengths; odd ones must not pile up


class Derivatives(NamedTuple):
    """Derivatives of a log density in its latent value.

    Attributes:
        first: The gradient, of the shape of the latent values; for vector latents (..., L).
        second: The second derivative, of the same shape; for vector latents the Hessian (..., L, L).
    """

    first: Tensor
    second: Tensor


DerivativesOf = Callable[[Tensor, Tensor], Derivatives]  # of latent values and targets


class KnownDerivatives(NamedTuple):
    r"""Derivatives in closed form of a log density that is concave in its latent value.

    Attributes:
        at: Latent values and targets to :class:`Derivatives`, elementwise.
        start: Mean m, variance s and targets to a point from which Newton's method for the mode of
            :math:`\log p(y \mid z) - (z - m)^2 / 2s` moves to one side only, so that it needs no damping.
        is_logistic: Whether y is 0 or 1 with log odds z, for which there are recursions on plain arrays.
    """

    at: DerivativesOf
    start: Callable[[Tensor, Tensor, Tensor], Tensor]
    is_logistic: bool = False


class KnownVectorDerivatives(NamedTuple):
    """Gradients and Hessians in closed form of a log density of latent vectors.

    Attributes:
        at: Latent vectors (..., C) and targets (...) to :class:`Derivatives`.
        is_softmax: Whether targets are classes with the latent vector as logits, which have sites on plain arrays.
    """

    at: DerivativesOf
    is_softmax: bool = False


def scalar_derivatives(log_density: LogDensity, latent: Tensor, y: Tensor) -> Derivatives:
    """Derivatives of an elementwise log density, in all its latent values at once."""
    ones = torch.ones_like(latent)

    def gradient(point: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda z: log_density(z, y), point)[1]
        first: Tensor = pull(ones)[0]
        return first

    result = torch.func.vjp(gradient, latent)
    first, pull = result[0], result[1]
    return Derivatives(first, pull(ones)[0])


def vector_derivatives(log_density: LogDensity, latent: Tensor, y: Tensor) -> Derivatives:
    """Gradients and Hessians of a log density of latent vectors.

    Shapes: ``latent`` (..., L), ``y`` (...).
    """
    num_latent = latent.shape[-1]
    ones = torch.ones_like(latent[..., 0])

    def gradient(point: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda z: log_density(z, y), point)[1]
        first: Tensor = pull(ones)[0]
        return first

    result = torch.func.vjp(gradient, latent)
    first, pull = result[0], result[1]
    axes = torch.diag_embed(torch.ones_like(latent)).movedim(-2, 0)  # one direction for each component
    rows = torch.stack([pull(axes[component])[0] for component in range(num_latent)], dim=-2)
    return Derivatives(first, rows)


class Differentiator:
    """Derivatives of one log density, without the cost of autograd in loops."""

    def __init__(self, log_density: LogDensity, is_vector: bool = False) -> None:
        self._log_density = log_density
        self._differentiate = vector_derivatives if is_vector else scalar_derivatives
        self._calls: dict[tuple[object, ...], int] = {}
        self._traced: dict[tuple[object, ...], _Traced | None] = {}

    def __call__(self, latent: Tensor, y: Tensor) -> Derivatives:
        """Derivatives at the latent values."""
        if torch.is_grad_enabled():
            return self._differentiate(self._log_density, latent, y)
        key = (latent.shape, y.shape, latent.dtype, latent.device)
        if key not in self._calls and len(self._calls) == _SHAPES:
            self._calls.clear()
            self._traced.clear()
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] == _LONG_LOOP:
            self._traced[key] = self._trace(latent, y)
        traced = self._traced.get(key)
        if traced is None:
            return self._differentiate(self._log_density, latent, y)
        return Derivatives(*traced(latent, y))

    def _trace(self, latent: Tensor, y: Tensor) -> _Traced | None:
        def run(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            return tuple(self._differentiate(self._log_density, z, target))  # type: ignore[return-value]

        try:
            graph = make_fx(run)(latent, y)
        except Exception:  # whatever a user's density does that cannot be recorded
            return None
        graph.graph.eliminate_dead_code()
        graph.recompile()
        traced: _Traced = graph.forward
        return traced
