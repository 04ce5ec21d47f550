"""Linear experts at one row by itself, on plain arrays that share the memory of their states."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.one_row import RowFeatures
from gp_ensembles.filters.one_row import learn_row, mirror, predict_row
from gp_ensembles.filters.states import FilterState, GaussianState, StructuralState
from gp_ensembles.filters.transitions import RandomWalk
from gp_ensembles.numerics.compiled import compiled

Numbers = NDArray[np.float64]


class LinearObjects(NamedTuple):
    """Expert objects that share their features and lie side by side in memory.

    Attributes:
        places: Their numbers among the objects of the ensemble.
        features: Their feature map.
        moments: Their states in one tensor.
        starts: Places of their first experts among all experts.
    """

    places: Sequence[int]
    features: FeatureMap
    moments: Tensor
    starts: Sequence[int]


class _RowBatch(NamedTuple):
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
class RowBatches:
    """Linear experts at one row.

    Args:
        objects: What is run together.
        bound: All bound experts of the ensemble.
        states: Their states, changed in place by :meth:`learn`, and whole after :meth:`flush`.

    Attributes:
        experts: Places of the linear experts among all, in the order of :attr:`mean`.
        mean: Means at the row that was looked at last.
        variance: Their variances.
    """

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]

    def __init__(
        self, objects: Sequence[LinearObjects], bound: Sequence[BoundExpert], states: Sequence[FilterState]
    ) -> None:
        self._features = RowFeatures([one.features for one in objects])
        self._seasons: list[_Season] = []
        self._batches: list[_RowBatch] = []
        sizes = [len(one.places) * len(design) for one, design in zip(objects, self._features.designs, strict=True)]
        self.mean, self.variance = np.empty(sum(sizes)), np.empty(sum(sizes))
        experts, at = [], 0
        for (own, _, moments, starts), design in zip(objects, self._features.designs, strict=True):
            first = bound[own[0]]
            if isinstance(first, BoundStructural):
                season = _season(first, states[own[0]])
                self._seasons.append(season)
                design = season.design
                if season.slope is not None:
                    moments = torch.from_numpy(season.slope.ahead)
            shape, width = (len(own), len(design)), moments.shape[-2]
            end = at + shape[0] * shape[1]
            walk = [_walk(bound[place], (len(design), width)) for place in own]
            noise = [_noise(bound[place]) for place in own]
            self._batches.append(
                _RowBatch(
                    design,
                    moments.numpy().reshape(*shape, width, width + 1),
                    np.stack(walk),
                    np.stack(noise),
                    np.empty((*shape, width + 1)),
                    self.mean[at:end].reshape(shape),
                    self.variance[at:end].reshape(shape),
                )
            )
            experts += [start + number for start in starts for number in range(len(design))]
            at = end
        self.experts: NDArray[np.int64] = np.array(experts, dtype=np.int64)
        self._is_whole = True

    def look(self, x: Numbers) -> None:
        """Predict a row x (D,); what learning it takes is kept."""
        self._features.fill(x)
        for design, num_rows, growth, waves, slope in self._seasons:
            design[0, 1] = growth * num_rows
            design[0, 2:] = waves[num_rows % len(waves)]
            if slope is not None:
                _go_on(*slope)
        for design, moments, walk, noise, joint, mean, variance in self._batches:
            predict_row(moments, walk, noise, design, joint, mean, variance)

    def learn(self, y: float) -> None:
        """Learn the target of the row that was looked at last."""
        self._is_whole = False
        for _, moments, walk, _, joint, mean, variance in self._batches:
            learn_row(moments, walk, joint, mean, variance, y)
        for season in self._seasons:
            season.num_rows[...] += 1
            if season.slope is not None:
                mirror(season.slope.ahead[None, None])
                season.slope.moments[...] = season.slope.ahead

    def flush(self) -> None:
        """Make the states whole, for all that reads them elsewhere."""
        if not self._is_whole:
            for lane in self._batches:
                mirror(lane.moments)
            self._is_whole = True


def is_linear(bound: BoundExpert, state: FilterState) -> bool:
    """Whether :class:`RowBatches` takes an expert: in covariance form, its weights at rest or walking at random."""
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
