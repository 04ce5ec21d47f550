"""The kernel over kernels, as a GPyTorch kernel."""

import gpytorch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.distances import Discrepancy
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtures


class MMDHyperKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    r"""Kernel between spectral mixtures, from the discrepancy of their densities.

    .. math:: \kappa(\theta, \theta') = \exp(-d(\theta, \theta') / \ell), \qquad
              d = \mathrm{MMD}^2 / 2

    positive definite because d is conditionally negative definite. (Equation 6 of Hamid et al. (2022) squares d once
    more, which is not positive definite: smallest eigenvalues of -0.4 have been seen on 25 mixtures.) With ``root``,
    :math:`\exp(-\sqrt{d} / \ell)`, which is positive definite too.

    Inputs are rows (w, m, s) padded with weight zero, see :class:`SpectralMixtures`; order, splitting and padding of
    components do not matter. Scale it with ``gpytorch.kernels.ScaleKernel``.

    Args:
        num_inputs: Number of inputs D of the mixtures.
        discrepancy: The distance d.
        root: Whether the exponent takes the square root of d.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.distances import Discrepancy, Energy
        >>> kernel = MMDHyperKernel(1, Discrepancy(Energy())).double()
        >>> kernel.lengthscale = 2.0
        >>> rows = torch.tensor([[1.0, 0.0, 1.0], [1.0, 2.0, 1.0]], dtype=torch.float64)
        >>> kernel(rows).to_dense().detach()  # exp(-2 / 2)
        tensor([[1.0000, 0.3679],
                [0.3679, 1.0000]], dtype=torch.float64)
    """

    has_lengthscale = True

    def __init__(self, num_inputs: int, discrepancy: Discrepancy, *, root: bool = False) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.discrepancy = discrepancy
        self.root = root

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False) -> Tensor:
        r"""Covariances of rows (\*batch, A, P) and (\*batch, B, P): (\*batch, A, B), or (\*batch, A) if ``diag``.

        Raises:
            ValueError: If columns are to be treated as a batch, which makes no sense for mixtures.
        """
        if last_dim_is_batch:
            raise ValueError("a column of a mixture is no mixture; MMDHyperKernel has no last_dim_is_batch")
        first = SpectralMixtures.unflatten(x1, self.num_inputs)
        second = SpectralMixtures.unflatten(x2, self.num_inputs)
        if diag:
            first, second = (
                SpectralMixtures(m.weights.unsqueeze(-2), m.means.unsqueeze(-3), m.scales.unsqueeze(-3))
                for m in (first, second)
            )
            distance = self.discrepancy.between(first, second)[..., 0, 0]
            return self._of(distance, self.lengthscale.squeeze(-1))
        return self._of(self.discrepancy.between(first, second), self.lengthscale)

    def _of(self, distance: Tensor, lengthscale: Tensor) -> Tensor:
        if self.root:
            apart = distance > 0  # the root has no slope at zero
            distance = distance.where(apart, 1.0).sqrt().where(apart, 0.0)
        return (-distance / lengthscale).exp()
