"""A sparse Gaussian process of counts, labels and other targets that are not normal."""

import math
from typing import Any, Self, final

import torch
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean, Mean
from torch import Tensor, nn

from gp_ensembles.likelihoods import check_support, latent_dim, log_prob
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.checks import check_rows
from gp_ensembles.sparse.collapsed import project
from gp_ensembles.sparse.laplace import LatentPrior, Mode, find_mode, knots_posterior, laplace_evidence, latent_prior
from gp_ensembles.sparse.predictions import KnotsPosterior


@final
class SparseLaplaceGP(KnotModel):
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
        >>> from gp_ensembles.sparse import fit_sparse
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> labels = (X > 0.4).double()
        >>> model = SparseLaplaceGP(X, labels, X[::10], ScaleKernel(RBFKernel()), LogisticLikelihood())
        >>> before = float(model.objective().detach())
        >>> fit_sparse(model, max_iterations=5).objective > before
        True
        >>> model.posterior(X[[0, -1]]).mean.detach().squeeze(-1).sign()
        tensor([-1.,  1.], dtype=torch.float64)
    """

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
        nugget: float | None = None,
    ) -> None:
        y = check_rows(X, Y)
        offset = torch.zeros_like(y) if offset is None else offset.to(y)
        _check_offset(offset, y)
        if latent_dim(likelihood) > 1:
            raise ValueError(f"{type(likelihood).__name__} has latent vectors; give one of a single latent value")
        if not 0.0 < noise < torch.inf:
            raise ValueError(f"the variance of the latent noise must be positive, got {noise}")
        check_support(likelihood.to(X), y)
        super().__init__(X, y, knots, kernel, likelihood, ConstantMean() if mean is None else mean, nugget)
        self.register_buffer("offset", offset)
        self.register_parameter("raw_noise", nn.Parameter(X.new_zeros(1)))
        self.register_constraint("raw_noise", Positive())  # type: ignore[operator]
        self.raw_noise.data = self.raw_noise_constraint.inverse_transform(X.new_full((1,), noise))
        self._start: Tensor | None = None  # weights of the last mode, from which the next search starts

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
        return value + self.log_priors()

    def mode(self) -> Mode:
        """The most probable latent values at the data; offsets are not part of them."""
        with torch.no_grad():
            return self._find_mode(self._latent_prior(self.knots)[1])

    def upper_bound(self) -> Tensor:
        """None is known: infinity."""
        return torch.full_like(self.train_y[0], torch.inf)

    def gap(self) -> float:
        """Infinite, for no upper bound is known."""
        return math.inf

    def of_rows(self, rows: Tensor) -> Self:
        """A model of some distinct rows only, all of which are knots."""
        other = self.with_knots(self.train_X[rows])
        other.train_X, other.train_y, other.offset = self.train_X[rows], self.train_y[rows], self.offset[rows]
        other._start = None
        return other

    def prior(self, X: Tensor) -> MultivariateNormal:
        """None: GPyTorch's objectives do not fit.

        Raises:
            ValueError: Always.
        """
        raise ValueError("this model is fitted by fit_sparse, not by GPyTorch's objectives; call eval() to predict")

    def rest(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave open."""
        return prior - explained

    def target_noise(self) -> Tensor:
        """The latent noise, as targets have it.

        Targets themselves follow by the likelihood, for instance by :class:`~gp_ensembles.likelihoods.GaussHermite`.
        """
        return self.noise

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

    def _latent_prior(self, knots: Tensor) -> tuple[Tensor, LatentPrior]:
        """The factor of the knots' covariance and the prior at the data; the noise is part of knots and data."""
        own, cross = self.kernel_matrix(knots, knots), self.kernel_matrix(knots, self.train_X)
        extra = self.delta(own) + self.noise
        own = own + torch.diag_embed(extra.expand(knots.shape[0]))
        projection = project(own, cross, self.kernel_diagonal(self.train_X) + extra, self.train_y, self.noise)
        return projection.lower, latent_prior(projection, self.mean_module(self.train_X))

    def _log_density(self, latent: Tensor, y: Tensor) -> Tensor:
        return log_prob(self.likelihood, latent + self.offset, y)

    def _find_mode(self, prior: LatentPrior) -> Mode:
        mode = find_mode(prior, self._log_density, self.train_y, start=self._start)
        self._start = mode.weights
        return mode

    @property
    def choices(self) -> tuple[object, ...]:
        """None."""
        return ()

    def find_knots_posterior(self) -> KnotsPosterior:
        """By the curvature at the mode."""
        lower, prior = self._latent_prior(self.knots)
        posterior = knots_posterior(prior, self._log_density, self.train_y, self._find_mode(prior))
        return KnotsPosterior(lower, posterior.factor, posterior.mean)


def _check_offset(offset: Tensor, y: Tensor) -> None:
    if offset.shape != y.shape:
        raise ValueError(f"the offset must have one value for each of {y.shape[0]} rows, got {tuple(offset.shape)}")
    bad = (~offset.isfinite()).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise ValueError(
            f"the offset must be finite, but row {row} is {float(offset[row])}; exposures must be positive"
        )
