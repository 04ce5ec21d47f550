"""Histogram boosting of scikit-learn as an external model, with a second model for the scale of its errors."""

from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.experts.flat_trees import FlatTrees, predict_trees
from gp_ensembles.experts.model_adapter import Forecast, ModelAdapter, TrainingRows, scale_deviation, scale_rows

# Small leaves for the mean: steps are often of few rows. Of the scale few small trees know all (benchmarks/README.md).
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

    def fit(self, rows: TrainingRows) -> Forecast:
        """Train both models; see :meth:`ModelAdapter.fit`."""
        mean = _Trees(
            _boosted(self.num_trees, self.learning_rate, _MEAN_LEAVES, _LEAST_IN_LEAF), rows.inputs, rows.targets
        )
        known = scale_rows(rows)
        if known is None:
            return lambda X: (mean(X), None)
        scale = _Trees(_boosted(_SCALE_TREES, _SCALE_RATE, _SCALE_LEAVES, _LEAST_IN_SCALE_LEAF), *known)
        return lambda X: (mean(X), scale_deviation(scale(X)))


class _Trees:
    """Boosted trees that were trained in one thread, so that the same rows give the same trees."""

    def __init__(self, model: Any, X: Tensor, y: Tensor) -> None:
        from threadpoolctl import ThreadpoolController

        self._threads = ThreadpoolController()
        self._model = model
        with self._threads.limit(limits=1):
            self._model.fit(X.numpy(), y.numpy())
            self._flat = FlatTrees.of(self._model, X[-_PROOF_ROWS:].numpy())

    def __call__(self, X: Tensor) -> Tensor:
        if self._flat is not None and X.shape[0] <= _FEW_ROWS:
            return torch.from_numpy(predict_trees(self._flat, X.numpy()))
        with self._threads.limit(limits=1):
            return torch.from_numpy(self._model.predict(X.numpy()))


def _boosted(num_trees: int, rate: float, num_leaves: int, least_rows: int) -> Any:
    """Untrained trees of histograms."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        max_iter=num_trees,
        learning_rate=rate,
        max_leaf_nodes=num_leaves,
        min_samples_leaf=least_rows,
        early_stopping=False,
        random_state=0,
    )
