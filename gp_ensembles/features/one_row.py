"""Several feature maps at one row of plain numbers: all sines at once, where a call of torch costs more than they."""

from collections.abc import Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.fourier import RandomFourierFeatures
from gp_ensembles.features.linear import LinearFeatures
from gp_ensembles.numerics.compiled import compiled

Numbers = NDArray[np.float64]


class _Map(NamedTuple):
    """A map of E experts with F features: each of them is a wave, a column or one, times a factor."""

    frequencies: Numbers  # of its W waves, on all D columns, (W, D)
    sines: list[int]  # number of the wave of each feature that is a sine, in order
    cosines: list[int]  # likewise, behind them
    columns: list[int]  # behind them; D for the constant one
    factor: Numbers  # (E, F)


@final
class RowFeatures:
    r"""Random Fourier, linear and constant features, on all or some columns, with their hyperparameters read.

    Each feature is one of the numbers :math:`\sin \omega_w^\top x, \cos \omega_w^\top x, x_1, \dots, x_D, 1`, times a
    factor.

    Args:
        maps: The maps, each of D inputs and of those that :func:`is_known` knows.

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
        self._frequencies = np.concatenate([part.frequencies for part in parts])
        num_waves, start, places = len(self._frequencies), 0, list[NDArray[np.int64]]()
        for part in parts:
            num_experts = len(part.factor)
            waves = [start + np.array(own, dtype=np.int64) for own in (part.sines, part.cosines)]
            rest = 2 * num_waves + np.tile(np.array(part.columns, dtype=np.int64), (num_experts, 1))
            pairs = [waves[0].reshape(num_experts, -1), num_waves + waves[1].reshape(num_experts, -1)]
            places.append(np.concatenate([*pairs, rest], axis=1))
            start += len(part.frequencies)
        self._places = np.concatenate([place.ravel() for place in places])
        self._factor = np.concatenate([part.factor.ravel() for part in parts])
        self._numbers = np.ones(2 * num_waves + num_inputs + 1)
        self._values = np.empty(len(self._places))
        ends = np.cumsum([place.size for place in places])[:-1]
        self.designs = [
            values.reshape(place.shape) for values, place in zip(np.split(self._values, ends), places, strict=True)
        ]

    def fill(self, x: Numbers) -> None:
        """Write the features at a row x (D,) to :attr:`designs`, (E, F) each, in the order of the maps."""
        _fill(self._frequencies, x, self._numbers, self._places, self._factor, self._values)


@compiled
def _fill(
    frequencies: Numbers, x: Numbers, numbers: Numbers, places: NDArray[np.int64], factor: Numbers, values: Numbers
) -> None:
    """Sines, cosines and inputs to ``numbers``, whose last is one, and those at ``places`` times a factor to values."""
    num_waves = len(frequencies)
    angles = np.dot(frequencies, x)
    numbers[:num_waves] = np.sin(angles)
    numbers[num_waves : 2 * num_waves] = np.cos(angles)
    numbers[2 * num_waves : -1] = x
    values[:] = numbers[places] * factor


def is_known(features: FeatureMap) -> bool:
    """Whether :class:`RowFeatures` takes a map.

    Example:
        >>> is_known(SelectColumns(LinearFeatures(1), [1], 2))
        True
    """
    if isinstance(features, SelectColumns):
        return is_known(features.features)
    plain = isinstance(features, RandomFourierFeatures | LinearFeatures | ConstantFeatures)
    return plain and len(features.batch_shape) <= 1


def _read(features: FeatureMap, columns: list[int], num_inputs: int) -> _Map:
    """A map on some columns, in its own order, of D inputs in all."""
    if isinstance(features, SelectColumns):
        return _read(features.features, [columns[j] for j in features.columns.tolist()], num_inputs)
    num_experts, num_features = features.batch_shape.numel(), features.num_features
    ones = np.ones((num_experts, num_features))
    if isinstance(features, ConstantFeatures):
        return _Map(np.empty((0, num_inputs)), [], [], [num_inputs], ones)
    if isinstance(features, LinearFeatures):
        constant = [num_inputs] if num_features > len(columns) else []
        return _Map(np.empty((0, num_inputs)), [], [], columns + constant, ones)
    assert isinstance(features, RandomFourierFeatures)
    with torch.no_grad():
        omega = features.frequencies().reshape(-1, len(columns))
        # All sines are zero at zero and all cosines one: what is seen there is the factors.
        factor = features.bind()(omega.new_zeros(1, len(columns)))
    frequencies = np.zeros((len(omega), num_inputs))
    frequencies[:, columns] = omega.numpy()
    cosines = factor.reshape(num_experts, num_features)[:, num_features // 2 :].numpy()
    waves = list(range(len(omega)))
    return _Map(frequencies, waves, waves, [], np.tile(cosines, (1, 2)))
