"""The river door: an online ensemble that learns one dictionary at a time."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.presets import auto
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.warm_up import WarmUpEnsemble

try:
    import pandas as pd
    from river.base import MiniBatchRegressor
except ImportError:
    raise ImportError("this door needs river; install gp_ensembles[river]") from None


class Forecast(NamedTuple):
    """A prediction with its uncertainty, in the units of the target.

    Attributes:
        mean: Mean.
        std: Standard deviation, noise included.
        lower: 5 % quantile.
        upper: 95 % quantile.
    """

    mean: float
    std: float
    lower: float
    upper: float


class RiverRegressor(MiniBatchRegressor):
    """Online ensemble of Bayesian basis expansions with river's interface.

    Until ``warmup`` targets have come, rows are kept and predictions are the running mean; then scales and
    hyperparameters are fitted once, which takes seconds, and from there a row costs the same for ever. Features are
    those of the first row; a later row that lacks one, or brings another, is an error. A target that is ``None`` or NaN
    was not observed.

    Args:
        spec: What the ensemble is made of; :data:`~gp_ensembles.ensembles.presets.auto` if ``None``.
        warmup: Targets for scales and hyperparameters.
        seed: Seed of all randomness.

    Example:
        >>> import math
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> model = RiverRegressor(replace(oebe, bases=(LinearBasis(),)), warmup=30)
        >>> for t in range(60):
        ...     model.learn_one({"time": t, "season": math.sin(t)}, 5 + 2 * math.sin(t))
        >>> round(model.predict_one({"time": 60, "season": 1.0}), 1)
        7.0
    """

    def __init__(self, spec: EnsembleSpec | None = None, warmup: int = 300, seed: int = 0) -> None:
        self.spec = spec
        self.warmup = warmup
        self.seed = seed
        self._names: tuple[Any, ...] | None = None
        self._model = WarmUpEnsemble(auto if spec is None else spec, warmup, seed)

    def learn_one(self, x: Mapping[Any, float], y: float | None) -> None:
        """Learn one row.

        Raises:
            ValueError: If features are missing, new, or not finite numbers.
        """
        X = self._row(x)
        target = math.nan if y is None else float(y)
        self._model.observe(X, X.new_tensor([target]))
        self._names = self._names or tuple(x)

    def predict_one(self, x: Mapping[Any, float]) -> float:
        """Mean of the predictive mixture."""
        return float(self._model.predict(self._row(x)).mean)

    def forecast_one(self, x: Mapping[Any, float]) -> Forecast:
        """Mean, standard deviation and 90 % interval of the predictive mixture."""
        mixture = self._model.predict(self._row(x))
        lower, upper = mixture.quantile(mixture.component_mean.new_tensor([[0.05], [0.95]])).flatten().tolist()
        return Forecast(float(mixture.mean), float(mixture.stddev), lower, upper)

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn rows in order; the same as one at a time, but faster."""
        table = self._table(X)
        self._model.observe(table, table.new_tensor(y.to_numpy(dtype=float)))
        self._names = self._names or tuple(X.columns)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Means of the predictive mixtures, one step ahead each."""
        return pd.Series(self._model.predict(self._table(X)).mean.numpy(), index=X.index)

    @property
    def expert_weights(self) -> dict[str, float]:
        """Weights in force for the next target, by expert; empty while the warm-up lasts."""
        online = self._model.online
        if online is None:
            return {}
        return dict(zip(online.names, online.log_weights.exp().tolist(), strict=True))

    def _row(self, x: Mapping[Any, float]) -> Tensor:
        names = self._names or tuple(x)
        self._check_names(set(x))
        return _finite(torch.tensor([[float(x[name]) for name in names]], dtype=torch.float64, device="cpu"), names)

    def _table(self, X: pd.DataFrame) -> Tensor:
        names = self._names or tuple(X.columns)
        self._check_names(set(X.columns))
        return _finite(torch.tensor(X[list(names)].to_numpy(dtype=float), dtype=torch.float64, device="cpu"), names)

    def _check_names(self, given: set[Any]) -> None:
        if self._names is None or given == set(self._names):
            return
        lacking, extra = sorted(set(self._names) - given, key=str), sorted(given - set(self._names), key=str)
        parts = (("lacks", lacking), ("adds", extra))
        said = [f"{word} {', '.join(map(str, names))}" for word, names in parts if names]
        raise ValueError(f"the row {' and '.join(said)}; features are fixed by the first row")


def _finite(X: Tensor, names: tuple[Any, ...]) -> Tensor:
    if not bool(torch.isfinite(X).all()):
        row, column = divmod(int((~torch.isfinite(X)).int().argmax()), X.shape[1])
        raise ValueError(f"feature {names[column]} is {float(X[row, column])} in row {row}; inputs must be finite")
    return X


__all__ = ["Forecast", "RiverRegressor"]
