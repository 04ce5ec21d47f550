"""The abstract strategy of choosing knots, and two simple ones: all at once, and by rules from inputs and kernel."""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, final

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.distributions import StudentTMixture
from gp_ensembles.numerics.display import record_text
from gp_ensembles.sparse.base import ModelT, check_knots, check_positive
from gp_ensembles.sparse.exact import ExactGP
from gp_ensembles.sparse.fitting import fit_hyperparameters, fit_sparse
from gp_ensembles.sparse.initialization import KnotInitializer, kmeans_knots
from gp_ensembles.sparse.optimizers import LBFGSB, KnotOptimizer
from gp_ensembles.sparse.regression import SparseGP
from gp_ensembles.sparse.tails import Tails, fit_tails


class SelectionStep(NamedTuple):
    """A step of a selection.

    Args:
        action: What was done.
        num_knots: Knots after it.
        objective: Objective after it, log densities of priors included, in nats.
        upper_bound: Upper bound of the log evidence at the same hyperparameters; infinite where there is none.
        seconds: Seconds since the beginning.
        rows: Training rows added as knots (none by a refit).
    """

    action: str
    num_knots: int
    objective: float
    upper_bound: float
    seconds: float
    rows: tuple[int, ...] = ()


class Selection(NamedTuple, Generic[ModelT]):
    """The result of a selection.

    Args:
        knots: Knots, shape (K, D).
        model: The model with them, a copy of what was given.
        history: The steps.
        stop_reason: Why no further knot was added.
        tails: Student's t of the model's errors on rows left out; ``None`` for counts and labels.
    """

    knots: Tensor
    model: ModelT
    history: tuple[SelectionStep, ...]
    stop_reason: str
    tails: Tails | None

    def __repr__(self) -> str:
        return record_text(self)

    def predict(self, X: Tensor) -> StudentTMixture:
        """Predictive distributions of normal targets at rows X (N, D), with the tails of errors of rows left out.

        They are :meth:`~gp_ensembles.sparse.tails.Tails.predict`; ``model.posterior`` is the normal posterior.

        Raises:
            ValueError: If the targets are counts or labels.

        Example:
            >>> import torch
            >>> from gp_ensembles.sparse import select_knots
            >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
            >>> found = select_knots(X, torch.sin(6.0 * X.squeeze(-1)))
            >>> predictions = found.predict(X[:3])
            >>> predictions.mean.shape, predictions.quantile(0.95).shape
            (torch.Size([3]), torch.Size([3]))
        """
        if self.tails is None:
            raise ValueError(
                f"a {type(self.model).__name__} predicts the latent function: take its posterior, and the likelihood"
            )
        return self.tails.predict(self.model, X)


class SelectionRun(Generic[ModelT]):
    """A selection in progress: the model so far, and the steps that led to it.

    Args:
        model: The model to start from.
        bar: A progress bar of knots.
        generator: Source of randomness.
    """

    model: ModelT

    def __init__(self, model: ModelT, bar: "tqdm[Any]", generator: torch.Generator | None) -> None:
        self.model = model
        self.generator = generator
        self.history: list[SelectionStep] = []
        self._bar = bar
        self._clock = time.perf_counter()

    @torch.no_grad()
    def record(self, model: ModelT, action: str, rows: tuple[int, ...] = ()) -> SelectionStep:
        """Make a model that of the run, and add the step to the history."""
        objective, upper = float(model.objective()), float(model.upper_bound())
        step = SelectionStep(action, model.num_knots, objective, upper, time.perf_counter() - self._clock, rows)
        self.model = model
        self.history.append(step)
        self._bar.update(model.num_knots - self._bar.n)
        self._bar.set_postfix_str(f"objective {objective:.2f}, at most {upper:.2f}")
        return step

    def result(self, stop_reason: str) -> Selection[ModelT]:
        """The selection so far."""
        model: Any = self.model
        tails = fit_tails(model, generator=self.generator) if isinstance(model, ExactGP | SparseGP) else None
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
    def search(self, run: SelectionRun[Any]) -> str:
        """Choose knots, record each step in the run, and return why no further knot was added."""


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
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import select_knots
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

    def search(self, run: SelectionRun[Any]) -> str:
        """One fit of everything."""
        run.record(run.model, "start")
        fit = self.optimizer.optimize(run.model, slice(None))
        run.record(run.model, "simultaneous")
        return f"the number of knots was given; the optimizer stopped with: {fit.message}"


@final
@dataclass(frozen=True)
class Reinitialization(Strategy):
    """Knots by a rule from inputs and kernel, alternating with fits of the hyperparameters (Burt et al., 2020).

    It ends when knots for the fitted hyperparameters are no better than the last ones, which are kept.

    Args:
        num_knots: Number of knots.
        initializer: The rule, such as :func:`greedy_variance_knots`, :func:`dpp_knots` or :func:`kmeans_knots`.
        num_rounds: Most times that knots are initialized.
        fit_iterations: Iterations of each fit.
        polish_iterations: Iterations of moving all knots and hyperparameters together at the end; 0 for none.

    Raises:
        ValueError: If a number is too small.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from gp_ensembles.sparse import greedy_variance_knots, select_knots
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> y = torch.sin(6.0 * X.squeeze(-1))
        >>> strategy = Reinitialization(5, greedy_variance_knots, num_rounds=2)
        >>> found = select_knots(X, y, ScaleKernel(RBFKernel()), strategy=strategy)
        >>> found.knots.shape
        torch.Size([5, 1])
    """

    num_knots: int
    initializer: KnotInitializer
    num_rounds: int = 4
    fit_iterations: int = 60
    polish_iterations: int = 0

    def __post_init__(self) -> None:
        check_positive(num_knots=self.num_knots, num_rounds=self.num_rounds, fit_iterations=self.fit_iterations)
        if self.polish_iterations < 0:
            raise ValueError(f"polish_iterations must be at least 0, got {self.polish_iterations}")

    @property
    def max_knots(self) -> int:
        """The number of knots."""
        return self.num_knots

    def initial_knots(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """Centers of k-means, which the first round replaces."""
        return kmeans_knots(X, self.num_knots, generator=generator)

    def search(self, run: SelectionRun[Any]) -> str:
        """Initialize and fit in turn."""
        stop_reason = f"knots were initialized {self.num_rounds} times"
        for turn in range(self.num_rounds):
            model = run.model
            with torch.no_grad():
                knots = self.initializer(model.train_X, self.num_knots, model.covar_module, generator=run.generator)
            other = model.with_knots(knots)
            value = fit_hyperparameters(other, max_iterations=self.fit_iterations)
            if turn and not value > run.history[-1].objective:
                stop_reason = "knots initialized again were no better"
                break
            run.record(other, "reinitialize")
        if self.polish_iterations:
            fit_sparse(run.model, knots=True, max_iterations=self.polish_iterations)
            run.record(run.model, "polish")
        return stop_reason
