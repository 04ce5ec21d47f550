"""A sparse Gaussian process wherever an exact one is used: in GPyTorch and in BoTorch."""

import math
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.sparse.approximations import VFE, Approximation, upper_bound
from gp_ensembles.sparse.checks import check_knots, check_rows, check_shape
from gp_ensembles.sparse.collapsed import Projection, condition, project
from gp_ensembles.sparse.predictions import (
    KnotsPosterior,
    check_query,
    joint_normal,
    normal_posterior,
    see,
    unchanged,
)

RELATIVE_NUGGET = 1e-6


class _Cache(NamedTuple):
    """The knots' posterior, and what it was made of."""

    tensors: list[Tensor]
    settings: tuple[Approximation, float]
    posterior: KnotsPosterior


class SparseGP(Model, GP):  # type: ignore[misc]  # a GP, for GPyTorch asks for one
    r"""A Gaussian process seen through K knots, its knots' posterior collapsed: O(N K^2) for N rows.

    The function has a nugget :math:`\delta`, a share of the kernel's variance that is no covariance between different
    points, so that knots may come close to one another. Predictions are those of the approximation: GPyTorch's own
    sparse regression predicts with FITC's moments, or with a variance that collapses, whatever was fitted.

    Args:
        X: Inputs, shape (N, D).
        Y: Targets, shape (N,) or (N, 1).
        knots: Knots Z, shape (K, D), a parameter.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: Gaussian likelihood; GPyTorch's default if ``None``.
        mean: Prior mean; a constant that starts at the targets' average if ``None``.
        approximation: What is maximised and predicted.
        nugget: :math:`\delta` as a share of the kernel's average variance at the knots.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, or there are more knots than distinct rows.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> model.posterior(X[:3]).mean.shape, bool(model.objective() <= model.upper_bound())
        (torch.Size([3, 1]), True)
    """

    train_X: Tensor
    train_y: Tensor

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: GaussianLikelihood | None = None,
        mean: Mean | None = None,
        *,
        approximation: Approximation | None = None,
        nugget: float = RELATIVE_NUGGET,
    ) -> None:
        super().__init__()
        y = check_rows(X, Y)
        check_knots(X, knots)
        if not (0.0 <= nugget < math.inf):
            raise ValueError(f"the nugget must be a finite share of the variance, at least 0, got {nugget}")
        self.register_buffer("train_X", X)
        self.register_buffer("train_y", y)
        self.knots = nn.Parameter(knots.detach().clone())
        self.covar_module = kernel.to(X)
        self.likelihood = (GaussianLikelihood() if likelihood is None else likelihood).to(X)
        if mean is None:
            mean = ConstantMean().to(X)
            mean.constant.data.fill_(float(y.mean()))
        self.mean_module = mean.to(X)
        self.approximation = VFE() if approximation is None else approximation
        self.nugget = nugget
        self._cache: _Cache | None = None

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Empty."""
        return torch.Size()

    @property
    def train_inputs(self) -> tuple[Tensor]:
        """Inputs, as GPyTorch's models have them."""
        return (self.train_X,)

    @property
    def train_targets(self) -> Tensor:
        """Targets, shape (N,)."""
        return self.train_y

    @property
    def num_knots(self) -> int:
        """Number of knots K."""
        return self.knots.shape[0]

    def projection(self, knots: Tensor | None = None) -> Projection:
        """The data seen through the knots (or through others), differentiable in everything."""
        Z = self.knots if knots is None else knots
        own, cross = self.kernel_matrix(Z, Z), self.kernel_matrix(Z, self.train_X)
        delta = self.delta(own)
        prior = self.kernel_diagonal(self.train_X) + delta
        residual = self.train_y - self.mean_module(self.train_X)
        own = own + torch.diag_embed(delta.expand(Z.shape[0]))
        return project(own, cross, prior, residual, self.likelihood.noise.squeeze(-1))

    def objective(self) -> Tensor:
        """The approximation's objective, with the log densities of registered priors, in nats, shape ()."""
        value = self.approximation.objective(self.projection())
        priors: Iterable[Any] = self.named_priors()  # type: ignore[operator]
        for _, module, prior, closure, _ in priors:
            value = value + prior.log_prob(closure(module)).sum()
        return value

    def upper_bound(self) -> Tensor:
        """Upper bound of the exact log evidence at the present hyperparameters (Titsias, 2014), shape ()."""
        return upper_bound(self.projection())

    def kernel_matrix(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariances of the kernel alone, no nugget."""
        matrix: Tensor = self.covar_module(first, second).to_dense()
        return matrix

    def kernel_diagonal(self, X: Tensor) -> Tensor:
        """Variances of the kernel alone."""
        diagonal: Tensor = self.covar_module(X, diag=True)
        return diagonal

    def delta(self, own: Tensor) -> Tensor:
        """The nugget as a variance, from the kernel's covariance of the knots."""
        return self.nugget * own.diagonal(dim1=-2, dim2=-1).mean(-1)

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint moments of the function without nugget at points (\*batch, q, D): (\*batch, q), (\*batch, q, q)."""
        flat = X.reshape(-1, X.shape[-1])
        seen = see(self._knots_posterior(), self.kernel_matrix(self.knots, flat), X.shape[:-1])
        rest = self.approximation.predictive(self.kernel_matrix(X, X), seen.explained)
        return self.mean_module(flat).reshape(X.shape[:-1]) + seen.mean, rest + seen.learned

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""Joint normal predictions, differentiable in X.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to add noise, or its variances, shape (\*batch, q, 1).
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, or another output is asked for.
        """
        check_query(X, self.train_X.shape[-1], output_indices)
        self.eval()
        noise = self.likelihood.noise
        return normal_posterior(*self.latent(X), noise, observation_noise, posterior_transform)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Joint normal distribution of the function at points, as an ``ExactGP`` in eval mode gives it."""
        return joint_normal(*self.latent(X))

    def _knots_posterior(self) -> KnotsPosterior:
        """The knots' posterior, kept until a parameter, a row or the approximation changes, without gradients."""
        settings = (self.approximation, self.nugget)
        tensors = [*self.parameters(), *self.buffers()]
        cache = self._cache
        if cache is None or cache.settings != settings or not unchanged(cache.tensors, tensors):
            with torch.no_grad():
                projection = self.projection()
                posterior = condition(projection, self.approximation.diagonal(projection))
            found = KnotsPosterior(projection.lower, posterior.factor, posterior.mean)
            cache = _Cache([tensor.detach().clone() for tensor in tensors], settings, found)
            self._cache = cache
        return cache.posterior

    def condition_on_observations(self, X: Tensor, Y: Tensor, **settings: Any) -> Self:
        """A model of more rows, the knots and hyperparameters as they are.

        Args:
            X: Further inputs, shape (n, D).
            Y: Further targets, shape (n, 1).
            **settings: None are known.

        Raises:
            ValueError: If shapes do not fit, or a value is not finite.
        """
        if settings:
            raise ValueError(f"unknown settings {sorted(settings)}; rows have the likelihood's noise")
        if X.ndim != 2 or X.shape[-1] != self.train_X.shape[-1] or Y.shape != (X.shape[0], 1):
            raise ValueError(
                f"further rows do not fit: (n, {self.train_X.shape[-1]}) and (n, 1) are wanted, not {tuple(X.shape)} "
                f"and {tuple(Y.shape)}"
            )
        y = check_rows(torch.cat([self.train_X, X]), torch.cat([self.train_y.unsqueeze(-1), Y]))
        other = self.with_knots(self.knots)
        other.train_X, other.train_y = torch.cat([self.train_X, X]), y
        return other

    def with_knots(self, knots: Tensor) -> Self:
        """A model of the same rows and (copied) hyperparameters with other knots."""
        check_shape(self.train_X, knots)
        cache, self._cache = self._cache, None
        other = deepcopy(self)
        self._cache = cache
        other.knots = nn.Parameter(knots.detach().clone())
        return other
