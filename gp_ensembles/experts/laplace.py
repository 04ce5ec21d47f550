"""Bayesian basis expansions for non-Gaussian targets: classes, counts, levels, heavy tails.

The likelihood of a target depends only on its latent value. Experts of an ensemble that share a likelihood therefore
find their modes together, as one batch of scalars, whatever their bases and sizes, instead of in separate searches.
"""

import copy
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, CopiedSeries, Expert, Plans, Runner, Traits, of_length, pure_runner
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.block import BlockGain
from gp_ensembles.filters.latent import BlockSites, LatentBlock, find_sites, latent_block, latent_gain, with_class_axis
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.sites import LaplaceUpdate, LatentUpdate, LikelihoodRule, SiteRule, damped_newton
from gp_ensembles.filters.states import FilterState, GaussianState, LatentMoments, LatentPredictions, gaussian_state
from gp_ensembles.filters.transitions import Schedule, Transition, make_schedule, moment_scales
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.likelihoods.classification import LogisticLikelihood, OrdinalLink
from gp_ensembles.likelihoods.closed_forms import latent_density
from gp_ensembles.likelihoods.counts import CountLikelihood
from gp_ensembles.likelihoods.predictive import GaussHermite, Predictive
from gp_ensembles.likelihoods.response import check_support, latent_dim
from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.derivatives import LatentDensity
from gp_ensembles.numerics.gpytorch_types import Likelihood

_STEPS = 60  # maximum for Newton's method for the mode of the weights
_WHAT = "the curvature of the posterior of the weights"


class LatentGroup(NamedTuple):
    """Experts of one or more objects that share a likelihood."""

    num_objects: int  # number of objects, the first ones of an ensemble
    likelihood: Likelihood  # the likelihood, with batch shape (M,) or none
    rule: SiteRule  # computes the site of each target
    predictive: Predictive  # computes predictions of targets


class LatentRunner(Runner):
    """Runner of a batch of experts with a likelihood, which updates the state in place."""

    def __init__(self, bound: "BoundLaplace", state: GaussianState, alone: LatentGroup) -> None:
        self._bound, self._state, self._alone = bound, state, alone
        self._batch_shape = bound.prior_variance.shape
        self._schedules: dict[int, Schedule] = {}
        self._schedule: Schedule | None = None
        self._staged: BlockGain | None = None
        self._Phi: Tensor | None = None

    def set_block(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> None:
        self._Phi = Phi

    def condition(self, rows: Rows) -> LatentPredictions:
        steps = condition_latent(self._alone, [self], rows)
        return LatentPredictions(*(part.reshape(*self._batch_shape, *part.shape[1:]) for part in steps))

    def latent(self, ages: Tensor | None) -> LatentBlock:
        """Moments of the latent values of the block, with a flattened batch."""
        Phi = self._Phi
        assert Phi is not None
        transition, prior_variance = self._bound.transition, self._bound.prior_variance.detach()
        self._staged = None
        if ages is not None:
            schedule = make_schedule(transition, Phi.shape[-2], prior_variance, ages)
        else:
            prepare = partial(make_schedule, transition, prior_variance=prior_variance)
            schedule = of_length(self._schedules, Phi.shape[-2], prepare)
        design, self._schedule, own = with_class_axis(self._bound.num_latent, Phi, schedule, prior_variance)
        block = latent_block(self._state, design, self._schedule, own)
        scale, axes = block.target_scale, len(self._batch_shape)
        if scale is not None:
            scale = scale.expand(*self._batch_shape, Phi.shape[-2]).reshape(-1, Phi.shape[-2])
        cross, mean, covariance = (part.reshape(-1, *part.shape[axes:]) for part in block[:3])
        return LatentBlock(cross, mean, covariance, scale, block.drift)

    def keep(self, block: LatentBlock, sites: BlockSites) -> None:
        """Store the update of a block until :meth:`commit`."""
        self._staged = latent_gain(block, sites)

    def commit(self) -> None:
        gain, schedule, moments = self._staged, self._schedule, self._state.moments
        if gain is None or schedule is None:
            return
        left, right = (part.reshape(-1, *part.shape[-2:]) for part in (gain.left, gain.right))
        moments.view(-1, *moments.shape[-2:]).baddbmm_(left.mT, right, alpha=-1.0)
        if gain.drift is not None:
            covariance, is_matrix = moments[..., :-1], gain.drift.ndim == moments.ndim
            (covariance if is_matrix else covariance.diagonal(dim1=-2, dim2=-1)).add_(gain.drift)
        scales = moment_scales(moments, schedule)
        if scales is not None:
            moments.mul_(scales)
        self._staged = None


def condition_latent(group: LatentGroup, runners: Sequence[LatentRunner], rows: Rows) -> LatentPredictions:
    """Predict a block (M, B) with all objects of a group, whose features are set; states are unchanged."""
    blocks = [runner.latent(rows.ages) for runner in runners]
    mean, covariance = torch.cat([block.mean for block in blocks]), torch.cat([block.covariance for block in blocks])
    scale = None
    if any(block.target_scale is not None for block in blocks):
        scales = [block.target_scale for block in blocks]
        ones = mean.new_ones(mean.shape[-1])
        scale = torch.cat(
            [ones.expand(len(b.mean), -1) if s is None else s for b, s in zip(blocks, scales, strict=True)]
        )
    sites = find_sites(mean, covariance, scale, rows.y, group.rule)
    start = 0
    for runner, block in zip(runners, blocks, strict=True):
        own = slice(start, start + len(block.mean))
        start = own.stop
        runner.keep(block, BlockSites(sites.latent, *(part[own] for part in sites[1:])))
    return latent_predictions(group.predictive, group.likelihood, sites.latent, rows.y)


def latent_predictions(
    predictive: Predictive, likelihood: Likelihood, moments: LatentMoments, y: Tensor
) -> LatentPredictions:
    r"""Predictions of targets (B,), NaN where missing, from one-step-ahead latent values (\*batch, B)."""
    seen = ~torch.isnan(y)
    if bool(seen.all()):
        mean, variance, log_prob = predictive.assess(likelihood, *moments, y)
        return LatentPredictions(mean, variance, log_prob, *moments)
    filled = torch.where(seen, y, y[seen][0] if bool(seen.any()) else 0.0)
    mean, variance, log_prob = predictive.assess(likelihood, *moments, filled)
    return LatentPredictions(mean, variance, torch.where(seen, log_prob, torch.nan), *moments)


def _runner(bound: "BoundLaplace", state: GaussianState) -> Runner:
    alone = join_latent([bound])
    return pure_runner(bound, state) if alone is None else LatentRunner(bound, state, alone)


class BoundLaplace(BoundExpert):
    r"""The hyperparameters of an expert with a likelihood.

    Shapes: ``prior_variance`` (\*batch).
    """

    plans = Plans(_runner, series=lambda bound, state: CopiedSeries(bound, state, lambda own: bound))
    likelihood: Likelihood
    predictive: Predictive

    def __init__(
        self,
        features: BoundFeatures,
        prior_variance: Tensor,
        transition: Transition | None,
        likelihood: Likelihood,
        latent_update: LatentUpdate,
        predictive: Predictive,
    ) -> None:
        super().__init__(features, prior_variance, transition)
        self.likelihood = likelihood
        self.latent_update = latent_update
        self.predictive = predictive
        self.num_latent: int = latent_dim(likelihood)
        self._rule = LikelihoodRule(latent_density(likelihood), latent_update)

    def update_block(
        self, state: FilterState, Phi: Tensor, y: Tensor | Rows
    ) -> tuple[GaussianState, LatentPredictions]:
        assert isinstance(state, GaussianState)
        after, moments = update_block(state, Phi, y, self.transition, self._rule, prior_variance=self.prior_variance)
        return after, latent_predictions(self.predictive, self.likelihood, moments, as_rows(y).y)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> LatentPredictions:
        assert isinstance(state, GaussianState)
        moments = predict(state, Phi, self.transition, self._rule, prior_variance=self.prior_variance, steps=steps)
        mean, variance = self.predictive.moments(self.likelihood, *moments)
        one = moments.mean if self.num_latent == 1 else moments.mean[..., 0]
        nothing = torch.full_like(one, torch.nan)
        return LatentPredictions(mean, variance, nothing, *moments)

    def take(self, index: Tensor) -> "BoundLaplace":
        batch_shape = self.prior_variance.shape
        return BoundLaplace(
            self.features,
            self.prior_variance.reshape(-1)[index],
            None if self.transition is None else self.transition.take(batch_shape, index),
            take_likelihood(self.likelihood, batch_shape, index),
            self.latent_update,
            self.predictive,
        )


class LaplaceExpert(Expert):
    r"""A batch of Bayesian basis expansions with any likelihood.

    .. math:: y_t \sim p(y \mid z_t), \qquad z_t = \phi(x_t)^\top \theta_t, \qquad \theta_0 \sim N(0, \sigma_\theta^2 I)

    After each target the posterior of the weights is approximated by a Gaussian, by Laplace's method or moment matching
    (Lu et al. 2022, section 3.2; Waxman and Djuric 2024, section 3.4). A target informs the weights only through its
    latent value, so a row costs O(F²) and no system of F equations is solved. Unordered classes have a latent function
    each, with weights that are independent of those of the others given the targets so far, see
    :mod:`~gp_ensembles.filters.latent`.

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        likelihood: Any GPyTorch likelihood of one function whose ``likelihood(f)`` is a torch distribution, or one of
            :mod:`gp_ensembles.likelihoods`. Its parameters, if any, have the feature map's leading ``batch_shape``, or
            no batch shape and are then shared.
        transition: How the weights change before every row; ``None`` for static weights.
        latent_update: How the expert learns: :class:`~gp_ensembles.filters.sites.LaplaceUpdate` by default, or
            :class:`~gp_ensembles.filters.sites.MomentMatchingUpdate`.
        predictive: How predictions are computed: :class:`~gp_ensembles.likelihoods.predictive.GaussHermite` by
            default, or :class:`~gp_ensembles.likelihoods.ProbitApproximation`.

    Raises:
        ValueError: If the transition does not fit.
        TypeError: If the likelihood is GPyTorch's ``SoftmaxLikelihood``.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> from gp_ensembles.likelihoods.classification import LogisticLikelihood
        >>> expert = LaplaceExpert(LinearFeatures(1, torch.tensor(10.0, dtype=torch.float64)), LogisticLikelihood())
        >>> X = torch.linspace(-1, 1, 40, dtype=torch.float64).unsqueeze(-1)
        >>> state, steps = expert.update(expert.init(), X, (X.squeeze(-1) > 0).double())
        >>> probability, _ = expert.predict(state, X[[0, -1]])
        >>> (probability.detach() > 0.5).tolist()
        [False, True]
    """

    traits = Traits(is_real=False)

    def __init__(
        self,
        features: FeatureMap,
        likelihood: Likelihood,
        transition: Transition | None = None,
        latent_update: LatentUpdate | None = None,
        predictive: Predictive | None = None,
    ) -> None:
        super().__init__(features, transition)
        self.num_latent: int = latent_dim(likelihood)
        self.likelihood = likelihood.to(features.prior_variance)
        self.latent_update: LatentUpdate = LaplaceUpdate() if latent_update is None else latent_update
        self.predictive: Predictive = GaussHermite() if predictive is None else predictive

    def init(self) -> GaussianState:
        prior_variance = self.features.prior_variance
        if self.num_latent > 1:
            prior_variance = prior_variance.unsqueeze(-1).expand(*self.batch_shape, self.num_latent)
        return gaussian_state(prior_variance, self.features.num_features)

    def bind(self) -> BoundLaplace:
        features = self.features
        return BoundLaplace(
            features.bind(),
            features.prior_variance,
            self.transition,
            self.likelihood,
            self.latent_update,
            self.predictive,
        )

    def check_targets(self, y: Tensor) -> None:
        """Raise unless the likelihood can produce every target, (B,); see :meth:`Expert.check_targets`."""
        check_support(self.likelihood, y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """By Laplace's approximation, whatever the update of the expert; see :meth:`Expert.log_evidence`.

        For C classes it is the sum over one-versus-rest evidences, with the logistic link.
        """
        Phi, prior_variance = self.features.bind()(X), self.features.prior_variance
        if self.num_latent > 1:  # one binary regression per class
            Phi, prior_variance = Phi.unsqueeze(-3), prior_variance.unsqueeze(-1)
            y = (y == torch.arange(self.num_latent, device=y.device).unsqueeze(-1)).to(y)
            density = latent_density(LogisticLikelihood())
        else:
            is_closed = isinstance(self.likelihood, CountLikelihood)  # its derivatives are differentiable
            density = latent_density(self.likelihood, force_autograd=not is_closed)
        try:
            found = laplace_log_evidence(Phi, y, density, prior_variance)
        except NumericalError:
            return self.features.prior_variance * torch.nan
        return found if self.num_latent == 1 else found.sum(-1)

    def take(self, index: Tensor) -> "LaplaceExpert":
        return LaplaceExpert(
            take_experts(self.features, self.batch_shape, index),
            take_likelihood(self.likelihood, self.batch_shape, index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
            self.latent_update,
            self.predictive,
        )

    def with_transition(self, transition: Transition | None) -> "LaplaceExpert":
        return LaplaceExpert(self.features, self.likelihood, transition, self.latent_update, self.predictive)


def take_likelihood(likelihood: Likelihood, batch_shape: torch.Size, index: Tensor) -> Likelihood:
    """A likelihood for some experts of a batch; one without parameters fits any batch."""
    if not any(True for _ in likelihood.parameters()):
        return likelihood
    return take_experts(likelihood, batch_shape, index)


def join_latent(bound: Sequence[BoundExpert]) -> LatentGroup | None:
    """All Laplace experts of an ensemble as one group.

    ``None`` unless they come before all others and share a likelihood and the kind of update.
    """
    members = [b for b in bound if isinstance(b, BoundLaplace)]
    if not members or list(bound[: len(members)]) != members:
        return None
    first = members[0]
    likelihood = join_likelihoods([b.likelihood for b in members], [b.prior_variance.shape for b in members])
    same = all(b.latent_update == first.latent_update and _same(b.predictive, first.predictive) for b in members)
    if likelihood is None or not same:
        return None
    rule = LikelihoodRule(latent_density(likelihood), first.latent_update)
    return LatentGroup(len(members), likelihood, rule, first.predictive)


def join_likelihoods(likelihoods: Sequence[Likelihood], batch_shapes: Sequence[torch.Size]) -> Likelihood | None:
    """One likelihood for the experts of several batches in order, batch shape (M,); a copy without gradients."""
    first = likelihoods[0]
    if any(_settings(likelihood) != _settings(first) for likelihood in likelihoods):
        return None
    joined = copy.deepcopy(first)
    joined.requires_grad_(False)
    for name, parameter in joined.named_parameters():
        rows = []
        for likelihood, shape in zip(likelihoods, batch_shapes, strict=True):
            own = likelihood.get_parameter(name).detach()
            if own.shape[: len(shape)] != shape or own.ndim == len(shape):
                return None
            rows.append(own.reshape(shape.numel(), *own.shape[len(shape) :]))
        parameter.data = torch.cat(rows)
    return joined


def _settings(thing: object) -> object:
    """The settings of a likelihood other than its parameters."""
    if not isinstance(thing, Likelihood | OrdinalLink):
        return thing
    values = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    return type(thing), {name: _settings(value) for name, value in values.items()}


def _same(one: Predictive, other: Predictive) -> bool:
    return type(one) is type(other) and vars(one) == vars(other)


def laplace_log_evidence(Phi: Tensor, y: Tensor, density: LatentDensity, prior_variance: Tensor) -> Tensor:
    r"""Laplace approximation of the evidence of non-Gaussian targets, over all weights, for a batch of experts.

    .. math:: \log p(y) \approx \sum_n \ell_n(\hat z_n) - \frac{\|\hat\theta\|^2}{2 \sigma_\theta^2}
              - \tfrac12 \log \Big| I + \sigma_\theta^2 \sum_n h_n \phi_n \phi_n^\top \Big|

    (Rasmussen and Williams 2006, section 3.4, in weight space). The mode is found without gradients; two more Newton
    steps with gradients then make value, gradient and Hessian in the hyperparameters exact, since each squares the
    error.

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,) or (\*batch, N), ``prior_variance`` (\*batch); returns (\*batch).
    """
    weights = _weights_at_mode(Phi.detach(), y, density, prior_variance.detach())
    if torch.is_grad_enabled():
        for _ in range(2):
            weights = _newton(weights, Phi, y, density, prior_variance)
    curvature = -density.derivatives(_latent(weights, Phi), y)[1]
    factor = cholesky(_system(curvature, Phi, prior_variance), _WHAT)
    return _log_joint(weights, Phi, y, density, prior_variance) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@torch.no_grad()
def _weights_at_mode(Phi: Tensor, y: Tensor, density: LatentDensity, prior_variance: Tensor) -> Tensor:
    r"""Weights (\*batch, F) at the mode, by a damped Newton method from zero, separately for every expert."""
    tolerance = float(torch.finfo(Phi.dtype).eps ** 0.6)

    def height(weights: Tensor) -> Tensor:
        return _log_joint(weights, Phi, y, density, prior_variance)

    last = torch.inf

    def ascent(weights: Tensor, index: int) -> tuple[Tensor, float, bool]:
        nonlocal last
        step = _newton(weights, Phi, y, density, prior_variance, convex=True) - weights
        size, before = float(step.abs().amax() / (1 + weights.abs().amax())), last
        last = size
        # For large counts steps soon are round-off: as short as the next should be, but not shorter than the last.
        return step, 0.0, size <= tolerance or (size <= tolerance**0.75 and size > 0.1 * before)

    start = Phi.new_zeros(*torch.broadcast_shapes(prior_variance.shape, y.shape[:-1]), Phi.shape[-1])
    weights: Tensor = damped_newton(start, height, ascent, _STEPS)[0]
    if not bool(torch.isfinite(height(weights)).all()):
        raise NumericalError("the posterior of the weights has no proper mode; start with a smaller prior variance")
    return weights


def _latent(weights: Tensor, Phi: Tensor) -> Tensor:
    r"""Latent values (\*batch, N) of weights (\*batch, F)."""
    return (Phi @ weights.unsqueeze(-1)).squeeze(-1)


def _log_joint(weights: Tensor, Phi: Tensor, y: Tensor, density: LatentDensity, prior_variance: Tensor) -> Tensor:
    r"""Log posterior of the weights up to a constant, (\*batch)."""
    fit: Tensor = density.log_prob(_latent(weights, Phi), y).sum(-1)
    return fit - 0.5 * weights.square().sum(-1) / prior_variance


def _newton(
    weights: Tensor, Phi: Tensor, y: Tensor, density: LatentDensity, prior_variance: Tensor, *, convex: bool = False
) -> Tensor:
    """The result of a Newton step; ``convex`` drops negative curvature, so that it is an ascent step."""
    latent = _latent(weights, Phi)
    first, second = density.derivatives(latent, y)
    curvature = (-second).clamp_min(0.0) if convex else -second
    target = prior_variance.unsqueeze(-1) * ((first + curvature * latent).unsqueeze(-2) @ Phi).squeeze(-2)
    factor = cholesky(_system(curvature, Phi, prior_variance), _WHAT)
    return torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)


def _system(curvature: Tensor, Phi: Tensor, prior_variance: Tensor) -> Tensor:
    r"""I + σ² Σ h φφᵀ, shape (\*batch, F, F), from curvatures h (\*batch, N)."""
    total = prior_variance[..., None, None] * ((Phi * curvature.unsqueeze(-1)).mT @ Phi)
    return total + torch.diag_embed(total.new_ones(total.shape[:-1]))
