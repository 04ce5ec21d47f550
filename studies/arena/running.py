"""Run of a method on a task, every row scored."""

import time
from typing import NamedTuple

import numpy as np

from studies.arena.contenders import LEARNERS, Contender, OfClasses, Pair, Whole
from studies.arena.learners import BLOCK, Cost, Distributional, Learner, Run, run_learner
from studies.arena.ours import OurClasses, Ours
from studies.arena.scores import Array, ClassRows, Rows, joined, score_classes, score_rows, with_repeats
from studies.arena.sets import Task
from studies.arena.storage import ExpertDensities


class Outcome(NamedTuple):
    """What came of a method on a task.

    Attributes:
        rows: Scores of all rows.
        cost: Seconds of the processor; scoring is not counted.
        densities: What every expert said, if that was asked for.
    """

    rows: Rows | ClassRows
    cost: Cost
    densities: ExpertDensities | None = None


class Arena:
    """Runs methods on one task with one seed; methods with the same point predictions share their run and its cost.

    Args:
        task: The task.
        seed: The seed.
        keep_densities: Keep what every expert of our ensembles says.
    """

    def __init__(self, task: Task, seed: int, keep_densities: bool = False) -> None:
        self.task = task
        self.seed = seed
        self.keep_densities = keep_densities
        self._runs: dict[str, Run] = {}

    def run(self, contender: Contender) -> Outcome:
        """Run a method.

        Raises:
            ValueError: If a package it needs is not installed, or it cannot be run on this task.
        """
        match contender.made_of:
            case Pair() as pair:
                return self._banded(pair)
            case Whole(make):
                return self._distributional(make(self.seed))
            case OfClasses(make_classes):
                return self._classes(make_classes(self.seed, self.task.num_classes))

    def _banded(self, pair: Pair) -> Outcome:
        if pair.learner not in self._runs:
            self._runs = {pair.learner: run_learner(LEARNERS[pair.learner](self.seed), self.task)}
        run = self._runs[pair.learner]
        began = time.process_time()
        around = pair.band(self.seed).around(run.points(self.task))
        seconds = time.process_time() - began
        rows, unit = score_rows(around, self.task.y, self.task.unit), self.task.unit
        if unit is not None and pair.learner == "previous":
            rows = rows._replace(log_prob=with_repeats(rows.log_prob, rows.y, rows.mean, unit))
        return Outcome(rows, run.cost._replace(stream=run.cost.stream + seconds))

    def _distributional(self, model: Distributional) -> Outcome:
        if isinstance(model, Ours):
            model.keep_densities = self.keep_densities
        began = time.process_time()
        model.warm_up(self.task.warm_X, self.task.warm_y)
        warmed, seconds, parts = time.process_time(), 0.0, []
        for start in range(0, len(self.task.y), BLOCK):
            X, y = self.task.X[start : start + BLOCK], self.task.y[start : start + BLOCK]
            clock = time.process_time()
            predictive = model.step(X, y)
            seconds += time.process_time() - clock
            parts.append(score_rows(predictive, y, self.task.unit))
        densities = model.densities() if isinstance(model, Ours) else None
        return Outcome(joined(parts), Cost(warmed - began, seconds), densities)

    def _classes(self, model: Learner | OurClasses) -> Outcome:
        if isinstance(model, Learner):
            run = run_learner(model, self.task)
            return Outcome(score_classes(run.predicted, self.task.y), run.cost)
        began = time.process_time()
        model.warm_up(self.task.warm_X, self.task.warm_y)
        warmed = time.process_time()
        predicted: list[Array] = []
        for start in range(0, len(self.task.y), BLOCK):
            predicted.append(model.step(self.task.X[start : start + BLOCK], self.task.y[start : start + BLOCK]))
        cost = Cost(warmed - began, time.process_time() - warmed)
        return Outcome(score_classes(np.concatenate(predicted), self.task.y), cost)
