"""Hilbert-space features of a full (not additive) Gaussian process on a box."""

import heapq
from collections.abc import Sequence
from typing import Self, final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.box import Box, box_from_data, check_box
from gp_ensembles.features.shapes import insert_batch
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.density import form_of, log_spectral_density


@final
class HilbertTensorFeatures(FeatureMap):
    r"""Products of Laplace eigenfunctions, weighted by the D-dimensional spectral density of the kernel.

    .. math:: \phi_{\mathbf{k}}(x) = \sqrt{S(\omega_{\mathbf{k}})} \prod_{j=1}^D
              \frac{\sin(\omega_{k_j}(x_j - c_j + L_j))}{\sqrt{L_j}}, \qquad \omega_{k_j} = \frac{k_j \pi}{2 L_j}

    (Solin and Sarkka, 2020). The multi-indices :math:`\mathbf{k}` are given: :meth:`from_data` takes the F of
    largest spectral weight, :func:`full_grid` makes all of a grid. The number that is needed grows exponentially
    in D; beyond four columns random Fourier features or the additive map serve better.

    Args:
        kernel: RBF or Matern kernel, in a ``ScaleKernel`` or not, ARD or not, without ``active_dims`` (use
            ``SelectColumns``); kept, not copied.
        box: Centers and half-widths, each (\*batch, D), in units of the inputs.
        indices: Multi-indices, whole numbers from 1, shape (F, D) or (\*batch, F, D).

    Raises:
        TypeError: If the kernel is not supported or the indices are not integers.
        ValueError: If shapes do not fit, an index is below 1, or the kernel has ``active_dims``.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(25, 2)
        >>> features = HilbertTensorFeatures.from_data(
        ...     RBFKernel().double(), X, num_features=60
        ... )
        >>> Phi = features(X)
        >>> bool((Phi.square().sum(-1) - 1).abs().max() < 0.01)
        True
    """

    center: Tensor
    half_width: Tensor
    indices: Tensor

    def __init__(self, kernel: Kernel, box: Box, indices: Tensor) -> None:
        num_inputs, batch_shape = box.center.shape[-1], torch.Size(kernel.batch_shape)
        check_box(box, batch_shape, num_inputs)
        if kernel.active_dims is not None:
            raise ValueError("the kernel has active_dims; drop them and use SelectColumns to choose columns")
        if indices.is_floating_point() or indices.dtype == torch.bool:
            raise TypeError(f"indices must be integers, got {indices.dtype}")
        if indices.ndim < 2 or indices.shape[-1] != num_inputs:
            raise ValueError(f"indices must have shape (F, {num_inputs}), got {tuple(indices.shape)}")
        if indices.device.type != "meta" and bool((indices < 1).any()):
            raise ValueError(f"indices must be 1 or more, the least is {int(indices.min())}")
        with torch.no_grad():
            form_of(kernel, num_inputs)
        super().__init__(num_inputs, indices.shape[-2], batch_shape, box.domain())
        self.kernel = kernel
        self.register_buffer("center", box.center.detach().clone())
        self.register_buffer("half_width", box.half_width.detach().clone())
        self.register_buffer("indices", indices.expand(*batch_shape, *indices.shape[-2:]).clone())

    @classmethod
    def from_data(
        cls,
        kernel: Kernel,
        X: Tensor,
        num_features: int,
        *,
        boundary_factor: float = 1.2,
        lengthscale_factor: float | None = None,
        edge_factor: float = 2.0,
    ) -> Self:
        r"""Choose box and multi-indices from warm-up rows and the kernel's present length scales.

        Args:
            kernel: RBF or Matern kernel at its starting length scales.
            X: Warm-up rows, shape (N, D).
            num_features: Number F of basis functions: those of largest spectral weight, chosen for each expert.
            boundary_factor: Least half-width in half-ranges of the rows, above 1.
            lengthscale_factor: Least half-width in length scales, by kernel if ``None``; see ``box_from_data``.
            edge_factor: Least distance of a wall from the outermost row in length scales.

        Raises:
            TypeError: If the kernel is not supported or has another dtype than X.
            ValueError: If X is not a finite matrix, a number is out of range, or the kernel has ``active_dims``.
        """
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        box = box_from_data(kernel, X, boundary_factor, lengthscale_factor, edge_factor)
        with torch.no_grad():
            lengthscale = form_of(kernel, X.shape[-1]).lengthscale.squeeze(-2)
            rates = (lengthscale / box.half_width).reshape(-1, X.shape[-1]).tolist()
        chosen = [_largest(rate, num_features) for rate in rates]
        indices = torch.tensor(chosen, dtype=torch.long, device=X.device)
        return cls(kernel, box, indices.reshape(*box.center.shape[:-1], num_features, X.shape[-1]))

    @property
    def prior_variance(self) -> Tensor:
        r"""Output scale of the kernel, shape (\*batch), differentiable."""
        return form_of(self.kernel, self.num_inputs).outputscale.expand(self.batch_shape)

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        batch_shape, half_width = self.batch_shape, self.half_width.unsqueeze(-2)  # (*batch, 1, D)
        omega = 0.5 * torch.pi * self.indices.to(half_width.dtype) / half_width  # (*batch, F, D)
        log_density = log_spectral_density(self.kernel, omega)
        amplitude = ((0.5 * log_density).exp() * half_width.prod(-1).rsqrt()).unsqueeze(-2)  # (*batch, 1, F)
        start = self.center.unsqueeze(-2) - half_width
        rates, starts = omega.mT.unsqueeze(-2).unbind(-3), start.unbind(-1)  # D times (*batch, 1, F), (*batch, 1)

        def features(X: Tensor) -> Tensor:
            columns = insert_batch(X, batch_shape).split(1, dim=-1)
            Phi = amplitude
            for column, rate, prepare in zip(columns, rates, starts, strict=True):
                Phi = Phi * ((column - prepare.unsqueeze(-1)) * rate).sin()
            return Phi

        return features


def full_grid(counts: Sequence[int], *, device: torch.device | None = None) -> Tensor:
    """All multi-indices with k_j = 1, ..., counts[j], the last column fastest.

    Returns shape (F, D).

    Raises:
        ValueError: If there is no column or a count is below 1.
    """
    if not counts or min(counts) < 1:
        raise ValueError(f"counts must name at least one column and be 1 or more, got {list(counts)}")
    grids = torch.meshgrid(*[torch.arange(1, count + 1, device=device) for count in counts], indexing="ij")
    return torch.stack([grid.reshape(-1) for grid in grids], dim=-1)


def _largest(rates: list[float], num_indices: int) -> list[tuple[int, ...]]:
    """Multi-indices of least sum_j (rate_j k_j)^2, best first: RBF and Matern densities fall in that sum."""
    first = (1,) * len(rates)
    queue, found = [(sum(rate * rate for rate in rates), first)], {first}
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < num_indices:
        size, index = heapq.heappop(queue)
        chosen.append(index)
        for column, rate in enumerate(rates):
            after = (*index[:column], index[column] + 1, *index[column + 1 :])
            if after not in found:
                found.add(after)
                heapq.heappush(queue, (size + rate * rate * (2 * index[column] + 1), after))
    return chosen
