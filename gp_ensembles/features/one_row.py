"""Several feature maps at one row of plain numbers: all sines at once, where a call of torch costs more than they."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.hilbert_additive import HilbertAdditiveFeatures
from gp_ensembles.features.linear import LinearFeatures

Numbers = NDArray[np.float64]


class _Map(NamedTuple):
    """A map of E experts with F features: each of them is a wave, a column or one, times a factor."""

    frequencies: Numbers  # of its W waves, on all D columns, (W, D)
    phases: Numbers  # (W,)
    sines: list[int]  # number of the wave of each feature that is a sine, in order
    cosines: list[int]  # likewise, behind them
    columns: list[int]  # behind them; D for the constant one
    factor: Numbers  # (E, F)


@final
class RowFeatures:
    r"""Feature maps on all or some columns, with their hyperparameters read.

    Random Fourier, additive Hilbert-space, linear and constant features are written at once: each of them is one of

    .. math:: \sin(\omega_w^\top x + \beta_w), \cos(\omega_w^\top x + \beta_w), x_1, \dots, x_D, 1

    times a factor. Other maps are called.

    Args:
        maps: The maps, each of D inputs and with batch shape () or (E,).

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> features = RowFeatures([LinearFeatures(2, one), ConstantFeatures(2, one)])
        >>> features.fill(np.array([3.0, 4.0]))
        >>> [values.tolist() for values in features.designs]
        [[[3.0, 4.0, 1.0]], [[1.0]]]
    """

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        num_inputs = maps[0].num_inputs
        parts = [_read(features, list(range(num_inputs)), num_inputs) for features in maps]
        known = [part for part in parts if part is not None]
        self._frequencies = np.concatenate([np.empty((0, num_inputs)), *(part.frequencies for part in known)])
        self._phases = np.concatenate([np.empty(0), *(part.phases for part in known)])
        num_waves, start, places = len(self._frequencies), 0, [np.empty((0, 0), dtype=np.int64)]
        for part in known:
            num_experts = len(part.factor)
            waves = [start + np.array(own, dtype=np.int64) for own in (part.sines, part.cosines)]
            rest = 2 * num_waves + np.tile(np.array(part.columns, dtype=np.int64), (num_experts, 1))
            pairs = [waves[0].reshape(num_experts, -1), num_waves + waves[1].reshape(num_experts, -1)]
            places.append(np.concatenate([*pairs, rest], axis=1))
            start += len(part.frequencies)
        self._places = np.concatenate([place.ravel() for place in places])
        self._factor = np.concatenate([np.empty(0), *(part.factor.ravel() for part in known)])
        self._numbers = np.ones(2 * num_waves + num_inputs + 1)
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
        _fill(self._frequencies, self._phases, x, self._numbers, self._places, self._factor, self._values)
        if self._called:
            row = torch.from_numpy(x).unsqueeze(0)
            for design, features in self._called:
                design[...] = features(row).detach().reshape(design.shape).numpy()


def _fill(
    frequencies: Numbers,
    phases: Numbers,
    x: Numbers,
    numbers: Numbers,
    places: NDArray[np.int64],
    factor: Numbers,
    values: Numbers,
) -> None:
    """Sines, cosines and inputs to ``numbers``, whose last is one, and those at ``places`` times a factor to values."""
    num_waves = len(frequencies)
    angles = np.dot(frequencies, x) + phases
    numbers[:num_waves] = np.sin(angles)
    numbers[num_waves : 2 * num_waves] = np.cos(angles)
    numbers[2 * num_waves : -1] = x
    values[:] = numbers[places] * factor


def _read(features: FeatureMap, columns: list[int], num_inputs: int) -> _Map | None:
    """A map on some columns, in its own order, of D inputs in all; ``None`` for one that has to be called."""
    if isinstance(features, SelectColumns):
        return _read(features.features, [columns[j] for j in features.columns.tolist()], num_inputs)
    num_experts, num_features = features.batch_shape.numel(), features.num_features
    ones, none = np.ones((num_experts, num_features)), np.empty((0, num_inputs))
    if isinstance(features, ConstantFeatures):
        return _Map(none, none[:, 0], [], [], [num_inputs], ones)
    if isinstance(features, LinearFeatures):
        constant = [num_inputs] if num_features > len(columns) else []
        return _Map(none, none[:, 0], [], [], columns + constant, ones)
    if isinstance(features, HilbertAdditiveFeatures):
        with torch.no_grad():
            omega, phase, amplitude = (part.reshape(-1).numpy() for part in features.waves())
        frequencies = np.zeros((len(omega), num_inputs))
        seen = np.repeat([columns[j] for j in features.seen_columns.tolist()], features.num_frequencies)
        frequencies[np.arange(len(omega)), np.tile(seen, num_experts)] = omega
        waves = list(range(len(omega)))
        return _Map(frequencies, phase, waves, [], [], amplitude.reshape(num_experts, num_features))
    if not isinstance(features, RandomFourierFeatures):
        return None
    with torch.no_grad():
        rates = features.frequencies().reshape(-1, len(columns))
        # All sines are zero at zero and all cosines one: what is seen there is the factors.
        factor = features.bind()(rates.new_zeros(1, len(columns)))
    frequencies = np.zeros((len(rates), num_inputs))
    frequencies[:, columns] = rates.numpy()
    cosines = factor.reshape(num_experts, num_features)[:, num_features // 2 :].numpy()
    waves = list(range(len(rates)))
    return _Map(frequencies, np.zeros(len(rates)), waves, waves, [], np.tile(cosines, (1, 2)))
