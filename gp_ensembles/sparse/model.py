"""A sparse Gaussian process wherever an exact one is used: in GPyTorch and in BoTorch."""

from typing import Any, Self, final

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.mlls import AddedLossTerm
from linear_operator.operators import (
    DiagLinearOperator,
    LowRankRootAddedDiagLinearOperator,
    LowRankRootLinearOperator,
)
from torch import Tensor

from gp_ensembles.sparse.approximations import VFE, Approximation, upper_bound
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.checks import check_rows
from gp_ensembles.sparse.collapsed import Projection, condition, project
from gp_ensembles.sparse.predictions import KnotsPosterior


@final
class _Penalty(AddedLossTerm):  # type: ignore[misc]  # GPyTorch is untyped
    """What an approximation's objective has beside the log density, as GPyTorch's objectives take it."""

    def __init__(self, penalty: Tensor) -> None:
        self._penalty = penalty

    def loss(self, *_: object) -> Tensor:
        """What is added to the log density."""
        return -self._penalty


@final
class SparseGP(KnotModel):
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
        approximation: What is maximized and predicted.
        nugget: :math:`\delta` as a share of the kernel's average variance at the knots; 1e-8 (in single precision
            1e-5) if ``None``.

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

    likelihood: GaussianLikelihood

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
        nugget: float | None = None,
    ) -> None:
        y = check_rows(X, Y)
        if likelihood is not None and not isinstance(likelihood, GaussianLikelihood):
            raise ValueError(
                f"the likelihood must be a GaussianLikelihood, one noise for all, not {type(likelihood).__name__}; "
                f"for counts, labels and the like see SparseVariationalGP and SparseLaplaceGP"
            )
        if mean is None:
            mean = ConstantMean().to(X)
            mean.constant.data.fill_(float(y.mean()))
        super().__init__(X, y, knots, kernel, GaussianLikelihood() if likelihood is None else likelihood, mean, nugget)
        self.approximation = VFE() if approximation is None else approximation
        self.register_added_loss_term("penalty")  # type: ignore[operator]

    def projection(self, knots: Tensor | None = None) -> Projection:
        """The data seen through the knots (or through others), differentiable in everything."""
        Z = self.knots if knots is None else knots
        own, cross = self.kernel_matrix(Z, Z), self.kernel_matrix(Z, self.train_X)
        delta = self.delta(own)
        prior = self.kernel_diagonal(self.train_X) + delta
        residual = self.train_y - self.mean_module(self.train_X)
        own = own + torch.diag_embed(delta.expand(Z.shape[0]))
        seen = project(own, cross, prior, residual, self.likelihood.noise.squeeze(-1))
        return seen._replace(nugget=delta)

    def objective(self) -> Tensor:
        """The approximation's objective, with the log densities of registered priors, in nats, shape ()."""
        return self.approximation.objective(self.projection()) + self.log_priors()

    def upper_bound(self) -> Tensor:
        """Upper bound of the exact log evidence at the present hyperparameters (Titsias, 2014), shape ()."""
        return upper_bound(self.projection())

    @torch.no_grad()
    def gap(self) -> float:
        """Nats between Titsias' bounds, whatever the approximation: its own objective need not be a bound."""
        projection = self.projection()
        return float(upper_bound(projection) - VFE().objective(projection))

    def of_rows(self, rows: Tensor) -> Self:
        """A model of some distinct rows only, all of which are knots."""
        other = self.with_knots(self.train_X[rows])
        other.train_X, other.train_y, other.approximation = self.train_X[rows], self.train_y[rows], VFE()
        return other

    def prior(self, X: Tensor) -> MultivariateNormal:
        """The prior through the knots, with which ``ExactMarginalLogLikelihood`` is the objective over N.

        Raises:
            ValueError: If these are not the training inputs.
        """
        if X.shape != self.train_X.shape or not torch.equal(X, self.train_X):
            raise ValueError("in training mode a model takes its training inputs only; call eval() to predict")
        projection = self.projection()
        penalty = _Penalty(self.approximation.penalty(projection))
        self.update_added_loss_term("penalty", penalty)  # type: ignore[operator]
        extra = (self.approximation.diagonal(projection) - projection.noise).clamp_min(0.0)
        covariance = LowRankRootAddedDiagLinearOperator(
            LowRankRootLinearOperator(projection.projected.mT), DiagLinearOperator(extra)
        )
        return MultivariateNormal(self.mean_module(X), covariance)

    def rest(self, prior: Tensor, explained: Tensor) -> Tensor:
        """As the approximation has it."""
        return self.approximation.predictive(prior, explained)

    def target_noise(self) -> Tensor:
        """The likelihood's noise."""
        noise: Tensor = self.likelihood.noise
        return noise

    @property
    def choices(self) -> tuple[object, ...]:
        """The approximation, and the numbers it has."""
        return self.approximation, dict(vars(self.approximation))

    def find_knots_posterior(self) -> KnotsPosterior:
        """Under the approximation's noise."""
        projection = self.projection()
        posterior = condition(projection, self.approximation.diagonal(projection))
        return KnotsPosterior(projection.lower, posterior.factor, posterior.mean)

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
