r"""A sparse Gaussian process of counts, labels and the like by Laplace's method.

The prior of the N latent values is the fully independent conditional (FIC), :math:`N(m, S)` with
:math:`S = V^\top V + D`, D diagonal. Everything is in terms of :math:`a = S^{-1} (f - m)` and of
:math:`w = W / (1 + W D)`, so that neither D nor the curvatures W are ever divided by: knots may coincide with data, and
the curvature of a row may be zero.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self, final

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.constraints import Positive
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ConstantMean
from torch import Tensor, nn

from gp_ensembles.bo.data import Observations
from gp_ensembles.likelihoods.response import check_support, latent_dim, log_prob
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.derivatives import Derivatives, scalar_derivatives
from gp_ensembles.numerics.gpytorch_types import Kernel, Likelihood, Mean
from gp_ensembles.sparse.base import SparseModel, check_shape, take_rows
from gp_ensembles.sparse.collapsed import KnotsPosterior, LatentPrior, project

LogDensity = Callable[[Tensor, Tensor], Tensor]
_HALVINGS = 40


class LatentMode(NamedTuple):
    r"""The mode of the latent values given the targets.

    Args:
        latent: Latent values :math:`\hat f`, shape (N,).
        weights: :math:`a = S^{-1} (\hat f - m)`, shape (N,).
        log_joint: :math:`\log p(y \mid \hat f) - \frac12 a^\top (\hat f - m)`, shape ().
        num_iterations: Newton steps taken.
    """

    latent: Tensor
    weights: Tensor
    log_joint: Tensor
    num_iterations: int


@torch.no_grad()
def find_mode(
    prior: LatentPrior,
    log_density: LogDensity,
    y: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 100,
) -> LatentMode:
    r"""The mode of the latent values by Newton's method, steps halved until the log joint density grows.

    It stops when the last step added no more than the tolerance, relative to the log joint density, and the gradient is
    below the tolerance, relative to the largest curvature; a last step then squares what error is left.

    Args:
        prior: Prior of the latent values.
        log_density: Takes latent values and targets, (N,) each, to log densities (N,), concave in the latent values.
        y: Targets, shape (N,).
        start: Weights :math:`a` of an earlier mode, shape (N,); used if they are better than zeros.
        tolerance: Square root of the dtype's precision if ``None``.
        max_iterations: Most Newton steps.

    Raises:
        NumericalError: If the log density is not concave or not finite, or the mode is not found.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> find_mode(prior, lambda f, y: -0.5 * (y - f) ** 2, 3 * one).latent  # halfway between prior and target
        tensor([1.5000], dtype=torch.float64)
    """
    precision = torch.finfo(y.dtype).eps
    tolerance = precision**0.5 if tolerance is None else tolerance
    mode = _at(prior, log_density, y, torch.zeros_like(prior.mean))
    if start is not None:
        warm = _at(prior, log_density, y, start)
        if bool(warm.log_joint > mode.log_joint):
            mode = warm
    if not bool(mode.log_joint.isfinite()):
        raise NumericalError("the log density of the targets is not finite at the prior mean; start at another mean")
    added = torch.inf
    for iteration in range(max_iterations + 1):
        derivatives = _derivatives(log_density, mode.latent, y)
        slope = derivatives.first - mode.weights
        worst = float(slope.abs().max())
        scale = 1.0 + derivatives.second.abs().max() + mode.weights.abs().max()
        size = 1.0 + float(mode.log_joint.abs())
        arrived = added <= tolerance * size and worst <= tolerance * float(scale)
        step = newton_step(prior, slope, -derivatives.second)
        promised = float(slope @ prior.covary(step))
        share = 1.0
        for _ in range(_HALVINGS):
            trial = _at(prior, log_density, y, mode.weights + share * step)
            # A step that promises next to nothing is taken whole: rounding hides what it adds.
            if bool(trial.log_joint >= mode.log_joint) or 0.0 <= share * promised <= tolerance * size:
                break
            share *= 0.5
        added = float(trial.log_joint - mode.log_joint)
        mode = trial._replace(num_iterations=iteration + 1)
        if arrived:
            return mode
    raise NumericalError(
        f"the mode of the latent values was not found in {max_iterations} Newton steps (the largest slope is "
        f"{worst:.2g}); raise max_iterations or the tolerance, or see that the log density is concave"
    )


def newton_step(prior: LatentPrior, slope: Tensor, curvature: Tensor) -> Tensor:
    r"""Newton's change of the weights, :math:`(I + W S)^{-1} (\nabla \log p - a)`, shape (N,).

    It is in terms of the slope, which vanishes at the mode, and rounding errors with it.
    """
    shrunk = curvature / (1.0 + curvature * prior.unexplained)
    pulled = shrunk * prior.covary(slope)
    factor = posterior_factor(prior, curvature)
    through = torch.cholesky_solve((prior.projected @ pulled).unsqueeze(-1), factor).squeeze(-1)
    return slope - pulled + shrunk * (through @ prior.projected)


def posterior_factor(prior: LatentPrior, curvature: Tensor) -> Tensor:
    r"""Cholesky factor of :math:`M = I + V\, \mathrm{diag}(w) V^\top`, the precision of the whitened knots, (K, K)."""
    shrunk = curvature / (1.0 + curvature * prior.unexplained)
    identity = torch.diag_embed(torch.ones_like(prior.projected[:, 0]))
    return cholesky(identity + (prior.projected * shrunk) @ prior.projected.mT, "the precision of the knots")


def laplace_evidence(prior: LatentPrior, log_density: LogDensity, y: Tensor, mode: LatentMode) -> Tensor:
    r"""Laplace's approximation of the log evidence, in O(N K^2), differentiable in prior and likelihood.

    .. math:: \log p(y \mid \hat f) - \frac12 (\hat f - m)^\top S^{-1} (\hat f - m)
              - \frac12 \log |I + W^{1/2} S W^{1/2}|

    The mode moves with the parameters. A Newton step from it, recorded by autograd, stays on it and has its
    derivatives (implicit function theorem), so no gradient is written by hand.

    Args:
        prior: Prior of the latent values.
        log_density: As in :func:`find_mode`.
        y: Targets, shape (N,).
        mode: The mode under this prior; no gradient is taken through it.

    Returns:
        Shape ().

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> normal = lambda f, y: torch.distributions.Normal(f, 1.0).log_prob(y)
        >>> round(float(laplace_evidence(prior, normal, 3 * one, find_mode(prior, normal, 3 * one))), 4)  # N(3; 0, 2)
        -3.5155
    """
    here = mode.weights.detach()
    derivatives = _derivatives(log_density, prior.mean + prior.covary(here), y)
    weights = here + newton_step(prior, derivatives.first - here, -derivatives.second.detach())
    latent = prior.mean + prior.covary(weights)
    curvature = -_derivatives(log_density, latent, y).second
    log_joint = log_density(latent, y).sum() - 0.5 * (weights * (latent - prior.mean)).sum()
    stretch = torch.log1p(curvature * prior.unexplained).sum()
    return log_joint - 0.5 * stretch - posterior_factor(prior, curvature).diagonal().log().sum()


def knots_posterior(
    lower: Tensor, prior: LatentPrior, log_density: LogDensity, y: Tensor, mode: LatentMode
) -> KnotsPosterior:
    r"""Posterior of the whitened knots: precision M (see :func:`posterior_factor`), mean :math:`V a`.

    With L the factor of the knots' covariance, knots have mean :math:`L V a` beyond the prior's and covariance
    :math:`L M^{-1} L^\top`.

    Args:
        lower: L, shape (K, K).
        prior: Prior of the latent values.
        log_density: As in :func:`find_mode`.
        y: Targets, shape (N,).
        mode: The mode under this prior.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = LatentPrior(0 * one, one.unsqueeze(0), 0 * one)
        >>> normal = lambda f, y: -0.5 * (y - f) ** 2
        >>> knots_posterior(one.unsqueeze(0), prior, normal, one, find_mode(prior, normal, one)).factor.square()
        tensor([[2.0000]], dtype=torch.float64)
    """
    factor = posterior_factor(prior, -_derivatives(log_density, mode.latent, y).second)
    return KnotsPosterior(lower, factor, factor.mT @ (prior.projected @ mode.weights))


def _at(prior: LatentPrior, log_density: LogDensity, y: Tensor, weights: Tensor) -> LatentMode:
    change = prior.covary(weights)
    latent = prior.mean + change
    return LatentMode(latent, weights, log_density(latent, y).sum() - 0.5 * (weights * change).sum(), 0)


def _derivatives(log_density: LogDensity, latent: Tensor, y: Tensor) -> Derivatives:
    """First and second derivatives of the log density; refuses one that is not concave."""
    derivatives = scalar_derivatives(log_density, latent, y)
    values = torch.stack([part.detach() for part in derivatives])
    if not bool(values.isfinite().all()):
        raise NumericalError(
            "the log density of the targets has no finite derivatives at the mode of the latent values"
        )
    if bool((values[1] > 0).any()):
        row = int(values[1].argmax())
        raise NumericalError(
            f"the log density of the target in row {row} is not concave in its latent value; use a likelihood whose "
            f"log density is, such as Poisson or Bernoulli"
        )
    return derivatives


@final
class SparseLaplaceGP(SparseModel):
    r"""A sparse latent Gaussian process with K knots (FIC), its posterior by Laplace's method, in O(N K^2).

    The latent value behind target i is :math:`f(x_i) + o_i + e_i`: the function, a known offset, and independent normal
    noise of variance :math:`\tau^2` (overdispersion). The mode is found by Newton's method, and gradients of the
    objective go through it. Rows are independent given the knots; test points keep their covariance given them.

    Args:
        train_X: Inputs, shape (N, D).
        train_Y: Targets, shape (N,) or (N, 1), floating point.
        knots: Knots Z, shape (K, D), as inputs are given; a parameter, in transformed inputs.
        kernel: Any GPyTorch kernel without a batch.
        likelihood: A likelihood of one latent value whose log density is concave in it, such as
            :class:`~gp_ensembles.likelihoods.LogPoissonLikelihood` or
            :class:`~gp_ensembles.likelihoods.LogisticLikelihood`.
        mean: Prior mean; a trainable constant that starts at zero if ``None``.
        offset: Known addends of the latent values, shape (N,): log exposures of counts; none if ``None``.
        noise: Start of :math:`\tau^2`, positive.
        nugget: As in :class:`~gp_ensembles.sparse.SparseGP`.
        input_transform: As in ``SingleTaskGP``.

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
    _targets_are_values = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        knots: Tensor,
        kernel: Kernel,
        likelihood: Likelihood,
        mean: Mean | None = None,
        *,
        offset: Tensor | None = None,
        noise: float = 1e-2,
        nugget: float | None = None,
        input_transform: InputTransform | None = None,
    ) -> None:
        rows = take_rows(train_X, train_Y, input_transform=input_transform)
        X, y = rows.transformed.X, rows.transformed.Y.squeeze(-1)
        offset = torch.zeros_like(y) if offset is None else offset.to(y)
        _check_offset(offset, y)
        if latent_dim(likelihood) > 1:
            raise ValueError(f"{type(likelihood).__name__} has latent vectors; give one of a single latent value")
        if not 0.0 < noise < torch.inf:
            raise ValueError(f"the variance of the latent noise must be positive, got {noise}")
        check_support(likelihood.to(X), y)
        check_shape(train_X, knots)
        mean = ConstantMean() if mean is None else mean
        super().__init__(rows, rows.inputs(knots), kernel, likelihood, mean, nugget)
        self.register_buffer("offset", offset, persistent=False)
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

    def mode(self) -> LatentMode:
        """The most probable latent values at the data; offsets are not part of them."""
        with torch.no_grad():
            return self._find_mode(self._latent_prior(self.knots)[1])

    def upper_bound(self) -> Tensor:
        """Infinity: there is none."""
        return torch.full_like(self.train_y[0], torch.inf)

    def bound_gap(self) -> float:
        """Infinite, for there is no upper bound."""
        return math.inf

    def subset_of_data(self, rows: Tensor) -> Self:
        """The exact model of some distinct rows only: all of them are knots."""
        other = self.reduced_to(rows)
        other.offset = self.offset[rows]
        other._start = None
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
        """The latent noise.

        Targets themselves follow by the likelihood, for instance by :class:`~gp_ensembles.likelihoods.GaussHermite`.
        """
        return self.noise

    def with_rows(self, rows: Observations, settings: dict[str, Any]) -> Self:
        """A copy with further rows (n, D) and (n, 1), the knots and hyperparameters as they are.

        ``condition_on_observations`` takes their offsets as ``offset``, shape (n,); none if it is not given.

        Raises:
            ValueError: As when a model is made.
        """
        y = rows.Y.squeeze(-1)
        offset = settings.pop("offset", None)
        offset = torch.zeros_like(y) if offset is None else offset.to(y)
        _check_offset(offset, y)
        check_support(self.likelihood, y)
        other = self.extended_by(rows)
        other.offset = torch.cat([self.offset, offset])
        other._start = None
        return other

    def _latent_prior(self, knots: Tensor) -> tuple[Tensor, LatentPrior]:
        """The factor of the knots' covariance and the prior at the data; the noise is part of knots and data."""
        own, cross = self.kernel_matrix(knots, knots), self.kernel_matrix(knots, self.train_X)
        extra = self.nugget_variance(own) + self.noise
        own = own + torch.diag_embed(extra.expand(knots.shape[0]))
        projection = project(own, cross, self.kernel_diagonal(self.train_X) + extra, self.train_y, self.noise)
        mean = self.mean_module(self.train_X)
        return projection.lower, LatentPrior(mean, projection.projected, projection.unexplained)

    def _log_density(self, latent: Tensor, y: Tensor) -> Tensor:
        return log_prob(self.likelihood, latent + self.offset, y)

    def _find_mode(self, prior: LatentPrior) -> LatentMode:
        start = None if self._start is None else self._start.to(self.train_y)
        mode = find_mode(prior, self._log_density, self.train_y, start=start)
        self._start = mode.weights
        return mode

    @property
    def cache_key(self) -> tuple[object, ...]:
        """None."""
        return ()

    def compute_knots_posterior(self) -> KnotsPosterior:
        """By the curvature at the mode."""
        lower, prior = self._latent_prior(self.knots)
        return knots_posterior(lower, prior, self._log_density, self.train_y, self._find_mode(prior))


def _check_offset(offset: Tensor, y: Tensor) -> None:
    if offset.shape != y.shape:
        raise ValueError(f"the offset must have one value for each of {y.shape[0]} rows, got {tuple(offset.shape)}")
    bad = (~offset.isfinite()).nonzero()
    if bad.numel():
        row = int(bad[0])
        raise ValueError(
            f"the offset must be finite, but row {row} is {float(offset[row])}; exposures must be positive"
        )
