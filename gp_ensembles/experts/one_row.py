"""Single-row path of experts that store rows (windows and external models), in the memory of their states."""

from abc import ABC, abstractmethod
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.external import BoundExternal
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters.states import ExternalState, FilterState, WindowState
from gp_ensembles.filters.window import WindowChange
from gp_ensembles.filters.window_row import RowWindow

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


class RowExpert(ABC):
    """An expert object of E experts at one row."""

    @abstractmethod
    def predict(self, x: Numbers) -> tuple[Numbers | float, Numbers | float] | None:
        """Means and variances (E,), or one for all, at a row x (D,); ``None`` without a prediction."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the next row needs nothing special: no row dropped, no training, no refit after it."""

    @abstractmethod
    def learn(self, y: float) -> None:
        """Learn the target of the row that was predicted last."""

    @abstractmethod
    def forget(self) -> None:
        """Forget what was predicted: others may change the state from here on."""


def row_expert(bound: BoundExpert, state: FilterState, features: FeatureMap) -> RowExpert | None:
    """The single-row path of an expert; ``None`` if it has none."""
    columns = _columns(features)
    if columns is None:
        return None
    if isinstance(bound, BoundWindow) and isinstance(state, WindowState) and state.num_used.ndim <= 1:
        return _Window(bound, state, columns)
    if isinstance(bound, BoundExternal) and isinstance(state, ExternalState) and not bound.columns:
        return _External(bound, state, columns)
    return None


def _columns(features: FeatureMap) -> Places | None:
    """Columns that a map passes through; ``None`` for a map that does more."""
    if isinstance(features, InputFeatures):
        return np.arange(features.num_inputs)
    if isinstance(features, SelectColumns) and isinstance(features.features, InputFeatures):
        places: Places = features.columns.numpy()
        return places
    return None


@final
class _Window(RowExpert):
    def __init__(self, bound: BoundWindow, state: WindowState, columns: Places) -> None:
        self._bound, self._state, self._columns = bound, state, columns
        self._rows = RowWindow(state)

    def predict(self, x: Numbers) -> tuple[Numbers, Numbers]:
        return self._rows.predict(self._bound.window_of(self._state), x[self._columns])

    def is_ready(self) -> bool:
        return self._bound.room(self._state) > 0

    def learn(self, y: float) -> None:
        self._rows.learn(y)
        self._bound.commit(self._state, WindowChange(None, None), 1)

    def forget(self) -> None:
        self._rows.forget()


@final
class _External(RowExpert):
    def __init__(self, bound: BoundExternal, state: ExternalState, columns: Places) -> None:
        self._bound, self._state, self._columns = bound, state, columns
        self._inputs, self._targets, self._shares, self._errors = (part.numpy() for part in state[:4])
        self._num_seen, self._num_stored, self._due = (part.numpy() for part in state[4:7])
        self._x, self._mean = np.empty(0), 0.0

    def predict(self, x: Numbers) -> tuple[float, float] | None:
        row = x[self._columns]
        predicted = self._bound.answer(self._state, torch.from_numpy(row).unsqueeze(0))
        if predicted is not None:
            self._x, self._mean = row, predicted[0]
        return predicted

    def is_ready(self) -> bool:
        return int(self._num_seen) + 1 < int(self._due)

    def learn(self, y: float) -> None:
        place = int(self._num_stored) % len(self._targets)
        self._inputs[place], self._targets[place] = self._x, y
        self._shares[place], self._errors[place] = 1.0, y - self._mean
        self._num_seen[...] += 1
        self._num_stored[...] += 1

    def forget(self) -> None:
        self._x = np.empty(0)
