"""Hyperparameters and knots of a sparse Gaussian process by L-BFGS, inside bounds that nothing runs away from."""

import math
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.coordinates import Coordinates

_PATIENCE = 3  # iterations that must bring less than the tolerance together: the first ones may be short steps


class Fit(NamedTuple):
    """How a fit went.

    Args:
        objective: Value reached, in nats.
        evaluations: Values with gradients that it took.
        message: Why it stopped.
    """

    objective: float
    evaluations: int
    message: str


def fit_sparse(
    model: KnotModel,
    *,
    knots: bool | slice = False,
    hyperparameters: bool = True,
    max_iterations: int = 200,
    tolerance: float = 0.0,
) -> Fit:
    """Maximize a model's objective in place, by L-BFGS-B in logs of scales and logits of knots in their box.

    Scales stay within a factor of ten thousand of where the first fit of the model (or of one it came from) found
    them, knots within the inputs' range and a tenth of it.

    Args:
        model: The model, a :class:`~gp_ensembles.sparse.SparseGP` or a :class:`~gp_ensembles.sparse.SparseLaplaceGP`.
        knots: Whether the knots move, or which.
        hyperparameters: Whether the kernel's, the mean's and the likelihood's parameters move.
        max_iterations: Iterations of L-BFGS.
        tolerance: Stop when three iterations brought less than this, in nats; scipy's relative tolerance always holds.

    Returns:
        How it went. If nothing better is found, the model is as it was.

    Raises:
        ValueError: If nothing is to move.
        NumericalError: If the objective cannot be evaluated at the start.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import SparseGP
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> before = float(model.objective().detach())
        >>> fit_sparse(model, knots=True).objective > before
        True
    """
    if max_iterations < 1:
        raise ValueError(f"at least one iteration is needed, got {max_iterations}")
    moving = knots if isinstance(knots, slice) else slice(None) if knots else None
    ascent = _Ascent(Coordinates(model, moving, hyperparameters=hyperparameters))
    try:
        message = ascent.run(max_iterations, tolerance)
    finally:  # whatever happens, the best parameters seen are the model's
        ascent.settle()
    return Fit(ascent.best, ascent.evaluations, message)


def can_learn(model: KnotModel) -> bool:
    """Whether any hyperparameter moves in fits: all of a kernel fitted elsewhere may be held.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import SparseGP
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> can_learn(model), can_learn(model.requires_grad_(False))
        (True, False)
    """
    return any(parameter.requires_grad for name, parameter in model.named_parameters() if name != "knots")


def fit_hyperparameters(model: KnotModel, *, max_iterations: int, tolerance: float = 0.0) -> float:
    """The objective after a fit of the hyperparameters that may move; as it is where none may."""
    if can_learn(model):
        return fit_sparse(model, max_iterations=max_iterations, tolerance=tolerance).objective
    with torch.no_grad():
        return float(model.objective())


class _Ascent:
    """L-BFGS-B on a model's coordinates, with the best place so far."""

    def __init__(self, coordinates: Coordinates) -> None:
        self.coordinates = coordinates
        self.start = {name: value.detach().clone() for name, value in coordinates.model.named_parameters()}
        self.place: Tensor | None = None
        self.best = -math.inf
        self.evaluations = 0
        self._bad = math.inf  # what stands for a value that does not exist, once there is one that does

    def run(self, max_iterations: int, tolerance: float) -> str:
        bounds = self.coordinates.bounds
        with torch.no_grad():  # logs, logits and bounds may move the start a little, and knots of categories a lot
            first = float(self.coordinates.model.objective())
        if not math.isfinite(first):
            raise NumericalError(f"the objective is {first} at the start; standardize the targets, or start elsewhere")
        self.best = first
        point = self.coordinates.read().clamp(*bounds)
        path: list[float] = []

        def follow(_: NDArray[np.float64]) -> None:
            path.append(self.best)
            if len(path) > _PATIENCE and path[-1] - path[-1 - _PATIENCE] < tolerance:
                raise StopIteration

        sides = (side.cpu().double().numpy() for side in bounds)
        result = minimize(
            self._descend,
            point.cpu().double().numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(*sides, strict=True)),
            options={"maxiter": max_iterations},
            callback=cast(Any, follow),  # the stubs want a name that scipy looks for
        )
        return str(result.message)

    def settle(self) -> None:
        """Take the best place, or the start to the last bit if there is none."""
        if self.place is None:
            self._restore()
        else:
            self.coordinates.write(self.place)

    def _descend(self, point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        self.evaluations += 1
        place = torch.as_tensor(point).to(self.coordinates.bounds[0])
        try:
            value, gradient = self.coordinates.evaluate(place)
            if not math.isfinite(value) or not bool(gradient.isfinite().all()):
                raise NumericalError(f"the objective is {value}; standardize the targets, or start elsewhere")
        except NumericalError:
            if self.evaluations == 1:
                raise
            return self._bad, np.zeros_like(point)
        if self.evaluations == 1:
            self._bad = 10.0 * abs(value) + 1e3 - value  # an infinite value would end the line search for good
        if value > self.best:
            self.best, self.place = value, place
        return -value, -gradient.cpu().double().numpy()

    @torch.no_grad()
    def _restore(self) -> None:
        for name, parameter in self.coordinates.model.named_parameters():
            parameter.copy_(self.start[name])
