"""Sparse and exact Gaussian processes with normal noise, as GPyTorch and BoTorch models."""

import math
from typing import final

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import AddedLossTerm
from linear_operator.operators import DiagLinearOperator, LowRankRootAddedDiagLinearOperator, LowRankRootLinearOperator
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.exact_gp import TARGETS, Conditioned, log_marginal
from gp_ensembles.numerics.exact_gp import condition as condition_on_rows
from gp_ensembles.numerics.gpytorch_types import Kernel, Mean
from gp_ensembles.papers.sparse.base import SparseModel, noise_of
from gp_ensembles.papers.sparse.collapsed import (
    VFE,
    Approximation,
    KnotsPosterior,
    Projection,
    condition,
    project,
    upper_bound,
)
from gp_ensembles.papers.sparse.initialization import distinct_rows

_CHUNK = 1000  # rows of the covariance computed at once


@final
class _Penalty(AddedLossTerm):  # type: ignore[misc]  # GPyTorch is untyped
    """The penalty of an approximation, for GPyTorch's objectives."""

    def __init__(self, penalty: Tensor) -> None:
        self._penalty = penalty

    def loss(self, *_: object) -> Tensor:
        """The term added to the log density."""
        return -self._penalty


@final
class SparseGP(SparseModel):
    r"""A sparse Gaussian process with K knots (inducing points) and their collapsed posterior: O(N K^2) for N rows.

    The function has a nugget :math:`\delta`, a share of the kernel's variance that is independent between different
    points, so that knots may be close to each other. Predictions are those of the approximation: GPyTorch's own
    sparse regression predicts with FITC's moments, or with a collapsing variance, whatever was fitted.

    Args:
        train_X: Inputs, shape (N, D).
        train_Y: Targets, shape (N,) or (N, 1).
        knots: Knots Z, shape (K, D), in raw inputs; stored as a parameter in transformed inputs.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: Gaussian likelihood; GPyTorch's default if ``None``.
        mean: Prior mean; a constant that starts at the targets' average if ``None``.
        approximation: The sparse approximation.
        nugget: :math:`\delta` as a share of the kernel's average variance at the knots; 1e-8 (in single precision
            1e-5) if ``None``.
        train_Yvar: Known noise variances, shape (N, 1), instead of a likelihood's.
        input_transform: As in ``SingleTaskGP``; the kernel sees transformed inputs.
        outcome_transform: As in ``SingleTaskGP``; none if ``None``.

    Raises:
        TypeError: If ``approximation`` is not an ``Approximation``.
        ValueError: If shapes do not fit, a value is not finite, or there are more knots than distinct rows.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> model.posterior(X[:3]).mean.shape, bool(model.objective() <= model.upper_bound())
        (torch.Size([3, 1]), True)
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: GaussianLikelihood | None = None,
        mean: Mean | None = None,
        *,
        approximation: Approximation = VFE,
        nugget: float | None = None,
        train_Yvar: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        if not callable(getattr(approximation, "objective", None)):
            raise TypeError(f"approximation must be VFE, DTC, DIC, FITC or FIC (not its name), got {approximation!r}")
        transforms = input_transform, outcome_transform
        super().__init__(train_X, train_Y, knots, kernel, likelihood, mean, nugget, train_Yvar, *transforms)
        self.approximation = approximation
        self.register_added_loss_term("penalty")  # type: ignore[operator]

    def projection(self, knots: Tensor | None = None) -> Projection:
        """The data's covariances given the knots (or other ones), fully differentiable."""
        Z = self.knots if knots is None else knots
        own, cross = self.kernel_matrix(Z, Z), self.kernel_matrix(Z, self.train_X)
        delta = self.nugget_variance(own)
        prior = self.kernel_diagonal(self.train_X) + delta
        residual = self.train_y - self.mean_module(self.train_X)
        own = own + torch.diag_embed(delta.expand(Z.shape[0]))
        projection = project(own, cross, prior, residual, noise_of(self.likelihood))
        return projection._replace(nugget=delta)

    def objective(self) -> Tensor:
        """The approximation's objective, with the log densities of registered priors, in nats, shape ()."""
        return self.approximation.objective(self.projection()) + self.log_priors()

    def upper_bound(self) -> Tensor:
        """Upper bound on the exact log evidence at the current hyperparameters (Titsias, 2014), shape ()."""
        return upper_bound(self.projection())

    @torch.no_grad()
    def bound_gap(self) -> float:
        """Titsias' upper minus VFE's lower bound, in nats; the approximation's own objective need not be a bound."""
        projection = self.projection()
        return float(upper_bound(projection) - VFE.objective(projection))

    def follow_rows(self, *, all_are_knots: bool) -> None:
        """Nothing to update; VFE is exact if all rows are knots."""
        if all_are_knots:
            self.approximation = VFE

    def training_prior(self) -> MultivariateNormal:
        """The low-rank prior, for which ``ExactMarginalLogLikelihood`` is the objective over N."""
        projection = self.projection()
        penalty = _Penalty(self.approximation.penalty(projection))
        self.update_added_loss_term("penalty", penalty)  # type: ignore[operator]
        extra = (self.approximation.diagonal(projection) - projection.noise).clamp_min(0.0)
        covariance = LowRankRootAddedDiagLinearOperator(
            LowRankRootLinearOperator(projection.projected.mT), DiagLinearOperator(extra)
        )
        return MultivariateNormal(self.mean_module(self.train_X), covariance)

    def compute_knots_posterior(self) -> KnotsPosterior:
        """The knots' posterior under the approximation's noise."""
        projection = self.projection()
        return condition(projection, self.approximation.diagonal(projection))


@final
class ExactGP(SparseModel):
    r"""The exact Gaussian process of N rows, whose knots are all K distinct rows: O(K^3) in O(K^2) memory.

    .. math:: \log N(r;\, 0,\, K_{ff} + \tau^2 I)

    (Rasmussen and Williams, 2006, equation 2.30). Repeated rows count as their average target with reduced noise,
    which is exact. Added rows become knots, too.

    Args:
        train_X: Inputs, shape (N, D).
        train_Y: Targets, shape (N,) or (N, 1).
        kernel: Any GPyTorch kernel without a batch.
        likelihood: Gaussian likelihood; GPyTorch's default if ``None``.
        mean: Prior mean; a constant that starts at the targets' average if ``None``.
        train_Yvar: Known noise variances, shape (N, 1), instead of a likelihood's.
        input_transform: As in ``SingleTaskGP``; the kernel sees transformed inputs.
        outcome_transform: As in ``SingleTaskGP``; none if ``None``.

    Raises:
        ValueError: If shapes do not fit, or a value is not finite.

    Example:
        >>> from gpytorch.kernels import MaternKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> model = ExactGP(X, torch.sin(6.0 * X.squeeze(-1)), ScaleKernel(MaternKernel()))
        >>> model.posterior(X[:3]).mean.shape, model.num_knots, model.bound_gap()
        (torch.Size([3, 1]), 20, 0.0)
    """

    _place: Tensor
    _counts: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        kernel: Kernel,
        likelihood: GaussianLikelihood | None = None,
        mean: Mean | None = None,
        *,
        train_Yvar: Tensor | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        transforms = input_transform, outcome_transform
        super().__init__(train_X, train_Y, None, kernel, likelihood, mean, 0.0, train_Yvar, *transforms)
        self.approximation = VFE  # which is exact
        self._set_knots()

    def objective(self) -> Tensor:
        """The log evidence, with the log densities of registered priors, in nats, shape ()."""
        return self._log_evidence() + self.log_priors()

    def upper_bound(self) -> Tensor:
        """The log evidence, shape ()."""
        return self._log_evidence()

    def bound_gap(self) -> float:
        """Zero: the model is exact."""
        return 0.0

    def follow_rows(self, *, all_are_knots: bool) -> None:
        """Set the knots to the distinct rows."""
        self._set_knots()

    def training_prior(self) -> MultivariateNormal:
        """The prior at the training inputs, for which ``ExactMarginalLogLikelihood`` is the objective over N."""
        return MultivariateNormal(self.mean_module(self.train_X), self.covar_module(self.train_X))

    def compute_knots_posterior(self) -> Conditioned:
        """The posterior given the average target of each distinct row.

        Raises:
            ValueError: If the knots are no longer the distinct rows.
            NumericalError: If the targets' covariance is not positive definite.
        """
        if self.knots.shape[0] != len(self._counts):
            raise ValueError("the knots of an exact model are its distinct rows; use a SparseGP for others")
        noise, residual, _ = self._averages()
        covariance = self.knots.new_empty(len(noise), len(noise))
        for rows, part in zip(covariance.split(_CHUNK), self.knots.split(_CHUNK), strict=True):
            rows.copy_(self.kernel_matrix(part, self.knots))  # in chunks, as a kernel creates several such tables
        covariance.diagonal().add_(noise)
        return condition_on_rows(cholesky(covariance, TARGETS), residual)

    def _set_knots(self) -> None:
        """Set knots to the distinct rows, with the knot of every row, (N,), and the number of rows per knot, (K,)."""
        X = self.train_X.detach()
        rows = distinct_rows(X).sort().values
        _, label, counts = torch.unique(X, dim=0, return_inverse=True, return_counts=True)
        order = label[rows]
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(rows), device=order.device))
        del self.knots
        for name, values in (("knots", X[rows]), ("_place", place[label]), ("_counts", counts[order].to(X))):
            self.register_buffer(name, values, persistent=False)

    def _averages(self) -> tuple[Tensor, Tensor, Tensor]:
        """Noise variances (K,) and residuals (K,) of the averages, and the log density of the remainder, shape ()."""
        residual, noise = self.train_y - self.mean_module(self.train_X), noise_of(self.likelihood)
        if noise.ndim:
            return self._weighted_averages(residual, noise)
        if len(self._counts) == len(residual):
            return noise.expand_as(residual), residual, torch.zeros_like(noise)
        average = torch.zeros_like(self._counts).index_add(0, self._place, residual) / self._counts
        apart = (residual - average[self._place]).square().sum() / noise
        more = len(residual) - len(self._counts)
        rest = -0.5 * (apart + more * (2.0 * math.pi * noise).log() + self._counts.log().sum())
        return noise / self._counts, average, rest

    def _weighted_averages(self, residual: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Averages weighted by the precision of each row's noise (N,)."""
        zeros = torch.zeros_like(self._counts)
        precision = zeros.index_add(0, self._place, 1.0 / noise)
        average = zeros.index_add(0, self._place, residual / noise) / precision
        apart = ((residual - average[self._place]).square() / noise).sum()
        more = len(residual) - len(self._counts)
        rest = -0.5 * (apart + more * math.log(2.0 * math.pi) + noise.log().sum() + precision.log().sum())
        return 1.0 / precision, average, rest

    def _log_evidence(self) -> Tensor:
        if not torch.is_grad_enabled():
            known = self.knots_posterior()
            assert isinstance(known, Conditioned)
            return known.log_density + self._averages()[2]
        noise, residual, rest = self._averages()
        covariance = self.kernel_matrix(self.knots, self.knots)
        return log_marginal(covariance, residual, noise, what=TARGETS, by_weights=True) + rest
