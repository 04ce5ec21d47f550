"""Protocol of rivals on a stream: learn the warm-up rows, then predict each row before learning it."""

import time
from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from studies.arena.bands import Points
from studies.arena.scores import Array, Predictive
from studies.arena.sets import Task

BLOCK = 500  # rows handed over at once to rivals that take blocks
_BLIND = 0.25  # share of the warm-up after which errors are counted


class Learner(ABC):
    """Predicts rows it has not seen the targets of, then learns them: it cannot look ahead.

    Attributes:
        rows_at_once: So many rows may be predicted before the first of them is learned.
    """

    rows_at_once = 1

    @abstractmethod
    def warm_up(self, X: Array, y: Array) -> Array:
        """Learn the warm-up rows X (N0, D), y (N0,).

        Returns:
            Errors of predictions made before their targets were learned, shape (N0,); NaN where there is none.
        """

    @abstractmethod
    def predict(self, X: Array) -> Array:
        """Predictions of rows X (B, D): means (B,), or probabilities of classes (B, C)."""

    @abstractmethod
    def learn(self, X: Array, y: Array) -> None:
        """Learn rows X (B, D) with targets (B,); NaN is a missing one."""


class Distributional(ABC):
    """A learner of predictive distributions, block by block; a row's must not depend on its target or on later ones."""

    @abstractmethod
    def warm_up(self, X: Array, y: Array) -> None:
        """Learn the warm-up rows X (N0, D), y (N0,)."""

    @abstractmethod
    def step(self, X: Array, y: Array) -> Predictive:
        """Predict each row of a block X (B, D) from the rows before it, and learn all of them, y (B,)."""


class Cost(NamedTuple):
    """Seconds of the processor.

    Attributes:
        warm_up: For learning the warm-up rows.
        stream: For predicting and learning the scored rows.
    """

    warm_up: float
    stream: float


class Run(NamedTuple):
    """What a learner said about a task.

    Attributes:
        warm_errors: Errors in the warm-up, shape (N0,).
        said: Predictions of the scored rows, shape (N,) or (N, C).
        cost: What it took.
    """

    warm_errors: Array
    predicted: Array
    cost: Cost

    def points(self, task: Task) -> Points:
        """As point predictions."""
        return Points(task.warm_X, self.warm_errors, task.X, task.y, self.predicted)


def run_learner(learner: Learner, task: Task) -> Run:
    """Let a learner learn the warm-up rows, then predict and learn all others in their order."""
    began = time.process_time()
    errors = learner.warm_up(task.warm_X, task.warm_y)
    warmed = time.process_time()
    predicted = predicted_then_learned(learner, task.X, task.y)
    return Run(errors, predicted, Cost(warmed - began, time.process_time() - warmed))


def predicted_then_learned(learner: Learner, X: Array, y: Array) -> Array:
    """Predictions of rows (N, D), each made before its target, shape (N,) or (N, C)."""
    parts, row = [], 0
    while row < len(y):
        rows = slice(row, row + learner.rows_at_once)
        parts.append(learner.predict(X[rows]))
        learner.learn(X[rows], y[rows])
        row = rows.stop
    return np.concatenate(parts)


def errors_on_the_way(learner: Learner, X: Array, y: Array) -> Array:
    """Learn warm-up rows one by one; returns the errors (N0,) on the way, the first quarter left out."""
    errors = y - predicted_then_learned(learner, X, y)
    errors[: int(_BLIND * len(y))] = np.nan
    return errors
