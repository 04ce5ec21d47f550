"""Hilbert-space features of an additive Gaussian process: one-dimensional bases side by side."""

from typing import Self, final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.box import Box, box_from_data, check_box, seen_columns
from gp_ensembles.numerics.gpytorch_types import Kernel
from gp_ensembles.spectral.density import form_of


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
        >>> import torch
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
    def from_data(
        cls,
        kernel: Kernel,
        X: Tensor,
        num_frequencies: int,
        *,
        boundary_factor: float = 1.2,
        lengthscale_factor: float | None = None,
        edge_factor: float = 2.0,
    ) -> Self:
        r"""Choose the box from warm-up rows and the kernel's present length scales.

        Args:
            kernel: RBF or Matern kernel at its starting length scales.
            X: Warm-up rows, shape (N, D).
            num_frequencies: Number K of basis functions per column.
            boundary_factor: Least half-width in half-ranges of the rows, above 1.
            lengthscale_factor: Least half-width in length scales, by kernel if ``None``; see ``box_from_data``.
            edge_factor: Least distance of a wall from the outermost row in length scales.

        Raises:
            TypeError: If the kernel is not supported or has another dtype than X.
            ValueError: If X is not a finite matrix or a number is out of range.
        """
        return cls(kernel, box_from_data(kernel, X, boundary_factor, lengthscale_factor, edge_factor), num_frequencies)

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
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        columns, num_batch = self.seen_columns, len(self.batch_shape)
        rate, shift, amplitude = (part.unsqueeze(-3) for part in self.waves())  # (*batch, 1, d, K)
        every_column = self.kernel.active_dims is None

        def features(X: Tensor) -> Tensor:
            seen = X if every_column else X.index_select(-1, columns)
            seen = seen[(..., *([None] * num_batch), slice(None), slice(None), None)]  # (..., *ones, N, d, 1)
            return (torch.addcmul(shift, seen, rate).sin() * amplitude).flatten(-2)

        return features
