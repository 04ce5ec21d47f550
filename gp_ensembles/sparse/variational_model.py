"""A sparse Gaussian process of any targets whose knots' posterior maximizes the evidence lower bound."""

import math
from functools import partial
from typing import Any, Self, final

import torch
from botorch.models.approximate_gp import SingleTaskVariationalGP
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import GaussianLikelihood, Likelihood, _OneDimensionalLikelihood
from gpytorch.means import ConstantMean, Mean
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gp_ensembles.likelihoods import check_support, latent_dim, log_prob
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.checks import check_positive, check_rows
from gp_ensembles.sparse.collapsed import Projection, project
from gp_ensembles.sparse.local_gains import Sites
from gp_ensembles.sparse.predictions import KnotsPosterior
from gp_ensembles.sparse.tightening import Rows, Tightened, tighten


@final
class SparseVariationalGP(KnotModel):
    r"""A latent Gaussian process seen through K knots, the evidence lower bound at its best posterior of them.

    The objective is that of GPyTorch's ``VariationalELBO`` with the posterior found anew each time, so that only
    hyperparameters and knots are left to an optimizer. At the best posterior the bound is flat in it, and its gradient
    in everything else is the one with the posterior held. All rows count each time; what lives as long as a gradient
    is of a batch of rows only, the rest being computed again.

    Args:
        X: Inputs, shape (N, D).
        Y: Targets, shape (N,) or (N, 1), floating point.
        knots: Knots Z, shape (K, D), a parameter.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: GPyTorch's Gaussian likelihood, or any whose latent values are scalar and integrated by quadrature.
        mean: Prior mean; a trainable constant that starts where it alone explains the targets best if ``None``.
        batch_size: Rows handled at a time.

    Raises:
        ValueError: If shapes do not fit, a value is not finite, a target is not possible under the likelihood, the
            likelihood has latent vectors or a noise for each row, or there are more knots than distinct rows.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.likelihoods import LogisticLikelihood
        >>> from gp_ensembles.sparse import fit_sparse
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> labels = (X > 0.4).double()
        >>> model = SparseVariationalGP(X, labels, X[::10], ScaleKernel(RBFKernel()), LogisticLikelihood())
        >>> before = float(model.objective().detach())
        >>> fit_sparse(model, max_iterations=5).objective > before
        True
        >>> model.export().posterior(X[[0, -1]]).mean.detach().squeeze(-1).sign()
        tensor([-1.,  1.], dtype=torch.float64)
    """

    def __init__(
        self,
        X: Tensor,
        Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: Likelihood,
        mean: Mean | None = None,
        *,
        batch_size: int = 10_000,
    ) -> None:
        y = check_rows(X, Y)
        check_likelihood(likelihood)
        check_positive(batch_size=batch_size)
        check_support(likelihood.to(X), y)
        # GPyTorch adds a fixed variance, see jitter, where other models have a nugget.
        super().__init__(
            X, y, knots, kernel, likelihood, _constant(likelihood, y) if mean is None else mean, nugget=0.0
        )
        self.batch_size = batch_size
        self._sites = Sites(torch.zeros_like(y), torch.zeros_like(y))  # from which the next search starts

    @property
    def jitter(self) -> float:
        """What GPyTorch's variational strategy adds to prior variances."""
        value: float = settings.variational_cholesky_jitter.value(dtype=self.train_X.dtype)
        return value

    def objective(self) -> Tensor:
        """The bound with the log densities of registered priors, in nats, shape (); differentiable once.

        Raises:
            NumericalError: If it cannot be evaluated.
        """
        best = self.tighten()
        lower = self._knots_factor()
        value = -best.posterior.divergence() + self.log_priors()
        batches = list(zip(self.train_X.split(self.batch_size), self.train_y.split(self.batch_size), strict=True))
        again = len(batches) > 1 and torch.is_grad_enabled()
        for X, y in batches:
            if again:
                part = checkpoint(self._expected, lower, best, X, y, use_reentrant=False, preserve_rng_state=False)
            else:
                part = self._expected(lower, best, X, y)
            value = value + part
        return value

    @torch.no_grad()
    def tighten(self, tolerance: float | None = None) -> Tightened:
        """The best posterior of the knots at the present hyperparameters, and the bound without priors.

        Args:
            tolerance: As in :func:`~gp_ensembles.sparse.tightening.tighten`.

        Raises:
            NumericalError: If the bound cannot be evaluated.
        """
        lower = self._knots_factor()
        parts = [self._see(lower, X) for X in self.train_X.split(self.batch_size)]
        rows = parts[0] if len(parts) == 1 else Rows(*(torch.cat(part, dim=-1) for part in zip(*parts, strict=True)))
        found = tighten(
            rows, partial(_expected_log_prob, self.likelihood, self.train_y), self._sites, tolerance=tolerance
        )
        self._sites = found.sites
        return found

    @torch.no_grad()
    def projection(self) -> Projection:
        """The data seen through the knots; its residual and noise are zeros and one."""
        own, cross = self._own(), self.kernel_matrix(self.knots, self.train_X)
        prior = self.kernel_diagonal(self.train_X) + self.jitter
        return project(own, cross, prior, torch.zeros_like(prior), prior.new_ones(()))

    def upper_bound(self) -> Tensor:
        """None is known: infinity."""
        return torch.full_like(self.train_y[0], torch.inf)

    def gap(self) -> float:
        """Infinite, for no upper bound is known."""
        return math.inf

    def of_rows(self, rows: Tensor) -> Self:
        """A model of some distinct rows only, all of which are knots."""
        other = self.with_knots(self.train_X[rows])
        other.train_X, other.train_y = self.train_X[rows], self.train_y[rows]
        other._sites = Sites(*(part[rows] for part in self._sites))
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
        """The noise of a Gaussian likelihood; none of others, whose targets follow by the likelihood."""
        if isinstance(self.likelihood, GaussianLikelihood):
            noise: Tensor = self.likelihood.noise
            return noise
        return self.train_X.new_zeros(1)

    @property
    def choices(self) -> tuple[object, ...]:
        """GPyTorch's jitter, which is a setting of its."""
        return (self.jitter,)

    def find_knots_posterior(self) -> KnotsPosterior:
        """The one that maximizes the bound."""
        mean, root = self.tighten(tolerance=0.0).posterior
        factor = cholesky(torch.cholesky_inverse(root), "the precision of the knots")
        return KnotsPosterior(self._knots_factor(), factor, factor.mT @ mean)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **settings: Any) -> Self:
        """A model of more rows, the knots and hyperparameters as they are.

        Args:
            X: Further inputs, shape (n, D).
            Y: Further targets, shape (n, 1).
            **settings: None are known.

        Raises:
            ValueError: As when a model is made, or if a setting is given.
        """
        if settings:
            raise ValueError(f"unknown settings {sorted(settings)}; rows have the likelihood's noise")
        y = check_rows(X, Y)
        check_support(self.likelihood, y)
        rows = torch.cat([self.train_X, X])
        other = self.with_knots(self.knots)
        other.train_X, other.train_y = rows, torch.cat([self.train_y, y])
        nothing = torch.zeros_like(y)
        other._sites = Sites(*(torch.cat([old, nothing]) for old in self._sites))
        return other

    def export(self) -> SingleTaskVariationalGP:
        """BoTorch's variational GP with these hyperparameters (not copied), knots, and the best posterior of them.

        Its knots are trainable. Its ``load_state_dict`` wants ``keep_transforms=False`` in BoTorch 0.18, which looks
        for targets at the wrong place otherwise.
        """
        model = SingleTaskVariationalGP(
            self.train_X,
            likelihood=self.likelihood,
            covar_module=self.covar_module,
            mean_module=self.mean_module,
            inducing_points=self.knots.detach().clone(),
        )
        model.model.train_targets = self.train_y
        strategy = model.model.variational_strategy
        posterior = self.tighten(tolerance=0.0).posterior
        with torch.no_grad():
            strategy._variational_distribution.variational_mean.copy_(posterior.mean)
            strategy._variational_distribution.chol_variational_covar.copy_(posterior.root)
            strategy.variational_params_initialized.fill_(1)  # or the first call would start from the prior
        return model.eval()

    def _own(self) -> Tensor:
        """Covariance of the knots, jitter included."""
        own = self.kernel_matrix(self.knots, self.knots)
        return own + torch.diag_embed(own.new_full((self.num_knots,), self.jitter))

    def _knots_factor(self) -> Tensor:
        return cholesky(self._own(), "the covariance of the knots")

    def _see(self, lower: Tensor, X: Tensor) -> Rows:
        projected = torch.linalg.solve_triangular(lower, self.kernel_matrix(self.knots, X), upper=False)
        unexplained = (self.kernel_diagonal(X) + self.jitter - projected.square().sum(0)).clamp_min(0.0)
        return Rows(projected, self.mean_module(X), unexplained)

    def _expected(self, lower: Tensor, best: Tightened, X: Tensor, y: Tensor) -> Tensor:
        """What rows add to the bound, shape ()."""
        return _expected_log_prob(self.likelihood, y, *best.posterior.marginals(self._see(lower, X))).sum()


def check_likelihood(likelihood: Likelihood) -> None:
    """Refuse likelihoods whose expected log density of one row is not a matter of one latent value.

    Raises:
        ValueError: If the likelihood has latent vectors, a noise for each row, or no quadrature.

    Example:
        >>> from gpytorch.likelihoods import BernoulliLikelihood
        >>> check_likelihood(BernoulliLikelihood())
    """
    name = type(likelihood).__name__
    if latent_dim(likelihood) > 1:
        raise ValueError(f"{name} has latent vectors; give one of a single latent value, or a model for each class")
    if not isinstance(likelihood, _OneDimensionalLikelihood | GaussianLikelihood):
        raise ValueError(
            f"{name} is not a likelihood that is the same for all rows and integrated over one latent value; give "
            f"GaussianLikelihood or a subclass of GPyTorch's _OneDimensionalLikelihood"
        )


def _expected_log_prob(likelihood: Likelihood, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    values: Tensor = likelihood.expected_log_prob(y, MultivariateNormal(mean, DiagLinearOperator(variance)))
    return values


@torch.no_grad()
def _constant(likelihood: Likelihood, y: Tensor) -> ConstantMean:
    """A constant that starts at the latent value that explains all targets best, to about 0.02."""
    best = y.new_zeros(())
    wide = torch.cat([torch.linspace(-30.0, 30.0, 121, dtype=y.dtype, device=y.device), y.median().unsqueeze(0)])
    for places in (wide, torch.linspace(-0.5, 0.5, 41, dtype=y.dtype, device=y.device)):
        values = torch.stack([log_prob(likelihood, (best + place).expand_as(y), y).sum() for place in places])
        best = best + places[values.nan_to_num(nan=-torch.inf).argmax()]
    mean = ConstantMean().to(y)
    mean.constant.data.fill_(float(best))
    return mean
