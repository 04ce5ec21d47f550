"""Batches of rows of many series under the expert objects of an ensemble.

Updates are staged first; states change only by :meth:`SeriesBatch.commit`, for those series that are to learn. One
row of each series of Gaussian experts is learned in place, at the speed of memory; everything else on copies of the
states, a few series at a time.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.laplace import BoundLaplace
from gp_ensembles.filters.many_series import RowPredictions, learn_rows, predict_rows
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    Predictions,
    StepPredictions,
    StudentTPredictions,
)
from gp_ensembles.filters.transitions import RandomWalk
from gp_ensembles.fleet.variances import Variances
from gp_ensembles.numerics import normal

_STATE_BYTES, _ROW_BYTES = 64_000_000, 256_000_000


class SeriesBatch(ABC):
    r"""One expert object on the states of T series.

    Args:
        bound: The bound expert.
        state: Its states, with an axis for the series in front, (T, \*batch, ...); changed in place.
    """

    bound: BoundExpert
    state: FilterState

    def __init__(self, bound: BoundExpert, state: FilterState) -> None:
        self.bound, self.state = bound, state

    @property
    @abstractmethod
    def most_series(self) -> int:
        """How many series may be staged at once."""

    @abstractmethod
    def stage(self, places: Tensor, Phi: Tensor, y: Tensor, own: Variances | None) -> Predictions:
        r"""Predict rows of series at places (S,), features (S, \*batch, B, F) and targets (S, B); keep their updates.

        Returns predictions of shape (S, \*batch, B).
        """

    @abstractmethod
    def commit(self, keep: Tensor) -> None:
        """Write the staged updates of some of the series: places among them, integers."""

    @abstractmethod
    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        r"""Predict a row of each series (S,), which may come several times, from features (S, \*batch, 1, F)."""


@final
class RowSeriesBatch(SeriesBatch):
    """One row of each series, of Gaussian experts that are static or walk at random, learned in place."""

    def __init__(self, bound: BoundGaussian, state: GaussianState) -> None:
        super().__init__(bound, state)
        self._noise = bound.noise.reshape(-1)
        width = state.moments.shape[-2]
        self._moments = state.moments.view(len(state.moments), -1, width, width + 1)
        self._walk = None
        if isinstance(bound.transition, RandomWalk):
            self._walk = (
                bound.transition.variance.to(self._noise).expand(*bound.noise.shape, -1).reshape(len(self._noise), -1)
            )
        self._staged: tuple[Tensor, RowPredictions, Tensor] | None = None

    @property
    def most_series(self) -> int:
        """See :meth:`SeriesBatch.most_series`."""
        return max(1, _ROW_BYTES // (4 * self._moments[0, :, 0].numel() * self._moments.element_size()))

    def stage(self, places: Tensor, Phi: Tensor, y: Tensor, own: Variances | None) -> Predictions:
        """See :meth:`SeriesBatch.stage`."""
        rows = predict_rows(self._moments, places, self._rows(Phi), self._walk, self._noise_of(own))
        targets = y.squeeze(-1)
        self._staged = places, rows, targets
        log_prob = normal.log_prob(targets.unsqueeze(-1), rows.mean, rows.variance)
        return self._predictions(rows, log_prob, Phi)

    def commit(self, keep: Tensor) -> None:
        """See :meth:`SeriesBatch.commit`."""
        assert self._staged is not None
        places, rows, targets = self._staged
        self._staged = None
        if len(keep) < len(places):
            places, targets, rows = places[keep], targets[keep], RowPredictions(*(part[keep] for part in rows))
        learn_rows(self._moments, places, rows, targets, self._walk)

    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        """See :meth:`SeriesBatch.predict`."""
        rows = predict_rows(self._moments, places, self._rows(Phi), self._walk, self._noise_of(own))
        return self._predictions(rows, torch.full_like(rows.variance, torch.nan), Phi)

    def _noise_of(self, own: Variances | None) -> Tensor:
        return self._noise if own is None else own.noise.reshape(len(own.noise), -1)

    def _rows(self, Phi: Tensor) -> Tensor:
        return Phi.reshape(len(Phi), len(self._noise), Phi.shape[-1])

    def _predictions(self, rows: RowPredictions, log_prob: Tensor, Phi: Tensor) -> StepPredictions:
        # A copy: learning overwrites the memory of the means.
        return StepPredictions(*(part.reshape(Phi.shape[:-1]) for part in (rows.mean.clone(), rows.variance, log_prob)))


@final
class BlockSeriesBatch(SeriesBatch):
    """Any block of any expert whose state has a fixed size, on copies of the states."""

    def __init__(self, bound: BoundExpert, state: FilterState) -> None:
        super().__init__(bound, state)
        self._staged: tuple[Tensor, FilterState] | None = None

    @property
    def most_series(self) -> int:
        """See :meth:`SeriesBatch.most_series`."""
        size = sum(part[0].numel() * part.element_size() for part in self.state)
        return max(1, _STATE_BYTES // max(1, size))

    def stage(self, places: Tensor, Phi: Tensor, y: Tensor, own: Variances | None) -> Predictions:
        """See :meth:`SeriesBatch.stage`."""
        after, steps = self._update(self._at(places), Phi, y, own)
        self._staged = places, after
        return steps

    def _update(
        self, state: FilterState, Phi: Tensor, y: Tensor, own: Variances | None
    ) -> tuple[FilterState, Predictions]:
        bound = self._bound_to(own)
        if not isinstance(bound, BoundGaussian | BoundLaplace):
            done: tuple[FilterState, Predictions] = torch.func.vmap(self.bound.update_block)(state, Phi, y)
            return done
        targets = y.reshape(len(y), *[1] * (Phi.ndim - 3), -1).expand(Phi.shape[:-1])
        return bound.update_block(state, Phi, targets)

    def commit(self, keep: Tensor) -> None:
        """See :meth:`SeriesBatch.commit`."""
        assert self._staged is not None
        places, after = self._staged
        self._staged = None
        for old, new in zip(self.state, after, strict=True):
            old.index_copy_(0, places[keep], new[keep])

    def predict(self, places: Tensor, Phi: Tensor, own: Variances | None) -> Predictions:
        """See :meth:`SeriesBatch.predict`."""
        state, bound = self._at(places), self._bound_to(own)
        if isinstance(bound, BoundGaussian | BoundLaplace):
            return bound.predict(state, Phi)
        steps: Predictions = torch.func.vmap(self.bound.predict)(state, Phi)
        return steps

    def _bound_to(self, own: Variances | None) -> BoundExpert:
        """The bound expert with the variances of each series."""
        if own is None:
            return self.bound
        return BoundGaussian(self.bound.features, own.prior, self.bound.transition, own.noise)

    def _at(self, places: Tensor) -> FilterState:
        return type(self.state)(*(part.index_select(0, places) for part in self.state))


def row_series_batch(bound: BoundExpert, state: FilterState) -> SeriesBatch:
    """The batch that runs one row of each series."""
    is_plain = isinstance(bound, BoundGaussian) and isinstance(state, GaussianState)
    if is_plain and (bound.transition is None or type(bound.transition) is RandomWalk):
        assert isinstance(bound, BoundGaussian)
        assert isinstance(state, GaussianState)
        return RowSeriesBatch(bound, state)
    return BlockSeriesBatch(bound, state)


def side_by_side(parts: Sequence[Predictions]) -> Predictions:
    r"""Predictions of all experts, (S, M, B), from those of the expert objects, (S, \*batch, B)."""
    if len({type(part) for part in parts}) > 1:  # normal and Student-t ones: a normal one has infinite degrees
        parts = [_as_student_t(part) for part in parts]
    fields = []
    for name in parts[0]._fields:
        values = []
        for part in parts:
            value, batch = getattr(part, name), part.log_prob.ndim - 2  # axes between series and rows
            values.append(value.reshape(len(value), -1, *value.shape[1 + batch :]))
        fields.append(torch.cat(values, dim=1))
    return type(parts[0])(*fields)


def _as_student_t(part: Predictions) -> StudentTPredictions:
    if isinstance(part, StudentTPredictions):
        return part
    return StudentTPredictions(part.mean, part.variance, part.log_prob, torch.full_like(part.mean, torch.inf))
