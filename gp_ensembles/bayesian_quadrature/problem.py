"""Data and prior together: what is to be integrated."""

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.distances import Matern52
from gp_ensembles.bayesian_quadrature.geometry import HyperGeometry
from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior
from gp_ensembles.bayesian_quadrature.likelihood import GaussianLikelihoods, check_data
from gp_ensembles.bayesian_quadrature.memory import check_memory
from gp_ensembles.bayesian_quadrature.priors import default_prior
from gp_ensembles.bayesian_quadrature.spectral_mixture import AT_ORIGIN, Reflection

_BANDWIDTH = 2.0  # of the hyper-kernel between standardized atoms, for one input


class Problem:
    r"""A data set and a prior over kernels, whose evidence and posterior are wanted.

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        prior: Prior over kernels; :func:`default_prior` of the data if ``None``.
        mean: Prior mean of the targets, known; their average if ``None``, taken as known in the evidence too.
        reflection: How the kernels' components are made symmetric.
        geometry: Distances between kernels; if ``None``, discrepancies by a Matern-5/2 kernel of bandwidth
            :math:`2 \sqrt{D}` between atoms standardized by the prior.

    Raises:
        ValueError: If the data are not finite real numbers that fit, an input or the targets are constant (where the
            prior is made from them), or the prior is over another number of inputs.
        TypeError: If the data are no tensors.
        MemoryError: If a likelihood does not fit into memory.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> problem.evaluate(problem.prior.draw(3, 1)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        prior: Hyperprior | None = None,
        *,
        mean: float | None = None,
        reflection: Reflection = AT_ORIGIN,
        geometry: HyperGeometry | None = None,
    ) -> None:
        check_data(X, y)
        check_memory(X)
        self.prior = default_prior(X, y) if prior is None else prior
        if self.prior.num_inputs != X.shape[1]:
            raise ValueError(f"the prior is over {self.prior.num_inputs} input(s), the data have {X.shape[1]}")
        self.mean = y.mean() if mean is None else y.new_tensor(mean)
        self.likelihoods = GaussianLikelihoods(X, y - self.mean, reflection)
        bandwidth = _BANDWIDTH * X.shape[1] ** 0.5
        self.geometry = HyperGeometry(self.prior, Matern52(bandwidth)) if geometry is None else geometry

    @property
    def X(self) -> Tensor:
        """Inputs, shape (N, D)."""
        return self.likelihoods.X

    @property
    def y(self) -> Tensor:
        """Targets less their prior mean, shape (N,)."""
        return self.likelihoods.y

    @property
    def reflection(self) -> Reflection:
        """How the kernels' components are made symmetric."""
        return self.likelihoods.reflection

    @torch.no_grad()
    def evaluate(self, cube: Tensor) -> Tensor:
        """Log-likelihoods of rows (A, C) of the prior's cube; NaN where a covariance cannot be factorized."""
        return self.likelihoods(*self.prior.hyperparameters(cube))
