"""The exact Gaussian process: every distinct row is a knot, and nothing is approximated."""

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any, Self, final

import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.autograd.function import once_differentiable

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.sparse.base import SparseModel, check_rows
from gp_ensembles.sparse.collapsed import RowsPosterior
from gp_ensembles.sparse.initialization import distinct_rows
from gp_ensembles.sparse.regression import check_gaussian, constant_mean

_WHAT = "the covariance of the targets"
_CHUNK = 1000  # rows of the covariance that are computed at a time


class _LogDensity(torch.autograd.Function):
    r"""log N(r; 0, K + D); its derivative in K is :math:`\tfrac12 (a a^\top - (K + D)^{-1})`, a = (K + D)^{-1} r."""

    @staticmethod
    def forward(ctx: Any, covariance: Tensor, noise: Tensor, residual: Tensor) -> Tensor:
        factor = _factorize(covariance, noise)
        weights = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
        ctx.save_for_backward(factor, weights)
        return -0.5 * (residual @ weights) - _log_scale(factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        factor, weights = ctx.saved_tensors
        slope = torch.cholesky_inverse(factor).neg_().addr_(weights, weights).mul_(0.5 * gradient)
        return slope, slope.diagonal().clone(), -gradient * weights


def _factorize(covariance: Tensor, noise: Tensor) -> Tensor:
    noisy = covariance.clone()
    noisy.diagonal().add_(noise)
    return cholesky(noisy, _WHAT)


def _log_scale(factor: Tensor) -> Tensor:
    return factor.diagonal().log().sum() + 0.5 * factor.shape[-1] * math.log(2.0 * math.pi)


@final
class ExactGP(SparseModel):
    r"""The exact Gaussian process of N rows: the model whose knots are all K distinct rows, O(K^3) in O(K^2) memory.

    .. math:: \log N(r;\, 0,\, K_{ff} + \tau^2 I)

    (Rasmussen and Williams, 2006, equation 2.30). Targets at one row count as their average with a share of the noise,
    which is exact. Rows that are added become knots, too.

    Args:
        X: Inputs, shape (N, D).
        Y: Targets, shape (N,) or (N, 1).
        kernel: Any GPyTorch kernel without a batch.
        likelihood: Gaussian likelihood; GPyTorch's default if ``None``.
        mean: Prior mean; a constant that starts at the targets' average if ``None``.

    Raises:
        ValueError: If shapes do not fit, or a value is not finite.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> model = ExactGP(X, torch.sin(6.0 * X.squeeze(-1)), ScaleKernel(MaternKernel()))
        >>> model.posterior(X[:3]).mean.shape, model.num_knots, model.bound_gap()
        (torch.Size([3, 1]), 20, 0.0)
    """

    likelihood: GaussianLikelihood
    _place: Tensor
    _counts: Tensor

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        kernel: Kernel,
        likelihood: GaussianLikelihood | None = None,
        mean: Mean | None = None,
    ) -> None:
        y = check_rows(X, Y)
        check_gaussian(likelihood)
        rows = distinct_rows(X).sort().values
        mean = constant_mean(X, y) if mean is None else mean
        super().__init__(
            X, y, X[rows], kernel, GaussianLikelihood() if likelihood is None else likelihood, mean, nugget=0.0
        )
        self.knots.requires_grad_(False)
        _, label, counts = torch.unique(X.detach(), dim=0, return_inverse=True, return_counts=True)
        order = label[rows]
        place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(rows), device=order.device))
        self.register_buffer("_place", place[label])
        self.register_buffer("_counts", counts[order].to(X))

    def objective(self) -> Tensor:
        """The log evidence, with the log densities of registered priors, in nats, shape ()."""
        return self._log_evidence() + self.log_priors()

    def upper_bound(self) -> Tensor:
        """The log evidence, shape ()."""
        return self._log_evidence()

    def bound_gap(self) -> float:
        """Zero."""
        return 0.0

    def subset_of_data(self, rows: Tensor) -> Self:
        """The exact model of some rows only."""
        return self._of(self.train_X[rows], self.train_y[rows])

    def training_prior(self, X: Tensor) -> MultivariateNormal:
        """The prior at the training inputs, with which ``ExactMarginalLogLikelihood`` is the objective over N.

        Raises:
            ValueError: If these are not the training inputs.
        """
        if X.shape != self.train_X.shape or not torch.equal(X, self.train_X):
            raise ValueError("in training mode a model takes its training inputs only; call eval() to predict")
        return MultivariateNormal(self.mean_module(X), self.covar_module(X))

    def conditional_covariance(self, prior: Tensor, explained: Tensor) -> Tensor:
        """What the targets leave open."""
        return prior - explained

    def target_noise(self) -> Tensor:
        """The likelihood's noise."""
        noise: Tensor = self.likelihood.noise
        return noise

    @property
    def cache_key(self) -> tuple[object, ...]:
        """None."""
        return ()

    def compute_knots_posterior(self) -> RowsPosterior:
        """Of the averages of the targets at each distinct row.

        Raises:
            ValueError: If the knots are not the distinct rows any more.
            NumericalError: If the targets' covariance is not positive definite.
        """
        if self.knots.shape[0] != len(self._counts):
            raise ValueError("the knots of an exact model are its distinct rows; take a SparseGP for others")
        noise, residual, _ = self._averages()
        covariance = self.knots.new_empty(len(noise), len(noise))
        for rows, part in zip(covariance.split(_CHUNK), self.knots.split(_CHUNK), strict=True):
            rows.copy_(self.kernel_matrix(part, self.knots))  # a kernel makes several tables of its rows
        covariance.diagonal().add_(noise)
        lower = cholesky(covariance, _WHAT)
        mean = torch.linalg.solve_triangular(lower, residual.unsqueeze(-1), upper=False).squeeze(-1)
        return RowsPosterior(lower, mean)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **settings: Any) -> Self:
        """The exact model of more rows, hyperparameters as they are.

        Args:
            X: Further inputs, shape (n, D).
            Y: Further targets, shape (n, 1).
            **settings: None are accepted.

        Raises:
            ValueError: If a setting is given, shapes do not fit, or a value is not finite.
        """
        more = self.with_rows(X, Y, settings)
        return self._of(more.train_X, more.train_y)

    def _of(self, X: Tensor, y: Tensor) -> Self:
        other = type(self)(X, y, *deepcopy((self.covar_module, self.likelihood, self.mean_module)))
        other._start_ranges = dict(self._start_ranges)
        return other

    def _averages(self) -> tuple[Tensor, Tensor, Tensor]:
        """Noise variances (K,), residuals (K,) of the averages, and the log density of the rest, shape ()."""
        residual, noise = self.train_y - self.mean_module(self.train_X), self.likelihood.noise.squeeze(-1)
        if len(self._counts) == len(residual):
            return noise.expand_as(residual), residual, torch.zeros_like(noise)
        average = torch.zeros_like(self._counts).index_add(0, self._place, residual) / self._counts
        apart = (residual - average[self._place]).square().sum() / noise
        more = len(residual) - len(self._counts)
        rest = -0.5 * (apart + more * (2.0 * math.pi * noise).log() + self._counts.log().sum())
        return noise / self._counts, average, rest

    def _log_evidence(self) -> Tensor:
        if not torch.is_grad_enabled():
            known = self.knots_posterior()
            return self._averages()[2] - 0.5 * known.mean.square().sum() - _log_scale(known.lower)
        noise, residual, rest = self._averages()
        apply: Callable[..., Tensor] = _LogDensity.apply
        return apply(self.kernel_matrix(self.knots, self.knots), noise, residual) + rest
