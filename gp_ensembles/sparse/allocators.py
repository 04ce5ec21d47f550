"""Ways of placing knots, as BoTorch's inducing point allocators."""

from itertools import product
from typing import Any, Protocol

import torch
from botorch.models.utils.inducing_point_allocators import InducingPointAllocator, QualityFunction
from torch import Tensor
from torch.nn import Module

from gp_ensembles.sparse.kernels import Covariance


class Placement(Protocol):
    """A rule that places knots.

    Example:
        >>> from gp_ensembles.sparse import dpp_knots
        >>> rule: Placement = dpp_knots
    """

    def __call__(
        self, X: Tensor, count: int, kernel: Covariance, /, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Knots (k, D) for inputs (N, D), k no more than ``count``."""


class KnotAllocator(InducingPointAllocator):
    """Any way of placing knots, where BoTorch asks for an ``InducingPointAllocator``.

    Args:
        place: The rule; BoTorch passes no source of randomness on, so that torch's global one is used.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.sparse.placement import kmeans_knots
        >>> allocator = KnotAllocator(kmeans_knots)
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> allocator.allocate_inducing_points(X, RBFKernel().double(), 4, torch.Size()).shape
        torch.Size([4, 1])
    """

    def __init__(self, place: Placement) -> None:
        self.place = place

    def allocate_inducing_points(
        self, inputs: Tensor, covar_module: Module, num_inducing: int, input_batch_shape: torch.Size
    ) -> Tensor:
        r"""Knots for inputs (\*batch, N, D), shape (\*batch, K, D); of a kernel for several outputs by the first."""
        kernels = _kernels(covar_module, input_batch_shape)
        if not input_batch_shape:
            return self.place(inputs, num_inducing, kernels[0])
        flat = inputs.expand(*input_batch_shape, *inputs.shape[-2:]).reshape(-1, *inputs.shape[-2:])
        placed = [self.place(part, num_inducing, kernel) for part, kernel in zip(flat, kernels, strict=True)]
        least = min(len(knots) for knots in placed)  # a rule may need fewer for some
        return torch.stack([knots[:least] for knots in placed]).reshape(*input_batch_shape, least, flat.shape[-1])

    def _get_quality_function(self) -> QualityFunction:
        """BoTorch's own allocators weigh their choices by this; placements here bring their own."""
        raise ValueError("a KnotAllocator places knots itself and has no quality function")


def _kernels(kernel: Any, batch_shape: torch.Size) -> list[Covariance]:
    """A kernel without a batch for each batch of inputs."""
    while len(kernel.batch_shape) > len(batch_shape):
        kernel = kernel[(0,) * (len(kernel.batch_shape) - len(batch_shape))]
    if not kernel.batch_shape:
        return [Covariance(kernel)] * max(1, batch_shape.numel())
    return [Covariance(kernel[index]) for index in product(*map(range, batch_shape))]
