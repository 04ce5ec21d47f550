"""Knot selection strategies: optimizers, abstract base class, run and result, and simultaneous optimization."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.papers.sparse.base import SparseModel, check_knots, check_positive
from gp_ensembles.papers.sparse.fitting import Coordinates, FitResult, fit_hyperparameters, fit_sparse
from gp_ensembles.papers.sparse.initialization import kmeans_knots
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP
from gp_ensembles.papers.sparse.tails import Tails, fit_tails


@final
@dataclass(frozen=True)
class LBFGSB:
    """L-BFGS-B in logs of scales and logits of knots, see :func:`fit_sparse`; never worse than the start."""

    max_iterations: int = 20

    def __post_init__(self) -> None:
        check_positive(max_iterations=self.max_iterations)

    def optimize(self, model: SparseModel, knots: slice | None = None) -> FitResult:
        """Maximize the model's objective in place, moving hyperparameters and some of the knots, if any."""
        if knots is None:
            return fit_hyperparameters(model, max_iterations=self.max_iterations)
        return fit_sparse(model, knots=knots, max_iterations=self.max_iterations)


@final
@dataclass(frozen=True)
class Adadelta:
    r"""The modified ADADELTA of Garton, Niemi and Carriquiry (2020), after Zeiler (2012), as published.

    With averages :math:`\bar a \leftarrow \rho \bar a + (1 - \rho) a` per coordinate,

    .. math:: s = \eta^{-c} \sqrt{\frac{\overline{s^2} + \epsilon}{\overline{g^2} + \epsilon}}\; g, \qquad
              c = \overline{w\, |\mathrm{sign}\, g - \mathrm{sign}\, g_\mathrm{previous}|}

    Steps shrink if gradients change sign. The ascent is not monotone, and ends at its last point, which may be worse
    than the start.

    Args:
        decay: :math:`\rho`.
        epsilon: :math:`\epsilon`, which sets the first steps.
        damping: :math:`\eta`; a coordinate that changes sign at every step is slowed by up to this factor.
        tolerance: Stop when the function changes by no more than this in a step.
        max_iterations: Maximum number of values with gradients.

    Example:
        >>> def parabola(x):
        ...     return float(-(x - 0.5).square().sum()), -2.0 * (x - 0.5)
        >>> start = torch.zeros(1, dtype=torch.float64)
        >>> end, result = Adadelta(tolerance=1e-8).maximize(parabola, start, weights=0.5 + start)
        >>> round(float(end), 3), result.message
        (0.5, 'the function changes by no more than 1e-08')
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> Adadelta(max_iterations=30).optimize(model, slice(4, None)).num_evaluations
        30
    """

    decay: float = 0.95
    epsilon: float = 1e-4
    damping: float = 1e3
    tolerance: float = 1e-3
    max_iterations: int = 1000

    def maximize(
        self,
        function: Callable[[Tensor], tuple[float, Tensor]],
        start: Tensor,
        *,
        weights: Tensor,
        bounds: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, FitResult]:
        """Ascend along the gradient.

        Args:
            function: Value and gradient (P,) at a point (P,).
            start: Starting point, shape (P,).
            weights: Weights w of sign changes (a difference of 2), per coordinate, shape (P,).
            bounds: Lower and upper bounds of coordinates, shape (P,) each; no bounds if ``None``.

        Returns:
            The last point (P,) that could be evaluated, and the result of the fit.

        Raises:
            NumericalError: If the function cannot be evaluated at the start.
        """
        point, (value, gradient) = start, function(start)
        squared, moved, changes = (torch.zeros_like(start) for _ in range(3))
        sign = gradient.sign()
        for count in range(1, self.max_iterations):
            squared = self.decay * squared + (1.0 - self.decay) * gradient.square()
            changes = self.decay * changes + (1.0 - self.decay) * weights * (gradient.sign() - sign).abs()
            sign = gradient.sign()
            step = self.damping ** (-changes) * ((moved + self.epsilon) / (squared + self.epsilon)).sqrt() * gradient
            moved = self.decay * moved + (1.0 - self.decay) * step.square()
            ahead = point + step if bounds is None else (point + step).clamp(*bounds)
            try:
                reached, gradient = function(ahead)
            except NumericalError as error:
                return point, FitResult(value, count + 1, f"the next point could not be evaluated: {error}")
            before, value, point = value, reached, ahead
            if abs(value - before) <= self.tolerance:
                message = f"the function changes by no more than {self.tolerance}"
                return point, FitResult(value, count + 1, message)
        message = f"the maximum of {self.max_iterations} values was reached"
        return point, FitResult(value, self.max_iterations, message)

    def optimize(self, model: SparseModel, knots: slice | None = None) -> FitResult:
        """Maximize the model's objective in place, moving hyperparameters and some of the knots, if any.

        Raises:
            NumericalError: If the objective cannot be evaluated at the start.
        """
        coordinates = Coordinates(model, knots)
        start, weights = coordinates.read(), coordinates.weights
        end, result = self.maximize(coordinates.evaluate, start, weights=weights, bounds=coordinates.bounds)
        coordinates.write(end)
        return result


KnotOptimizer = LBFGSB | Adadelta


class SelectionStep(NamedTuple):
    """A step of a selection."""

    action: str
    num_knots: int  # after the step, as all below
    objective: float  # including log densities of priors, in nats
    upper_bound: float  # on the log evidence at the same hyperparameters
    seconds: float  # since the start
    rows: tuple[int, ...] = ()  # training rows added as knots (none for a refit)


@prints_fields
class Selection(NamedTuple):
    """The result of a knot selection."""

    knots: Tensor  # shape (K, D)
    model: Any  # the model with these knots, a copy of the given one
    history: tuple[SelectionStep, ...]
    stop_reason: str  # why no more knots were added
    tails: Tails  # Student's t of the model's leave-one-out errors

    def predict(self, X: Tensor) -> StudentTMixture:
        """Predictive distributions of targets at rows X (N, D), with the tails of leave-one-out errors."""
        return self.tails.predict(self.model, X)


class SelectionRun:
    """A selection in progress: the current model, and the steps that led to it."""

    model: Any

    def __init__(self, model: SparseGP | ExactGP, bar: "tqdm[Any]", generator: torch.Generator | None) -> None:
        self.model = model
        self.generator = generator
        self.history: list[SelectionStep] = []
        self._bar = bar
        self._clock = time.perf_counter()

    @torch.no_grad()
    def record(self, model: SparseGP | ExactGP, action: str, rows: tuple[int, ...] = ()) -> SelectionStep:
        """Set the model of the run, and add the step to the history."""
        objective, upper = float(model.objective()), float(model.upper_bound())
        step = SelectionStep(action, model.num_knots, objective, upper, time.perf_counter() - self._clock, rows)
        self.model = model
        self.history.append(step)
        self._bar.update(model.num_knots - self._bar.n)
        self._bar.set_postfix_str(f"objective {objective:.2f}, at most {upper:.2f}")
        return step

    def result(self, stop_reason: str) -> Selection:
        """The selection so far."""
        tails = fit_tails(self.model, generator=self.generator)
        return Selection(self.model.knots.detach(), self.model, tuple(self.history), stop_reason, tails)


class Strategy(ABC):
    """A knot selection strategy."""

    @property
    @abstractmethod
    def max_knots(self) -> int:
        """Maximum number of knots selected."""

    @abstractmethod
    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """The first knots for inputs (N, D), shape (K, D)."""

    @abstractmethod
    def search(self, run: SelectionRun) -> str:
        """Select knots, record each step in the run, and return why no more knots were added."""


@final
@dataclass(frozen=True)
class Simultaneous(Strategy):
    """Simultaneous optimization of knots and hyperparameters (Snelson and Ghahramani, 2006; Titsias, 2009).

    With as many knots as selected by :class:`OneAtATime` this is SVk of Garton, Niemi and Carriquiry (2020); from its
    knots it is SVO.

    Args:
        start: Number of knots, which start at k-means centers; or these knots, shape (K, D).
        optimizer: Optimizer of knots and hyperparameters.

    Raises:
        ValueError: If there is no knot.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.papers.sparse import select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=Simultaneous(4))
        >>> found.knots.shape, [step.action for step in found.history]
        (torch.Size([4, 1]), ['start', 'simultaneous'])
    """

    start: int | Tensor
    optimizer: KnotOptimizer = field(default_factory=lambda: LBFGSB(200))

    def __post_init__(self) -> None:
        if self.max_knots < 1:
            raise ValueError("start must have at least one knot")

    @property
    def max_knots(self) -> int:
        """The initial number of knots."""
        return self.start if isinstance(self.start, int) else len(self.start)

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Given knots, or k-means centers."""
        if isinstance(self.start, int):
            return kmeans_knots(X, self.start, generator=generator)
        check_knots(X, self.start)
        return self.start

    def search(self, run: SelectionRun) -> str:
        """Fit knots and hyperparameters jointly."""
        run.record(run.model, "start")
        fit = self.optimizer.optimize(run.model, slice(None))
        run.record(run.model, "simultaneous")
        return f"the number of knots was given; the optimizer stopped with: {fit.message}"
