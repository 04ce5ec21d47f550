"""Histogram boosting of scikit-learn as an external model, with a second model for the scale of its errors."""

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.flat_trees import FlatTrees, predict_trees
from gp_ensembles.experts.model_adapter import ModelAdapter, PredictFunction, TrainingRows, fit_scale

# Small leaves for the mean: steps are often of few rows. Few small trees suffice for the scale (benchmarks/README.md).
_LEAST_IN_LEAF, _MEAN_LEAVES = 5, 31
_FEW_ROWS, _PROOF_ROWS = 4, 64  # so few are predicted by flat trees, which are held against so many
_SCALE_TREES, _SCALE_RATE, _SCALE_LEAVES, _LEAST_IN_SCALE_LEAF = 20, 0.2, 8, 20


@final
class HistogramBoosting(ModelAdapter):
    r"""Gradient-boosted trees for the mean, and others for the scale of the errors of predictions made before.

    .. math:: y \sim N(f(x), s(x)^2), \quad \log s(x) = \mathrm{E}[\log |e| \mid x] - \mathrm{E} \log |z|
    """

    def __init__(self, num_trees: int = 80, learning_rate: float = 0.125) -> None:
        self.num_trees = num_trees
        self.learning_rate = learning_rate

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Train both models; see :meth:`ModelAdapter.fit`."""
        mean = _trained(self.num_trees, self.learning_rate, _MEAN_LEAVES, _LEAST_IN_LEAF, rows.inputs, rows.targets)
        scale = fit_scale(rows, partial(_trained, _SCALE_TREES, _SCALE_RATE, _SCALE_LEAVES, _LEAST_IN_SCALE_LEAF))
        return lambda X: (mean(X), None if scale is None else scale(X))


def _trained(
    num_trees: int, rate: float, num_leaves: int, least_rows: int, X: Tensor, y: Tensor
) -> Callable[[Tensor], Tensor]:
    """The predictions of boosted trees that were trained in one thread, so that the same rows give the same trees."""
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
