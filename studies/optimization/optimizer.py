"""Base of optimization methods, and the maximization of acquisition functions that they share."""

from abc import ABC, abstractmethod

from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim.optimize import optimize_acqf
from torch import Tensor

_RESTARTS, _RAW_SAMPLES, _STEPS = 4, 128, 50


class Optimizer(ABC):
    """A run of a method; randomness is torch's global generator, which the runner seeds."""

    @abstractmethod
    def suggest(self, X: Tensor, Y: Tensor) -> Tensor:
        """The point to observe next, (1, D) in the unit cube, after inputs X (n, D) with values Y (n, 1)."""


def maximizer(acquisition: AcquisitionFunction, bounds: Tensor) -> Tensor:
    """Where an acquisition function is highest, shape (1, D): the best of four searches from 128 places."""
    X, _ = optimize_acqf(
        acquisition, bounds, q=1, num_restarts=_RESTARTS, raw_samples=_RAW_SAMPLES, options={"maxiter": _STEPS}
    )
    return X.detach()
