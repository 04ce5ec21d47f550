"""Bayesian linear regression on features, with Gaussian noise and an optional random walk."""

from collections.abc import Callable

import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.rebatch import take_experts
from gp_ensembles.filters.dispatch import predict, update_block
from gp_ensembles.filters.states import (
    FilterState,
    StepPredictions,
    gaussian_state,
    square_root_state,
)

InitialState = Callable[[Tensor, int], FilterState]

# Measured on streams of 1e5 collinear rows against a 60-digit reference: in float64 the covariance form is sound
# while the noise is at least a millionth of the prior variance, in float32 it is not, whatever the noise; a random
# walk of 1e4 round-offs of the prior variance per step keeps it sound in either.
_SAFE_NOISE, _SAFE_PRECISION, _SAFE_WALK = 1e-6, 1e-12, 1e4
_NOISE_FLOOR, _NOISE_START = 1e-6, 0.5


class GaussianExpert(Expert):
    r"""A batch of Bayesian basis expansions that learn online, exactly.

    .. math::
        y_t = \phi(x_t)^\top \theta_t + \varepsilon_t, \quad \varepsilon_t \sim N(0, \sigma^2), \quad
        \theta_t = \theta_{t-1} + w_t, \quad w_t \sim N(0, Q), \quad \theta_0 \sim N(0, \sigma_\theta^2 I)

    (Lu et al. 2022; Waxman and Djuric 2024). The cost of a row is O(F²) whatever came before.

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        likelihood: GPyTorch's Gaussian likelihood with the feature map's ``batch_shape``; its noise is
            :math:`\sigma^2`. By default a new one: noise at least 1e-6 (targets are standardised), start 0.5.
        random_walk_variance: Diagonal of Q per step, in squared units of the weights: a number, or a tensor
            that broadcasts to (\*batch, F) with an explicit last axis. ``None`` for static weights.
        initial_state: :func:`~gp_ensembles.filters.states.gaussian_state` (covariance form) or
            :func:`~gp_ensembles.filters.states.square_root_state`. By default the covariance form where it is
            sound: in float64 unless the noise is below a millionth of the prior variance, in float32 only with
            enough random walk.

    Raises:
        ValueError: If the likelihood's batch shape is not the feature map's, or the random walk is negative
            or does not broadcast.

    Example:
        >>> import torch
        >>> from gp_ensembles.features import LinearFeatures
        >>> expert = GaussianExpert(LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64)))
        >>> X = torch.arange(6, dtype=torch.float64).unsqueeze(-1)
        >>> state, steps = expert.update(expert.init(), X, X.squeeze(-1))
        >>> mean, variance = expert.predict(state, X[:2])
        >>> mean.shape, bool((variance > expert.bind().noise).all())
        (torch.Size([2]), True)
    """

    random_walk_variance: Tensor | None

    def __init__(
        self,
        features: FeatureMap,
        likelihood: GaussianLikelihood | None = None,
        random_walk_variance: Tensor | float | None = None,
        initial_state: InitialState | None = None,
    ) -> None:
        super().__init__(features)
        prior_variance = features.prior_variance.detach()
        if likelihood is None:
            floor = GreaterThan(_NOISE_FLOOR, transform=torch.exp, inv_transform=torch.log)
            likelihood = GaussianLikelihood(noise_constraint=floor, batch_shape=features.batch_shape)
            likelihood = likelihood.to(prior_variance)
            likelihood.noise = prior_variance.new_full((*features.batch_shape, 1), _NOISE_START)
        if likelihood.noise.shape[:-1] != features.batch_shape:
            raise ValueError(
                f"the likelihood's batch shape {tuple(likelihood.noise.shape[:-1])} is not the feature map's "
                f"{tuple(features.batch_shape)}; build it with batch_shape=features.batch_shape"
            )
        self.likelihood = likelihood
        self.initial_state = initial_state
        self.register_buffer("random_walk_variance", _walk(random_walk_variance, features, prior_variance))

    def init(self) -> FilterState:
        """State before any data."""
        prior_variance = self.features.prior_variance
        form = self.initial_state
        if form is None:
            noise = self.likelihood.noise.detach().squeeze(-1)
            form = _default_form(prior_variance.detach(), noise, self.random_walk_variance)
        return form(prior_variance, self.features.num_features)

    def bind(self) -> BoundExpert:
        """Read the hyperparameters once, differentiably."""
        noise: Tensor = self.likelihood.noise.squeeze(-1)
        return BoundExpert(self.features.bind(), noise, self.random_walk_variance)

    def update(self, state: FilterState, X: Tensor, y: Tensor) -> tuple[FilterState, StepPredictions]:
        """Predict and learn a block of targets; see :meth:`Expert.update`."""
        self.features.check_inputs(X)
        bound = self.bind()
        return update_block(state, bound.features(X), y, bound.noise, bound.random_walk_variance)

    def predict(self, state: FilterState, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance one step ahead; see :meth:`Expert.predict`."""
        self.features.check_inputs(X)
        bound = self.bind()
        return predict(state, bound.features(X), bound.noise, bound.random_walk_variance)


def take_gaussian_experts(expert: GaussianExpert, index: Tensor) -> GaussianExpert:
    """Independent copies of some experts of a batch, () or (M,): batch shape (S,) for ``index`` (S,)."""
    walk = expert.random_walk_variance
    if walk is not None:
        walk = walk.reshape(expert.num_experts, -1)[index.to(walk.device)]
    return GaussianExpert(
        take_experts(expert.features, expert.batch_shape, index),
        take_experts(expert.likelihood, expert.batch_shape, index),
        walk,
        expert.initial_state,
    )


def _walk(value: Tensor | float | None, features: FeatureMap, like: Tensor) -> Tensor | None:
    if value is None:
        return None
    walk = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    if walk.ndim == 0:
        walk = walk.unsqueeze(-1)
    try:
        walk = walk.expand(*features.batch_shape, walk.shape[-1]).clone()
        walk.expand(*features.batch_shape, features.num_features)
    except RuntimeError:
        raise ValueError(
            f"random_walk_variance of shape {tuple(walk.shape)} does not broadcast to "
            f"{(*features.batch_shape, features.num_features)}; give a number, or shape (*batch, 1) or (*batch, F)"
        ) from None
    if like.device.type != "meta" and not bool((walk >= 0).all()):
        raise ValueError("random_walk_variance must not be negative; use None for static weights")
    return walk


def _default_form(prior_variance: Tensor, noise: Tensor, walk: Tensor | None) -> InitialState:
    """The covariance form where it keeps its digits, for every expert of the batch; else the square root."""
    precision = torch.finfo(prior_variance.dtype).eps
    sound = noise >= _SAFE_NOISE * prior_variance
    if precision > _SAFE_PRECISION:
        sound = torch.zeros_like(sound)
    if walk is not None:
        sound = sound | (walk.amin(-1) >= _SAFE_WALK * precision * prior_variance)
    return gaussian_state if bool(sound.all()) else square_root_state
