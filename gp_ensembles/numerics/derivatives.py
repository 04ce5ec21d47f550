"""Log densities of targets given their latent values, with first and second derivatives, known or automatic."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

LogDensity = Callable[[Tensor, Tensor], Tensor]
Derivatives = tuple[Any, Any]  # of first and of second order
_Traced = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_LONG_LOOP = 64  # evaluations before one is recorded, which costs as much as the next 80 to 500 of them save
_SHAPES = 8  # streams have few block lengths; odd ones must not pile up


class LatentDensity(NamedTuple):
    r"""The log density :math:`\ell(z) = \log p(y \mid z)` of targets (..., N) given latent values.

    Latent values have shape (..., N), vectors of C of them (..., N, C).
    """

    log_prob: Callable[[Any, Any], Any]  # Latent values and targets to log densities (..., N)
    # The same to gradients, of the shape of the latent values, and second derivatives of that shape, or Hessians
    # (..., N, C, C)
    derivatives: Callable[[Any, Any], Derivatives]
    num_latent: int = 1  # Number C of latent values behind each target
    # Mean m, variance s and targets to a point from which Newton's method for the mode of :math:`\ell(z) - (z - m)^2
    # / 2s` moves to one side only, so that it needs no damping; ``None`` if none is known
    start: Callable[[Any, Any, Any], Any] | None = None
    takes_arrays: bool = False  # Whether all of these take numpy arrays as well as tensors


def library_of(values: Any) -> Any:
    """``torch`` for tensors and ``numpy`` for arrays: for text that runs on both."""
    return torch if isinstance(values, Tensor) else np


def diagonal_matrix(values: Any) -> Any:
    """Tensors or arrays (..., C) as diagonal matrices (..., C, C)."""
    return torch.diag_embed(values) if isinstance(values, Tensor) else values[..., None] * np.eye(values.shape[-1])


def automatic(log_density: LogDensity, num_latent: int = 1) -> LatentDensity:
    """Any log density, differentiated automatically: without the cost of autograd in long loops."""
    calls: dict[tuple[object, ...], int] = {}
    traced: dict[tuple[object, ...], _Traced | None] = {}

    def density(latent: Tensor, y: Tensor) -> Tensor:
        return log_density(latent, y if num_latent == 1 else y.expand(latent.shape[:-1]))

    def derivatives(latent: Tensor, y: Tensor) -> Derivatives:
        if torch.is_grad_enabled():
            return differentiate(density, latent, y, num_latent)
        key = (latent.shape, y.shape, latent.dtype, latent.device)
        if key not in calls and len(calls) == _SHAPES:
            calls.clear()
            traced.clear()
        calls[key] = calls.get(key, 0) + 1
        if calls[key] == _LONG_LOOP:
            traced[key] = _trace(density, latent, y, num_latent)
        run = traced.get(key)
        return differentiate(density, latent, y, num_latent) if run is None else run(latent, y)

    return LatentDensity(density, derivatives, num_latent)


def differentiate(log_density: LogDensity, latent: Tensor, y: Tensor, num_latent: int = 1) -> Derivatives:
    """Derivatives at all latent values at once, by automatic differentiation.

    Shapes: ``latent`` (..., N) or (..., N, C), ``y`` (..., N).
    """
    is_vector = num_latent > 1
    ones = torch.ones_like(latent[..., 0] if is_vector else latent)

    def gradient(point: Tensor) -> Tensor:
        pull = torch.func.vjp(lambda z: log_density(z, y), point)[1]
        first: Tensor = pull(ones)[0]
        return first

    result = torch.func.vjp(gradient, latent)
    first, pull = result[0], result[1]
    if not is_vector:
        return first, pull(ones)[0]
    axes = torch.diag_embed(torch.ones_like(latent)).movedim(-2, 0)  # one direction for each component
    return first, torch.stack([pull(axis)[0] for axis in axes], dim=-2)


def _trace(log_density: LogDensity, latent: Tensor, y: Tensor, num_latent: int) -> _Traced | None:
    def run(z: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        return differentiate(log_density, z, target, num_latent)

    try:
        graph = make_fx(run)(latent, y)
    except Exception:  # whatever a user's density does that cannot be recorded
        return None
    graph.graph.eliminate_dead_code()
    graph.recompile()
    traced: _Traced = graph.forward
    return traced
