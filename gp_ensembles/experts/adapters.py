"""Adapters of external models: regressors with ``fit`` and ``predict``, functions, columns of forecasts."""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from gp_ensembles.experts.model_adapter import (
    ModelAdapter,
    PredictFunction,
    TrainingRows,
    check_levels,
    fit_scale,
    moments_of,
)


@final
class RegressorAdapter(ModelAdapter):
    """A regressor with ``fit(X, y)`` and ``predict(X)`` on NumPy arrays, as in scikit-learn, LightGBM and others.

    Args:
        regressor: The untrained regressor, copied for each training; or as many as ``levels``, one for each quantile.
        scale: A second regressor, for the logarithm of the size of the first one's past errors; once there are 100 of
            them it gives the deviations.
        levels: Probabilities of the quantiles that are predicted; a normal distribution is fitted to them.

    Raises:
        TypeError: If a regressor is a class, or has no ``fit`` and ``predict``.
        ValueError: If levels are not distinct probabilities, or are not as many as regressors.
    """

    scale: Any
    levels: tuple[float, ...]

    def __init__(self, regressor: Any, scale: Any = None, levels: Sequence[float] = ()) -> None:
        several = isinstance(regressor, list | tuple)
        self.regressors: tuple[Any, ...] = tuple(regressor) if several else (regressor,)
        self.scale, self.levels = scale, tuple(float(level) for level in levels)
        for given in self.regressors if scale is None else (*self.regressors, scale):
            _check_methods(given, "RegressorAdapter", "fit", "predict")
        check_levels(self.levels)
        if several and len(self.regressors) != len(self.levels):
            raise ValueError(f"{len(self.regressors)} regressors need as many levels, got {len(self.levels)}")

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Train copies of the regressors; see :meth:`ModelAdapter.fit`."""
        models = [_fitted(regressor, rows.inputs, rows.targets) for regressor in self.regressors]
        scale = None if self.scale is None else fit_scale(rows, self._train_scale)

        def forecast(X: Tensor) -> tuple[Tensor, Tensor | None]:
            if len(models) > 1:
                predicted, deviation = torch.stack([_predicted(model, X)[0] for model in models], dim=-1), None
            else:
                predicted, deviation = _predicted(models[0], X)
            mean, spread = moments_of(predicted, self.levels)
            if scale is not None:
                return mean, scale(X)
            return mean, spread if deviation is None else deviation

        return forecast

    def _train_scale(self, X: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        model = _fitted(self.scale, X, y)
        return lambda rows: _predicted(model, rows)[0]


@final
class RiverAdapter(ModelAdapter):
    """A regressor of river, with ``learn_one`` and ``predict_one``; the inputs are called ``x0``, ``x1`` and so on.

    Raises:
        TypeError: If it is a class, or has no ``learn_one`` and ``predict_one``.
    """

    def __init__(self, regressor: Any) -> None:
        _check_methods(regressor, "RiverAdapter", "learn_one", "predict_one")
        self.regressor = regressor

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Learn the rows one by one; see :meth:`ModelAdapter.fit`."""
        model = copy.deepcopy(self.regressor)
        for row, target in zip(_dictionaries(rows.inputs), rows.targets.tolist(), strict=True):
            model.learn_one(row, target)
        return lambda X: (_as_tensor([model.predict_one(row) for row in _dictionaries(X)]), None)


@final
class FunctionAdapter(ModelAdapter):
    """A function of the rows to predict and the rows so far.

    Raises:
        TypeError: If it cannot be called.
    """

    def __init__(self, function: Callable[[Tensor, TrainingRows], Any], levels: Sequence[float] = ()) -> None:
        if not callable(function) or isinstance(function, type):
            other = as_adapter(function)
            hint = "" if other is None else f"; use {other}"
            raise TypeError(f"FunctionAdapter takes a function of X and rows, got {spelled(function)}{hint}")
        self.function = function
        self.levels: tuple[float, ...] = tuple(float(level) for level in levels)
        check_levels(self.levels)

    def fit(self, rows: TrainingRows) -> PredictFunction:
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
    """Forecasts that are columns of the inputs: nothing is trained, but the size of their errors is learned."""

    def __init__(self, levels: Sequence[float] = (), has_deviation: bool = False) -> None:
        self.levels: tuple[float, ...] = tuple(float(level) for level in levels)
        self.has_deviation = has_deviation
        check_levels(self.levels)
        self.initial: PredictFunction | None = self._read

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Read the columns; see :meth:`ModelAdapter.fit`."""
        return self._read

    def _read(self, X: Tensor) -> tuple[Tensor, Tensor | None]:
        return (X[:, 0], X[:, 1]) if self.has_deviation else moments_of(X, self.levels)


def spelled(value: object) -> str:
    """A model as it would be written in code."""
    if isinstance(value, type):
        return f"{value.__name__}()"
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name if name.isidentifier() else "function"
    return f"{type(value).__name__}(...)"


def as_adapter(value: object) -> str | None:
    """Code that makes an external model of a model, a function or a class of models; ``None`` if nothing can."""
    if isinstance(value, ModelAdapter) or (isinstance(value, type) and issubclass(value, ModelAdapter)):
        return spelled(value)
    if _has(value, "learn_one", "predict_one"):
        return f"RiverAdapter({spelled(value)})"
    if _has(value, "fit", "predict"):
        return f"RegressorAdapter({spelled(value)})"
    return f"FunctionAdapter({spelled(value)})" if callable(value) and not isinstance(value, type) else None


def _check_methods(value: object, kind: str, *methods: str) -> None:
    """Raise unless a model is an object that has some methods.

    Raises:
        TypeError: If it is a class, or a method is missing; the message names an adapter that fits.
    """
    if isinstance(value, type):
        raise TypeError(f"{kind} takes an object, got the class {value.__name__}: call it")
    if not _has(value, *methods):
        other = as_adapter(value)
        hint = "" if other is None else f"; use {other}"
        raise TypeError(f"{kind} takes an object with {' and '.join(methods)}, got {spelled(value)}{hint}")


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


def _fitted(regressor: Any, X: Tensor, y: Tensor) -> Any:
    """A trained copy; arrays are copies, too, as some regressors write into what they are given."""
    model = copy.deepcopy(regressor)
    model.fit(X.numpy().copy(), y.numpy().copy())
    return model


def _predicted(model: Any, X: Tensor) -> tuple[Tensor, Tensor | None]:
    """Its predictions, and their standard deviations if it has any."""
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
