"""A selection of knots: how it may be made, what was done so far, and what it found."""

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.sparse.base import KnotModel

ModelT = TypeVar("ModelT", bound=KnotModel)


class Picked(NamedTuple):
    """Rows chosen as knots, in order, and what each added to the bound.

    Args:
        rows: Rows of the training inputs, shape (k,).
        gains: Gains of the evidence lower bound in nats, shape (k,).
    """

    rows: Tensor
    gains: Tensor


class Step(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done.
        num_knots: Knots after it.
        objective: Objective after it, log densities of priors included, in nats.
        upper_bound: Upper bound of the log evidence at the same hyperparameters; infinite where none is known.
        seconds: Seconds since the beginning.
        rows: Training rows added as knots (none by a refit).
    """

    what: str
    num_knots: int
    objective: float
    upper_bound: float
    seconds: float
    rows: tuple[int, ...] = ()


class Selection(NamedTuple, Generic[ModelT]):
    """What a selection found.

    Args:
        knots: Knots, shape (K, D).
        model: The model with them, a copy of what was given.
        history: What was done, and what it brought.
        why: Why no further knot was added.
    """

    knots: Tensor
    model: ModelT
    history: tuple[Step, ...]
    why: str


class Picker(Protocol):
    """A way to pick rows of the largest gains, one after the other, hyperparameters as they are."""

    def __call__(
        self, model: Any, count: int, *, learned: Any, candidates: int | None, generator: torch.Generator | None
    ) -> Picked:
        """At most ``count`` rows for a model, by what another of the same rows, ``learned``, knows of targets."""


class Run(Generic[ModelT]):
    """A selection on its way.

    Args:
        model: The model to start from.
        pick: How rows are picked for such a model; strategies that need no gains do without.
        bar: A progress bar of knots.
        generator: Source of randomness.
    """

    def __init__(self, model: ModelT, pick: Picker | None, bar: "tqdm[Any]", generator: torch.Generator | None) -> None:
        self.model = model
        self.generator = generator
        self.history: list[Step] = []
        self._pick = pick
        self._bar = bar
        self._clock = time.perf_counter()

    @torch.no_grad()
    def keep(self, model: ModelT, what: str, rows: tuple[int, ...] = ()) -> Step:
        """Make a model that of the run, and note what was done to it."""
        objective, upper = float(model.objective()), float(model.upper_bound())
        step = Step(what, model.num_knots, objective, upper, time.perf_counter() - self._clock, rows)
        self.model = model
        self.history.append(step)
        self._bar.update(model.num_knots - self._bar.n)
        self._bar.set_postfix_str(f"objective {objective:.2f}, at most {upper:.2f}")
        return step

    def grown(
        self, model: ModelT, count: int, candidates: int | None, *, learned: ModelT | None = None
    ) -> tuple[ModelT, tuple[int, ...]]:
        """A model with at most ``count`` further knots, and their rows, by what it or another knows of the targets."""
        if self._pick is None:
            raise ValueError("gains of knots are not known for this model: choose them by OneAtATime")
        known = model if learned is None else learned
        rows = self._pick(model, count, learned=known, candidates=candidates, generator=self.generator).rows
        return model.with_knots(torch.cat([model.knots.detach(), model.train_X[rows]])), tuple(rows.tolist())

    def result(self, why: str) -> Selection[ModelT]:
        """What was found."""
        return Selection(self.model.knots.detach(), self.model, tuple(self.history), why)


class Strategy(ABC):
    """A way to choose knots."""

    @property
    @abstractmethod
    def most(self) -> int:
        """Most knots that it will choose."""

    @abstractmethod
    def begin(self, X: Tensor, *, generator: torch.Generator | None) -> Tensor:
        """The first knots for inputs (N, D), shape (K, D)."""

    @abstractmethod
    def search(self, run: Run[Any]) -> str:
        """Choose knots, keep what was found in the run step by step, and say why no further one was added."""
