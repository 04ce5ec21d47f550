"""Many series with scikit-learn's interface: a frame with a column that tells whose row it is."""

from collections.abc import Hashable
from typing import Any, Self

import narwhals.stable.v1 as nw
import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.arrays import Array, as_array, as_tensor
from gp_ensembles.estimators.frames import checked_inputs, fit_frame
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.settings import SMALL
from gp_ensembles.tables.columns import ColumnEncoder


class FleetRegressor(RegressorMixin, BaseEstimator):
    r"""A model for each of many series, :class:`~gp_ensembles.fleet.Fleet`, with scikit-learn's interface.

    Inputs are frames of pandas or polars. One column tells whose row it is; the others are inputs and may hold dates,
    categories and truth values, encoded as the rows of ``fit`` tell (see the page "Tables"). The rows of one series
    are in the order of time. Series whose warm-up is not over, and unknown ones, are predicted by NaN.

    Args:
        series: Name of that column.
        spec: What every series' ensemble is made of; the default of fleets if ``None``.
        warmup: Rows of a series from which its scales come.
        random_state: Seed, random state or ``None``, as in scikit-learn.

    Attributes:
        fleet\_: The fleet.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> X = pd.DataFrame({"shop": ["a", "b"] * 60, "price": rng.normal(size=120)})
        >>> y = np.where(X["shop"] == "a", 100, -5) + 2 * X["price"] + 0.1 * rng.normal(size=120)
        >>> model = FleetRegressor("shop", warmup=30, random_state=0).fit(X[:80], y[:80])
        >>> mean, std = model.partial_fit(X[80:100], y[80:100]).predict(X[100:], return_std=True)
        >>> bool(np.abs(mean - y[100:]).max() < 1), bool((std > 0.05).all())
        (True, True)
    """

    columns_: tuple[ColumnEncoder, ...] | None

    def __init__(
        self,
        series: str,
        spec: EnsembleSpec | None = None,
        warmup: int = 200,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.series = series
        self.spec = spec
        self.warmup = warmup
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Forget everything, fit hyperparameters to these rows, and learn them.

        Args:
            X: A frame with N rows.
            y: Targets, shape (N,); NaN where one was not observed.

        Raises:
            TypeError: If X is no frame.
            ValueError: If it has no such column, rows are malformed, or no series has enough of them.
        """
        before = dict(self.__dict__)
        try:
            names, rest = self._divided(X)
            self.columns_ = fit_frame(rest, len(names))
            rows = as_tensor(checked_inputs(self, rest, self.columns_, reset=True))
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            fleet = Fleet(SMALL if self.spec is None else self.spec, warmup=self.warmup, seed=seed)
            fleet.fit(names, rows, _targets(y))
            self.fleet_ = fleet
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn further rows, of new series too; nothing of them is learned if one is not legal.

        Args:
            X: A frame with N rows.
            y: Targets, shape (N,); NaN where one was not observed.

        Raises:
            TypeError: If X is no frame.
            ValueError: If rows are malformed.
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        names, rows = self._rows(X)
        self.fleet_.observe(names, rows, _targets(y))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Means of the predictive mixtures, and standard deviations, noise included, where asked for; (N,) each."""
        names, rows = self._rows(X)
        known = self._known(names)
        mean, std = (np.full(len(names), np.nan) for _ in range(2))
        if known.any():
            places = torch.from_numpy(known)
            distribution = self.fleet_.predict(
                [name for name, is_known in zip(names, known, strict=True) if is_known], rows[places]
            )
            mean[known], std[known] = as_array(distribution.mean), as_array(distribution.stddev)
        return (mean, std) if return_std else mean

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Array, Array]:
        """Lower and upper ends, (N,) each, of intervals that follow each series' own targets.

        Raises:
            ValueError: If the coverage is none of the fleet's, which is 0.9.
        """
        names, rows = self._rows(X)
        known = self._known(names)
        ends = np.full((2, len(names)), np.nan)
        if known.any():
            mine = [name for name, is_known in zip(names, known, strict=True) if is_known]
            found = self.fleet_.predict_interval(mine, rows[torch.from_numpy(known)], coverage)
            ends[:, known] = [as_array(end) for end in found]
        return ends[0], ends[1]

    def __sklearn_is_fitted__(self) -> bool:
        return "fleet_" in self.__dict__

    def _known(self, names: list[Hashable]) -> Array:
        begun = self.fleet_.series
        return np.array([begun is not None and name in begun for name in names], dtype=bool)

    def _rows(self, X: Any) -> tuple[list[Hashable], Tensor]:
        check_is_fitted(self)
        names, rest = self._divided(X)
        return names, as_tensor(checked_inputs(self, rest, self.columns_, reset=False))

    def _divided(self, X: Any) -> tuple[list[Hashable], Any]:
        """Whose row it is, and the other columns."""
        if not nw.dependencies.is_into_dataframe(X):
            raise TypeError(
                f"X must be a frame of pandas or polars with the column {self.series!r}, got {type(X).__name__}"
            )
        frame = nw.from_native(X, eager_only=True)
        if self.series not in frame.columns:
            raise ValueError(
                f"X has no column {self.series!r} that tells whose row it is; it has {list(frame.columns)}"
            )
        names: list[Hashable] = frame[self.series].to_list()
        nameless = [row for row, name in enumerate(names) if name is None or name != name]
        if nameless:
            raise ValueError(
                f"column {self.series!r} of X is empty in row {nameless[0]}; every row belongs to a series"
            )
        return names, frame.drop(self.series).to_native()


def _targets(y: Any) -> Tensor:
    return as_tensor(column_or_1d(np.asarray(y, dtype=np.float64)))
