"""Adapters of external models: regressors with ``fit`` and ``predict``, functions, columns of forecasts."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.experts.model_adapter import (
    Forecast,
    ModelAdapter,
    TrainingRows,
    check_levels,
    moments_of,
    scale_deviation,
    scale_rows,
)
from gp_ensembles.experts.wrapping import as_adapter, check_methods, spelled


@final
class RegressorAdapter(ModelAdapter):
    """A regressor with ``fit(X, y)`` and ``predict(X)`` on NumPy arrays, as in scikit-learn, LightGBM and others.

    Where its ``predict`` takes ``return_std`` it states its deviations itself. Several columns of predictions
    are quantiles at ``levels``, or draws. Set its ``random_state``: it is trained again where a state is loaded.

    Args:
        regressor: The untrained regressor, copied for each training; or as many as ``levels``, one for each quantile.
        scale: A second regressor, for the logarithm of the size of the first one's past errors; once there are 100 of
            them it gives the deviations.
        levels: Probabilities of the quantiles that are predicted; a normal distribution is fitted to them.

    Raises:
        TypeError: If a regressor is a class, or has no ``fit`` and ``predict``.
        ValueError: If levels are not distinct probabilities, or are not as many as regressors.

    Example:
        >>> from sklearn.linear_model import BayesianRidge
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> x = X.squeeze(-1)
        >>> forecast = RegressorAdapter(BayesianRidge()).fit(TrainingRows(X, 2 * x, torch.nan * x))
        >>> forecast(X[-1:])[0].round(decimals=3)
        tensor([2.], dtype=torch.float64)
    """

    scale: Any
    levels: tuple[float, ...]

    def __init__(self, regressor: Any, scale: Any = None, levels: Sequence[float] = ()) -> None:
        several = isinstance(regressor, list | tuple)
        self.regressors: tuple[Any, ...] = tuple(regressor) if several else (regressor,)
        self.scale, self.levels = scale, tuple(float(level) for level in levels)
        for given in self.regressors if scale is None else (*self.regressors, scale):
            check_methods(given, "RegressorAdapter", "fit", "predict")
        check_levels(self.levels)
        if several and len(self.regressors) != len(self.levels):
            raise ValueError(f"{len(self.regressors)} regressors need as many levels, got {len(self.levels)}")

    def fit(self, rows: TrainingRows) -> Forecast:
        """Train copies of the regressors; see :meth:`ModelAdapter.fit`."""
        models = [_fitted(regressor, rows.inputs, rows.targets) for regressor in self.regressors]
        known = None if self.scale is None else scale_rows(rows)
        scale = None if known is None else _fitted(self.scale, *known)

        def forecast(X: Tensor) -> tuple[Tensor, Tensor | None]:
            if len(models) > 1:
                predicted, deviation = torch.stack([_predicted(model, X)[0] for model in models], dim=-1), None
            else:
                predicted, deviation = _predicted(models[0], X)
            mean, spread = moments_of(predicted, self.levels)
            if scale is not None:
                return mean, scale_deviation(_predicted(scale, X)[0])
            return mean, spread if deviation is None else deviation

        return forecast


@final
class RiverAdapter(ModelAdapter):
    """A regressor of river, with ``learn_one`` and ``predict_one``; the inputs are called ``x0``, ``x1`` and so on.

    At each training a copy of it learns the stored rows one by one, and it stays as it is until the next one: what it
    is follows from stored rows, so that it can be saved. A training costs as much as it takes to learn ``num_rows``
    rows, see :class:`~gp_ensembles.ensembles.external_models.ExternalModel`.

    Args:
        regressor: The regressor before it has learned anything; set its seed.

    Raises:
        TypeError: If it is a class, or has no ``learn_one`` and ``predict_one``.

    Example:
        >>> from river.linear_model import LinearRegression
        >>> X = torch.linspace(0, 1, 500, dtype=torch.float64).unsqueeze(-1)
        >>> rows = TrainingRows(X, 2 * X.squeeze(-1), torch.nan * X.squeeze(-1))
        >>> RiverAdapter(LinearRegression()).fit(rows)(X[-1:])[0].round()
        tensor([2.], dtype=torch.float64)
    """

    def __init__(self, regressor: Any) -> None:
        check_methods(regressor, "RiverAdapter", "learn_one", "predict_one")
        self.regressor = regressor

    def fit(self, rows: TrainingRows) -> Forecast:
        """Learn the rows one by one; see :meth:`ModelAdapter.fit`."""
        model = copy.deepcopy(self.regressor)
        for row, target in zip(_dictionaries(rows.inputs), rows.targets.tolist(), strict=True):
            model.learn_one(row, target)
        return lambda X: (_as_tensor([model.predict_one(row) for row in _dictionaries(X)]), None)


@final
class FunctionAdapter(ModelAdapter):
    """A function of the rows to predict and the rows so far.

    Args:
        function: Called with inputs (N, D) and :class:`~gp_ensembles.experts.model_adapter.TrainingRows`, those of
            the last
            training; returns means (N,) and deviations (N,), or one of means (N,), draws (N, S) and quantiles (N, K).
            It must use the rows that it is given and nothing that it remembers.
        levels: Probabilities of the quantiles, if it returns such.

    Raises:
        TypeError: If it cannot be called.

    Example:
        >>> guest = FunctionAdapter(lambda X, rows: (rows.targets[-1].expand(len(X)), X.new_ones(len(X))))
        >>> one = torch.ones(3, dtype=torch.float64)
        >>> guest.fit(TrainingRows(one.unsqueeze(-1), 7 * one, one))(torch.zeros(2, 1, dtype=torch.float64))[0]
        tensor([7., 7.], dtype=torch.float64)
    """

    def __init__(self, function: Callable[[Tensor, TrainingRows], Any], levels: Sequence[float] = ()) -> None:
        if not callable(function) or isinstance(function, type):
            other = as_adapter(function)
            hint = "" if other is None else f"; use {other}"
            raise TypeError(f"FunctionAdapter takes a function of X and rows, got {spelled(function)}{hint}")
        self.function = function
        self.levels: tuple[float, ...] = tuple(float(level) for level in levels)
        check_levels(self.levels)

    def fit(self, rows: TrainingRows) -> Forecast:
        """Keep the rows; see :meth:`ModelAdapter.fit`."""

        def forecast(X: Tensor) -> tuple[Tensor, Tensor | None]:
            predicted = self.function(X, rows)
            if isinstance(predicted, tuple):
                mean, deviation = predicted
                return _as_tensor(mean), None if deviation is None else _as_tensor(deviation)
            return moments_of(_as_tensor(predicted), self.levels)

        return forecast


@final
class ColumnsAdapter(ModelAdapter):
    """Forecasts that stand in the inputs: nothing is trained, but the size of their errors is learned.

    Args:
        levels: Probabilities of the quantiles in the columns, if they are. Else one column is a mean, and several are
            draws.
        has_deviation: Whether there are two columns, a mean and a deviation.

    Example:
        >>> guest = ColumnsAdapter(has_deviation=True)
        >>> guest.initial(torch.tensor([[3.0, 0.5]], dtype=torch.float64))
        (tensor([3.], dtype=torch.float64), tensor([0.5000], dtype=torch.float64))
    """

    def __init__(self, levels: Sequence[float] = (), has_deviation: bool = False) -> None:
        self.levels: tuple[float, ...] = tuple(float(level) for level in levels)
        self.has_deviation = has_deviation
        check_levels(self.levels)
        self.initial: Forecast | None = self._read

    def fit(self, rows: TrainingRows) -> Forecast:
        """Read the columns; see :meth:`ModelAdapter.fit`."""
        return self._read

    def _read(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        return (X[:, 0], X[:, 1]) if self.has_deviation else moments_of(X, self.levels)


def _fitted(regressor: Any, X: Tensor, y: Tensor) -> Any:
    """A trained copy; arrays are copies, too, as some regressors write into what they are given."""
    model = copy.deepcopy(regressor)
    model.fit(X.numpy().copy(), y.numpy().copy())
    return model


def _predicted(model: Any, X: Tensor) -> tuple[Tensor, Tensor | None]:
    """What it predicts, and with what deviation if it states one."""
    rows = X.numpy().copy()
    if "return_std" in inspect.signature(model.predict).parameters:
        mean, deviation = model.predict(rows, return_std=True)
        return _as_tensor(mean), _as_tensor(deviation)
    return _as_tensor(model.predict(rows)), None


def _dictionaries(X: Tensor) -> list[dict[str, float]]:
    """Rows of X (N, D) as river takes them."""
    return [{f"x{number}": value for number, value in enumerate(row)} for row in X.tolist()]


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")
