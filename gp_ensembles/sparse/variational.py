r"""A sparse variational Gaussian process of any targets, at the optimal posterior of its knots.

The optimal posterior of the whitened knots is the one that normal sites of the rows give,
:math:`S^{-1} = I + V W V^\top` and :math:`S^{-1} m = V W z`. A natural-gradient step of length one of the evidence
lower bound replaces the sites by those of the expected derivatives of the log density under the present marginals
(Khan and Lin, 2017; Adam et al., 2021); it is Newton's method where variances do not matter, and a single exact step
where the likelihood is normal.
Sites belong to rows, so that they serve as a start for other hyperparameters and other knots.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Self, final

import torch
from botorch.models.approximate_gp import SingleTaskVariationalGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch import settings
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood, _OneDimensionalLikelihood
from gpytorch.means import ConstantMean
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from gp_ensembles.bo.data import Observations
from gp_ensembles.likelihoods.response import check_support, latent_dim, log_prob
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.gpytorch_types import Kernel, Likelihood, Mean
from gp_ensembles.sparse.base import SparseModel, check_positive, check_shape, take_rows
from gp_ensembles.sparse.collapsed import KnotsPosterior, LatentPrior, Projection, project

ExpectedLogProb = Callable[[Tensor, Tensor], Tensor]
_HALVINGS = 40
_MAX_STEPS = 100
_SLACK = 1e-6  # share of the bound that a last step may still add


class Sites(NamedTuple):
    r"""Normal sites in place of a likelihood: row i contributes :math:`N(z_i; f_i - m_i, 1 / W_i)`, m the prior mean.

    Args:
        precision: W, shape (N,). It may be zero (no information), and negative in a tail that is not log-concave.
        shift: :math:`W z`, shape (N,), so that nothing is divided by W.
    """

    precision: Tensor
    shift: Tensor


class WhitenedPosterior(NamedTuple):
    """A normal distribution of the whitened knots.

    Args:
        mean: m, shape (K,).
        root: Cholesky factor T of the covariance, shape (K, K).

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> WhitenedPosterior(one[0], one).divergence()
        tensor(0.5000)
    """

    mean: Tensor
    root: Tensor

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence from the prior, which is standard normal, in nats, shape ()."""
        trace = self.root.square().sum() + self.mean.square().sum() - self.mean.shape[0]
        return 0.5 * trace - self.root.diagonal().log().sum()

    def marginals(self, prior: LatentPrior) -> tuple[Tensor, Tensor]:
        """Means and variances of the latent values at the data, (N,) each."""
        spread = (self.root.mT @ prior.projected).square().sum(0)
        return prior.mean + self.mean @ prior.projected, prior.unexplained + spread


class OptimalPosterior(NamedTuple):
    """The posterior of the knots that maximizes the evidence lower bound.

    Args:
        posterior: The posterior.
        sites: The sites that give it.
        bound: Evidence lower bound in nats, shape ().
        num_steps: Natural-gradient steps taken.
    """

    posterior: WhitenedPosterior
    sites: Sites
    bound: Tensor
    num_steps: int


@torch.no_grad()
def optimize_posterior(
    prior: LatentPrior, expected_log_prob: ExpectedLogProb, start: Sites, *, tolerance: float | None = None
) -> OptimalPosterior:
    r"""Maximize the evidence lower bound over the knots' posterior, in O(N K^2) a step.

    Steps are halved until the bound grows, and doubled again afterwards. It ends when a step adds no more than the
    tolerance, relative to the bound.

    Args:
        prior: Prior of the latent values at the data.
        expected_log_prob: Takes means and variances of normal latent values, (N,) each, to expected log densities of
            the targets (N,); differentiable in both.
        start: Sites to start from; zeros start from the prior.
        tolerance: The dtype's precision to the power 0.6 if ``None``.

    Raises:
        NumericalError: If the bound is not finite at the start, nor at the prior, or still rises after many steps.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> normal = lambda mean, variance: -0.5 * ((3.0 - mean) ** 2 + variance)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> found = optimize_posterior(prior, normal, Sites(0 * one, 0 * one))
        >>> found.posterior.mean  # halfway between prior and target
        tensor([1.5000], dtype=torch.float64)
    """
    tolerance = float(torch.finfo(prior.mean.dtype).eps) ** 0.6 if tolerance is None else tolerance
    here = _try(prior, expected_log_prob, start)
    zeros = torch.zeros_like(prior.mean)
    at_prior = _try(prior, expected_log_prob, Sites(zeros, zeros))
    if here is None or (at_prior is not None and bool(at_prior.bound > here.bound)):
        here = at_prior
    if here is None:
        raise NumericalError(
            "the expected log density of the targets is not finite under the prior; standardize the inputs, or start "
            "from a prior of another mean or smaller variance"
        )
    steps, share, added = 0, 1.0, 0.0
    while steps < _MAX_STEPS:
        steps += 1
        share, trial = min(1.0, 2.0 * share), None
        for _ in range(_HALVINGS):
            trial = _try(prior, expected_log_prob, _between(here.sites, here.next_sites, share))
            if trial is not None and bool(trial.bound >= here.bound):
                break
            share *= 0.5
        if trial is None or not bool(trial.bound >= here.bound):  # rounding hides what is left
            break
        added, here = float(trial.bound - here.bound), trial
        if added <= tolerance * (1.0 + float(here.bound.abs())):
            break
    else:
        if added > _SLACK * (1.0 + float(here.bound.abs())):
            raise NumericalError(
                f"the best posterior of the knots was not found in {_MAX_STEPS} steps, the last of which raised the "
                f"bound by {added:.3g}; start from a prior of another mean or smaller variance"
            )
    return OptimalPosterior(here.posterior, here.sites, here.bound, steps)


def posterior_of_sites(prior: LatentPrior, sites: Sites) -> WhitenedPosterior:
    """The knots' posterior under normal sites.

    The factor of the covariance is lower triangular, as that of GPyTorch's variational distributions is: it is the
    inverse of the transpose of an upper triangular factor of the precision, found with the order of knots reversed.

    Raises:
        NumericalError: If negative precisions of the sites outweigh the prior.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> posterior_of_sites(prior, Sites(3 * one, 4 * one)).mean
        tensor([1.], dtype=torch.float64)
    """
    V = prior.projected
    identity = torch.diag_embed(torch.ones_like(V[:, 0]))
    precision = identity + (V * sites.precision) @ V.mT
    upper = cholesky(precision.flip(0, 1), "the precision of the knots").flip(0, 1)
    root = torch.linalg.solve_triangular(upper, identity, upper=True).mT
    return WhitenedPosterior(root @ (root.mT @ (V @ sites.shift)), root)


class _Iterate(NamedTuple):
    """Sites, their posterior and bound, and the sites after a natural-gradient step of length one."""

    sites: Sites
    posterior: WhitenedPosterior
    bound: Tensor
    next_sites: Sites


def _try(prior: LatentPrior, expected_log_prob: ExpectedLogProb, sites: Sites) -> _Iterate | None:
    """The bound and its natural gradient at sites; ``None`` where there is none."""
    try:
        posterior = posterior_of_sites(prior, sites)
    except NumericalError:
        return None
    mean, variance = posterior.marginals(prior)
    with torch.enable_grad():
        mean.requires_grad_()
        variance.requires_grad_()
        expected = expected_log_prob(mean, variance).sum()
        first, half_second = torch.autograd.grad(expected, (mean, variance))
    bound = expected.detach() - posterior.divergence()
    precision = -2.0 * half_second  # the derivative in a variance is half the expected second derivative
    next_sites = Sites(precision, first + precision * (mean.detach() - prior.mean))
    if not bool(bound.isfinite() & precision.isfinite().all() & next_sites.shift.isfinite().all()):
        return None
    return _Iterate(sites, posterior, bound, next_sites)


def _between(old: Sites, new: Sites, share: float) -> Sites:
    return Sites(old.precision.lerp(new.precision, share), old.shift.lerp(new.shift, share))


@final
class SparseVariationalGP(SparseModel):
    r"""A sparse latent Gaussian process with K knots, its evidence lower bound maximized over the knots' posterior.

    The objective is that of GPyTorch's ``VariationalELBO`` at the optimal posterior, computed anew each time, so that
    only hyperparameters and knots are left to an optimizer. There the gradient in the posterior vanishes, and the
    gradient in everything else is the one with the posterior held fixed. All rows count each time; batches bound the
    memory of gradients, as each batch is computed again in the backward pass.

    Args:
        train_X: Inputs, shape (N, D).
        train_Y: Targets, shape (N,) or (N, 1), floating point.
        knots: Knots Z, shape (K, D), as inputs are given; a parameter, in transformed inputs.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: GPyTorch's Gaussian likelihood, or any whose latent values are scalar and integrated by quadrature.
        mean: Prior mean; a trainable constant that starts where it alone explains the targets best if ``None``.
        batch_size: Rows handled at a time.
        input_transform: As in ``SingleTaskGP``.
        outcome_transform: For normal targets, as in ``SingleTaskGP``; none if ``None``.

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
        train_X: Tensor,
        train_Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: Likelihood,
        mean: Mean | None = None,
        *,
        batch_size: int = 10_000,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | None = None,
    ) -> None:
        if outcome_transform is not None and not isinstance(likelihood, GaussianLikelihood):
            raise ValueError(f"targets of a {type(likelihood).__name__} cannot be transformed; leave the transform out")
        rows = take_rows(train_X, train_Y, None, input_transform, outcome_transform)
        X, y = rows.transformed.X, rows.transformed.Y.squeeze(-1)
        check_likelihood(likelihood)
        check_positive(batch_size=batch_size)
        check_support(likelihood.to(X), y)
        # GPyTorch adds a fixed variance, see jitter, where other models have a nugget.
        check_shape(train_X, knots)
        mean = _constant(likelihood, y) if mean is None else mean
        super().__init__(rows, rows.inputs(knots), kernel, likelihood, mean, nugget=0.0)
        self.batch_size = batch_size
        self._targets_are_values = isinstance(likelihood, GaussianLikelihood)
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
        best = self.optimize_posterior()
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
    def optimize_posterior(self, tolerance: float | None = None) -> OptimalPosterior:
        """The optimal posterior of the knots at the present hyperparameters, and the bound without priors.

        Args:
            tolerance: Relative rise of the bound below which it ends; the dtype's precision to the power 0.6 if
                ``None``.

        Raises:
            NumericalError: If the bound cannot be evaluated.
        """
        lower = self._knots_factor()
        parts = [self._latent_prior(lower, X) for X in self.train_X.split(self.batch_size)]
        joined = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
        prior = parts[0] if len(parts) == 1 else LatentPrior(*joined)
        expected_log_prob = partial(_expected_log_prob, self.likelihood, self.train_y)
        sites = Sites(*(part.to(self.train_y) for part in self._sites))
        found = optimize_posterior(prior, expected_log_prob, sites, tolerance=tolerance)
        self._sites = found.sites
        return found

    @torch.no_grad()
    def projection(self) -> Projection:
        """The data's covariances given the knots; its residual and noise are zeros and one."""
        own, cross = self._own(), self.kernel_matrix(self.knots, self.train_X)
        prior = self.kernel_diagonal(self.train_X) + self.jitter
        return project(own, cross, prior, torch.zeros_like(prior), prior.new_ones(()))

    def upper_bound(self) -> Tensor:
        """Infinity: there is none."""
        return torch.full_like(self.train_y[0], torch.inf)

    def bound_gap(self) -> float:
        """Infinite, for there is no upper bound."""
        return math.inf

    def subset_of_data(self, rows: Tensor) -> Self:
        """The exact model of some distinct rows only: all of them are knots."""
        other = self.reduced_to(rows)
        other._sites = Sites(*(part[rows] for part in self._sites))
        return other

    def training_prior(self) -> MultivariateNormal:
        """None: GPyTorch's objectives do not fit.

        Raises:
            ValueError: Always.
        """
        raise ValueError("this model is fitted by fit_sparse, not by GPyTorch's objectives; call eval() to predict")

    def conditional_covariance(self, prior: Tensor, explained: Tensor) -> Tensor:
        """All that the knots leave unexplained."""
        return prior - explained

    def target_noise(self) -> Tensor:
        """The noise of a Gaussian likelihood; none of others, whose targets follow by the likelihood."""
        if isinstance(self.likelihood, GaussianLikelihood):
            noise: Tensor = self.likelihood.noise
            return noise
        return self.train_X.new_zeros(1)

    @property
    def cache_key(self) -> tuple[object, ...]:
        """The jitter, a global setting of GPyTorch."""
        return (self.jitter,)

    def compute_knots_posterior(self) -> KnotsPosterior:
        """The one that maximizes the bound."""
        mean, root = self.optimize_posterior(tolerance=0.0).posterior
        factor = cholesky(torch.cholesky_inverse(root), "the precision of the knots")
        return KnotsPosterior(self._knots_factor(), factor, factor.mT @ mean)

    def with_rows(self, rows: Observations, settings: dict[str, Any]) -> Self:
        """A copy with further rows (n, D) and (n, 1), the knots and hyperparameters as they are.

        Raises:
            ValueError: As when a model is made.
        """
        other = self.extended_by(rows)
        y = other.train_y[len(self.train_y) :]
        check_support(self.likelihood, y)
        other._sites = Sites(*(torch.cat([old, torch.zeros_like(y)]) for old in self._sites))
        return other

    def export(self) -> SingleTaskVariationalGP:
        """BoTorch's variational GP with these hyperparameters (not copied), knots, and their optimal posterior.

        Its knots are trainable. Its ``load_state_dict`` needs ``keep_transforms=False`` in BoTorch 0.18, which looks
        for targets under the wrong name otherwise.
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
        posterior = self.optimize_posterior(tolerance=0.0).posterior
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

    def _latent_prior(self, lower: Tensor, X: Tensor) -> LatentPrior:
        projected = torch.linalg.solve_triangular(lower, self.kernel_matrix(self.knots, X), upper=False)
        unexplained = (self.kernel_diagonal(X) + self.jitter - projected.square().sum(0)).clamp_min(0.0)
        return LatentPrior(self.mean_module(X), projected, unexplained)

    def _expected(self, lower: Tensor, best: OptimalPosterior, X: Tensor, y: Tensor) -> Tensor:
        """Expected log density of a batch of rows, shape ()."""
        return _expected_log_prob(self.likelihood, y, *best.posterior.marginals(self._latent_prior(lower, X))).sum()


def check_likelihood(likelihood: Likelihood) -> None:
    """Refuse likelihoods whose expected log density of one row is no integral over one latent value.

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
    for grid in (wide, torch.linspace(-0.5, 0.5, 41, dtype=y.dtype, device=y.device)):
        values = torch.stack([log_prob(likelihood, (best + shift).expand_as(y), y).sum() for shift in grid])
        best = best + grid[values.nan_to_num(nan=-torch.inf).argmax()]
    mean = ConstantMean().to(y)
    mean.constant.data.fill_(float(best))
    return mean
