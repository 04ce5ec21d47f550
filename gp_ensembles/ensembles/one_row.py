"""One row of an ensemble of linear experts on plain arrays, which share the memory of its state.

A call of torch costs a microsecond whatever its size, and a row of a small ensemble takes two hundred of them. Here
are the same equations as in :mod:`~gp_ensembles.ensembles.weighing`, for what occurs in nearly every row: a target that
is there and no outlier. Everything else is left to the blocks.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.state import EnsembleState
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.features.one_row import RowFeatures, is_known
from gp_ensembles.filters.one_row import learn_row, mirror, predict_row
from gp_ensembles.filters.states import FilterState, GaussianState, StructuralState
from gp_ensembles.filters.transitions import RandomWalk
from gp_ensembles.innovations.one_row import learn_models, predict_models
from gp_ensembles.meta_learners.one_row import RowRule, WeighedRow
from gp_ensembles.numerics.compiled import compiled

Numbers = NDArray[np.float64]


class RowMixture(NamedTuple):
    """The mixture of a row: M experts, each with its K - 1 innovation models behind it.

    Attributes:
        log_weights: Log weights in force, shape (M K,).
        mean: Means, shape (M, K).
        variance: Variances, shape (M, K).
    """

    log_weights: Numbers
    mean: Numbers
    variance: Numbers


class StagedRow(NamedTuple):
    """A row that is predicted and not yet learned.

    Attributes:
        mixture: The mixture before the target.
        weighed: What the rule makes of the target.
        y: The target.
        innovations: Sizes of errors, sums of the autoregression and errors after it.
    """

    mixture: RowMixture
    weighed: WeighedRow
    y: float
    innovations: tuple[Numbers, Numbers, Numbers]


class _Lane(NamedTuple):
    """Expert objects that share features, T of them with E experts each; see :func:`predict_row` for the shapes."""

    design: Numbers
    moments: Numbers
    walk: Numbers
    noise: Numbers
    joint: Numbers
    mean: Numbers
    variance: Numbers


class _Season(NamedTuple):
    """What a structural expert sees of the row of a number: a level, a trend and a season."""

    design: Numbers  # (1, S)
    num_rows: NDArray[np.int64]  # the state's own memory
    growth: float  # of the straight trend, for each row
    waves: Numbers  # of each row of a season, and what is behind them, (season, S - 2)
    slope: "_Slope | None"


class _Slope(NamedTuple):
    """A slope that walks: the lane's moments are those of the next row, made anew from the state's."""

    moments: Numbers  # the state's own memory, (S, S + 1)
    ahead: Numbers  # the lane's, (S, S + 1)
    variance: float
    damping: float


@final
class RowEnsemble:
    """One row at a time, for an ensemble that :meth:`of` knows.

    Args:
        ensemble: The ensemble.
        bound: Its bound experts.
        state: Its state, changed in place by :meth:`commit`, and whole after :meth:`settle`.
        rule: What weighs the experts.
        places: Numbers of the expert objects that share their features and lie side by side in memory.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        bound: Sequence[BoundExpert],
        state: EnsembleState,
        rule: RowRule,
        places: Sequence[tuple[Sequence[int], Tensor]],
    ) -> None:
        layers, innovations = ensemble.layers, state.innovations
        assert layers.bank is not None
        assert innovations is not None
        self._rule, self._models = rule, layers.bank.row_models
        self.degrees_of_freedom = np.tile([math.inf, *self._models.df[:, 0]], len(ensemble.expert_names))
        self._threshold = math.inf if layers.outlier_threshold is None else layers.outlier_threshold
        self._innovations = tuple(part.numpy() for part in innovations)
        self._reach = None if layers.memory is None else tuple(map(float, layers.memory.reach()))
        self._history = np.empty(0) if state.history is None else state.history.numpy()
        lags = () if layers.memory is None else layers.memory.lags
        self._lags = len(self._history) - np.array(lags, dtype=np.int64)
        maps = [ensemble.experts[own[0]].features for own, _ in places]
        self._features = RowFeatures(maps)
        self._inputs = np.empty(maps[0].num_inputs)
        self._mean, self._variance = (np.empty(len(ensemble.expert_names)) for _ in range(2))
        self._seasons: list[_Season] = []
        self._lanes: list[_Lane] = []
        starts = np.cumsum([0, *(expert.num_experts for expert in ensemble.experts)])
        order, at = [], 0
        for (own, moments), design in zip(places, self._features.designs, strict=True):
            experts = [bound[place] for place in own]
            if isinstance(experts[0], BoundStructural):
                season = _season(experts[0], state.experts[own[0]])
                self._seasons.append(season)
                design = season.design
                if season.slope is not None:
                    moments = torch.from_numpy(season.slope.ahead)
            shape = (len(own), len(design))
            end = at + shape[0] * shape[1]
            width = moments.shape[-2]
            walk = [_walk(expert, (len(design), width)) for expert in experts]
            noise = [_noise(expert) for expert in experts]
            self._lanes.append(
                _Lane(
                    design,
                    moments.numpy().reshape(*shape, width, width + 1),
                    np.stack(walk),
                    np.stack(noise),
                    np.empty((*shape, width + 1)),
                    self._mean[at:end].reshape(shape),
                    self._variance[at:end].reshape(shape),
                )
            )
            order += [starts[place] + number for place in own for number in range(len(design))]
            at = end
        self._order = np.argsort(order)
        self._is_whole = True

    @classmethod
    def of(
        cls,
        ensemble: Ensemble,
        bound: Sequence[BoundExpert],
        state: EnsembleState,
        twins: Sequence[tuple[tuple[int, ...], Tensor]],
    ) -> "RowEnsemble | None":
        """The same for an ensemble; ``None`` for one that blocks are made for.

        It takes experts in covariance form whose weights stay or walk at random, on random Fourier, linear or constant
        features, and structural ones; innovation models; the default rule; double precision on the processor.

        Args:
            ensemble: The ensemble.
            bound: Its bound experts.
            state: Its state.
            twins: Expert objects that are run together, and their states in one tensor.
        """
        layers, like = ensemble.layers, state.meta.log_weights
        if like.dtype != torch.float64 or like.device.type != "cpu" or layers.bank is None or layers.guests:
            return None
        if not all(_is_linear(b, s) for b, s in zip(bound, state.experts, strict=True)):
            return None
        if not all(is_known(expert.features) for expert in ensemble.experts):
            return None
        rule = RowRule.of(layers.rule, state.meta)
        if rule is None or state.innovations is None:
            return None
        joined = {places[0]: (places, moments) for places, moments in twins}
        taken = {place for places, _ in twins for place in places}
        places: list[tuple[Sequence[int], Tensor]] = []
        for number, part in enumerate(state.experts):
            if number in joined:
                places.append(joined[number])
            elif number not in taken and isinstance(part, GaussianState | StructuralState):
                places.append(((number,), part.moments))
        return cls(ensemble, bound, state, rule, places)

    def predict(self, x: Numbers) -> RowMixture:
        """The mixture of a row x (D,) that comes next."""
        mean, variance = self._look(x)
        scale, products, last_error, age = self._innovations
        models = self._models
        with np.errstate(invalid="ignore", divide="ignore"):
            _, means, variances = predict_models(
                models.places, models.shifts, models.factor, scale, products, last_error, float(age), mean, variance
            )
        return RowMixture(self._rule.log_weights(), means, variances)

    def stage(self, x: Numbers, y: float) -> StagedRow | None:
        """Predict a target from a row x (D,); the state is not touched.

        Returns:
            What :meth:`commit` learns; ``None`` where blocks know better: for an outlier, or where numbers give out.
        """
        mean, variance = self._look(x)
        scale, products, last_error, age = self._innovations
        models, rows_since = self._models, float(age)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            drift, means, variances = predict_models(
                models.places, models.shifts, models.factor, scale, products, last_error, rows_since, mean, variance
            )
            log_prob, sizes, sums, errors = learn_models(
                models, scale, products, last_error, rows_since, mean, variance, drift, y
            )
        weighed = self._rule.weigh(log_prob.ravel())
        if weighed is None or not _is_usual(weighed.log_weights, means, variances, variance, y, self._threshold):
            return None
        return StagedRow(RowMixture(weighed.log_weights, means, variances), weighed, y, (sizes, sums, errors))

    def commit(self, row: StagedRow) -> None:
        """Learn the row that was staged last."""
        self._is_whole = False
        for _, moments, walk, _, joint, mean, variance in self._lanes:
            learn_row(moments, walk, joint, mean, variance, row.y)
        for season in self._seasons:
            season.num_rows[...] += 1
            if season.slope is not None:
                mirror(season.slope.ahead[None, None])
                season.slope.moments[...] = season.slope.ahead
        self._rule.commit(row.weighed)
        for old, new in zip(self._innovations, row.innovations, strict=False):
            old[...] = new
        self._innovations[3][...] = 0.0
        if self._reach is not None:
            self._history[:-1] = self._history[1:]
            self._history[-1] = min(max(row.y, self._reach[0]), self._reach[1])

    def settle(self) -> None:
        """Make the state whole, for all that reads it elsewhere."""
        if not self._is_whole:
            for lane in self._lanes:
                mirror(lane.moments)
            self._is_whole = True

    def _look(self, x: Numbers) -> tuple[Numbers, Numbers]:
        """Means and variances of the experts at a row x (D,), (M,) each; lanes keep what learning it takes."""
        num_inputs = len(x)
        self._inputs[:num_inputs] = x
        if len(self._lags):
            self._inputs[num_inputs:] = self._history[self._lags]
        self._features.fill(self._inputs)
        for design, num_rows, growth, waves, slope in self._seasons:
            design[0, 1] = growth * num_rows
            design[0, 2:] = waves[num_rows % len(waves)]
            if slope is not None:
                _go_on(*slope)
        for design, moments, walk, noise, joint, mean, variance in self._lanes:
            predict_row(moments, walk, noise, design, joint, mean, variance)
        return self._mean[self._order], self._variance[self._order]


@compiled
def _is_usual(
    log_weights: Numbers, means: Numbers, variances: Numbers, of_experts: Numbers, y: float, threshold: float
) -> bool:
    """Whether all variances are positive numbers, and a target is within some deviations of the mixture's mean."""
    if not (of_experts.min() > 0 and np.isfinite(of_experts.sum())):
        return False
    weights = np.exp(log_weights).reshape(means.shape)
    mean = (weights * means).sum()
    variance = (weights * (variances + np.square(means - mean))).sum()
    return bool(abs(y - mean) <= threshold * np.sqrt(variance))


def _is_linear(bound: BoundExpert, state: FilterState) -> bool:
    if isinstance(bound, BoundStructural):
        return isinstance(state, StructuralState) and bound.noise.numel() == 1
    walks = bound.transition is None or isinstance(bound.transition, RandomWalk)
    return isinstance(bound, BoundGaussian) and isinstance(state, GaussianState) and walks


def _walk(bound: BoundExpert, shape: tuple[int, int]) -> Numbers:
    """Variances of a step of the weights of E experts, (E, F)."""
    transition = bound.walk if isinstance(bound, BoundStructural) else bound.transition
    if not isinstance(transition, RandomWalk):
        return np.zeros(shape)
    variance = transition.variance.detach()
    return np.broadcast_to(variance.reshape(-1, variance.shape[-1]).numpy(), shape)


def _noise(bound: BoundExpert) -> Numbers:
    assert isinstance(bound, BoundGaussian | BoundStructural)
    return bound.noise.detach().reshape(-1).numpy()


def _season(bound: BoundStructural, state: FilterState) -> _Season:
    assert isinstance(state, StructuralState)
    whole = bound.design(torch.arange(bound.period + 1, device=state.num_rows.device)).numpy()
    slope = None
    if bound.slope is not None:
        moments = state.moments.numpy().reshape(state.moments.shape[-2:])
        slope = _Slope(moments, moments.copy(), float(bound.slope.variance), float(bound.slope.damping))
    return _Season(whole[:1].copy(), state.num_rows.numpy(), float(whole[1, 1]), whole[:-1, 2:].copy(), slope)


@compiled
def _go_on(moments: Numbers, ahead: Numbers, variance: float, damping: float) -> None:
    """Moments a step later, as level and slope, the first and the last of the states, make them."""
    last = len(moments) - 1
    ahead[:] = moments
    ahead[0] += ahead[last]
    ahead[last] *= damping
    ahead[:, 0] += ahead[:, last]
    ahead[:, last] *= damping
    ahead[last, last] += variance
