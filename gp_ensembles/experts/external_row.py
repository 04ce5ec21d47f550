"""Single-row predictions of external models on plain arrays, and boosted trees that support them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.experts import adapters
from gp_ensembles.filters.rows import RowExpert
from gp_ensembles.filters.states import ExternalState
from gp_ensembles.numerics.compiled import IS_COMPILED, compiled

# Maps inputs (N, D) to means and deviations, (N,) each.
Complete = Callable[[Tensor], tuple[Tensor, Tensor]]
Trained = Complete | str  # a string is the reason why training failed
LARGEST = 1e30  # mean or variance, in standardized units: within single precision

# Small leaves for the mean: steps often span few rows. Few small trees suffice for the scale (benchmarks/README.md).
_LEAST_IN_LEAF, _MEAN_LEAVES = 5, 31
_FEW_ROWS, _PROOF_ROWS = 4, 64  # up to this many are predicted by flat trees, verified on this many
_SCALE_TREES, _SCALE_RATE, _SCALE_LEAVES, _LEAST_IN_SCALE_LEAF = 20, 0.2, 8, 20
Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


@final
class HistogramBoosting(adapters.ModelAdapter):
    r"""Gradient-boosted trees for the mean, and a second set for the scale of past prediction errors.

    .. math:: y \sim N(f(x), s(x)^2), \quad \log s(x) = \mathrm{E}[\log |e| \mid x] - \mathrm{E} \log |z|
    """

    def __init__(self, num_trees: int = 80, learning_rate: float = 0.125) -> None:
        self.num_trees = num_trees
        self.learning_rate = learning_rate

    def fit(self, rows: adapters.TrainingRows) -> adapters.PredictFunction:
        """Train both models; see :meth:`~gp_ensembles.experts.adapters.ModelAdapter.fit`."""
        mean = _trained(self.num_trees, self.learning_rate, _MEAN_LEAVES, _LEAST_IN_LEAF, rows.inputs, rows.targets)
        scale = adapters.fit_scale(
            rows, partial(_trained, _SCALE_TREES, _SCALE_RATE, _SCALE_LEAVES, _LEAST_IN_SCALE_LEAF)
        )

        def forecast(X: Tensor) -> tuple[Tensor, Tensor | None]:
            return mean(X), None if scale is None else (scale(X) + adapters.LOG_NORMAL).exp().clamp_min(
                adapters.LEAST_DEVIATION
            )

        return forecast


def _trained(
    num_trees: int, rate: float, num_leaves: int, least_rows: int, X: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """Predictions of boosted trees, trained in one thread so that the same rows give the same trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import ThreadpoolController

    threads = ThreadpoolController()
    model = HistGradientBoostingRegressor(
        max_iter=num_trees,
        learning_rate=rate,
        max_leaf_nodes=num_leaves,
        min_samples_leaf=least_rows,
        early_stopping=False,
        random_state=0,
    )
    with threads.limit(limits=1):
        model.fit(X.numpy(), y.numpy())
        flat = FlatTrees.of(model, X[-_PROOF_ROWS:].numpy())

    def predict(X: Tensor) -> Tensor:
        if flat is not None and X.shape[0] <= _FEW_ROWS:
            return torch.from_numpy(predict_trees(flat, X.numpy()))
        with threads.limit(limits=1):
            return torch.from_numpy(model.predict(X.numpy()))

    return predict


class FlatTrees(NamedTuple):
    """T trees, their nodes concatenated."""

    baseline: float  # prediction without any tree
    roots: Places  # indices of the trees' root nodes, shape (T,)
    columns: Places  # input column of a node's split, shape (N,); zero for a leaf
    thresholds: Numbers  # largest value that goes left, shape (N,)
    left: Places  # index of the left child, shape (N,); a leaf's own index
    right: Places  # likewise for the right child
    missing_left: NDArray[np.bool_]  # whether missing values go left, shape (N,)
    values: Numbers  # value of a leaf, shape (N,)

    @classmethod
    def of(cls, model: Any, X: Numbers) -> "FlatTrees | None":
        """The trees of a trained model; ``None`` if they do not reproduce its predictions.

        Shapes: ``X`` (N, D).
        """
        try:
            trees = _read(model)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # other versions store them elsewhere
            return None
        agrees = np.allclose(predict_trees(trees, X), model.predict(X), rtol=1e-12, atol=1e-12)
        return trees if agrees else None


def predict_trees(trees: FlatTrees, X: Numbers) -> Numbers:
    """Predictions of trees at rows X (N, D), shape (N,)."""
    out = np.empty(len(X))
    _predict(trees, np.ascontiguousarray(X), out)
    return out


def _read(model: Any) -> FlatTrees:
    parts = [tree.nodes for (tree,) in model._predictors]
    if any(part["is_categorical"].any() for part in parts):
        raise ValueError("trees with categorical splits are not supported")
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    roots = np.concatenate([[0], sizes.cumsum()[:-1]]).astype(np.int64)
    nodes, shift = np.concatenate(parts), np.repeat(roots, sizes)
    is_leaf, own = nodes["is_leaf"].astype(bool), np.arange(len(nodes))
    return FlatTrees(
        float(np.ravel(model._baseline_prediction)[0]),
        roots,
        np.where(is_leaf, 0, nodes["feature_idx"]).astype(np.int64),
        nodes["num_threshold"].astype(np.float64),
        np.where(is_leaf, own, nodes["left"].astype(np.int64) + shift),
        np.where(is_leaf, own, nodes["right"].astype(np.int64) + shift),
        nodes["missing_go_to_left"].astype(bool),
        nodes["value"].astype(np.float64),
    )


def _predict_by_steps(trees: FlatTrees, X: Numbers, out: Numbers) -> None:
    """Descend all trees one level at a time; sums follow the order of the trees, as in scikit-learn."""
    baseline, roots, columns, thresholds, left, right, missing_left, values = trees
    for number, row in enumerate(X):
        at, before, has_gaps = roots, roots - 1, bool(np.isnan(row).any())
        while (at != before).any():
            asked, before = row[columns[at]], at
            goes_left = asked <= thresholds[at]
            if has_gaps:
                goes_left |= np.isnan(asked) & missing_left[at]
            at = np.where(goes_left, left[at], right[at])
        out[number] = np.cumsum(np.concatenate([[baseline], values[at]]))[-1]


def _predict_by_loops(trees: FlatTrees, X: Numbers, out: Numbers) -> None:
    baseline, roots, columns, thresholds, left, right, missing_left, values = trees
    for number in range(len(X)):
        row, total = X[number], baseline
        for root in roots:
            at, before = root, -1
            while at != before:
                asked, before = row[columns[at]], at
                goes_left = asked <= thresholds[at] or (np.isnan(asked) and missing_left[at])
                at = left[at] if goes_left else right[at]
            total += values[at]
        out[number] = total


_predict = compiled(_predict_by_loops) if IS_COMPILED else _predict_by_steps


def completed(forecast: adapters.PredictFunction, size: float) -> Complete:
    """A forecast with deviation ``size`` if it has none."""

    def complete(X: Tensor) -> tuple[Tensor, Tensor]:
        predicted = forecast(X)
        mean = torch.as_tensor(predicted[0], dtype=torch.float64, device="cpu")
        if predicted[1] is None:
            return mean, torch.full_like(mean, size)
        return mean, torch.as_tensor(predicted[1], dtype=torch.float64, device="cpu")

    return complete


@final
class ExternalRow(RowExpert):
    """An external model for single rows; ``model`` returns that of a digest, ``None`` before the first training."""

    def __init__(self, model: Callable[[int], Trained | None], state: ExternalState, columns: Places) -> None:
        self._model, self._columns = model, columns
        self._inputs, self._targets, self._shares, self._errors = (part.numpy() for part in state[:4])
        self._num_seen, self._num_stored, self._due, _, self._digest = (part.numpy() for part in state[4:9])
        self._known: tuple[int, Trained | None] | None = None
        self._x, self._mean = np.empty(0), 0.0

    def predict(self, x: Numbers) -> tuple[float, float] | None:
        row, digest = x[self._columns], int(self._digest)
        if self._known is None or self._known[0] != digest:
            self._known = digest, self._model(digest)
        forecast = self._known[1]
        if forecast is None or isinstance(forecast, str):
            return None
        try:
            mean, deviation = map(float, forecast(torch.from_numpy(row).unsqueeze(0).float().double()))
        except Exception:  # external code may raise anything; the block path records the reason
            return None
        variance = deviation**2
        if not (abs(mean) < LARGEST and deviation > 0 and 1 / LARGEST < variance < LARGEST):
            return None
        self._x, self._mean = row, mean
        return mean, variance

    def is_ready(self) -> bool:
        return int(self._num_seen) + 1 < int(self._due)

    def learn(self, y: float) -> None:
        place = int(self._num_stored) % len(self._targets)
        self._inputs[place], self._targets[place] = self._x, y
        self._shares[place], self._errors[place] = 1.0, y - self._mean
        self._num_seen[...] += 1
        self._num_stored[...] += 1

    def forget(self) -> None:
        self._x, self._known = np.empty(0), None
