"""Hilbert-space features of a Gaussian process on a box: of a sum of one-dimensional kernels, and of a full kernel."""

import heapq
from typing import NamedTuple, Self, final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap, check_matrix, check_positive, insert_batch
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.density import form_of, log_spectral_density


class Box(NamedTuple):
    r"""Centers and half-widths of a box, per expert and column.

    Args:
        center: Centers c, shape (\*batch, D), in units of the inputs.
        half_width: Half-widths L, shape (\*batch, D), in units of the inputs. Features vanish at c - L and c + L.
    """

    center: Tensor
    half_width: Tensor

    def domain(self) -> Tensor:
        """Intersection of the experts' boxes, lower and upper ends, shape (2, D)."""
        num_columns = self.center.shape[-1]
        lower = (self.center - self.half_width).reshape(-1, num_columns).amax(0)
        upper = (self.center + self.half_width).reshape(-1, num_columns).amin(0)
        return torch.stack([lower, upper])


def box_from_data(
    kernel: Kernel,
    X: Tensor,
    boundary_factor: float = 1.2,
    lengthscale_factor: float | None = None,
    edge_factor: float = 2.0,
) -> Box:
    r"""A box around warm-up rows that is wide enough for the kernel's present length scales.

    .. math:: L_j = \max(a\,S_j,\; b\,\ell_j,\; S_j + c\,\ell_j)

    Shapes: ``X`` (N, D); returns a box (\*batch, D).
    """
    check_matrix(X)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must have shape (N, D) with at least one row to place a box, got {tuple(X.shape)}")
    _check_factors(boundary_factor, lengthscale_factor, edge_factor)
    lower, upper = X.detach().amin(0), X.detach().amax(0)
    columns = seen_columns(kernel, X.shape[-1])
    with torch.no_grad():
        form = form_of(kernel, len(columns))
        lengthscale = form.lengthscale.squeeze(-2)
    if lengthscale.dtype != X.dtype:
        raise TypeError(f"X is {X.dtype} and the kernel is {lengthscale.dtype}; convert one with .to(...)")
    batch_shape = torch.Size(kernel.batch_shape)
    reach = X.new_zeros(*batch_shape, X.shape[-1])  # the length scales, zero where the kernel does not look
    reach[..., columns] = lengthscale.expand(*batch_shape, len(columns))
    half_range = 0.5 * (upper - lower)
    wanted = (form.box_factor if lengthscale_factor is None else lengthscale_factor) * reach
    half_width = torch.maximum(boundary_factor * half_range, wanted).maximum(half_range + edge_factor * reach)
    # a column that the kernel does not see may be constant: any width will do there
    half_width = torch.where(half_width > 0.0, half_width, torch.ones_like(half_width))
    return Box((0.5 * (lower + upper)).expand_as(half_width).clone(), half_width)


def seen_columns(kernel: Kernel, num_inputs: int) -> Tensor:
    """Indices of the columns that a kernel sees: its ``active_dims``, or all; integers, shape (d,)."""
    active: Tensor | None = kernel.active_dims
    if active is None:
        device = next(kernel.parameters()).device
        return torch.arange(num_inputs, device=device)
    if active.device.type != "meta" and not bool(((active >= 0) & (active < num_inputs)).all()):
        raise ValueError(f"active_dims {active.tolist()} of the kernel are not among the {num_inputs} input columns")
    return active


def _check_factors(boundary_factor: float, lengthscale_factor: float | None, edge_factor: float) -> None:
    if not boundary_factor > 1.0:
        raise ValueError(f"boundary_factor must be above 1, got {boundary_factor}")
    if lengthscale_factor is not None and not lengthscale_factor > 0.0:
        raise ValueError(f"lengthscale_factor must be positive, got {lengthscale_factor}")
    if not edge_factor >= 0.0:
        raise ValueError(f"edge_factor must be zero or positive, got {edge_factor}")


def check_box(box: Box, batch_shape: torch.Size, num_inputs: int) -> None:
    """Raise unless a box fits a kernel of this batch shape on this many columns."""
    expected = torch.Size([*batch_shape, num_inputs])
    if box.center.shape != expected or box.half_width.shape != expected:
        raise ValueError(
            f"center and half_width of the box must have shape {tuple(expected)}, got {tuple(box.center.shape)} and "
            f"{tuple(box.half_width.shape)}"
        )
    check_positive(box.half_width, "half_width")
    lower, upper = box.domain()
    if lower.device.type != "meta" and bool((lower >= upper).any()):
        column = int((lower >= upper).int().argmax())
        raise ValueError(f"the experts' boxes do not overlap in column {column}; choose their boxes closer together")


@final
class HilbertAdditiveFeatures(FeatureMap):
    r"""Laplace eigenfunctions per column, weighted by the spectral density of a one-dimensional kernel.

    .. math:: \phi_{jk}(x) = \sqrt{S_j(\omega_{jk})}\; \frac{\sin(\omega_{jk}(x_j - c_j + L_j))}{\sqrt{L_j}},
              \qquad \omega_{jk} = \frac{k \pi}{2 L_j},\quad k = 1, \dots, K

    (Solin and Sarkka, 2020, equations 56 and 60). The features approximate the **sum** of one-dimensional kernels,
    :math:`\phi(x)^\top\phi(x') \approx \sum_j \kappa_j(x_j, x'_j)`, each of unit output scale: a prior draw has
    variance near d times :attr:`prior_variance` for d columns. The kernel given says which one-dimensional kernel;
    its length scale of column j is that of :math:`\kappa_j`. Columns outside ``active_dims`` are left out.

    The box is fixed when length scales are trained: while :math:`L_j \ge 3.2\,\ell_j` holds (RBF) and the rows keep
    two length scales from its walls, the box is wide enough (``box_from_data`` says what is lost otherwise), and K
    should be at least about :math:`1.75\,L_j / \ell_j` (Riutort-Mayol et al., 2023).

    Args:
        kernel: RBF or Matern kernel, in a ``ScaleKernel`` or not, ARD or not; kept, not copied.
        box: Centers and half-widths, each (\*batch, D), in units of the inputs.
        num_frequencies: Number K of basis functions per column.

    Raises:
        TypeError: If the kernel is not supported.
        ValueError: If the box does not fit the kernel, or K is not positive.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(25, 2)
        >>> kernel = ScaleKernel(RBFKernel(ard_num_dims=2)).double()
        >>> features = HilbertAdditiveFeatures.from_data(kernel, X, num_frequencies=10)
        >>> features(X).shape
        torch.Size([25, 20])
    """

    center: Tensor
    half_width: Tensor

    def __init__(self, kernel: Kernel, box: Box, num_frequencies: int) -> None:
        num_inputs, batch_shape = box.center.shape[-1], torch.Size(kernel.batch_shape)
        if num_frequencies < 1:
            raise ValueError(f"num_frequencies must be at least 1, got {num_frequencies}")
        check_box(box, batch_shape, num_inputs)
        columns = seen_columns(kernel, num_inputs)
        with torch.no_grad():
            form_of(kernel, len(columns))
        domain = box.domain()
        unseen = torch.ones_like(domain[0], dtype=torch.bool).index_fill(0, columns, False)
        domain = torch.stack([domain[0].masked_fill(unseen, -torch.inf), domain[1].masked_fill(unseen, torch.inf)])
        super().__init__(num_inputs, len(columns) * num_frequencies, batch_shape, domain)
        self.num_frequencies = num_frequencies
        self.kernel = kernel
        self.register_buffer("center", box.center.detach().clone())
        self.register_buffer("half_width", box.half_width.detach().clone())

    @classmethod
    def from_data(cls, kernel: Kernel, X: Tensor, num_frequencies: int) -> Self:
        r"""Choose the box from warm-up rows and the kernel's present length scales, see :func:`box_from_data`.

        Args:
            kernel: RBF or Matern kernel at its starting length scales.
            X: Warm-up rows, shape (N, D).
            num_frequencies: Number K of basis functions per column.

        Raises:
            TypeError: If the kernel is not supported or has another dtype than X.
            ValueError: If X is not a finite matrix or a number is out of range.
        """
        return cls(kernel, box_from_data(kernel, X), num_frequencies)

    @property
    def prior_variance(self) -> Tensor:
        r"""Output scale of the kernel, shape (\*batch), differentiable."""
        columns = seen_columns(self.kernel, self.num_inputs)
        return form_of(self.kernel, len(columns)).outputscale.expand(self.batch_shape)

    @property
    def seen_columns(self) -> Tensor:
        """Places of the columns that the kernel sees, shape (d,)."""
        return seen_columns(self.kernel, self.num_inputs)

    def waves(self) -> tuple[Tensor, Tensor, Tensor]:
        r"""Rates :math:`\omega_{jk}`, shifts and amplitudes, (\*batch, d, K) each, of the features."""
        columns = self.seen_columns
        form = form_of(self.kernel, len(columns))
        half_width = self.half_width.index_select(-1, columns).unsqueeze(-1)  # (*batch, d, 1)
        start = self.center.index_select(-1, columns).unsqueeze(-1) - half_width
        order = torch.arange(1, self.num_frequencies + 1, dtype=half_width.dtype, device=half_width.device)
        omega = 0.5 * torch.pi * order / half_width
        lengthscale = form.lengthscale.mT  # (*batch, d or 1, 1)
        log_density = lengthscale.log() + form.log_density((lengthscale * omega).square(), 1)
        amplitude = (0.5 * log_density).exp() * half_width.rsqrt()
        return omega, -start * omega, amplitude

    def bind(self) -> BoundFeatures:
        columns, num_batch = self.seen_columns, len(self.batch_shape)
        rate, shift, amplitude = (part.unsqueeze(-3) for part in self.waves())  # (*batch, 1, d, K)
        every_column = self.kernel.active_dims is None

        def features(X: Tensor) -> Tensor:
            seen = X if every_column else X.index_select(-1, columns)
            seen = seen[(..., *([None] * num_batch), slice(None), slice(None), None)]  # (..., *ones, N, d, 1)
            return (torch.addcmul(shift, seen, rate).sin() * amplitude).flatten(-2)

        return features


@final
class HilbertTensorFeatures(FeatureMap):
    r"""Products of Laplace eigenfunctions, weighted by the D-dimensional spectral density of the kernel.

    .. math:: \phi_{\mathbf{k}}(x) = \sqrt{S(\omega_{\mathbf{k}})} \prod_{j=1}^D
              \frac{\sin(\omega_{k_j}(x_j - c_j + L_j))}{\sqrt{L_j}}, \qquad \omega_{k_j} = \frac{k_j \pi}{2 L_j}

    (Solin and Sarkka, 2020). The multi-indices :math:`\mathbf{k}` are given: :meth:`from_data` takes the F of
    largest spectral weight. The number that is needed grows exponentially in D; beyond four columns random Fourier
    features or the additive map serve better.

    Args:
        kernel: RBF or Matern kernel, in a ``ScaleKernel`` or not, ARD or not, without ``active_dims`` (use
            ``SelectColumns``); kept, not copied.
        box: Centers and half-widths, each (\*batch, D), in units of the inputs.
        indices: Multi-indices, whole numbers from 1, shape (F, D) or (\*batch, F, D).

    Raises:
        TypeError: If the kernel is not supported or the indices are not integers.
        ValueError: If shapes do not fit, an index is below 1, or the kernel has ``active_dims``.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> X = torch.linspace(-1, 1, 50, dtype=torch.float64).reshape(25, 2)
        >>> kernel = RBFKernel().double()
        >>> features = HilbertTensorFeatures.from_data(kernel, X, num_features=60)
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
    def from_data(cls, kernel: Kernel, X: Tensor, num_features: int, *, box: Box | None = None) -> Self:
        r"""Choose the multi-indices, and the box from warm-up rows, for the kernel's present length scales.

        Args:
            kernel: RBF or Matern kernel at its starting length scales.
            X: Warm-up rows, shape (N, D).
            num_features: Number F of basis functions: those of largest spectral weight, chosen for each expert.
            box: Box; from the rows if ``None``, see :func:`box_from_data`.

        Raises:
            TypeError: If the kernel is not supported or has another dtype than X.
            ValueError: If X is not a finite matrix, a number is out of range, or the kernel has ``active_dims``.
        """
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        box = box_from_data(kernel, X) if box is None else box
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
        batch_shape, half_width = self.batch_shape, self.half_width.unsqueeze(-2)  # (*batch, 1, D)
        omega = 0.5 * torch.pi * self.indices.to(half_width.dtype) / half_width  # (*batch, F, D)
        log_density = log_spectral_density(self.kernel, omega)
        amplitude = ((0.5 * log_density).exp() * half_width.prod(-1).rsqrt()).unsqueeze(-2)  # (*batch, 1, F)
        start = self.center.unsqueeze(-2) - half_width
        rates, starts = omega.mT.unsqueeze(-2).unbind(-3), start.unbind(-1)  # D times (*batch, 1, F), (*batch, 1)

        def features(X: Tensor) -> Tensor:
            columns = insert_batch(X, batch_shape).split(1, dim=-1)
            Phi = amplitude
            for column, rate, origin in zip(columns, rates, starts, strict=True):
                Phi = Phi * ((column - origin.unsqueeze(-1)) * rate).sin()
            return Phi

        return features


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
