"""The base of all sparse models: checks of rows and knots, the cached posterior of the knots, joint predictions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple, Self, TypeVar

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.models import GP
from linear_operator import to_linear_operator
from torch import Tensor, nn

from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.sparse.collapsed import KnotsPosterior, RowsPosterior

ModelT = TypeVar("ModelT", bound="SparseModel")


def check_rows(X: Tensor, Y: Tensor) -> Tensor:
    """Targets as (N,), after checking rows X (N, D) and targets (N,) or (N, 1).

    Raises:
        TypeError: If something else than tensors is given.
        ValueError: If shapes or dtypes do not fit, there is no row, or a value is not finite (the first is named).

    Example:
        >>> import torch
        >>> check_rows(torch.zeros(3, 1), torch.zeros(3, 1)).shape
        torch.Size([3])
    """
    for name, values in (("inputs", X), ("targets", Y)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a torch tensor, not {type(values).__name__}; see torch.as_tensor")
    y = Y.squeeze(-1) if Y.ndim == 2 and Y.shape[-1] == 1 else Y
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0] or not X.shape[0]:
        raise ValueError(f"inputs (N, D) and targets (N,) or (N, 1) do not fit: {tuple(X.shape)} and {tuple(Y.shape)}")
    if not X.is_floating_point() or X.dtype != y.dtype or X.device != y.device:
        raise ValueError(f"inputs and targets must share a real dtype and a device, got {X.dtype} and {y.dtype}")
    for name, values in (("inputs", X), ("targets", y.unsqueeze(-1))):
        bad = (~values.isfinite()).nonzero()
        if bad.numel():
            row, column = bad[0].tolist()
            raise ValueError(f"{name} must be finite, but row {row}, column {column} is {float(values[row, column])}")
    return y


def check_knots(X: Tensor, knots: Tensor) -> None:
    """Refuse knots that do not fit the rows.

    Raises:
        ValueError: If shapes or dtypes do not fit, a knot is not finite, or there are more knots than distinct rows.

    Example:
        >>> import torch
        >>> check_knots(torch.zeros(3, 1), torch.zeros(2, 1))
        Traceback (most recent call last):
        ...
        ValueError: 2 knots are more than the 1 distinct row(s); further knots cannot add anything
    """
    check_shape(X, knots)
    distinct = torch.unique(X, dim=0).shape[0]
    if knots.shape[0] > distinct:
        raise ValueError(
            f"{knots.shape[0]} knots are more than the {distinct} distinct row(s); further knots cannot add anything"
        )


def check_shape(X: Tensor, knots: Tensor) -> None:
    """Refuse knots of another width or dtype than the rows, none at all, and ones that are not finite.

    Example:
        >>> import torch
        >>> check_shape(torch.zeros(3, 1), torch.zeros(0, 1))
        Traceback (most recent call last):
        ...
        ValueError: knots must be (K, 1) of torch.float32, K at least 1, got (0, 1) of torch.float32
    """
    if knots.ndim != 2 or knots.shape[-1] != X.shape[-1] or not knots.shape[0] or knots.dtype != X.dtype:
        raise ValueError(
            f"knots must be (K, {X.shape[-1]}) of {X.dtype}, K at least 1, got {tuple(knots.shape)} of {knots.dtype}"
        )
    if not bool(knots.isfinite().all()):
        raise ValueError("knots must be finite")


def check_positive(**counts: int) -> None:
    """Refuse counts below one, by name.

    Example:
        >>> check_positive(rounds=0)
        Traceback (most recent call last):
        ...
        ValueError: rounds must be at least 1, got 0
    """
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def default_nugget(dtype: torch.dtype) -> float:
    """The default share of the nugget: Cholesky factors succeed, and it is far below any noise.

    Example:
        >>> default_nugget(torch.float64)
        1e-08
    """
    return max(1e-8, 100.0 * torch.finfo(dtype).eps)


class _Cached(NamedTuple):
    """The knots' posterior with the values from which it was computed."""

    tensors: list[Tensor]
    settings: list[object]
    posterior: KnotsPosterior | RowsPosterior


class SparseModel(Model, GP, ABC):  # type: ignore[misc]  # a GP, for GPyTorch asks for one; its models are untyped
    r"""A sparse BoTorch model of one output: N rows, K knots (inducing points).

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,), checked.
        knots: Knots Z, shape (K, D).
        kernel: A kernel without a batch.
        likelihood: The likelihood.
        mean: Prior mean.
        nugget: A variance of the function that is no covariance between different points, as a share of the kernel's
            average variance at the knots: knots may come close to one another. :func:`default_nugget` if ``None``.

    Raises:
        ValueError: If the knots do not fit the rows, there are more of them than distinct rows, or the kernel has a
            batch.
    """

    train_X: Tensor
    train_y: Tensor

    def __init__(
        self,
        X: Tensor,
        y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: Likelihood,
        mean: Mean,
        nugget: float | None,
    ) -> None:
        super().__init__()
        X, y = X.detach(), y.detach()
        check_knots(X, knots)
        if kernel.batch_shape:
            raise ValueError(f"the kernel must have no batch, got {tuple(kernel.batch_shape)}; make a model of each")
        nugget = default_nugget(X.dtype) if nugget is None else nugget
        if not 0.0 <= nugget < torch.inf:
            raise ValueError(f"the nugget must be a finite share of the variance, at least 0, got {nugget}")
        self.register_buffer("train_X", X)
        self.register_buffer("train_y", y)
        self.knots = nn.Parameter(knots.detach().clone())
        self.covar_module = kernel.to(X)
        self.likelihood = likelihood.to(X)
        self.mean_module = mean.to(X)
        self.nugget = nugget
        self._cached: _Cached | None = None
        self._start_ranges: dict[str, tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def objective(self) -> Tensor:
        """The objective, with the log densities of registered priors, in nats, shape ()."""

    @abstractmethod
    def conditional_covariance(self, prior: Tensor, explained: Tensor) -> Tensor:
        r"""Covariance of points given the knots, (\*batch, q, q), of the prior and the part that the knots explain."""

    @abstractmethod
    def target_noise(self) -> Tensor:
        """Variance of the noise that predictions may have added, of one element."""

    @abstractmethod
    def compute_knots_posterior(self) -> KnotsPosterior | RowsPosterior:
        """The knots' posterior at the present parameters, not cached."""

    @property
    @abstractmethod
    def cache_key(self) -> tuple[object, ...]:
        """Further parts of the posterior's cache key, besides parameters, buffers, modules and the nugget."""

    @abstractmethod
    def upper_bound(self) -> Tensor:
        """Upper bound of the exact log evidence at the present hyperparameters, shape (); infinite if there is none."""

    @abstractmethod
    def bound_gap(self) -> float:
        """Upper less lower bound of the exact log evidence, in nats: the most that further knots can add."""

    @abstractmethod
    def subset_of_data(self, rows: Tensor) -> Self:
        """The exact model of some distinct rows only: all of them are knots."""

    @abstractmethod
    def training_prior(self, X: Tensor) -> MultivariateNormal:
        """The distribution that GPyTorch's objectives take in training mode, if there is one."""

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

    def kernel_matrix(self, first: Tensor, second: Tensor) -> Tensor:
        """Covariances of the kernel alone, no nugget."""
        matrix: Tensor = self.covar_module(first, second).to_dense()
        return matrix

    def kernel_diagonal(self, X: Tensor) -> Tensor:
        """Variances of the kernel alone."""
        diagonal: Tensor = self.covar_module(X, diag=True)
        return diagonal

    def nugget_variance(self, own: Tensor) -> Tensor:
        """The nugget as a variance, from the kernel's covariance of the knots."""
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
        """Least and largest value from which a positive hyperparameter started, in this model or its originals.

        Bounds of fits are relative to them, so that they do not drift from one fit to the next.
        """
        least, most = self._start_ranges.setdefault(name, (value.detach().clone(), value.detach().clone()))
        return least.to(value), most.to(value)

    @torch.no_grad()
    def widen_start_range(self, name: str, value: Tensor) -> None:
        """Include a value in the range from which the hyperparameter started."""
        least, most = self.start_range(name, value)
        self._start_ranges[name] = torch.minimum(least, value), torch.maximum(most, value)

    @torch.no_grad()
    def knots_posterior(self) -> KnotsPosterior | RowsPosterior:
        """The knots' posterior without gradients, cached until a parameter, buffer, module or setting changes."""
        tensors = [*self.parameters(), *self.buffers()]
        settings = [*list(self.modules())[1:], self.nugget, *self.cache_key]  # modules are equal if they are the same
        cached = self._cached
        # Values are compared, for GPyTorch's setters leave no trace of a version.
        if (
            cached is None
            or cached.settings != settings
            or len(cached.tensors) != len(tensors)
            or not all(map(torch.equal, cached.tensors, tensors))
        ):
            posterior = self.compute_knots_posterior()
            cached = _Cached([tensor.detach().clone() for tensor in tensors], settings, posterior)
            self._cached = cached
        return cached.posterior

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint moments of the function without nugget at points (\*batch, q, D): (\*batch, q), (\*batch, q, q)."""
        flat = X.reshape(-1, X.shape[-1])
        # GPyTorch's own distances lose their second derivatives at the knots.
        between = bind_covariance(self.covar_module).between if X.requires_grad else self.kernel_matrix
        known = self.knots_posterior()
        loadings = torch.linalg.solve_triangular(known.lower, between(self.knots, flat), upper=False)  # (K, *batch * q)
        prior_mean, apart = self.mean_module(flat).reshape(X.shape[:-1]), _apart(loadings, X)
        conditional = self.conditional_covariance(between(X, X), apart.mT @ apart)
        if isinstance(known, RowsPosterior):
            return prior_mean + (known.mean @ loadings).reshape(X.shape[:-1]), conditional
        posterior = torch.linalg.solve_triangular(known.factor, loadings, upper=False)
        mean, apart = (known.mean @ posterior).reshape(X.shape[:-1]), _apart(posterior, X)
        return prior_mean + mean, conditional + apart.mT @ apart

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""Joint normal predictions of the (latent) function, differentiable in X.

        They are not differentiable in hyperparameters: the knots' posterior is cached.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to add :meth:`target_noise`, or other variances, shape (\*batch, q, 1).
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, or another output is asked for.
        """
        if output_indices not in (None, [0]):
            raise ValueError(f"the model has one output, asked for {output_indices}")
        num_inputs = self.train_X.shape[-1]
        if X.shape[-1] != num_inputs or X.ndim < 2:
            raise ValueError(f"inputs must have shape (..., q, {num_inputs}), got {tuple(X.shape)}")
        self.eval()
        mean, covariance = self.latent(X)
        if isinstance(observation_noise, Tensor):
            covariance = covariance + torch.diag_embed(observation_noise.squeeze(-1).expand_as(mean))
        elif observation_noise:
            covariance = covariance + torch.diag_embed(self.target_noise().expand_as(mean))
        posterior: Posterior = GPyTorchPosterior(_joint_normal(mean, covariance))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Joint normal distribution of the function at points; in training mode :meth:`training_prior`."""
        return self.training_prior(X) if self.training else _joint_normal(*self.latent(X))

    def with_knots(self, knots: Tensor) -> Self:
        """A model of the same rows and (copied) hyperparameters with other knots."""
        check_shape(self.train_X, knots)
        cached, self._cached = self._cached, None
        added: dict[str, Any] = self._added_loss_terms  # type: ignore[assignment]
        added.update(dict.fromkeys(added))  # the last loss terms for GPyTorch's objectives have a graph
        other = deepcopy(self)
        self._cached = cached
        other.knots = nn.Parameter(knots.detach().clone())
        return other

    def with_rows(self, X: Tensor, Y: Tensor, settings: dict[str, Any]) -> Self:
        """A model of more rows, the knots and hyperparameters as they are; refuses settings.

        Args:
            X: Further inputs, shape (n, D).
            Y: Further targets, shape (n, 1).
            settings: Other arguments of ``condition_on_observations``.

        Raises:
            ValueError: If a setting is given, shapes do not fit, or a value is not finite.
        """
        if settings:
            raise ValueError(f"unknown settings {sorted(settings)}; rows have the likelihood's noise")
        if X.ndim != 2 or X.shape[-1] != self.train_X.shape[-1] or Y.shape != (X.shape[0], 1):
            raise ValueError(
                f"further rows do not fit: (n, {self.train_X.shape[-1]}) and (n, 1) are wanted, not {tuple(X.shape)} "
                f"and {tuple(Y.shape)}"
            )
        rows = torch.cat([self.train_X, X])
        y = check_rows(rows, torch.cat([self.train_y.unsqueeze(-1), Y]))
        other = self.with_knots(self.knots)
        other.train_X, other.train_y = rows, y
        return other


def _apart(loadings: Tensor, X: Tensor) -> Tensor:
    r"""Loadings (K, \*batch * q) of points X (\*batch, q, D), shape (\*batch, K, q)."""
    apart: Tensor = loadings.unflatten(-1, tuple(X.shape[:-1])).movedim(0, -2)
    return apart


def _joint_normal(mean: Tensor, covariance: Tensor) -> MultivariateNormal:
    """A joint normal distribution, factorized when a sample is drawn only, with jitter where points are close."""
    return MultivariateNormal(mean, to_linear_operator(covariance))
