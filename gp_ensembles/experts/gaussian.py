"""Bayesian linear regression on features, with Gaussian noise and possibly time-varying weights."""

from collections.abc import Callable, Iterator
from typing import final

import numpy as np
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from gp_ensembles.experts.base import (
    BoundExpert,
    CopiedSeries,
    Expert,
    FixedUpdate,
    LinearRow,
    Plans,
    Runner,
    SeriesBatch,
    Variances,
    of_length,
    pure_runner,
    whole_update,
)
from gp_ensembles.experts.evidence import batched_log_evidence
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.batch import take_experts
from gp_ensembles.filters.block import BlockGain, condition_block
from gp_ensembles.filters.rows import Rows
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    LinearState,
    Predictions,
    SquareRootState,
    StepPredictions,
    gaussian_state,
    square_root_state,
)
from gp_ensembles.filters.stream import BlockStream, condition_series, learn_series, predict_series
from gp_ensembles.filters.transitions import (
    ExponentialForgetting,
    RandomWalk,
    Schedule,
    Transition,
    make_schedule,
    moment_scales,
    scale_features,
    scale_targets,
    unscale_steps,
)
from gp_ensembles.filters.update import predict, update_block

InitialState = Callable[[Tensor, int], LinearState]

# Measured on streams of 1e5 collinear rows against a 60-digit reference: in float64 the covariance form is accurate
# if the noise is at least 1e-6 of the prior variance, in float32 whatever the noise it is not; with a random
# walk of 1e4 round-offs of the prior variance per step it is accurate in both.
_SAFE_NOISE, _SAFE_PRECISION, _SAFE_WALK = 1e-6, 1e-12, 1e4
_NOISE_FLOOR, _NOISE_START = 1e-6, 0.5
_SERIES_BYTES = 256_000_000  # of rows of series processed at once


_Prepared = tuple[Schedule, BlockStream, Tensor | None]  # per block length; factors of the state after each block


@final
class CovarianceRunner(Runner):
    """Covariance form, with scratch memory reused between blocks of the same length."""

    def __init__(self, bound: "BoundGaussian", state: GaussianState) -> None:
        self._bound, self._moments = bound, state.moments
        self._prepared = dict[int, _Prepared]()
        self._block: _Prepared | None = None

    def set_block(self, Phi: Tensor, rows: Rows, has_gaps: bool) -> None:
        ages, num_rows = rows.ages, Phi.shape[-2]
        block = of_length(self._prepared, num_rows, self._prepare) if ages is None else self._prepare(num_rows, ages)
        self._block, (schedule, stream, _) = block, block
        stream.set_block(scale_features(Phi, schedule), scale_targets(rows.y, schedule), has_gaps)

    def condition(self, rows: Rows) -> StepPredictions:
        assert self._block is not None
        schedule, stream, _ = self._block
        steps = stream.condition(rows._replace(y=scale_targets(rows.y, schedule)))
        return unscale_steps(steps, rows.y, schedule)

    def commit(self) -> None:
        assert self._block is not None
        _, stream, scales = self._block
        stream.commit()
        if scales is not None:
            self._moments.mul_(scales)

    def _prepare(self, num_rows: int, ages: Tensor | None = None) -> _Prepared:
        bound, moments = self._bound, self._moments
        schedule = make_schedule(bound.transition, num_rows, bound.prior_variance.detach(), ages)
        stream = BlockStream(moments, bound.noise, schedule.walk, num_rows, schedule.steps)
        return schedule, stream, moment_scales(moments, schedule)


def gain_update(bound: "BoundGaussian", state: GaussianState) -> FixedUpdate:
    """Block gain in covariance form, so that large states are read and written once."""
    moments = state.moments.view(-1, *state.moments.shape[-2:])
    diagonal = state.moments[..., :-1].diagonal(dim1=-2, dim2=-1)

    def stage(before: FilterState, Phi: Tensor, y: Tensor) -> tuple[Predictions, list[Tensor]]:
        assert isinstance(before, GaussianState)
        walk = make_schedule(bound.transition, len(y), bound.prior_variance).walk
        gain, steps = condition_block(before, Phi, y, bound.noise, walk)
        return steps, [gain.left, gain.right, *([] if gain.drift is None else [gain.drift])]

    def learn(updates: Iterator[Tensor], keep: Tensor) -> None:
        left, right = (torch.where(keep, next(updates), 0.0) for _ in range(2))
        left, right = (part.reshape(len(moments), *part.shape[-2:]) for part in (left, right))
        moments.baddbmm_(left.mT, right, alpha=-1)
        if bound.transition is not None:
            diagonal.add_(torch.where(keep, next(updates), 0.0))

    return FixedUpdate(stage, learn)


@final
class GaussianSeries(SeriesBatch):
    """Covariance form of static or random-walk experts, on many series in place."""

    def __init__(self, bound: "BoundGaussian", state: GaussianState) -> None:
        self._noise, width = bound.noise.reshape(-1), state.moments.shape[-2]
        self._moments = state.moments.view(len(state.moments), -1, width, width + 1)
        self._walk = None
        if isinstance(bound.transition, RandomWalk):
            walk = bound.transition.variance.to(self._noise)
            self._walk = walk.expand(*bound.noise.shape, -1).reshape(len(self._noise), -1)
        self._staged: tuple[Tensor, BlockGain] | None = None

    def most_series(self, num_rows: int) -> int:
        size = 4 * num_rows * self._moments[0, :, 0].numel() * self._moments.element_size()
        return max(1, _SERIES_BYTES // size)

    def stage(self, places: Tensor, Phi: Tensor, rows: Rows, own: Variances | None) -> Predictions:
        design = Phi.reshape(len(Phi), len(self._noise), *Phi.shape[-2:])
        gain, steps = condition_series(self._moments, places, design, rows, self._noise_of(own), self._walk)
        self._staged = places, gain
        return StepPredictions(*(part.reshape(Phi.shape[:-1]) for part in steps))

    def commit(self, keep: Tensor) -> None:
        assert self._staged is not None
        places, gain = self._staged
        self._staged = None
        if len(keep) < len(places):
            places, gain = places[keep], gain.take(keep)
        learn_series(self._moments, places, gain)

    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        design = Phi.reshape(len(Phi), len(self._noise), *Phi.shape[-2:])
        steps = predict_series(self._moments, places, design, self._noise_of(own), self._walk)
        return StepPredictions(*(part.reshape(Phi.shape[:-1]) for part in steps))

    def _noise_of(self, own: Variances | None) -> Tensor:
        return self._noise if own is None else own.noise.reshape(len(own.noise), -1)


def _series(bound: "BoundGaussian", state: FilterState) -> SeriesBatch:
    is_diagonal = bound.transition is None or type(bound.transition) is RandomWalk
    if isinstance(state, GaussianState) and is_diagonal:
        return GaussianSeries(bound, state)
    return CopiedSeries(bound, state, bound.with_variances)


def _fixed(bound: "BoundGaussian", state: FilterState) -> FixedUpdate:
    if isinstance(state, GaussianState) and isinstance(bound.transition, RandomWalk | None):
        return gain_update(bound, state)
    return whole_update(bound, state)


def _runner(bound: "BoundGaussian", state: FilterState) -> Runner:
    return CovarianceRunner(bound, state) if isinstance(state, GaussianState) else pure_runner(bound, state)


def _row(bound: "BoundGaussian", state: FilterState, features: FeatureMap) -> LinearRow | None:
    transition = bound.transition
    if not isinstance(state, GaussianState) or not isinstance(transition, RandomWalk | None):
        return None
    shape, noise = (bound.noise.numel(), features.num_features), bound.noise.detach().reshape(-1).numpy()
    return LinearRow(np.zeros(shape) if transition is None else transition.of_each(shape), noise)


class BoundGaussian(BoundExpert):
    r"""A Gaussian expert's hyperparameters.

    Shapes: ``prior_variance`` (\*batch), ``noise`` (\*batch).
    """

    plans = Plans(_runner, _row, _fixed, _series)

    def __init__(
        self, features: BoundFeatures, prior_variance: Tensor, transition: Transition | None, noise: Tensor
    ) -> None:
        super().__init__(features, prior_variance, transition)
        self.noise = noise

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor | Rows) -> tuple[LinearState, StepPredictions]:
        assert isinstance(state, GaussianState | SquareRootState)
        return update_block(state, Phi, y, self.transition, self.noise, prior_variance=self.prior_variance)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, GaussianState | SquareRootState)
        return predict(state, Phi, self.transition, self.noise, prior_variance=self.prior_variance, steps=steps)

    def with_variances(self, own: Variances | None) -> "BoundGaussian":
        r"""The expert with the variances of S series, with batch shape (S, \*batch)."""
        return self if own is None else BoundGaussian(self.features, own.prior, self.transition, own.noise)

    def take(self, index: Tensor) -> "BoundGaussian":
        transition = None if self.transition is None else self.transition.take(self.noise.shape, index)
        prior_variance, noise = (value.reshape(-1)[index] for value in (self.prior_variance, self.noise))
        return BoundGaussian(self.features, prior_variance, transition, noise)


class GaussianExpert(Expert):
    r"""A batch of Bayesian basis expansions that learn online, exactly.

    .. math::
        y_t = \phi(x_t)^\top \theta_t + \varepsilon_t, \quad \varepsilon_t \sim N(0, \sigma^2), \quad
        \theta_0 \sim N(0, \sigma_\theta^2 I)

    (Lu et al. 2022; Waxman and Djuric 2024), with weights that change by ``transition``. The cost per
    row is O(F²), independent of the number of rows.

    Args:
        features: Feature map; its ``prior_variance`` is :math:`\sigma_\theta^2`.
        likelihood: GPyTorch's Gaussian likelihood with the feature map's ``batch_shape``; its noise is
            :math:`\sigma^2`. By default a new one: noise at least 1e-6 (targets are standardized), start 0.5.
        transition: How the weights change before every row, for instance
            :class:`~gp_ensembles.filters.transitions.RandomWalk`; ``None`` for static weights.
        initial_state: :func:`~gp_ensembles.filters.states.gaussian_state` (covariance form) or
            :func:`~gp_ensembles.filters.states.square_root_state`. By default the covariance form where it is
            accurate: in float64 unless the noise is below 1e-6 of the prior variance or old rows are forgotten
            exponentially, in float32 only with enough random walk.

    Raises:
        ValueError: If the likelihood's batch shape is not the feature map's, or the transition does not fit.

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

    def __init__(
        self,
        features: FeatureMap,
        likelihood: GaussianLikelihood | None = None,
        transition: Transition | None = None,
        initial_state: InitialState | None = None,
    ) -> None:
        super().__init__(features, transition)
        self.likelihood = checked_likelihood(features, likelihood)
        self.initial_state = initial_state

    def init(self) -> LinearState:
        prior_variance = self.features.prior_variance
        form = self.initial_state
        if form is None:
            noise = self.likelihood.noise.detach().squeeze(-1)
            walk = None if self.transition is None else self.transition.slowest_walk()
            form = _default_form(prior_variance.detach(), noise, walk)
            if isinstance(self.transition, ExponentialForgetting):
                form = square_root_state  # covariance wind-up exceeds the precision of the other form
        return form(prior_variance, self.features.num_features)

    def bind(self) -> BoundGaussian:
        noise: Tensor = self.likelihood.noise.squeeze(-1)
        return BoundGaussian(self.features.bind(), self.features.prior_variance, self.transition, noise)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Exact, in weight space; see :meth:`Expert.log_evidence`."""
        bound = self.bind()
        return batched_log_evidence(bound.features(X), y, bound.prior_variance, bound.noise)

    def take(self, index: Tensor) -> "GaussianExpert":
        return GaussianExpert(
            take_experts(self.features, self.batch_shape, index),
            take_experts(self.likelihood, self.batch_shape, index),
            None if self.transition is None else self.transition.take(self.batch_shape, index),
            self.initial_state,
        )

    def with_transition(self, transition: Transition | None) -> "GaussianExpert":
        return GaussianExpert(self.features, self.likelihood, transition, self.initial_state)


def default_likelihood(features: FeatureMap) -> GaussianLikelihood:
    """A Gaussian likelihood for standardized targets: noise at least 1e-6, start 0.5, on a log scale."""
    prior_variance = features.prior_variance.detach()
    floor = GreaterThan(_NOISE_FLOOR, transform=torch.exp, inv_transform=torch.log)
    likelihood = GaussianLikelihood(noise_constraint=floor, batch_shape=features.batch_shape).to(prior_variance)
    likelihood.noise = prior_variance.new_full((*features.batch_shape, 1), _NOISE_START)
    return likelihood


def checked_likelihood(features: FeatureMap, likelihood: GaussianLikelihood | None) -> GaussianLikelihood:
    """A likelihood for a feature map, the default one for ``None``."""
    if likelihood is None:
        return default_likelihood(features)
    if likelihood.noise.shape[:-1] != features.batch_shape:
        raise ValueError(
            f"the likelihood has batch shape {tuple(likelihood.noise.shape[:-1])}, but the features have "
            f"{tuple(features.batch_shape)}; build it with batch_shape={tuple(features.batch_shape)}"
        )
    return likelihood


def check_single_output(y: Tensor) -> None:
    """Raise unless targets have shape (B,) and none is infinite.

    Raises:
        ValueError: With the shape, or the value and the row.
    """
    if y.ndim != 1:
        hint = "use y.squeeze(-1)" if y.shape[1:] == (1,) else "for several outputs use MultiOutputExpert"
        raise ValueError(f"y must have shape (B,), one target per row, got {tuple(y.shape)}; {hint}")
    check_real_targets(y)


def check_real_targets(y: Tensor) -> None:
    """Raise unless no target, (B,) or (B, O), is infinite."""
    if y.device.type == "meta" or not bool(torch.isinf(y).any()):
        return
    flat = torch.isinf(y).reshape(y.shape[0], -1).any(-1)
    row = int(flat.int().argmax())
    value = float(y[row][torch.isinf(y[row])].reshape(-1)[0])
    raise ValueError(f"y is {value} in row {row}; use NaN for a target that was not observed")


def sound_variances(prior_variance: Tensor, noise: Tensor, walk: Tensor | None) -> tuple[Tensor, Tensor]:
    """The closest prior and noise variances (...) for which the covariance form is accurate."""
    precision = torch.finfo(prior_variance.dtype).eps
    if precision <= _SAFE_PRECISION:
        return prior_variance, torch.maximum(noise, _SAFE_NOISE * prior_variance)
    return prior_variance if walk is None else torch.minimum(prior_variance, walk / (_SAFE_WALK * precision)), noise


def _default_form(prior_variance: Tensor, noise: Tensor, walk: Tensor | None) -> InitialState:
    """The covariance form if it is accurate for every expert of the batch; otherwise the square root."""
    precision = torch.finfo(prior_variance.dtype).eps
    sound = noise >= _SAFE_NOISE * prior_variance
    if precision > _SAFE_PRECISION:
        sound = torch.zeros_like(sound)
    if walk is not None:
        sound = sound | (walk >= _SAFE_WALK * precision * prior_variance)
    return gaussian_state if bool(sound.all()) else square_root_state
