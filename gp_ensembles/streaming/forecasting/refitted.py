"""Refitted experts along sample paths: they have lags of their own."""

import torch
from torch import Tensor

from gp_ensembles.experts.refitted import BoundRefitted
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.states import RefittedState


class OwnLags:
    """Features of a refitted expert's rows along L paths, with the past targets of each path."""

    def __init__(self, expert: BoundRefitted, state: RefittedState, features: BoundFeatures, num_paths: int) -> None:
        self._expert, self._state, self._features = expert, state, features
        self._past = expert.remembered(state).unsqueeze(-1).repeat(1, num_paths)

    def __call__(self, X: Tensor) -> Tensor:
        """Features of the next rows (L, D + P) of all paths, shape (L, F): experts of the object have the same."""
        Phi = self._expert.features_at(self._state, self._features(X), self._past)
        return Phi.reshape(-1, *Phi.shape[-2:])[0]

    def remember(self, y: Tensor) -> None:
        """The targets (L,) that were drawn."""
        self._past = torch.cat([self._past[1:], y.unsqueeze(0)])
