"""Baselines for classes: the previous label, with probabilities from past changes."""

from typing import final

import numpy as np

from studies.arena.learners import Learner
from studies.arena.scores import Array


@final
class PreviousLabel(Learner):
    """Probabilities of a label after the previous one: how often it came after that, one half added to each count.

    Args:
        num_classes: C.
    """

    def __init__(self, num_classes: int) -> None:
        self.counts = np.full((num_classes, num_classes), 0.5)
        self.last = 0

    def warm_up(self, X: Array, y: Array) -> Array:
        """See :meth:`Learner.warm_up`."""
        self.last = int(y[0])
        for label in y[1:]:
            self.learn(X[:1], np.array([label]))
        return np.full(len(y), np.nan)

    def predict(self, X: Array) -> Array:
        """See :meth:`Learner.predict`."""
        counts = self.counts[self.last]
        predicted: Array = counts[np.newaxis] / counts.sum()
        return predicted

    def learn(self, X: Array, y: Array) -> None:
        """See :meth:`Learner.learn`."""
        self.counts[self.last, int(y[0])] += 1
        self.last = int(y[0])
