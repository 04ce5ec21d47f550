"""Online ensembles with sktime's interface: a forecaster that keeps learning through ``update``, without refits."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch

from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import forecaster, oebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.inputs import Array, as_array
from gp_ensembles.estimators.scikit_learn import OnlineRegressor
from gp_ensembles.streaming.config import OnBadRow
from gp_ensembles.streaming.forecasting.forecast import Forecast

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon
except ImportError:
    raise ImportError("gp_ensembles.estimators.sktime needs sktime; install gp_ensembles[sktime]") from None

_TIME = "time"


class SktimeForecaster(BaseForecaster):
    """Online ensemble of Bayesian basis expansions with sktime's interface.

    ``fit`` takes a series, whose first rows set scales and hyperparameters; ``update`` learns more at constant
    cost per row, without a refit; forecasts come from joint sample paths, see
    :meth:`OnlineModel.forecast <gp_ensembles.streaming.OnlineModel.forecast>`. Inputs are the time (calendar features
    of dates, or the row number) and the columns of ``X``, which may have gaps; so may the series.

    Args:
        spec: Specification of the ensemble; :data:`~gp_ensembles.ensembles.presets.forecaster` if ``None``.
        warmup: Maximum number of rows for scales and hyperparameters; all rows of a shorter series.
        num_paths: Number of sample paths.
        random_state: Seed.
        on_bad_row: Handling of unusable numbers, as in
            :class:`~gp_ensembles.estimators.scikit_learn.OnlineRegressor`.

    Example:
        >>> y = pd.Series(np.arange(60.0), index=pd.period_range("2020-01", periods=60, freq="M"))
        >>> model = SktimeForecaster(replace(oebe, bases=(LinearBasis(),)))
        >>> predicted = model.fit(y[:50], fh=[1, 3]).update(y[50:58]).predict()
        >>> predicted.index.astype(str).tolist(), bool((abs(predicted - [58, 60]) < 1).all())
        (['2024-11', '2025-01'], True)
    """

    regressor_: OnlineRegressor

    _tags = {  # noqa: RUF012 (sktime reads them so)
        "authors": ["the gp_ensembles developers"],
        "python_dependencies": None,
        "y_inner_mtype": "pd.Series",
        "X_inner_mtype": "pd.DataFrame",
        "capability:multivariate": False,
        "capability:exogenous": True,
        "capability:insample": False,
        "capability:pred_int": True,
        "capability:pred_int:insample": False,
        "capability:missing_values": True,
        "capability:update": True,
        "capability:categorical_in_X": True,
        "requires-fh-in-fit": False,
        "capability:random_state": True,
        "property:randomness": "derandomized",
    }
    _config = {"remember_data": False}  # noqa: RUF012 (likewise: the model stores what it needs)
    _y = _X = None  # set if a user enables remember_data

    def __init__(
        self,
        spec: EnsembleSpec | None = None,
        warmup: int = 1000,
        num_paths: int = 500,
        random_state: int = 0,
        on_bad_row: OnBadRow = "missing",
    ) -> None:
        self.spec = spec
        self.warmup = warmup
        self.num_paths = num_paths
        self.random_state = random_state
        self.on_bad_row = on_bad_row
        super().__init__()

    def _fit(self, y: pd.Series, X: pd.DataFrame | None, fh: ForecastingHorizon | None) -> Self:
        if isinstance(y.index, pd.DatetimeIndex) and len(y) > 2 and pd.infer_freq(y.index) is None:
            raise ValueError(
                "the dates of the series have no frequency, so the next dates are unknown: set one, for "
                "example y.asfreq('h'), which inserts NaN for missing rows"
            )
        spec = forecaster if self.spec is None else self.spec
        self._origin, self._name = y.index[0], y.name
        self._columns = None if X is None else list(X.columns)
        frame = self._inputs(y.index, X)
        # Column kinds and scales need rows with a target.
        self.regressor_ = OnlineRegressor(spec, self.warmup, self.random_state, self.on_bad_row)
        self.regressor_.partial_fit(frame, y.to_numpy(dtype=np.float64))
        if not self.regressor_.model_.is_fitted:  # a series shorter than the warm-up
            self.regressor_.fit(frame, y.to_numpy(dtype=np.float64))
        return self

    def _update(self, y: pd.Series, X: pd.DataFrame | None = None, update_params: bool = True) -> Self:
        self.regressor_.partial_fit(self._inputs(y.index, X), y.to_numpy(dtype=np.float64))
        return self

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.Series:
        return pd.Series(self._at(fh, self._ahead(fh, X).mean), index=self._index(fh), name=self._name)

    def _predict_quantiles(self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: Any) -> pd.DataFrame:
        found = self._ahead(fh, X).quantile(list(alpha))
        name = self._get_varnames()[0]
        values = {(name, level): self._at(fh, row) for level, row in zip(alpha, found, strict=True)}
        return pd.DataFrame(values, index=self._index(fh))

    def _predict_var(self, fh: ForecastingHorizon, X: pd.DataFrame | None = None, cov: bool = False) -> pd.DataFrame:
        name = self._get_varnames()[0]
        forecast = self._ahead(fh, X)
        if cov:
            covariance = torch.cov(forecast.paths[:, self._places(fh)].T).reshape(len(fh), len(fh))
            return pd.DataFrame(as_array(covariance), index=self._index(fh), columns=self._index(fh))
        return pd.DataFrame({name: self._at(fh, forecast.variance)}, index=self._index(fh))

    def _ahead(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> Forecast:
        """Paths of all rows up to the last one requested; the same paths until a row is learned."""
        num_steps = int(np.max(self._places(fh))) + 1
        index = ForecastingHorizon(np.arange(1, num_steps + 1), is_relative=True).to_absolute_index(self.cutoff)
        if X is not None:
            X = X.reindex(index)
        return self.regressor_.forecast(self._inputs(index, X), self.num_paths, self.random_state)

    def _places(self, fh: ForecastingHorizon) -> Array:
        places: Array = np.asarray(fh.to_relative(self.cutoff).to_numpy(), dtype=np.int64) - 1
        return places

    def _at(self, fh: ForecastingHorizon, values: torch.Tensor) -> Array:
        chosen: Array = as_array(values)[self._places(fh)]
        return chosen

    def _index(self, fh: ForecastingHorizon) -> pd.Index:
        return fh.to_absolute_index(self.cutoff)

    def _inputs(self, index: pd.Index, X: pd.DataFrame | None) -> pd.DataFrame:
        """The time of rows, and the columns of X."""
        if isinstance(index, pd.PeriodIndex):
            index = index.to_timestamp()
        times = index if isinstance(index, pd.DatetimeIndex) else pd.Index(index - self._origin, dtype=np.float64)
        frame = pd.DataFrame({_TIME: times.to_numpy()})
        for place, name in enumerate(self._columns or ()):
            cells = np.full(len(frame), np.nan) if X is None else X[name].to_numpy()
            frame[f"{place}: {name}"] = cells
        return frame

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Instances for sktime's checks, which are quick to fit."""
        linear = replace(oebe, bases=(LinearBasis(),))
        return [{"spec": linear, "warmup": 12, "num_paths": 20}, {"spec": linear, "warmup": 10, "num_paths": 10}]
