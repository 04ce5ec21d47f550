"""Many series with river's interface: every row is a dictionary with a key that tells whose it is."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.river import Row, matrix_of, rows_of, target_of
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.settings import SMALL

try:
    import pandas as pd
    from river.base import MiniBatchRegressor
except ImportError:
    raise ImportError("gp_ensembles.estimators.river_series needs river; install gp_ensembles[river]") from None


class RiverFleet(MiniBatchRegressor):
    """A model for each of many series, :class:`~gp_ensembles.fleet.Fleet`, with river's interface.

    Hyperparameters are fitted when a first series comes to the end of its warm-up, to those that do in that call:
    begin with :meth:`learn_many` and rows of many of them. Until a series' warm-up is over it is predicted by the
    running mean of its targets. Features are those of the first row; one that is missing, ``None`` or NaN, is imputed.

    Args:
        series: The key that tells whose row it is.
        spec: What every series' ensemble is made of; the default of fleets if ``None``.
        warmup: Rows of a series from which its scales come.
        seed: Seed of all randomness.

    Example:
        >>> import math
        >>> model = RiverFleet("pump", warmup=30)
        >>> for t in range(80):
        ...     for pump, level in (("a", 5.0), ("b", -70.0)):
        ...         model.learn_one({"pump": pump, "season": math.sin(t)}, level + 2 * math.sin(t))
        >>> round(model.predict_one({"pump": "b", "season": 1.0}))
        -68
    """

    def __init__(self, series: Hashable, spec: EnsembleSpec | None = None, warmup: int = 200, seed: int = 0) -> None:
        self.series = series
        self.spec = spec
        self.warmup = warmup
        self.seed = seed
        self.fleet: Fleet = Fleet(SMALL if spec is None else spec, warmup=warmup, seed=seed)
        self._names: list[Hashable] | None = None
        self._sums: dict[Hashable, tuple[int, float]] = {}  # of the targets of series whose warm-up is not over

    def learn_one(self, x: Row, y: float | None) -> None:
        """Learn one row; a target that is ``None`` or NaN was not observed.

        Raises:
            KeyError: If the row does not tell whose it is.
            ValueError: If a feature is not a number.
        """
        self._learn([x], [target_of(y)])

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn rows, those of one series in the order of time; the same as one at a time, but faster.

        Raises:
            KeyError: If a row does not tell whose it is.
            ValueError: If rows are malformed; then nothing is learned.
        """
        if len(X) != len(y):
            raise ValueError(f"X has {len(X)} rows and y {len(y)}; give a target for each row")
        self._learn(list(rows_of(X)), [target_of(target) for target in y.tolist()])

    def predict_one(self, x: Row) -> float:
        """Mean of the predictive mixture."""
        return self._predict([x])[0]

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """Means of the predictive mixtures, one step ahead each."""
        return pd.Series(self._predict(list(rows_of(X))), index=X.index, dtype=float)

    def _learn(self, rows: Sequence[Row], targets: Sequence[float]) -> None:
        if not rows:
            return
        features = [name for name in rows[0] if name != self.series] if self._names is None else self._names
        given, X = self._given(rows, features)
        self.fleet.observe(given, X, torch.tensor(targets, dtype=torch.float64, device="cpu"))
        self._names = features
        waiting = self.fleet.waiting
        for name, target in zip(given, targets, strict=True):
            if name in waiting and target == target:
                num, total = self._sums.get(name, (0, 0.0))
                self._sums[name] = num + 1, total + target
        self._sums = {name: known for name, known in self._sums.items() if name in waiting}

    def _predict(self, rows: Sequence[Row]) -> list[float]:
        if self._names is None:
            return [0.0] * len(rows)
        given, X = self._given(rows, self._names)
        begun = self.fleet.series
        is_known = torch.tensor([begun is not None and name in begun for name in given], dtype=torch.bool, device="cpu")
        means = torch.tensor([self._running_mean(name) for name in given], dtype=torch.float64, device="cpu")
        if bool(is_known.any()):
            mine = [name for name, known in zip(given, is_known.tolist(), strict=True) if known]
            means[is_known] = self.fleet.predict(mine, X[is_known]).mean
        return list(means.tolist())

    def _running_mean(self, name: Hashable) -> float:
        num, total = self._sums.get(name, (0, 0.0))
        return total / num if num else 0.0

    def _given(self, rows: Sequence[Row], features: Sequence[Hashable]) -> tuple[list[Hashable], Tensor]:
        nameless = next((number for number, row in enumerate(rows) if row.get(self.series) is None), None)
        if nameless is not None:
            raise KeyError(f"row {nameless} has no {self.series!r}, which tells whose row it is")
        return [row[self.series] for row in rows], matrix_of(rows, features)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"series": "series", "warmup": 10}
