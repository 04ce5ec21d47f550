"""A selection of knots: how it may be made, what was done so far, and what it found."""

import time
from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.sparse.approximations import VFE
from gp_ensembles.sparse.model import SparseGP


class Step(NamedTuple):
    """A step of a selection.

    Args:
        what: What was done.
        num_knots: Knots after it.
        objective: Objective after it, in nats.
        upper_bound: Upper bound of the log evidence at the same hyperparameters.
        seconds: Seconds since the beginning.
        rows: Training rows added as knots (none by a refit).
    """

    what: str
    num_knots: int
    objective: float
    upper_bound: float
    seconds: float
    rows: tuple[int, ...] = ()


class Selection(NamedTuple):
    """What a selection found.

    Args:
        knots: Knots, shape (K, D).
        model: The model with them.
        history: What was done, and what it brought.
        why: Why no further knot was added.
    """

    knots: Tensor
    model: SparseGP
    history: tuple[Step, ...]
    why: str


class Run:
    """A selection on its way.

    Args:
        model: The model to start from.
        bar: A progress bar of knots.
        generator: Source of randomness.
    """

    def __init__(self, model: SparseGP, bar: "tqdm[Any]", generator: torch.Generator | None) -> None:
        self.model = model
        self.generator = generator
        self.history: list[Step] = []
        self._bar = bar
        self._clock = time.perf_counter()

    @torch.no_grad()
    def keep(self, model: SparseGP, what: str, rows: tuple[int, ...] = ()) -> Step:
        """Make a model that of the run, and note what was done to it."""
        objective, upper = float(model.objective()), float(model.upper_bound())
        step = Step(what, model.num_knots, objective, upper, time.perf_counter() - self._clock, rows)
        self.model = model
        self.history.append(step)
        self._bar.update(model.num_knots - self._bar.n)
        self._bar.set_postfix_str(f"objective {objective:.2f}, at most {upper:.2f}")
        return step

    @torch.no_grad()
    def gap(self) -> float:
        """Nats between Titsias' bounds of the exact log evidence: how much further knots can bring, at most.

        Whatever the approximation, its own objective need not be a bound.
        """
        projection = self.model.projection()
        return float(self.model.upper_bound() - VFE().objective(projection))

    def result(self, why: str) -> Selection:
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
    def search(self, run: Run) -> str:
        """Choose knots, keep what was found in the run step by step, and say why no further one was added."""
