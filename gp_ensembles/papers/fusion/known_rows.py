"""Detection of experts that were trained on given rows: by the inputs they keep, or by targets they reproduce."""

from collections import Counter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from gpytorch.models import ExactGP
from torch import Tensor

from gp_ensembles.papers.fusion.experts import PredictiveExpert

# What scikit-learn's neighbors, Gaussian processes and kernel regressions call the inputs that they keep.
_KEPT = ("_fit_X", "X_train_", "X_fit_")
# Members of an ensemble that are looked at; fewest targets, and the least part of them, that cannot be chance.
_MEMBERS, _FEWEST, _LEAST = 3, 5, 0.2


@runtime_checkable
class Regressor(Protocol):
    """What scikit-learn calls a regressor: it is fitted to arrays X (N, D) and y (N,), and predicts (N,)."""

    def fit(self, X: Any, y: Any) -> Any:
        """Learn from rows."""

    def predict(self, X: Any) -> Any:
        """Predict the targets of rows."""


def known_rows(expert: object, X: Tensor, y: Tensor) -> int:
    """How many of the rows an expert was trained on, as far as can be seen: none is no proof.

    Shapes: ``X`` (N, D), ``y`` (N,).
    """
    model: Any = expert[0] if isinstance(expert, tuple) else expert
    kept = getattr(model, "train_inputs", None)
    while isinstance(kept, tuple | list) and kept:
        kept = kept[0]
    if isinstance(kept, Tensor):
        transform: Any = getattr(model, "input_transform", None)
        # BoTorch's exact processes keep transformed inputs in evaluation mode; those of this library never.
        changed = isinstance(model, ExactGP) and transform is not None and not model.training
        return _shared(kept, transform(X) if changed else X)
    if isinstance(model, torch.nn.Module | PredictiveExpert) or not isinstance(model, Regressor):
        return 0
    rows = X.detach().cpu().numpy()
    fitted: Any = getattr(model, "best_estimator_", model)
    steps = getattr(fitted, "steps", [])
    for _, transform in steps[:-1]:
        rows = rows if transform in (None, "passthrough") else transform.transform(rows)
    fitted = steps[-1][1] if steps else fitted
    for name in _KEPT:
        kept = getattr(fitted, name, None)
        if isinstance(kept, np.ndarray) and isinstance(rows, np.ndarray):
            return _shared(torch.as_tensor(kept), torch.as_tensor(rows))
    return _by_heart(fitted, rows, y.detach().cpu().numpy())


def _shared(kept: Tensor, X: Tensor) -> int:
    """How many of the rows (N, D) are among others; those that occur more than once in either may be replicates."""
    if kept.shape[-1:] != X.shape[-1:]:
        return 0
    known = Counter(tuple(row) for row in kept.to(X).reshape(-1, *kept.shape[-2:])[0].tolist())
    return sum(count == 1 and known[row] == 1 for row, count in Counter(tuple(row) for row in X.tolist()).items())


def _by_heart(regressor: Any, rows: Any, y: np.ndarray) -> int:
    """How many targets that occur once are predicted exactly; zero where that may be chance."""
    _, first, counts = np.unique(y, return_index=True, return_counts=True)
    once = first[counts == 1]
    members = list(np.ravel(getattr(regressor, "estimators_", [])))[:_MEMBERS]
    columns = getattr(regressor, "estimators_features_", [slice(None)] * len(members))
    if not len(once) or not isinstance(rows, np.ndarray):
        return 0
    exact = np.zeros(len(y), dtype=bool)
    for member, some in zip([regressor, *members], [slice(None), *columns], strict=False):
        try:
            found = np.asarray(member.predict(rows[:, some])).reshape(-1)
        except (AttributeError, ValueError):  # a member of another kind, or of other columns
            continue
        if found.shape == y.shape:
            exact |= np.abs(found - y) <= 1e-9 * y.std()
    number = int(exact[once].sum())
    return number if number >= max(_FEWEST, _LEAST * len(once)) else 0
