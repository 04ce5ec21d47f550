"""Several feature maps at one row on plain arrays: all sines at once, since a call of torch costs more than they do."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import Clamp, SelectColumns
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.hilbert import HilbertAdditiveFeatures
from gp_ensembles.features.linear import ConstantFeatures, InputFeatures, LinearFeatures

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


class _Map(NamedTuple):
    """A map of E experts with F features: each of them is a wave, a column or one, times a factor."""

    frequencies: Numbers  # of its W waves, (W, d)
    inputs: list[int]  # the columns that these are on, (d,)
    phases: Numbers  # (W,)
    sines: list[int]  # number of the wave of each feature that is a sine, in order
    cosines: list[int]  # likewise, behind them
    columns: list[int]  # behind them; -1 for the constant one
    factor: Numbers  # (E, F)


@final
class RowFeatures:
    r"""Feature maps with their hyperparameters read, on all or some columns, clamped to a box or not.

    .. math:: \sin(\omega_w^\top x + \beta_w), \cos(\omega_w^\top x + \beta_w), x_1, \dots, x_D, 1
    """

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self._num_inputs = maps[0].num_inputs
        # Columns seen within a box, with its ends, as further columns behind those of the row.
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
        angles = self._frequencies @ row + self._phases
        numbers[:num_waves] = np.sin(angles)
        numbers[num_waves : 2 * num_waves] = np.cos(angles)
        numbers[2 * num_waves : -1] = row
        np.multiply(numbers[self._places], self._factor, out=self._values)
        if self._called:
            inputs = torch.from_numpy(x).unsqueeze(0)
            for design, features in self._called:
                design[...] = features(inputs).detach().reshape(design.shape).numpy()

    def _read(self, features: FeatureMap, columns: list[int]) -> _Map | None:
        """A map on some columns, in its own order; ``None`` for one that has to be called."""
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
            # All sines are zero at zero and all cosines one: what is seen there is the factors.
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
