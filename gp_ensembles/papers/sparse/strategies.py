"""Strategies of choosing knots: optimizers of some of them, the abstract base, its run and result, all at once."""

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
    """L-BFGS-B in logs of scales and logits of knots, see :func:`fit_sparse`; never lower than the start."""

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
    r"""The modified ADADELTA of Garton, Niemi and Carriquiry (2020), after Zeiler (2012), as it was published.

    With averages :math:`\bar a \leftarrow \rho \bar a + (1 - \rho) a`, all by coordinate,

    .. math:: s = \eta^{-c} \sqrt{\frac{\overline{s^2} + \epsilon}{\overline{g^2} + \epsilon}}\; g, \qquad
              c = \overline{w\, |\mathrm{sign}\, g - \mathrm{sign}\, g_\mathrm{previous}|}

    Steps shrink where gradients change sign. The ascent is not monotone, and ends at its last point, which may be lower
    than the start.

    Args:
        decay: :math:`\rho`.
        epsilon: :math:`\epsilon`, which sets the first steps.
        damping: :math:`\eta`; a coordinate that changes sign at every step moves by as little as its inverse.
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
        """Follow the gradient from a point.

        Args:
            function: Value and gradient (P,) at a point (P,).
            start: Where to start, shape (P,).
            weights: Weight w of a change of sign, which is 2 apart, by coordinate, shape (P,).
            bounds: Least and largest coordinates, each of shape (P,); none if ``None``.

        Returns:
            The last point (P,) that could be evaluated, and how it went.

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
    num_knots: int  # after it, as all below
    objective: float  # log densities of priors included, in nats
    upper_bound: float  # of the log evidence at the same hyperparameters
    seconds: float  # since the beginning
    rows: tuple[int, ...] = ()  # training rows added as knots (none by a refit)


@prints_fields
class Selection(NamedTuple):
    """The result of a selection."""

    knots: Tensor  # shape (K, D)
    model: Any  # the model with them, a copy of what was given
    history: tuple[SelectionStep, ...]
    stop_reason: str  # why no more knots were added
    tails: Tails  # Student's t of the model's errors on rows left out

    def predict(self, X: Tensor) -> StudentTMixture:
        """Predictive distributions of targets at rows X (N, D), with the tails of errors of rows left out."""
        return self.tails.predict(self.model, X)


class SelectionRun:
    """A selection in progress: the model so far, and the steps that led to it."""

    model: Any

    def __init__(self, model: SparseGP | ExactGP, bar: "tqdm[Any]", generator: torch.Generator | None) -> None:
        self.model = model
        self.generator = generator
        self.history: list[SelectionStep] = []
        self._bar = bar
        self._clock = time.perf_counter()

    @torch.no_grad()
    def record(self, model: SparseGP | ExactGP, action: str, rows: tuple[int, ...] = ()) -> SelectionStep:
        """Make a model that of the run, and add the step to the history."""
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
    """A way to choose knots."""

    @property
    @abstractmethod
    def max_knots(self) -> int:
        """Most knots that it will choose."""

    @abstractmethod
    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """The first knots for inputs (N, D), shape (K, D)."""

    @abstractmethod
    def search(self, run: SelectionRun) -> str:
        """Choose knots, record each step in the run, and return why no more knots were added."""


@final
@dataclass(frozen=True)
class Simultaneous(Strategy):
    """Simultaneous optimization of knots and hyperparameters (Snelson and Ghahramani, 2006; Titsias, 2009).

    With as many knots as :class:`OneAtATime` chose this is SVk of Garton, Niemi and Carriquiry (2020); from its knots
    it is SVO.

    Args:
        start: Number of knots, which start at centers of k-means; or these knots, shape (K, D).
        optimizer: Of knots and hyperparameters.

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
            raise ValueError("at least one knot is needed, got none")

    @property
    def max_knots(self) -> int:
        """As many as at the start."""
        return self.start if isinstance(self.start, int) else len(self.start)

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Given knots, or centers of k-means."""
        if isinstance(self.start, int):
            return kmeans_knots(X, self.start, generator=generator)
        check_knots(X, self.start)
        return self.start

    def search(self, run: SelectionRun) -> str:
        """One fit of everything."""
        run.record(run.model, "start")
        fit = self.optimizer.optimize(run.model, slice(None))
        run.record(run.model, "simultaneous")
        return f"the number of knots was given; the optimizer stopped with: {fit.message}"
