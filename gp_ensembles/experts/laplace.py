"""Bayesian basis expansions for targets that are not Gaussian: classes, counts, levels, heavy tails."""

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, CopiedSeries, Expert, Plans, PureRunner, Runner, Traits
from gp_ensembles.experts.laplace_evidence import laplace_log_evidence
from gp_ensembles.experts.latent_runner import LatentGroup, LatentRunner, latent_predictions
from gp_ensembles.experts.latent_update import LaplaceUpdate, LatentUpdate
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.rebatch import take_experts
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.sites import SiteRule, VectorRule
from gp_ensembles.filters.states import FilterState, GaussianState, LatentPredictions, gaussian_state
from gp_ensembles.filters.transitions import Transition
from gp_ensembles.filters.update import predict, update_block
from gp_ensembles.likelihoods.classification import OrdinalLink
from gp_ensembles.likelihoods.derivatives import known_derivatives, known_vector_derivatives
from gp_ensembles.likelihoods.predictive import GaussHermite, Predictive
from gp_ensembles.likelihoods.response import check_support, latent_dim, log_prob
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.gpytorch_types import Likelihood


def _runner(bound: "BoundLaplace", state: FilterState) -> Runner:
    alone = join_latent([bound])
    if alone is None or not isinstance(state, GaussianState):
        return PureRunner(bound, state)
    return LatentRunner(bound, state, alone)


class BoundLaplace(BoundExpert):
    r"""The numbers of an expert with a likelihood.

    Shapes: ``prior_variance`` (\*batch).
    """

    plans = Plans(_runner, series=lambda bound, state: CopiedSeries(bound, state, lambda own: bound))

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
        density = partial(log_prob, likelihood)
        self._rule: SiteRule | VectorRule
        if self.num_latent == 1:
            self._rule = latent_update.rule(density, prior_variance, known_derivatives(likelihood))
        else:
            self._rule = latent_update.vector_rule(
                density, self.num_latent, prior_variance, known_vector_derivatives(likelihood)
            )

    def update_block(
        self, state: FilterState, Phi: Tensor, y: Tensor | Rows
    ) -> tuple[GaussianState, LatentPredictions]:
        """See :meth:`BoundExpert.update_block`."""
        assert isinstance(state, GaussianState)
        after, moments = update_block(state, Phi, y, self.transition, self._rule, prior_variance=self.prior_variance)
        return after, latent_predictions(self.predictive, self.likelihood, moments, as_rows(y).y)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> LatentPredictions:
        """See :meth:`BoundExpert.predict`."""
        assert isinstance(state, GaussianState)
        moments = predict(state, Phi, self.transition, self._rule, prior_variance=self.prior_variance, steps=steps)
        mean, variance = self.predictive.moments(self.likelihood, *moments)
        one = moments.mean if self.num_latent == 1 else moments.mean[..., 0]
        nothing = torch.full_like(one, torch.nan)
        return LatentPredictions(mean, variance, nothing, *moments)

    def take(self, index: Tensor) -> "BoundLaplace":
        """See :meth:`BoundExpert.take`."""
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
    r"""A batch of Bayesian basis expansions whose targets have any likelihood.

    .. math:: y_t \sim p(y \mid z_t), \qquad z_t = \phi(x_t)^\top \theta_t, \qquad \theta_0 \sim N(0, \sigma_\theta^2 I)

    After each target the posterior of the weights is made Gaussian again, by Laplace's method or by moment matching
    (Lu et al. 2022, section 4; Waxman and Djuric 2024). All that a target teaches passes through its latent value, so a
    row costs O(F²) and no system of F equations is solved. Unordered classes have a latent function, and weights, each.

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        likelihood: Any GPyTorch likelihood of one function whose ``likelihood(f)`` is a torch distribution, or one of
            :mod:`gp_ensembles.likelihoods`. Its parameters, if any, have the feature map's ``batch_shape`` first, or
            none and are then shared.
        transition: How the weights change before every row; ``None`` for static weights.
        latent_update: How the expert learns: :class:`~gp_ensembles.experts.latent_update.LaplaceUpdate` by default, or
            :class:`~gp_ensembles.experts.latent_update.MomentMatchingUpdate`.
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
        """State before any data."""
        return gaussian_state(self.features.prior_variance, self.features.num_features * self.num_latent)

    def bind(self) -> BoundLaplace:
        """Read the hyperparameters once, differentiably."""
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
        """By Laplace's approximation, however the expert learns; see :meth:`Expert.log_evidence`."""
        Phi, prior_variance = self.features.bind()(X), self.features.prior_variance
        try:
            return laplace_log_evidence(Phi, y, partial(log_prob, self.likelihood), prior_variance, self.num_latent)
        except NumericalError:
            return prior_variance * torch.nan

    def take(self, index: Tensor) -> "LaplaceExpert":
        """See :meth:`Expert.take`."""
        return LaplaceExpert(
            take_experts(self.features, self.batch_shape, index),
            take_likelihood(self.likelihood, self.batch_shape, index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
            self.latent_update,
            self.predictive,
        )

    def with_transition(self, transition: Transition | None) -> "LaplaceExpert":
        """See :meth:`Expert.with_transition`."""
        return LaplaceExpert(self.features, self.likelihood, transition, self.latent_update, self.predictive)


def take_likelihood(likelihood: Likelihood, batch_shape: torch.Size, index: Tensor) -> Likelihood:
    """A likelihood for some experts of a batch; one without parameters serves any batch."""
    if not any(True for _ in likelihood.parameters()):
        return likelihood
    return take_experts(likelihood, batch_shape, index)


def join_latent(bound: Sequence[BoundExpert]) -> LatentGroup | None:
    """All experts of an ensemble as one group; ``None`` unless they share a likelihood and the kind of update."""
    members = [b for b in bound if isinstance(b, BoundLaplace) and b.num_latent == 1]
    if len(members) < len(bound):
        return None
    first = members[0]
    shapes = [b.prior_variance.shape for b in members]
    likelihood = join_likelihoods([b.likelihood for b in members], shapes)
    same = all(b.latent_update == first.latent_update and _same(b.predictive, first.predictive) for b in members)
    if likelihood is None or not same:
        return None
    density, like = partial(log_prob, likelihood), first.prior_variance
    return LatentGroup(
        likelihood, first.latent_update.rule(density, like, known_derivatives(likelihood)), first.predictive
    )


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
