"""What all models with knots have in common, whatever their likelihood."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.models import GP
from torch import Tensor, nn

from gp_ensembles.features.covariance import bind_covariance
from gp_ensembles.sparse.checks import check_knots, check_shape
from gp_ensembles.sparse.predictions import KnotsPosterior, check_query, joint_normal, normal_posterior, see, unchanged


def default_nugget(dtype: torch.dtype) -> float:
    """What keeps Cholesky factors from failing, and is far below any noise.

    Example:
        >>> default_nugget(torch.float64)
        1e-08
    """
    return max(1e-8, 100.0 * torch.finfo(dtype).eps)


class _Kept(NamedTuple):
    """The knots' posterior, and what it was made of."""

    tensors: list[Tensor]
    settings: list[object]
    posterior: KnotsPosterior


class KnotModel(Model, GP, ABC):  # type: ignore[misc]  # a GP, for GPyTorch asks for one; its models are untyped
    r"""A BoTorch model of one output that sees N rows through K knots.

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
        self._kept: _Kept | None = None
        self._scales: dict[str, tuple[Tensor, Tensor]] = {}

    @abstractmethod
    def objective(self) -> Tensor:
        """What is maximized, with the log densities of registered priors, in nats, shape ()."""

    @abstractmethod
    def rest(self, prior: Tensor, explained: Tensor) -> Tensor:
        r"""What points have beside the knots' posterior, (\*batch, q, q), of the prior and the explained part."""

    @abstractmethod
    def target_noise(self) -> Tensor:
        """Variance of the noise that predictions may have added, of one element."""

    @abstractmethod
    def find_knots_posterior(self) -> KnotsPosterior:
        """The knots' posterior as the model is now."""

    @property
    @abstractmethod
    def choices(self) -> tuple[object, ...]:
        """What the knots' posterior depends on besides parameters, rows, modules and the nugget."""

    @abstractmethod
    def upper_bound(self) -> Tensor:
        """Upper bound of the exact log evidence at the present hyperparameters, shape (); infinite if none is known."""

    @abstractmethod
    def gap(self) -> float:
        """Nats between bounds of the exact log evidence: how much further knots can bring, at most."""

    @abstractmethod
    def of_rows(self, rows: Tensor) -> Self:
        """A model of some distinct rows only, all of which are knots, so that nothing is approximated."""

    @abstractmethod
    def prior(self, X: Tensor) -> MultivariateNormal:
        """What GPyTorch's objectives are to be given in training mode, where there are such."""

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

    def delta(self, own: Tensor) -> Tensor:
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
    def scales(self, name: str, value: Tensor) -> tuple[Tensor, Tensor]:
        """Least and largest value from which a positive hyperparameter started, in this model or one it came from.

        Bounds of fits stand around them, so that they do not wander from one fit to the next.
        """
        least, most = self._scales.setdefault(name, (value.detach().clone(), value.detach().clone()))
        return least.to(value), most.to(value)

    @torch.no_grad()
    def widen_scales(self, name: str, value: Tensor) -> None:
        """Count a value, too, as one from which the hyperparameter started."""
        least, most = self.scales(name, value)
        self._scales[name] = torch.minimum(least, value), torch.maximum(most, value)

    @torch.no_grad()
    def knots_posterior(self) -> KnotsPosterior:
        """The knots' posterior, kept until something that it is made of changes; without gradients."""
        tensors = [*self.parameters(), *self.buffers()]
        settings = [*list(self.modules())[1:], self.nugget, *self.choices]  # modules are equal if they are the same
        kept = self._kept
        if kept is None or kept.settings != settings or not unchanged(kept.tensors, tensors):
            found = self.find_knots_posterior()
            kept = _Kept([tensor.detach().clone() for tensor in tensors], settings, found)
            self._kept = kept
        return kept.posterior

    def latent(self, X: Tensor) -> tuple[Tensor, Tensor]:
        r"""Joint moments of the function without nugget at points (\*batch, q, D): (\*batch, q), (\*batch, q, q)."""
        flat = X.reshape(-1, X.shape[-1])
        # GPyTorch's own distances lose their second derivatives at the knots.
        between = bind_covariance(self.covar_module).between if X.requires_grad else self.kernel_matrix
        seen = see(self.knots_posterior(), between(self.knots, flat), X.shape[:-1])
        rest = self.rest(between(X, X), seen.explained)
        return self.mean_module(flat).reshape(X.shape[:-1]) + seen.mean, rest + seen.learned

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        r"""Joint normal predictions of the (latent) function, differentiable in X.

        Hyperparameters are not: the knots' posterior is kept from one call to the next.

        Args:
            X: Inputs, shape (\*batch, q, D).
            output_indices: ``None`` or [0].
            observation_noise: Whether to add :meth:`target_noise`, or other variances, shape (\*batch, q, 1).
            posterior_transform: As in BoTorch.

        Raises:
            ValueError: If X has another number of inputs, or another output is asked for.
        """
        check_query(X, self.train_X.shape[-1], output_indices)
        self.eval()
        return normal_posterior(*self.latent(X), self.target_noise(), observation_noise, posterior_transform)

    def forward(self, X: Tensor) -> MultivariateNormal:
        """Joint normal distribution of the function at points; in training mode the prior that :meth:`prior` gives."""
        return self.prior(X) if self.training else joint_normal(*self.latent(X))

    def with_knots(self, knots: Tensor) -> Self:
        """A model of the same rows and (copied) hyperparameters with other knots."""
        check_shape(self.train_X, knots)
        kept, self._kept = self._kept, None
        told: dict[str, Any] = self._added_loss_terms  # type: ignore[assignment]
        told.update(dict.fromkeys(told))  # what GPyTorch's objectives were told last has a graph
        other = deepcopy(self)
        self._kept = kept
        other.knots = nn.Parameter(knots.detach().clone())
        return other
