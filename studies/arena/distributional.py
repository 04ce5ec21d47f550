"""ondil's online distributional regression: location and scale of Student's t linear in the inputs, by lasso."""

import warnings
from typing import Any, final

import numpy as np

from studies.arena.learners import Distributional
from studies.arena.optional import optional
from studies.arena.scores import Array, LocationScale

_ROWS_AT_ONCE = 10  # predicted before they are learned: an update costs milliseconds
_DEGREES = (1.5, 200.0)
_SCALES = (1e-3, 1e3)


@final
class OnlineRegression(Distributional):
    """Location and logarithm of the scale are linear in the inputs, the degrees of freedom are learned too.

    Args:
        forget: Share of the past that an update forgets.
    """

    def __init__(self, forget: float = 0.0) -> None:
        self.forget = forget
        self.model: Any = None

    def warm_up(self, X: Array, y: Array) -> None:
        """See :meth:`Distributional.warm_up`."""
        distributions, estimators = optional("ondil.distributions"), optional("ondil.estimators")
        seen = ~np.isnan(y)
        self.model = estimators.OnlineDistributionalRegression(
            distribution=distributions.StudentT(),
            equation={0: "all", 1: "all", 2: "intercept"},
            method="lasso",
            ic="bic",
            forget=self.forget,
            scale_inputs=False,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model.fit(X[seen], y[seen])

    def step(self, X: Array, y: Array) -> LocationScale:
        """See :meth:`Distributional.step`."""
        parts = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for start in range(0, len(y), _ROWS_AT_ONCE):
                rows = slice(start, start + _ROWS_AT_ONCE)
                parts.append(self.model.predict_distribution_parameters(X[rows]))
                seen = ~np.isnan(y[rows])
                if seen.any():
                    self.model.update(X[rows][seen], y[rows][seen])
        location, scale, df = np.concatenate(parts).T
        return LocationScale(location, scale.clip(*_SCALES), df.clip(*_DEGREES))
