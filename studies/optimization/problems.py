r"""Optimization problems: test functions, draws with unknown kernels, a drifting landscape, a support vector machine.

All are maximized over the unit cube, without noise.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from botorch.test_functions import synthetic
from botorch.test_functions.synthetic import SyntheticTestFunction
from botorch.utils.transforms import unnormalize
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR
from torch import Tensor

from studies.optimization.drawn import DIMENSION, draw, highest

# The drifting landscape: turns of its optimum about the center, and breaths of its height, in evaluations.
_RADIUS, _TURN, _BREATH = 0.3, 100, 60
_WIDTH, _RIPPLE, _NUM_RIPPLES = 0.25, 0.1, 3
# Regularization, inverse squared length scale and tube of the support vector machine, in units of deviations.
_TUNED = ((1e-3, 1e2), (1e-4, 1e1), (1e-3, 1.0))
_FOLDS = 5


class Problem(NamedTuple):
    r"""An objective on the unit cube.

    Attributes:
        name: Its name.
        dimension: Number of inputs D.
        evaluate: Maps inputs (q, D) and the number t of the first of these evaluations, counted from zero, to values
            (q, 1).
        optimum: The highest value there is at evaluation t; ``None`` if nobody knows.
        moves: Whether the objective depends on t, so that the best point so far says nothing about today.
    """

    name: str
    dimension: int
    evaluate: Callable[[Tensor, int], Tensor]
    optimum: Callable[[int], float] | None
    moves: bool = False


def make_problem(name: str, seed: int = 0) -> Problem:
    """A problem by its name; the objective of ``drawn`` is another one for every seed.

    Raises:
        ValueError: If there is none of that name.

    Example:
        >>> make_problem("ackley5").dimension
        5
        >>> make_problem("parabola")
        Traceback (most recent call last):
        ValueError: there is no problem 'parabola'; choose from branin, michalewicz2, ..., tuning
    """
    if name not in PROBLEMS:
        raise ValueError(f"there is no problem {name!r}; choose from {', '.join(PROBLEMS)}")
    return PROBLEMS[name](name, seed)


def peak_at(evaluation: int, like: Tensor) -> Tensor:
    r"""Where the drifting landscape is highest at evaluation t, shape (2,).

    .. math:: c_t = \tfrac12 + 0.3\,(\cos 2\pi t/100,\ \sin 2\pi t/100)
    """
    angle = 2 * math.pi * evaluation / _TURN
    return 0.5 + _RADIUS * like.new_tensor([math.cos(angle), math.sin(angle)])


def height_at(evaluation: int) -> float:
    r"""How high the drifting landscape is there, :math:`h_t = 1 + \sin(2\pi t/60)/4`."""
    return 1 + 0.25 * math.sin(2 * math.pi * evaluation / _BREATH)


def drifting(X: Tensor, evaluation: int) -> Tensor:
    r"""A bump with ripples whose top moves on a circle and whose height breathes.

    .. math:: f_t(x) = h_t\, e^{-\lVert x - c_t\rVert^2 / (2 \cdot 0.25^2)}
        - 0.1 \sum_j \sin^2\!\big(3\pi (x_j - c_{tj})\big)

    No term exceeds its value at :math:`c_t`, so :math:`\max f_t = h_t`; ripples make other, lower maxima.

    Args:
        X: Inputs, shape (q, 2), evaluated one after another.
        evaluation: Number t of the first of them.

    Returns:
        Values, shape (q, 1).

    Example:
        >>> import torch
        >>> peak = peak_at(7, torch.zeros(2, dtype=torch.float64))
        >>> drifting(peak.unsqueeze(0), 7).item() == height_at(7)
        True
    """
    times = range(evaluation, evaluation + X.shape[0])
    offset = X - torch.stack([peak_at(t, X) for t in times])
    bump = X.new_tensor([height_at(t) for t in times]) * (-0.5 * offset.square().sum(-1) / _WIDTH**2).exp()
    ripples = _RIPPLE * (_NUM_RIPPLES * math.pi * offset).sin().square().sum(-1)
    return (bump - ripples).unsqueeze(-1)


def cross_validated(X: NDArray[np.float64], y: NDArray[np.float64], x: Tensor) -> float:
    r"""Coefficient of determination of a support vector machine, averaged over five folds.

    Args:
        X: Inputs (N, D), put in units of their deviations in each fold's training rows.
        y: Targets (N,), put in units of their deviation.
        x: Its hyperparameters on the unit cube, shape (3,): C from 0.001 to 100, the RBF kernel's inverse squared
            length scale from 1e-4 to 10 and the tube from 0.001 to 1, each on a log scale.
    """
    places = zip(x.tolist(), _TUNED, strict=True)
    regularization, inverse, tube = (low * (high / low) ** place for place, (low, high) in places)
    target = (y - y.mean()) / y.std(ddof=1)
    machine = SVR(C=regularization, gamma=inverse, epsilon=tube)
    folds = KFold(_FOLDS, shuffle=True, random_state=0)
    scores = cross_val_score(make_pipeline(StandardScaler(), machine), X, target, cv=folds)
    return float(np.mean(scores))


def _standing(make: Callable[[], SyntheticTestFunction], name: str, seed: int) -> Problem:
    """A test function of BoTorch, whose bounds become the unit cube."""
    function = make()
    bounds = cast(Tensor, function.bounds)

    def evaluate(X: Tensor, evaluation: int) -> Tensor:
        values: Tensor = function(unnormalize(X, bounds.to(X)))
        return values.unsqueeze(-1)

    best = float(function.optimal_value)
    return Problem(name, int(function.dim), evaluate, lambda _: best)


def _drifting(name: str, seed: int) -> Problem:
    return Problem(name, 2, drifting, height_at, moves=True)


def _tuning(name: str, seed: int) -> Problem:
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)

    def evaluate(X: Tensor, evaluation: int) -> Tensor:
        return X.new_tensor([[cross_validated(inputs, targets, x)] for x in X])

    return Problem(name, len(_TUNED), evaluate, None)


def _drawn(name: str, seed: int) -> Problem:
    function = draw(seed)
    best = highest(function)
    return Problem(name, DIMENSION, lambda X, _: function.at(X), lambda _: best)


_FUNCTIONS: dict[str, Callable[[], SyntheticTestFunction]] = {
    "branin": lambda: synthetic.Branin(negate=True),
    "michalewicz2": lambda: synthetic.Michalewicz(2, negate=True),
    "ackley2": lambda: synthetic.Ackley(2, negate=True),
    "rastrigin3": lambda: synthetic.Rastrigin(3, negate=True),
    "levy4": lambda: synthetic.Levy(4, negate=True),
    "rosenbrock4": lambda: synthetic.Rosenbrock(4, negate=True),
    "ackley5": lambda: synthetic.Ackley(5, negate=True),
    "michalewicz5": lambda: synthetic.Michalewicz(5, negate=True),
    "hartmann6": lambda: synthetic.Hartmann(6, negate=True),
}
PROBLEMS: dict[str, Callable[[str, int], Problem]] = {
    **{name: partial(_standing, make) for name, make in _FUNCTIONS.items()},
    "drawn": _drawn,
    "drifting": _drifting,
    "tuning": _tuning,
}
