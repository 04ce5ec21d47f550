"""Bayesian linear regression on features, robust to gross outliers."""

import math

import torch
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.evidence import whitened_statistics
from gp_ensembles.experts.gaussian import check_single_output, checked_likelihood
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.rows import Rows, as_rows, with_extra_noise
from gp_ensembles.filters.sites import RobustRule
from gp_ensembles.filters.states import FilterState, GaussianState, StepPredictions, gaussian_state
from gp_ensembles.filters.transitions import Transition, exact_tensor
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.numerics import normal
from gp_ensembles.numerics.cholesky import NumericalError, cholesky

_SHARE = 0.01  # prior share of outliers in the warm-up; with 0.05 tails of clean noise count as outliers
_MAD_TO_SD = 1.4826
_HUBER = 1.345  # residual in standard deviations beyond which Huber's weight decreases
_ROUGH, _ANNEALED, _MOST = 3, 2, 24  # rounds of Huber's fit, with inflated noise, and maximum for responsibilities
_SETTLED = 1e-3  # convergence tolerance of the responsibilities


class BoundRobust(BoundExpert):
    r"""A robust expert's hyperparameters.

    Shapes: ``prior_variance`` (\*batch), ``noise`` (\*batch), ``threshold`` (\*batch).
    """

    def __init__(
        self,
        features: BoundFeatures,
        prior_variance: Tensor,
        transition: Transition | None,
        noise: Tensor,
        threshold: Tensor,
    ) -> None:
        super().__init__(features, prior_variance, transition)
        self.noise = noise
        self.threshold = threshold
        self._rule = RobustRule(noise, threshold)

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[GaussianState, StepPredictions]:
        assert isinstance(state, GaussianState)
        rows = as_rows(y)
        targets, roots = rows.y, rows.root_weights(self.noise)
        scaled = rows if roots is None else Rows(targets * roots, steps=rows.steps)
        design = Phi if roots is None else Phi * roots.unsqueeze(-1)
        after, (mean, variance) = update_block(
            state, design, scaled, self.transition, self._rule, prior_variance=self.prior_variance
        )
        if roots is not None:
            mean, variance = mean / roots, variance / roots.square()
        variance = variance + self.noise.unsqueeze(-1)
        missing = torch.isnan(targets)
        log_prob = normal.log_prob(torch.where(missing, mean, targets), mean, variance)
        log_prob = torch.where(missing, torch.nan, log_prob)
        return after, with_extra_noise(StepPredictions(mean, variance, log_prob), rows)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, GaussianState)
        prior = self.prior_variance
        mean, variance = predict(state, Phi, self.transition, self._rule, prior_variance=prior, steps=steps)
        return StepPredictions(mean, variance + self.noise.unsqueeze(-1), torch.full_like(mean, torch.nan))

    def take(self, index: Tensor) -> "BoundRobust":
        transition = None if self.transition is None else self.transition.take(self.noise.shape, index)
        parts = (value.reshape(-1)[index] for value in (self.prior_variance, self.noise, self.threshold))
        prior_variance, noise, threshold = parts
        return BoundRobust(self.features, prior_variance, transition, noise, threshold)


class RobustExpert(Expert):
    r"""A batch of Bayesian basis expansions that learn less from targets far from their prediction.

    The weighted-observation-likelihood filter (Duran-Martin et al. 2024) with the inverse multiquadric weight, see
    :class:`~gp_ensembles.filters.sites.RobustRule`. Predictions are normal, for targets that are not outliers; the cost
    per row is that of :class:`~gp_ensembles.experts.gaussian.GaussianExpert`.

    Args:
        features: Feature map; its ``prior_variance`` is the prior variance of the weights.
        likelihood: GPyTorch's Gaussian likelihood with the feature map's ``batch_shape``; by default as for a
            Gaussian expert.
        transition: How the weights change before every row; ``None`` for static weights.
        threshold: Residual, in predictive standard deviations, with weight 1/2: a number or a tensor () or (\*batch).

    Raises:
        ValueError: If a batch shape does not match or the threshold is not positive.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> X = torch.linspace(-1, 1, 60, dtype=torch.float64).unsqueeze(-1)
        >>> y = X.squeeze(-1).clone()
        >>> y[::7] = 1e4
        >>> expert = RobustExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> state, _ = expert.update(expert.init(), X, y)
        >>> bool((expert.predict(state, X)[0] - X.squeeze(-1)).abs().max() < 0.2)
        True
    """

    threshold: Tensor

    def __init__(
        self,
        features: FeatureMap,
        likelihood: GaussianLikelihood | None = None,
        transition: Transition | None = None,
        threshold: Tensor | float = 4.0,
    ) -> None:
        super().__init__(features, transition)
        self.likelihood = checked_likelihood(features, likelihood)
        value = exact_tensor(threshold).to(features.prior_variance)
        if not bool((value > 0).all()):
            raise ValueError(f"threshold must be positive, got {value.tolist()}; 4 standard deviations is the default")
        self.register_buffer("threshold", value.detach().expand(features.batch_shape).clone())

    def init(self) -> GaussianState:
        return gaussian_state(self.features.prior_variance, self.features.num_features)

    def bind(self) -> BoundRobust:
        noise: Tensor = self.likelihood.noise.squeeze(-1)
        features = self.features
        return BoundRobust(features.bind(), features.prior_variance, self.transition, noise, self.threshold)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        r"""A lower bound on the evidence of targets with outliers; see :meth:`Expert.log_evidence`.

        With probability :math:`1 - \epsilon = 0.99` a target is the function plus Gaussian noise, otherwise it is drawn
        from a fixed Cauchy density c around the median of the targets, scaled by their median absolute deviation.
        With :math:`\gamma_n` the probability that target n is no outlier, independent of the weights a posteriori, the
        variational bound of this mixture (Bishop 2006, section 10.1) is

        .. math::
            \log \int N(\theta; 0, \sigma_\theta^2 I) \prod_n N(y_n; \phi_n^\top \theta, \sigma^2)^{\gamma_n} \, d\theta
            + \sum_n \Big( \gamma_n \log \frac{1 - \epsilon}{\gamma_n}
            + (1 - \gamma_n) \log \frac{\epsilon\, c(y_n)}{1 - \gamma_n} \Big)

        at the maximizing :math:`\gamma`, found from Huber's fit. They are constants for the gradient, which is
        exact once they have converged. Outliers are defined by residuals, not targets: a heavy tail that the inputs
        explain is learned. It costs about ten factorizations, compared with one for the Gaussian evidence.

        Limits: a few targets beyond a jump that the features cannot follow are treated as outliers, and outliers that
        the features can follow as signal; with outliers in more than a third of the rows the initialization fails.
        """
        bound = self.bind()
        return _bounded_evidence(bound.features(X), y, bound.prior_variance, bound.noise, _outlier_log_density(y))

    def take(self, index: Tensor) -> "RobustExpert":
        return RobustExpert(
            take_experts(self.features, self.batch_shape, index),
            take_experts(self.likelihood, self.batch_shape, index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
            self.threshold.reshape(-1)[index],
        )

    def with_transition(self, transition: Transition | None) -> "RobustExpert":
        return RobustExpert(self.features, self.likelihood, transition, self.threshold)


def _outlier_log_density(y: Tensor) -> Tensor:
    """Log density of each target as an outlier, (N,), with a tail so heavy that a factor of ten costs 2 log 10."""
    distance = (y - y.median()).abs()
    scale = _MAD_TO_SD * distance.median()
    scale = torch.where(scale > 0, scale, distance.mean())  # more than half of the targets are equal
    scale = torch.where(scale > 0, scale, 1.0)
    return -torch.log(math.pi * scale) - 2 * torch.log(torch.hypot(distance / scale, torch.ones_like(distance)))


def _bounded_evidence(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor, outlier: Tensor) -> Tensor:
    """The bound of :meth:`RobustExpert.log_evidence`; NaN for experts of a batch for which it fails."""
    try:
        with torch.no_grad():
            share = _responsibilities(Phi, y, prior_variance, noise, outlier)
        root = share.sqrt().unsqueeze(-1)
        quadratic, half_log_determinant = whitened_statistics(
            root * Phi, root * y.unsqueeze(-1), prior_variance / noise
        )
    except NumericalError:
        if not noise.shape:
            return noise * torch.nan
        parts = zip(Phi.flatten(0, -3), prior_variance.reshape(-1), noise.reshape(-1), strict=True)
        return torch.stack([_bounded_evidence(P, y, p, n, outlier) for P, p, n in parts]).reshape(noise.shape)
    gaussian = -0.5 * (quadratic / noise + share.sum(-1) * (2 * math.pi * noise).log()) - half_log_determinant
    entropy = -torch.xlogy(share, share) - torch.xlogy(1 - share, 1 - share)
    labels = share * math.log(1 - _SHARE) + (1 - share) * (math.log(_SHARE) + outlier)
    return gaussian + (entropy + labels).sum(-1)


def _responsibilities(Phi: Tensor, y: Tensor, prior_variance: Tensor, noise: Tensor, outlier: Tensor) -> Tensor:
    r"""Probabilities that a target is no outlier, (\*batch, N), by coordinate ascent from Huber's fit."""
    residual = (y - y.median()).expand(Phi.shape[:-1])
    width = torch.maximum(_squared_scale(residual), noise)
    for _ in range(_ROUGH):
        share = (_HUBER * width.sqrt().unsqueeze(-1) / residual.abs()).clamp_max(1.0)
        residual, spread = _fit(Phi, y, share, prior_variance, width)
        width = torch.maximum(_squared_scale(residual), noise)
    for step in range(_MOST):
        level = (width if step < _ANNEALED else noise).unsqueeze(-1)
        inlier = -0.5 * ((residual.square() + spread) / level + (2 * math.pi * level).log())
        before, share = share, torch.sigmoid(math.log(1 / _SHARE - 1) + inlier - outlier)
        if step > _ANNEALED and bool(((share - before).abs() < _SETTLED).all()):
            break
        residual, spread = _fit(Phi, y, share, prior_variance, level.squeeze(-1))
        width = torch.maximum(_squared_scale(residual), noise)
    return share


def _fit(Phi: Tensor, y: Tensor, share: Tensor, prior_variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    r"""Residuals and variances of the function at the rows, (\*batch, N), given weighted rows."""
    ratio = (prior_variance / noise)[..., None, None]
    weighted = share.unsqueeze(-1) * Phi
    scatter = ratio * (weighted.mT @ Phi)
    factor = cholesky(scatter + torch.diag_embed(torch.ones_like(scatter[..., 0])), "the precision of the weights")
    mean = torch.cholesky_solve(ratio * (weighted.mT @ y.unsqueeze(-1)), factor)
    half = torch.linalg.solve_triangular(factor, Phi.mT, upper=False)
    return y - (Phi @ mean).squeeze(-1), prior_variance.unsqueeze(-1) * half.square().sum(-2)


def _squared_scale(residual: Tensor) -> Tensor:
    return (_MAD_TO_SD * residual.abs().median(dim=-1).values).square()
