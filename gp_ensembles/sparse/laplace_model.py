"""A sparse Gaussian process of counts, labels and other targets that are not normal."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Self, cast

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.likelihoods import check_support, latent_dim, log_prob
from gp_ensembles.sparse.checks import check_knots, check_rows, check_shape
from gp_ensembles.sparse.collapsed import project
from gp_ensembles.sparse.fitting import Fit, fit_sparse
from gp_ensembles.sparse.laplace import LatentPrior, Mode, find_mode, knots_posterior, laplace_evidence, latent_prior
from gp_ensembles.sparse.model import RELATIVE_NUGGET, SparseGP
from gp_ensembles.sparse.predictions import (
    KnotsPosterior,
    check_query,
    joint_normal,
    normal_posterior,
    see,
    unchanged,
)


class SparseLaplaceGP(Model, GP):  # type: ignore[misc]  # GPyTorch's models are untyped
    r"""A latent Gaussian process seen through K knots (FIC), its posterior by Laplace's method, in O(N K^2).

    The latent value behind target i is :math:`f(x_i) + o_i + e_i`: the function, a known offset, and independent normal
    noise of variance :math:`\tau^2` (overdispersion). The mode is found by Newton's method, and gradients of the
    objective go through it. Rows are independent given the knots; test points keep their covariance given them.

    Args:
        X: Inputs, shape (N, D).
        Y: Targets, shape (N,) or (N, 1), floating point.
        knots: Knots Z, shape (K, D), a parameter.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: A likelihood of one latent value whose log density is concave in it, such as
            :class:`~gp_ensembles.likelihoods.LogPoissonLikelihood` or
            :class:`~gp_ensembles.likelihoods.LogisticLikelihood`.
        mean: Prior mean; a trainable constant that starts at zero if ``None``.
        offset: Known addends of the latent values, shape (N,): log exposures of counts; none if ``None``.
        noise: Start of :math:`\tau^2`, positive.
        nugget: As in :class:`~gp_ensembles.sparse.model.SparseGP`.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, a target is not possible under the likelihood, the
            likelihood has latent vectors, the noise is not positive, or there are more knots than distinct rows.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.likelihoods import LogisticLikelihood
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> labels = (X > 0.4).double()
        >>> model = SparseLaplaceGP(X, labels, X[::10], ScaleKernel(RBFKernel()), LogisticLikelihood())
        >>> before = float(model.objective().detach())
        >>> model.fit(max_iterations=5).objective > before
        True
        >>> model.posterior(X[[0, -1]]).mean.detach().squeeze(-1).sign()
        tensor([-1.,  1.], dtype=torch.float64)
    """

    train_X: Tensor
    train_y: Tensor
    offset: Tensor
    raw_noise: Tensor
    raw_noise_constraint: Positive

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: Likelihood,
        mean: Mean | None = None,
        *,
        offset: Tensor | None = None,
        noise: float = 1e-2,
        nugget: float = RELATIVE_NUGGET,
    ) -> None:
        super().__init__()
        y = check_rows(X, Y)
        check_knots(X, knots)
        offset = torch.zeros_like(y) if offset is None else offset.to(y)
        _check_offset(offset, y)
        if latent_dim(likelihood) > 1:
            raise ValueError(f"{type(likelihood).__name__} has latent vectors; give one of a single latent value")
        if not 0.0 < noise < torch.inf:
            raise ValueError(f"the variance of the latent noise must be positive, got {noise}")
        self.likelihood = likelihood.to(X)
        check_support(self.likelihood, y)
        self.register_buffer("train_X", X)
        self.register_buffer("train_y", y)
        self.register_buffer("offset", offset)
        self.knots = nn.Parameter(knots.detach().clone())
        self.covar_module = kernel.to(X)
        self.mean_module = (ConstantMean() if mean is None else mean).to(X)
        self.register_parameter("raw_noise", nn.Parameter(X.new_zeros(1)))
        self.register_constraint("raw_noise", Positive())  # type: ignore[operator]
        self.raw_noise.data = self.raw_noise_constraint.inverse_transform(X.new_full((1,), noise))
        self.nugget = nugget
        self._cache: tuple[list[Tensor], KnotsPosterior] | None = None
        self._start: Tensor | None = None  # weights of the last mode, from which the next search starts

    @property
    def num_outputs(self) -> int:
        """One."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """Empty."""
        return torch.Size()

    @property
    def num_knots(self) -> int:
        """Number of knots K."""
        return self.knots.shape[0]

    @property
    def noise(self) -> Tensor:
        r"""Variance :math:`\tau^2` of the latent noise, shape ()."""
        noise: Tensor = self.raw_noise_constraint.transform(self.raw_noise)
        return noise.squeeze(-1)

    def objective(self, knots: Tensor | None = None) -> Tensor:
        """Laplace's log evidence with the log densities of registered priors, in nats, shape ().

        Args:
            knots: Other knots than the model's, shape (K', D).

        Raises:
            NumericalError: If the mode is not found.
        """
        _, prior = self._latent_prior(self.knots if knots is None else knots)
        value = laplace_evidence(prior, self._log_density, self.train_y, self._find_mode(prior))
        priors: Iterable[Any] = self.named_priors()  # type: ignore[operator]
        for _, module, hyperprior, closure, _ in priors:
            value = value + hyperprior.log_prob(closure(module)).sum()
        return value

    def mode(self) -> Mode:
        """The most probable latent values at the data; offsets are not part of them."""
        with torch.no_grad():
            return self._find_mode(self._latent_prior(self.knots)[1])

    def fit(self, *, knots: bool = False, hyperparameters: bool = True, max_iterations: int = 200) -> Fit:
        """Maximise the objective in place, as :func:`~gp_ensembles.sparse.fitting.fit_sparse` does."""
        # The fit needs an objective, parameters and their bounds, which both models have.
        model = cast(SparseGP, self)
        return fit_sparse(model, knots=knots, hyperparameters=hyperparameters, max_iterations=max_iterations)

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint moments of the function, no noise, at points (\*batch, q, D): (\*batch, q), (\*batch, q, q)."""
        flat = X.reshape(-1, X.shape[-1])
        seen = see(self._knots_posterior(), self._covariance(self.knots, flat), X.shape[:-1])
        covariance = self._covariance(X, X) - seen.explained + seen.learned
        return self.mean_module(flat).reshape(X.shape[:-1]) + seen.mean, covariance

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""Joint normal predictions of the latent function, offsets left out, differentiable in X.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to add the latent noise, as targets have it, or other variances of it, shape
                (\*batch, q, 1). Targets themselves follow by the likelihood, for instance by
                :class:`~gp_ensembles.likelihoods.GaussHermite`.
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, or another output is asked for.
        """
        check_query(X, self.train_X.shape[-1], output_indices)
        self.eval()
        return normal_posterior(*self.latent(X), self.noise, observation_noise, posterior_transform)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Joint normal distribution of the latent function at points."""
        return joint_normal(*self.latent(X))

    def condition_on_observations(self, X: Tensor, Y: Tensor, *, offset: Tensor | None = None, **settings: Any) -> Self:
        """A model of more rows, the knots and hyperparameters as they are.

        Args:
            X: Further inputs, shape (n, D).
            Y: Further targets, shape (n, 1).
            offset: Their offsets, shape (n,); none if ``None``.
            **settings: None are known.

        Raises:
            ValueError: As when a model is made, or if a setting is given.
        """
        if settings:
            raise ValueError(f"unknown settings {sorted(settings)}; rows have the likelihood's noise")
        y = check_rows(X, Y)
        offset = torch.zeros_like(y) if offset is None else offset.to(y)
        _check_offset(offset, y)
        check_support(self.likelihood, y)
        rows = torch.cat([self.train_X, X])
        other = self.with_knots(self.knots)
        other.train_X, other.train_y = rows, torch.cat([self.train_y, y])
        other.offset = torch.cat([self.offset, offset])
        other._start = None
        return other

    def with_knots(self, knots: Tensor) -> Self:
        """A model of the same rows and (copied) hyperparameters with other knots."""
        check_shape(self.train_X, knots)
        cache, self._cache = self._cache, None
        other = deepcopy(self)
        self._cache = cache
        other.knots = nn.Parameter(knots.detach().clone())
        return other

    def _covariance(self, first: Tensor, second: Tensor) -> Tensor:
        matrix: Tensor = self.covar_module(first, second).to_dense()
        return matrix

    def _latent_prior(self, knots: Tensor) -> tuple[Tensor, LatentPrior]:
        """The factor of the knots' covariance and the prior at the data; the noise is part of knots and data."""
        own, cross = self._covariance(knots, knots), self._covariance(knots, self.train_X)
        extra = self.nugget * own.diagonal().mean() + self.noise
        variance: Tensor = self.covar_module(self.train_X, diag=True)
        own = own + torch.diag_embed(extra.expand(knots.shape[0]))
        projection = project(own, cross, variance + extra, self.train_y, self.noise)
        return projection.lower, latent_prior(projection, self.mean_module(self.train_X))

    def _log_density(self, latent: Tensor, y: Tensor) -> Tensor:
        return log_prob(self.likelihood, latent + self.offset, y)

    def _find_mode(self, prior: LatentPrior) -> Mode:
        mode = find_mode(prior, self._log_density, self.train_y, start=self._start)
        self._start = mode.weights
        return mode

    def _knots_posterior(self) -> KnotsPosterior:
        """The knots' posterior, kept until a parameter or a row changes, without gradients."""
        tensors = [*self.parameters(), *self.buffers()]
        cache = self._cache
        if cache is None or not unchanged(cache[0], tensors):
            with torch.no_grad():
                lower, prior = self._latent_prior(self.knots)
                posterior = knots_posterior(prior, self._log_density, self.train_y, self._find_mode(prior))
            found = KnotsPosterior(lower, posterior.factor, posterior.mean)
            cache = [tensor.detach().clone() for tensor in tensors], found
            self._cache = cache
        return cache[1]


def _check_offset(offset: Tensor, y: Tensor) -> None:
    if offset.shape != y.shape:
        raise ValueError(f"the offset must have one value for each of {y.shape[0]} rows, got {tuple(offset.shape)}")
    bad = (~offset.isfinite()).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise ValueError(
            f"the offset must be finite, but row {row} is {float(offset[row])}; exposures must be positive"
        )
