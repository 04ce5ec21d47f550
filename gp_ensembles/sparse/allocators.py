"""Ways of placing knots, as BoTorch's inducing point allocators."""

from collections.abc import Callable

import torch
from botorch.models.utils.inducing_point_allocators import InducingPointAllocator, QualityFunction
from torch import Tensor
from torch.nn import Module

from gp_ensembles.sparse.kernels import Covariance

Placement = Callable[[Tensor, int, Covariance], Tensor]


class KnotAllocator(InducingPointAllocator):
    """Any way of placing knots, where BoTorch asks for an ``InducingPointAllocator``.

    Args:
        place: Function of inputs (N, D), a number of knots and a covariance that returns knots (K, D).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from gp_ensembles.sparse.placement import kmeans_knots
        >>> allocator = KnotAllocator(lambda X, count, covariance: kmeans_knots(X, count))
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> allocator.allocate_inducing_points(X, RBFKernel().double(), 4, torch.Size()).shape
        torch.Size([4, 1])
    """

    def __init__(self, place: Placement) -> None:
        self.place = place

    def allocate_inducing_points(
        self, inputs: Tensor, covar_module: Module, num_inducing: int, input_batch_shape: torch.Size
    ) -> Tensor:
        r"""Knots for inputs (\*batch, N, D), shape (\*batch, K, D)."""
        covariance = Covariance(covar_module)
        if not input_batch_shape:
            return self.place(inputs, num_inducing, covariance)
        flat = inputs.reshape(-1, *inputs.shape[-2:])
        knots = torch.stack([self.place(part, num_inducing, covariance) for part in flat])
        return knots.reshape(*input_batch_shape, *knots.shape[-2:])

    def _get_quality_function(self) -> QualityFunction:
        """BoTorch's own allocators weigh their choices by this; placements here bring their own."""
        raise ValueError("a KnotAllocator places knots itself and has no quality function")
