"""Base class of sparse models: validation of rows and knots, cached posterior of the knots, joint predictions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, Self

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean
from linear_operator import to_linear_operator
from torch import Tensor, nn

from gp_ensembles.bo.data import Observations, check_input_transform, check_noise
from gp_ensembles.bo.mixture_model import MixtureModel
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.numerics.exact_gp import Conditioned
from gp_ensembles.numerics.gpytorch_types import Kernel, Likelihood, Mean
from gp_ensembles.papers.rows import check_rows
from gp_ensembles.papers.sparse.collapsed import Approximation, KnotsPosterior
from gp_ensembles.papers.sparse.initialization import distinct_rows


def check_knots(X: Tensor, knots: Tensor) -> None:
    """Raise unless knots match the rows and are no more than the distinct rows."""
    check_shape(X, knots)
    distinct = torch.unique(X, dim=0).shape[0]
    if knots.shape[0] > distinct:
        raise ValueError(f"{knots.shape[0]} knots are more than the {distinct} distinct row(s); use fewer knots")


def check_shape(X: Tensor, knots: Tensor) -> None:
    """Raise unless there are knots, with the rows' width and dtype, and all are finite."""
    if knots.ndim != 2 or knots.shape[-1] != X.shape[-1] or not knots.shape[0] or knots.dtype != X.dtype:
        raise ValueError(
            f"knots must be (K, {X.shape[-1]}) of {X.dtype}, K at least 1, got {tuple(knots.shape)} of {knots.dtype}"
        )
    if not bool(knots.isfinite().all()):
        raise ValueError("knots must be finite")


def check_positive(**counts: int) -> None:
    """Raise unless all counts are at least one, naming one that is not."""
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def gaussian_likelihood(
    likelihood: GaussianLikelihood | None, known_noise: Tensor | None
) -> GaussianLikelihood | FixedNoiseGaussianLikelihood:
    """A Gaussian likelihood: as given, with known noise (N, 1) of every row, or GPyTorch's default."""
    if likelihood is not None and not isinstance(likelihood, GaussianLikelihood):
        raise ValueError(
            f"the likelihood must be a GaussianLikelihood with a single noise, not {type(likelihood).__name__}; "
            f"for counts or labels use BoTorch's SingleTaskVariationalGP"
        )
    if known_noise is not None and likelihood is not None:
        raise ValueError("give either a likelihood, whose noise is inferred, or train_Yvar, not both")
    if known_noise is not None:
        return FixedNoiseGaussianLikelihood(known_noise.squeeze(-1))
    return GaussianLikelihood() if likelihood is None else likelihood


def noise_of(likelihood: Likelihood) -> Tensor:
    """Noise variance of a Gaussian likelihood, shape (), or per row, shape (N,)."""
    noise: Tensor = likelihood.noise
    return noise if isinstance(likelihood, FixedNoiseGaussianLikelihood) else noise.squeeze(-1)


def constant_mean(X: Tensor, y: Tensor) -> ConstantMean:
    """A constant prior mean, initialized at the targets' average."""
    mean = ConstantMean().to(X)
    mean.constant.data.fill_(float(y.mean()))
    return mean


class SparseModel(MixtureModel, ABC):
    r"""A sparse BoTorch model of one output: N rows, K knots (inducing points).

    As a mixture it has one component. Fantasies become additional knots, with the knots' posterior as
    their prior. The arguments are those of :class:`SparseGP`; knots are all distinct rows if ``None``.

    Raises:
        TypeError: If the data are not tensors.
        ValueError: If shapes or dtypes do not match, a value is not finite, there are more knots than distinct rows, or
            the kernel has a batch.
        UnsupportedError: If the input transform has trainable parameters.
        BotorchError: If a known noise variance is not positive, or its shape is not that of the targets.
    """

    train_X: Tensor
    train_y: Tensor
    knots: Tensor
    likelihood: GaussianLikelihood | FixedNoiseGaussianLikelihood
    approximation: Approximation
    # The values from which the knots' posterior was computed, and the posterior.
    _cache: tuple[list[Tensor], list[object], KnotsPosterior | Conditioned] | None

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        knots: Tensor | None,
        kernel: Kernel,
        likelihood: GaussianLikelihood | None,
        mean: Mean | None,
        nugget: float | None,
        train_Yvar: Tensor | None,
        input_transform: InputTransform | None,
        outcome_transform: OutcomeTransform | None,
    ) -> None:
        targets, seen = check_rows(train_X, train_Y)
        train_X, targets = train_X[seen], targets[seen].unsqueeze(-1).detach()
        if train_Yvar is not None:
            train_Yvar = train_Yvar.unsqueeze(-1) if train_Yvar.ndim == 1 else train_Yvar
            train_Yvar = train_Yvar[seen] if len(train_Yvar) == len(seen) else train_Yvar
            check_noise(targets, train_Yvar)
        check_input_transform(input_transform)
        inputs = None if input_transform is None else input_transform.to(train_X).train()
        outcomes = None if outcome_transform is None else outcome_transform.to(train_X).train()
        data = Observations(train_X, targets, train_Yvar).map(Tensor.detach)
        rows = data.transformed(inputs, outcomes)
        for part in (inputs, outcomes):
            if part is not None:
                part.eval()
        X, y = rows.X.detach(), rows.Y.detach().squeeze(-1)
        mean = constant_mean(X, y) if mean is None else mean
        if knots is None:
            knots = X[distinct_rows(X).sort().values]
        else:
            check_shape(train_X, knots)
            knots = Observations(knots, knots).transformed(inputs, None).X
        own = gaussian_likelihood(likelihood, rows.noise)
        check_knots(X, knots)
        if kernel.batch_shape:
            raise ValueError(
                f"the kernel must have no batch, got {tuple(kernel.batch_shape)}; use one model per kernel"
            )
        if nugget is None:  # large enough for Cholesky factors, and far below any noise
            nugget = max(1e-8, 100.0 * torch.finfo(X.dtype).eps)
        if not 0.0 <= nugget < torch.inf:
            raise ValueError(f"the nugget must be a finite share of the variance, at least 0, got {nugget}")
        super().__init__(data, inputs, outcomes)
        self.register_buffer("train_X", X, persistent=False)
        self.register_buffer("train_y", y, persistent=False)
        self.register_parameter("knots", nn.Parameter(knots.detach().clone()))
        self.covar_module = kernel.to(X)
        self.likelihood = own.to(X)
        self.mean_module = mean.to(X)
        self.nugget = nugget
        self._start_ranges: dict[str, tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def objective(self) -> Tensor:
        """The objective, with the log densities of registered priors, in nats, shape ()."""

    @abstractmethod
    def compute_knots_posterior(self) -> KnotsPosterior | Conditioned:
        """The knots' posterior at the current parameters, not cached."""

    @abstractmethod
    def upper_bound(self) -> Tensor:
        """Upper bound on the exact log evidence at the current hyperparameters, shape ()."""

    @abstractmethod
    def bound_gap(self) -> float:
        """Upper minus lower bound on the exact log evidence, in nats: the most that more knots can gain."""

    @abstractmethod
    def training_prior(self) -> MultivariateNormal:
        """The distribution of the training rows for GPyTorch's objectives."""

    @abstractmethod
    def follow_rows(self, *, all_are_knots: bool) -> None:
        """Update everything that depends on the rows after these were replaced."""

    @property
    def num_experts(self) -> int:
        """One."""
        return 1

    @property
    def num_knots(self) -> int:
        """Number of knots K."""
        return self.knots.shape[0]

    def kernel_matrix(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariances of the kernel, without nugget."""
        matrix: Tensor = self.covar_module(first, second).to_dense()
        return matrix

    def kernel_diagonal(self, X: Tensor) -> Tensor:
        """Variances of the kernel, without nugget."""
        diagonal: Tensor = self.covar_module(X, diag=True)
        return diagonal

    def nugget_variance(self, own: Tensor) -> Tensor:
        """The nugget as a variance, given the kernel's covariance of the knots."""
        return self.nugget * own.diagonal(dim1=-2, dim2=-1).mean(-1)

    def log_priors(self) -> Tensor | float:
        """Log densities of the hyperparameters' registered priors."""
        priors: Iterable[Any] = self.named_priors()  # type: ignore[operator]
        total: Tensor | float = 0.0
        for _, module, prior, closure, _ in priors:
            total = total + prior.log_prob(closure(module)).sum()
        return total

    @torch.no_grad()
    def start_range(self, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        """Smallest and largest starting values of a positive hyperparameter, in this model or its originals.

        Bounds of fits are relative to them, so that they do not drift from one fit to the next.
        """
        least, most = self._start_ranges.setdefault(name, (value.detach().clone(), value.detach().clone()))
        return least.to(value), most.to(value)

    @torch.no_grad()
    def widen_start_range(self, name: str, value: Tensor) -> None:
        """Include a value in the range of starting values of a hyperparameter."""
        least, most = self.start_range(name, value)
        self._start_ranges[name] = torch.minimum(least, value), torch.maximum(most, value)

    @torch.no_grad()
    def knots_posterior(self) -> KnotsPosterior | Conditioned:
        """The knots' posterior without gradients, cached until a parameter, buffer, module or setting changes."""
        tensors = [*self.parameters(), *self.buffers(), self.likelihood.noise]
        # Values are compared, as GPyTorch's setters leave no trace; modules are compared by identity.
        settings = [*list(self.modules())[1:], self.nugget, self.approximation]
        if self._cache is not None:
            known, same, posterior = self._cache
            if same == settings and len(known) == len(tensors) and all(map(torch.equal, known, tensors)):
                return posterior
        posterior = self.compute_knots_posterior()
        self._cache = [tensor.detach().clone() for tensor in tensors], settings, posterior
        return posterior

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint moments of the function without nugget at points (\*batch, q, D): (\*batch, q), (\*batch, q, q)."""
        flat = X.reshape(-1, X.shape[-1])
        # GPyTorch's own distances lose second derivatives at the knots.
        between = bind_covariance(self.covar_module).between if X.requires_grad else self.kernel_matrix
        known = self.knots_posterior()
        loadings = known.whiten(between(self.knots, flat))  # (K, *batch * q)
        prior_mean, apart = self.mean_module(flat).reshape(X.shape[:-1]), _apart(loadings, X)
        conditional = self.approximation.predictive(between(X, X), apart.mT @ apart)
        if isinstance(known, Conditioned):
            return prior_mean + known.mean(loadings).reshape(X.shape[:-1]), conditional
        posterior = torch.linalg.solve_triangular(known.factor, loadings, upper=False)
        mean, apart = (known.mean @ posterior).reshape(X.shape[:-1]), _apart(posterior, X)
        return prior_mean + mean, conditional + apart.mT @ apart

    def joint(self, X: Tensor) -> MixturePosterior:
        r"""Joint normal predictions of the function at transformed points (\*t, q, D), as a one-component mixture.

        They are not differentiable in hyperparameters: the knots' posterior is cached.
        """
        mean, covariance = self.latent(X)
        return MixturePosterior(mean.new_zeros(1), mean[..., None, :, None], covariance[..., None, None, :, :])

    def predict(self, X: Tensor, noise: bool | Tensor) -> GPyTorchPosterior:
        r"""A ``GPyTorchPosterior`` at transformed points (\*t, q, D), with noise if requested."""
        own = self.likelihood.noise.mean().reshape(1, 1)
        return self.after(self._fantasies, own, X, noise).alone()

    def learned(self, rows: Observations, data: Observations) -> Self:
        """A model of more rows with unchanged hyperparameters, and unchanged knots unless every row is one."""
        noise = None if rows.noise is None else torch.cat([self.likelihood.noise, rows.noise.detach().squeeze(-1)])
        X, y = torch.cat([self.train_X, rows.X.detach()]), torch.cat([self.train_y, rows.Y.detach().squeeze(-1)])
        return self._of_rows(X, y, noise, data, self.knots, all_are_knots=False)

    def subset_of_data(self, rows: Tensor) -> Self:
        """The exact model of some distinct rows, all of which are knots."""
        X, y, noise, data = self.train_X[rows], self.train_y[rows], self.likelihood.noise, self.data
        given = data.map(lambda values: values[rows])
        return self._of_rows(X, y, noise[rows] if len(noise) > 1 else noise, given, X, all_are_knots=True)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """The function at transformed points; in training mode, :meth:`training_prior` of the rows.

        Raises:
            ValueError: If X is not the training inputs, in training mode.
        """
        if not self.training:
            mean, covariance = self.latent(X)
            # Factorized only when a sample is drawn, with jitter if points are close.
            return MultivariateNormal(mean, to_linear_operator(covariance))
        if not any(X.shape == rows.shape and torch.equal(X, rows) for rows in (self.data.X, self.train_X)):
            raise ValueError("in training mode a model accepts only its training inputs; call eval() to predict")
        return self.training_prior()

    def with_knots(self, knots: Tensor) -> Self:
        """A model of the same rows and (copied) hyperparameters with other knots."""
        check_shape(self.train_X, knots)
        cached, self._cache = self._cache, None
        added: dict[str, Any] = self._added_loss_terms  # type: ignore[assignment]
        added.update(dict.fromkeys(added))  # the last added loss terms have a graph
        other = deepcopy(self)
        self._cache = cached
        other.knots = nn.Parameter(knots.detach().clone())
        return other

    def _of_rows(
        self, X: Tensor, y: Tensor, noise: Tensor | None, data: Observations, knots: Tensor, *, all_are_knots: bool
    ) -> Self:
        """A copy with other rows, (N, D) and (N,), and their noise (N,), if known; hyperparameters are unchanged."""
        other = self.with_knots(knots)
        other.train_X, other.train_y, other.data = X, y, data
        if noise is not None and isinstance(other.likelihood, FixedNoiseGaussianLikelihood):
            other.likelihood = FixedNoiseGaussianLikelihood(noise)
        other.follow_rows(all_are_knots=all_are_knots)
        return other


def _apart(loadings: Tensor, X: Tensor) -> Tensor:
    r"""Loadings (K, \*batch * q) of points X (\*batch, q, D), shape (\*batch, K, q)."""
    apart: Tensor = loadings.unflatten(-1, tuple(X.shape[:-1])).movedim(0, -2)
    return apart
