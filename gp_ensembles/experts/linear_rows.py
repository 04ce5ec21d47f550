r"""Linear experts for single rows on plain arrays, as the overhead of a torch call would dominate.

Features are computed first, all sines of all maps at once. Then the state [Σ | μ] of E experts on each of T transitions
is read and updated in the memory of its tensor. As in :mod:`~gp_ensembles.filters.block` with one row,

.. math:: c = \Sigma \phi + Q \phi, \quad v = \phi^\top c + \sigma^2, \quad m = \phi^\top \mu, \qquad
          [\Sigma \mid \mu] \leftarrow [\Sigma + Q \mid \mu] - \frac{c}{v}\, [c^\top \mid m - y]

Memory access dominates the cost, so the compiled loops use only the lower triangle of the covariance, and
``mirror`` fills the upper triangle before anything else reads the state. Without numba, products are computed by
numpy and torch, and there is nothing to mirror.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.experts.base import LinearRow, Season
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import Clamp, SelectColumns
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.hilbert import HilbertAdditiveFeatures
from gp_ensembles.features.linear import ConstantFeatures, InputFeatures, LinearFeatures
from gp_ensembles.numerics.compiled import IS_COMPILED, compiled

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


def _predict_by_products(
    moments: Numbers, walk: Numbers, noise: Numbers, design: Numbers, joint: Numbers, mean: Numbers, variance: Numbers
) -> None:
    np.matmul(design[:, None, :], moments, out=joint[:, :, None, :])
    mean[...] = joint[..., -1]
    cross = joint[..., :-1]
    cross += design * walk
    np.add((cross * design).sum(-1), noise, out=variance)


def _learn_by_products(
    moments: Numbers, walk: Numbers, joint: Numbers, mean: Numbers, variance: Numbers, y: float
) -> None:
    joint[..., -1] -= y
    joint /= np.sqrt(variance)[..., None]
    width = moments.shape[-2]
    right = torch.from_numpy(joint.reshape(-1, 1, width + 1))
    torch.from_numpy(moments.reshape(-1, width, width + 1)).baddbmm_(right[..., :-1].mT, right, alpha=-1.0)
    diagonal = moments.reshape(*moments.shape[:2], -1)[..., :: width + 2]
    diagonal += walk


def _predict_by_loops(
    moments: Numbers, walk: Numbers, noise: Numbers, design: Numbers, joint: Numbers, mean: Numbers, variance: Numbers
) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            out, weights = joint[t, e], design[e]
            out[:] = 0.0
            for i in range(width):
                weight, row, total = weights[i], moments[t, e, i], 0.0
                for j in range(i):
                    total += row[j] * weights[j]
                    out[j] += row[j] * weight
                out[i] += total + row[i] * weight
                out[width] += row[width] * weight
            spread = noise[t, e]
            for j in range(width):
                out[j] += weights[j] * walk[t, e, j]
                spread += weights[j] * out[j]
            mean[t, e] = out[width]
            variance[t, e] = spread


def _learn_by_loops(
    moments: Numbers, walk: Numbers, joint: Numbers, mean: Numbers, variance: Numbers, y: float
) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            gain = joint[t, e]
            scale = 1.0 / np.sqrt(variance[t, e])
            gain[width] -= y
            for j in range(width + 1):
                gain[j] *= scale
            for i in range(width):
                weight, row = gain[i], moments[t, e, i]
                for j in range(i + 1):
                    row[j] -= weight * gain[j]
                row[width] -= weight * gain[width]
                row[i] += walk[t, e, i]


def _mirror_by_loops(moments: Numbers) -> None:
    num_kinds, num_experts, width = moments.shape[:3]
    for t in range(num_kinds):
        for e in range(num_experts):
            for i in range(width):
                for j in range(i):
                    moments[t, e, j, i] = moments[t, e, i, j]


def _nothing(moments: Numbers) -> None:
    pass


# Predict one target; the state is unchanged. Shapes: ``moments`` (T, E, F, F + 1), ``walk`` (T, E, F), ``noise``
# (T, E), ``design`` (E, F), ``joint`` (T, E, F + 1), ``mean`` (T, E), ``variance`` (T, E).
predict_row = compiled(_predict_by_loops, any_order=True) if IS_COMPILED else _predict_by_products
# Learn the target predicted by ``predict_row``; the state changes in place, up to ``mirror``.
learn_row = compiled(_learn_by_loops) if IS_COMPILED else _learn_by_products
# Complete the state after ``learn_row``: copy the lower triangle of each covariance to the upper one.
mirror = compiled(_mirror_by_loops) if IS_COMPILED else _nothing


class _Map(NamedTuple):
    """A map of E experts with F features, each of which is a wave, a column or one, times a factor."""

    frequencies: Numbers  # of its W waves, (W, d)
    inputs: list[int]  # the columns of these, (d,)
    phases: Numbers  # (W,)
    sines: list[int]  # wave index of each sine feature, in order
    cosines: list[int]  # likewise for cosines, which follow
    columns: list[int]  # column features, which follow; -1 for the constant one
    factor: Numbers  # (E, F)


@final
class RowFeatures:
    r"""Feature maps with their hyperparameters read, on all or some columns, optionally clamped to a box.

    .. math:: \sin(\omega_w^\top x + \beta_w), \cos(\omega_w^\top x + \beta_w), x_1, \dots, x_D, 1
    """

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self._num_inputs = maps[0].num_inputs
        # Columns clamped to a box, with its bounds, appended after the columns of the row.
        self._clips: list[tuple[list[int], Numbers, Numbers]] = []
        parts = [self._read(features, list(range(self._num_inputs))) for features in maps]
        known = [part for part in parts if part is not None]
        self._row = np.empty(self._num_inputs + sum(len(columns) for columns, *_ in self._clips))
        num_waves, start, places = sum(len(part.phases) for part in known), 0, [np.empty((0, 0), dtype=np.int64)]
        self._frequencies = np.zeros((num_waves, len(self._row)))
        self._phases = np.concatenate([np.empty(0), *(part.phases for part in known)])
        for part in known:
            num_experts, end = len(part.factor), start + len(part.phases)
            self._frequencies[start:end, part.inputs] = part.frequencies
            waves = [start + np.array(own, dtype=np.int64) for own in (part.sines, part.cosines)]
            columns = np.array([place if place >= 0 else len(self._row) for place in part.columns], dtype=np.int64)
            rest = 2 * num_waves + np.tile(columns, (num_experts, 1))
            pairs = [waves[0].reshape(num_experts, -1), num_waves + waves[1].reshape(num_experts, -1)]
            places.append(np.concatenate([*pairs, rest], axis=1))
            start = end
        self._places = np.concatenate([place.ravel() for place in places])
        self._factor = np.concatenate([np.empty(0), *(part.factor.ravel() for part in known)])
        self._numbers = np.ones(2 * num_waves + len(self._row) + 1)
        self._values = np.empty(len(self._places))
        ends = np.cumsum([place.size for place in places])
        values = np.split(self._values, ends[:-1])[1:]
        own = iter([value.reshape(place.shape) for value, place in zip(values, places[1:], strict=True)])
        self.designs: list[Numbers] = []
        self._called: list[tuple[Numbers, BoundFeatures]] = []
        for read, features in zip(parts, maps, strict=True):
            if read is None:
                self.designs.append(np.empty((features.batch_shape.numel(), features.num_features)))
                self._called.append((self.designs[-1], features.bind()))
            else:
                self.designs.append(next(own))

    def fill(self, x: Numbers) -> None:
        """Write the features at a row x (D,) to :attr:`designs`, (E, F) each, in the order of the maps."""
        row, numbers, num_waves, end = self._row, self._numbers, len(self._phases), self._num_inputs
        row[:end] = x
        for columns, lower, upper in self._clips:
            start, end = end, end + len(columns)
            row[start:end] = np.minimum(np.maximum(row[columns], lower), upper)
        angles = self._frequencies.dot(row) + self._phases
        numbers[:num_waves] = np.sin(angles)
        numbers[num_waves : 2 * num_waves] = np.cos(angles)
        numbers[2 * num_waves : -1] = row
        np.multiply(numbers[self._places], self._factor, out=self._values)
        if self._called:
            inputs = torch.from_numpy(x).unsqueeze(0)
            for design, features in self._called:
                design[...] = features(inputs).detach().reshape(design.shape).numpy()

    def _read(self, features: FeatureMap, columns: list[int]) -> _Map | None:
        """A map on some columns, in its own order; ``None`` for one that must be called."""
        if isinstance(features, SelectColumns):
            return self._read(features.features, [columns[j] for j in features.columns.tolist()])
        if isinstance(features, Clamp):
            first = self._num_inputs + sum(len(known) for known, *_ in self._clips)
            self._clips.append((columns, features.lower.numpy(), features.upper.numpy()))
            found = self._read(features.features, list(range(first, first + len(columns))))
            if found is None:
                self._clips.pop()
            return found
        num_experts, num_features = features.batch_shape.numel(), features.num_features
        ones, none = np.ones((num_experts, num_features)), np.empty((0, 0))
        if isinstance(features, ConstantFeatures):
            return _Map(none, [], none.ravel(), [], [], [-1], ones)
        if isinstance(features, LinearFeatures):
            constant = [-1] if num_features > len(columns) else []
            return _Map(none, [], none.ravel(), [], [], columns + constant, ones)
        if isinstance(features, HilbertAdditiveFeatures):
            with torch.no_grad():
                rates, phases, amplitude = (part.reshape(-1).numpy() for part in features.waves())
            seen = np.repeat(features.seen_columns.numpy(), features.num_frequencies)
            frequencies = np.zeros((len(rates), len(columns)))
            frequencies[np.arange(len(rates)), np.tile(seen, num_experts)] = rates
            waves = list(range(len(rates)))
            return _Map(frequencies, columns, phases, waves, [], [], amplitude.reshape(num_experts, num_features))
        if not isinstance(features, RandomFourierFeatures):
            return None
        with torch.no_grad():
            omega = features.frequencies().reshape(-1, len(columns))
            # At zero, all sines are zero and all cosines one, which gives the factors.
            factor = features.bind()(omega.new_zeros(1, len(columns)))
        cosines = factor.reshape(num_experts, num_features)[:, num_features // 2 :].numpy()
        waves = list(range(len(omega)))
        return _Map(omega.numpy(), columns, np.zeros(len(omega)), waves, waves, [], np.tile(cosines, (1, 2)))


def passed_columns(features: FeatureMap) -> Places | None:
    """Columns that a map passes through; ``None`` for a map that does more."""
    if isinstance(features, InputFeatures):
        return np.arange(features.num_inputs)
    if isinstance(features, SelectColumns) and isinstance(features.features, InputFeatures):
        places: Places = features.columns.numpy()
        return places
    return None


@final
class RowBatches:
    """Linear experts for single rows; states change in place by :meth:`learn`, and are complete after :meth:`flush`.

    Attributes:
        experts: Indices of the linear experts among all, in the order of :attr:`mean`.
        mean: Means at the last row.
        variance: Their variances.
    """

    mean: Numbers
    variance: Numbers

    def __init__(
        self,
        objects: Mapping[tuple[int, ...], Tensor],
        features: Sequence[FeatureMap],
        rows: Mapping[int, LinearRow],
        starts: Sequence[int],
    ) -> None:
        self._features = RowFeatures(features)
        self._seasons: list[Season] = []
        # T objects of E experts with the same design, in the form of predict_row.
        self._batches: list[tuple[Numbers, Numbers, Numbers, Numbers, Numbers, Numbers, Numbers]] = []
        sizes = [len(own) * len(design) for own, design in zip(objects, self._features.designs, strict=True)]
        self.mean, self.variance = np.empty(sum(sizes)), np.empty(sum(sizes))
        experts, at = [], 0
        for (own, moments), design in zip(objects.items(), self._features.designs, strict=True):
            season = rows[own[0]].season
            if season is not None:
                self._seasons.append(season)
                design = season.design
                if season.slope is not None:
                    moments = torch.from_numpy(season.slope.ahead)
            shape, width = (len(own), len(design)), moments.shape[-2]
            end = at + shape[0] * shape[1]
            self._batches.append(
                (
                    moments.numpy().reshape(*shape, width, width + 1),
                    np.stack([rows[place].walk for place in own]),
                    np.stack([rows[place].noise for place in own]),
                    design,
                    np.empty((*shape, width + 1)),
                    self.mean[at:end].reshape(shape),
                    self.variance[at:end].reshape(shape),
                )
            )
            experts += [starts[place] + number for place in own for number in range(len(design))]
            at = end
        self.experts: Places = np.array(experts, dtype=np.int64)
        self._is_whole = True

    def look(self, x: Numbers) -> None:
        """Predict a row x (D,) and store what learning needs."""
        self._features.fill(x)
        for design, num_rows, growth, waves, slope in self._seasons:
            design[0, 1] = growth * num_rows
            design[0, 2:] = waves[num_rows % len(waves)]
            if slope is not None:
                _go_on(*slope)
        for batch in self._batches:
            predict_row(*batch)

    def learn(self, y: float) -> None:
        """Learn the target of the last row."""
        self._is_whole = False
        for moments, walk, _, _, joint, mean, variance in self._batches:
            learn_row(moments, walk, joint, mean, variance, y)
        for season in self._seasons:
            season.num_rows[...] += 1
            if season.slope is not None:
                mirror(season.slope.ahead[None, None])
                season.slope.moments[...] = season.slope.ahead

    def flush(self) -> None:
        """Complete the states before other code reads them."""
        if not self._is_whole:
            for moments, *_ in self._batches:
                mirror(moments)
            self._is_whole = True


@compiled
def _go_on(moments: Numbers, ahead: Numbers, variance: float, damping: float) -> None:
    """Moments one step later, with level and slope as the first and the last state."""
    last = len(moments) - 1
    ahead[:] = moments
    ahead[0] += ahead[last]
    ahead[last] *= damping
    ahead[:, 0] += ahead[:, last]
    ahead[:, last] *= damping
    ahead[last, last] += variance
