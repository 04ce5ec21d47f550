"""L-BFGS for many independent problems at once, each with its own step length."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.lbfgs import inverse_hessian_product, no_pairs, remember

_HISTORY = 12
_MOST_HALVINGS = 25
_ARMIJO = 1e-4
_PATIENCE = 3  # small steps in a row before a problem counts as solved


Differentiated = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Minimum(NamedTuple):
    """Where a batch of minimizations ended.

    Attributes:
        point: Best points, shape (M, P).
        value: Their values, shape (M,); at most those of the starts.
        converged: Whether the value had stopped falling, shape (M,), boolean.
        num_iterations: Iterations made.
    """

    point: Tensor
    value: Tensor
    converged: Tensor
    num_iterations: int


def minimize(function: Differentiated, start: Tensor, *, max_iterations: int = 200, tolerance: float = 1e-7) -> Minimum:
    """Minimize M functions of P variables each by limited-memory BFGS (Nocedal, 1980) with backtracking.

    The problems do not see one another: each has its own history, step length and end, and the answer to one is what
    it would be alone, to round-off. A point where the function is not finite counts as infinitely high.

    Args:
        function: Takes points (R, P) of some of the problems, whose numbers are its second argument (R,), to values
            (R,) and gradients (R, P); those of a problem depend on its own point only.
        start: Points to start from, shape (M, P).
        max_iterations: Most iterations.
        tolerance: A problem is solved when its value has fallen by less than this, relative to its size or one, three
            times in a row.

    Raises:
        ValueError: If a function is not finite at its start.

    Example:
        >>> import torch
        >>> target = torch.tensor([[1.0, 2.0], [-3.0, 5.0]], dtype=torch.float64)
        >>> def squares(points, problems):
        ...     error = points - target[problems]
        ...     return error.square().sum(-1), 2 * error
        >>> found = minimize(squares, torch.zeros_like(target))
        >>> bool((found.point - target).abs().max() < 1e-6), found.converged
        (True, tensor([True, True]))
    """
    point = start
    value, gradient = function(point, torch.arange(len(point), device=point.device))
    bad = ~(value.isfinite() & gradient.isfinite().all(-1))
    if bool(bad.any()):
        raise ValueError(f"the function of problem {int(bad.int().argmax())} is not finite at its start")
    pairs = no_pairs(point)
    calm = torch.zeros_like(value)
    num_iterations = 0
    for _ in range(max_iterations):
        num_iterations += 1
        direction = -inverse_hessian_product(gradient, pairs)
        slope = (direction * gradient).sum(-1)
        uphill = slope >= 0
        direction = torch.where(uphill.unsqueeze(-1), -gradient, direction)
        slope = torch.where(uphill, -gradient.square().sum(-1), slope)
        length = torch.ones_like(value)
        if num_iterations == 1:
            length = 1 / gradient.abs().sum(-1).clamp_min(1.0)
        length = torch.where(calm < _PATIENCE, length, 0.0)  # solved problems stay where they are
        new_point, new_value, new_gradient = _search(function, (point, value, gradient), direction, slope, length)
        pairs = remember(pairs, new_point - point, new_gradient - gradient, _HISTORY)
        small = value - new_value <= tolerance * new_value.abs().clamp_min(1.0)
        calm = torch.where(small, calm + 1, torch.where(calm < _PATIENCE, 0.0, calm))
        point, value, gradient = new_point, new_value, new_gradient
        if bool((calm >= _PATIENCE).all()):
            break
    return Minimum(point, value, calm >= _PATIENCE, num_iterations)


def _search(
    function: Differentiated,
    here: tuple[Tensor, Tensor, Tensor],
    direction: Tensor,
    slope: Tensor,
    length: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Halve each problem's step until its value has fallen enough; a problem that never falls does not move."""
    point, value, gradient = (part.clone() for part in here)
    waiting = (length > 0).nonzero().squeeze(-1)
    for _ in range(_MOST_HALVINGS):
        if len(waiting) == 0:
            break
        # Problems that are solved or have taken their step need not wait with the others.
        steps = length[waiting]
        trial = here[0][waiting] + steps.unsqueeze(-1) * direction[waiting]
        new_value, new_gradient = function(trial, waiting)
        enough = new_value <= here[1][waiting] + _ARMIJO * steps * slope[waiting]
        taken = enough & new_gradient.isfinite().all(-1)
        moved = waiting[taken]
        point[moved], value[moved], gradient[moved] = trial[taken], new_value[taken], new_gradient[taken]
        waiting = waiting[~taken]
        length = 0.5 * length
    return point, value, gradient
