r"""The exact Gaussian process of the last rows along sample paths.

Means are exact: each path has its own rows. How variances shrink, and how a path's errors move its later means, depends
on its rows, too, at O(n²) for n rows of the window; it is taken from the path of means, once for all paths. Without
past targets among the inputs that is the exact joint law.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.features.base import BoundFeatures
from gp_ensembles.filters.states import WindowState
from gp_ensembles.filters.window import mean_window, weights_of
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.streaming.forecasting.simulators import Ahead, SharedSimulator, Simulator

_WHAT = "the joint covariance of the future rows"
# From the mean as a function of a row (1, D + P) to the rows (H, D + P) of the path of means.
AlongMeans = Callable[[Callable[[Tensor], Tensor]], Tensor]


@final
class WindowMeans:
    """Means of the windows of one object at any rows, the weights of the window's targets solved for once."""

    def __init__(self, expert: BoundWindow, state: WindowState, features: BoundFeatures) -> None:
        self._expert, self._state, self._features = expert, state, features
        self._window, self._weights = expert.window_of(state), weights_of(state)

    def __call__(self, X: Tensor) -> Tensor:
        """Means at rows X (L, D + P), shape (M, L), double precision."""
        mean = mean_window(self._state, self._features(X), self._window, self._weights)
        return mean.reshape(-1, X.shape[0])

    def joint_law(self, member: int, along: AlongMeans) -> tuple[Tensor, Tensor]:
        """Means (H,) of one expert along its path of means, and the factor (H, H) of the covariance of the targets.

        Raises:
            NumericalError: If the covariance is not positive definite.
        """
        rows = along(lambda X: self(X)[member])
        covariance = self._expert.joint_covariance(self._state, self._features(rows)).double()
        covariance = covariance.reshape(-1, *covariance.shape[-2:])[member]
        return self(rows)[member], cholesky(covariance, _WHAT)


@final
class WindowSimulator(Simulator):
    """Paths of windows that see past targets; ``members`` (L,) are experts, ``factor`` (L, H, H) Cholesky factors."""

    def __init__(self, paths: Tensor, means: WindowMeans, members: Tensor, factor: Tensor) -> None:
        super().__init__(paths, sees_targets=True)
        self._means, self._members = means, members
        self._moved = SharedSimulator(paths, factor.new_zeros(factor.shape[:2]), factor)

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        assert X is not None
        moved, variance, _ = self._moved.predict(step, None)
        own = self._means(X)[self._members, torch.arange(X.shape[0], device=X.device)]
        return Ahead(own + moved, variance)

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        self._moved.learn(step, y, errors)
