"""Experts of which nothing is known but one-step predictions: independent draws, given the path's own past targets."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.states import FilterState, StudentTPredictions
from gp_ensembles.streaming.forecasting.simulator import Ahead, Simulator


@final
class IndependentSimulator(Simulator):
    """Paths of any expert object from its one-step predictions, the state as it is now.

    Shapes: ``batches`` (L,), ``members`` (L,).
    """

    def __init__(
        self, batches: Tensor, expert: BoundExpert, state: FilterState, members: Tensor, features: BoundFeatures
    ) -> None:
        super().__init__(batches, sees_targets=True)
        self._expert, self._state, self._members, self._features = expert, state, members, features
        self._last: Ahead | None = None

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        """See :meth:`Simulator.predict`."""
        assert X is not None
        predicted = self._expert.predict(self._state, self._features(X))
        place = self._members, torch.arange(X.shape[0], device=X.device)
        mean, variance = (part.double().reshape(-1, X.shape[0])[place] for part in (predicted.mean, predicted.variance))
        df = None
        if isinstance(predicted, StudentTPredictions):
            df = predicted.degrees_of_freedom.double().reshape(-1, X.shape[0])[place]
        if self._last is not None:
            silent = torch.isnan(mean)
            mean = torch.where(silent, self._last.mean, mean)
            variance = torch.where(silent, self._last.variance, variance)
        self._last = Ahead(mean, variance, df)
        return self._last

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """Nothing: see :class:`IndependentSimulator`."""
