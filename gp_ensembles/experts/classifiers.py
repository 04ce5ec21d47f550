"""Adapter for classifiers, with probabilities calibrated out of sample."""

import copy
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.experts.adapters import ModelAdapter, PredictFunction, TrainingRows, check_methods

_HELD_SHARE, _EXPONENTS = 5, (-1.0, 0.2, 25)  # one in this many rows is held out; grid of log exponents
_REST, _LEAST = 1e-3, 1e-9  # weight of class frequencies, and minimum probability before calibration


@final
class ClassifierAdapter(ModelAdapter):
    r"""A classifier with ``fit(X, y)`` and ``predict_proba(X)`` on NumPy arrays, calibrated out of sample.

    .. math:: p_c \propto q_c^a

    The exponent a is the best value of a grid for the last fifth of the rows, predicted by a copy trained on the
    earlier rows. Probabilities are mixed with class frequencies, with a weight of 0.001 for the latter.

    Args:
        classifier: The untrained classifier, copied for each training.

    Raises:
        TypeError: If it is a class, or has no ``fit`` and ``predict_proba``.
    """

    for_classes = True

    def __init__(self, classifier: Any) -> None:
        check_methods(classifier, "ClassifierAdapter", "fit", "predict_proba")
        self.classifier = classifier

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Train two copies of the classifier; see :meth:`ModelAdapter.fit`."""
        assert rows.num_labels is not None
        y, num_held = rows.targets.long(), max(1, len(rows.targets) // _HELD_SHARE)
        counts = torch.bincount(y, minlength=rows.num_labels) + 1 / rows.num_labels
        log_rest = (_REST * counts / counts.sum()).log()
        known = self._log_probabilities(rows, slice(-num_held))(rows.inputs[-num_held:])

        def calibrated(exponent: Tensor, log_probabilities: Tensor) -> Tensor:
            return torch.logaddexp((exponent * log_probabilities).log_softmax(-1), log_rest)

        exponents = torch.logspace(*_EXPONENTS, dtype=torch.float64, device="cpu")
        held = y[-num_held:].expand(len(exponents), -1).unsqueeze(-1)
        candidates = calibrated(exponents[:, None, None], known)
        exponent = exponents[candidates.gather(-1, held).sum((1, 2)).argmax()]
        of_all = self._log_probabilities(rows, slice(None))
        return lambda X: (calibrated(exponent, of_all(X)).log_softmax(-1), None)

    def _log_probabilities(self, rows: TrainingRows, part: slice) -> Callable[[Tensor], Tensor]:
        """Log probabilities (N, C) by a copy trained on part of the rows; the minimum for classes absent there."""
        from threadpoolctl import ThreadpoolController

        threads, model = ThreadpoolController(), copy.deepcopy(self.classifier)
        inputs, targets = (part.numpy().copy() for part in (rows.inputs[part], rows.targets[part]))
        labels = np.unique(targets).astype(int)
        if len(labels) > 1:
            with threads.limit(limits=1):
                model.fit(inputs, targets)

        def predict(X: Tensor) -> Tensor:
            probabilities = X.new_zeros(len(X), rows.num_labels or 0)
            probabilities[:, labels] = 1.0
            if len(labels) > 1:
                with threads.limit(limits=1):
                    probabilities[:, labels] = torch.as_tensor(model.predict_proba(X.numpy().copy())).double()
            return probabilities.clamp_min(_LEAST).log()

        return predict


def boosted_classes(num_trees: int, learning_rate: float) -> ClassifierAdapter:
    """Histogram gradient boosting classifier, with this many trees per class."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    sizes = {"max_iter": num_trees, "learning_rate": learning_rate}
    return ClassifierAdapter(HistGradientBoostingClassifier(**sizes, early_stopping=False, random_state=0))
