"""Hyperparameters and knots of a sparse Gaussian process by L-BFGS, inside bounds that nothing runs away from."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from botorch.optim.closures.core import ForwardBackwardClosure
from botorch.optim.core import scipy_minimize
from gpytorch.constraints import Interval
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.sparse.model import SparseGP

_FACTOR = 1e4  # positive hyperparameters stay within this factor of the scales they start from
_MARGIN = 0.1  # knots stay within the inputs' range and a tenth of it


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


def fit_sparse(model: SparseGP, *, knots: bool = False, hyperparameters: bool = True, max_iterations: int = 200) -> Fit:
    """Maximise the model's objective in place.

    Args:
        model: The model.
        knots: Whether the knots move.
        hyperparameters: Whether the kernel's, the mean's and the likelihood's parameters move.
        max_iterations: Iterations of L-BFGS.

    Returns:
        How it went. If nothing better is found, the model is as it was.

    Raises:
        ValueError: If nothing is to move.
        NumericalError: If the objective cannot be evaluated at the start.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> before = float(model.objective().detach())
        >>> fit_sparse(model, knots=True).objective > before
        True
    """
    parameters: dict[str, Tensor] = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (knots if name == "knots" else hyperparameters)
    }
    if not parameters:
        raise ValueError("nothing is to move: let knots or hyperparameters, and see that they require gradients")
    start = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    first = float(model.objective().detach())
    if not math.isfinite(first):
        raise NumericalError(f"the objective is {first} at the start; standardise the targets, or start elsewhere")
    best = {"value": first, "count": 0}
    penalty = 10.0 * abs(first) + 1e3 - first  # an infinite one would end the line search for good
    kept = dict(start)

    def forward() -> Tensor:
        best["count"] += 1
        try:
            value = model.objective()
        except NumericalError:
            return next(iter(parameters.values())).sum() * 0.0 + penalty
        if bool(value.isfinite()) and float(value.detach()) > best["value"]:
            best["value"] = float(value.detach())
            kept.update({name: parameter.detach().clone() for name, parameter in parameters.items()})
        return -value

    try:
        result = scipy_minimize(
            closure=ForwardBackwardClosure(forward, parameters),
            parameters=parameters,
            bounds=_bounds(model, parameters),  # type: ignore[arg-type]  # tensors are taken as well
            options={"maxiter": max_iterations},
        )
        message = str(result.message)
    finally:  # whatever happens, the best parameters seen are the model's
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(kept[name])
    return Fit(best["value"], int(best["count"]), message)


def _bounds(model: SparseGP, parameters: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Bounds of the raw parameters, flat; without them scales run away where they hardly matter."""
    bounds = {}
    found: Iterable[tuple[str, Tensor, Interval | None]] = model.named_parameters_and_constraints()  # type: ignore[operator]
    for name, parameter, constraint in found:
        if name not in parameters:
            continue
        if name == "knots":
            lower, upper = model.train_X.amin(0), model.train_X.amax(0)
            margin = _MARGIN * (upper - lower)
            sides = [(lower - margin).expand_as(parameter), (upper + margin).expand_as(parameter)]
        elif constraint is not None and bool((constraint.lower_bound >= 0.0).all()):  # a scale
            value: Tensor = constraint.transform(parameter.detach())
            least = constraint.lower_bound + 1e-6 * value
            low = torch.maximum(value / _FACTOR, least)
            high = torch.minimum(value * _FACTOR, constraint.upper_bound - 1e-6 * value)
            sides = [constraint.inverse_transform(side) for side in (low, high)]
        else:
            continue
        bounds[name] = (sides[0].reshape(-1).detach(), sides[1].reshape(-1).detach())
    return bounds
