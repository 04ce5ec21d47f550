"""Adapters for external models that are trained on rows and predict means and standard deviations of targets.

For regressors with ``fit`` and ``predict``, river regressors, functions, and forecast columns; and the reasons
for missing predictions: codes in a state, messages for the user. For classifiers see
:mod:`gp_ensembles.experts.classifiers`.
"""

import copy
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

# Maps inputs (N, D) to means and standard deviations, (N,) each; None stands for the size of past errors.
PredictFunction = Callable[[Tensor], tuple[Tensor, Tensor | None]]

LAST_ERRORS = 500  # their size is used if a model returns no deviation
LEAST_DEVIATION = 1e-3  # of standardized targets, like the minimum noise of other experts
_LEAST_ERRORS = 10
_SCALE_ERRORS, _LEAST_SCALE_ERRORS = 4000, 100  # from which a second model learns the scale
_SMALLEST = 1e-3  # relative to the RMS error: smaller errors say nothing more about the scale
LOG_NORMAL = 0.5 * (math.log(2) + 0.5772156649015329)  # -E[log |z|] for a standard normal z
SILENT, ILLEGAL_MEAN, ILLEGAL_DEVIATION, WRONG_LENGTH, FAILED_PREDICTION, FAILED_TRAINING, UNTRAINED = range(1, 8)
_NUM_BYTES = 200


class TrainingRows(NamedTuple):
    """Training data of a model: N observed rows in time order, on the CPU, in double precision.

    Attributes:
        inputs: Shape (N, D).
        targets: Shape (N,).
        errors: Target minus the prediction made before it, shape (N,); NaN without a prediction, and for classes.
        num_labels: Number of classes C; ``None`` if targets are numbers.
    """

    inputs: Tensor
    targets: Tensor
    errors: Tensor
    num_labels: int | None = None


class ModelAdapter(ABC):
    """An external model that is retrained from time to time on stored rows.

    Attributes:
        initial: Its forecast before the first training; ``None`` if it has to be trained.
        for_classes: Whether its targets are classes, for which it returns log probabilities (N, C) instead of means.
    """

    initial: PredictFunction | None = None
    for_classes: bool = False

    @abstractmethod
    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Train on rows from scratch.

        Returns a function of inputs (N, D), double precision on the CPU, that gives means (N,) and standard deviations
        (N,). ``None`` in place of the latter means the size of the model's last errors.
        """


def error_size(rows: TrainingRows) -> float:
    """Root mean square of the last 500 errors; with fewer than ten, the targets' standard deviation."""
    values = rows.errors[~torch.isnan(rows.errors)][-LAST_ERRORS:]
    if values.shape[0] < _LEAST_ERRORS:
        values = rows.targets - rows.targets.mean()
    return max(math.sqrt(float(values.square().mean())), LEAST_DEVIATION)


def fit_scale(
    rows: TrainingRows, train: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
) -> Callable[[Tensor], Tensor] | None:
    """Train a second model on the logarithms of the sizes of the last 4000 errors, which are assumed to be normal.

    Deviations are exponentials of its predictions plus ``LOG_NORMAL``, at least ``LEAST_DEVIATION``. ``train``
    takes inputs (N, D) and logarithms (N,). Returns ``None`` while there are fewer than 100 errors.
    """
    known = (~torch.isnan(rows.errors)).nonzero().flatten()[-_SCALE_ERRORS:]
    if known.shape[0] < _LEAST_SCALE_ERRORS:
        return None
    errors = rows.errors[known]
    size = max(float(errors.square().mean().sqrt()), LEAST_DEVIATION)
    return train(rows.inputs[known], (errors.abs() + _SMALLEST * size).log())


def normal_of_quantiles(quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the normal distribution whose quantiles are closest, in squared distance, to given ones.

    Shapes: ``quantiles`` (N, K), ``levels`` (K,); returns (N,).
    """
    scores = torch.special.ndtri(levels)
    centered = scores - scores.mean()
    deviation = (quantiles * centered).sum(-1) / centered.square().sum()
    return quantiles.mean(-1) - deviation * scores.mean(), deviation


def moments_of(predicted: Tensor, levels: Sequence[float] = ()) -> tuple[Tensor, Tensor | None]:
    """Means (N,) and standard deviations (N,) from predictions of N rows; ``None`` for deviations not given.

    ``predicted`` has shape (N,) for means, (N, K) for K levels, or for K ensemble members if there are no levels.
    """
    if levels:
        if predicted.ndim != 2 or predicted.shape[-1] != len(levels):
            raise ValueError(f"expected {len(levels)} quantiles per row, got shape {tuple(predicted.shape)}")
        return normal_of_quantiles(predicted, predicted.new_tensor(list(levels)))
    if predicted.ndim == 2 and predicted.shape[-1] > 1:
        return predicted.mean(-1), predicted.std(-1)
    return (predicted.squeeze(-1) if predicted.ndim == 2 else predicted), None


def check_levels(levels: Sequence[float]) -> None:
    """Raise a ValueError unless levels are empty, or at least two distinct probabilities."""
    legal = all(0 < level < 1 for level in levels) and len(set(levels)) == len(levels) != 1
    if not legal:
        raise ValueError(f"levels must be at least two distinct probabilities between 0 and 1, got {tuple(levels)}")


@final
class RegressorAdapter(ModelAdapter):
    """A regressor with ``fit(X, y)`` and ``predict(X)`` on NumPy arrays, as in scikit-learn, LightGBM and others.

    Args:
        regressor: The untrained regressor, copied for each training; or one regressor per entry of ``levels``.
        scale: A second regressor, for the logarithm of the size of the first one's past errors; once there are 100
            errors, it provides the deviations.
        levels: Probabilities of the predicted quantiles; a normal distribution is fitted to them.

    Raises:
        TypeError: If a regressor is a class, or has no ``fit`` and ``predict``.
        ValueError: If levels are not distinct probabilities, or their number is not that of the regressors.
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
                return mean, (scale(X) + LOG_NORMAL).exp().clamp_min(LEAST_DEVIATION)
            return mean, spread if deviation is None else deviation

        return forecast

    def _train_scale(self, X: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        model = _fitted(self.scale, X, y)
        return lambda rows: _predicted(model, rows)[0]


@final
class RiverAdapter(ModelAdapter):
    """A river regressor, with ``learn_one`` and ``predict_one``; inputs are named ``x0``, ``x1`` and so on.

    Raises:
        TypeError: If it is a class, or has no ``learn_one`` and ``predict_one``.
    """

    def __init__(self, regressor: Any) -> None:
        check_methods(regressor, "RiverAdapter", "learn_one", "predict_one")
        self.regressor = regressor

    def fit(self, rows: TrainingRows) -> PredictFunction:
        """Learn the rows one by one; see :meth:`ModelAdapter.fit`."""
        model = copy.deepcopy(self.regressor)
        for row, target in zip(_dictionaries(rows.inputs), rows.targets.tolist(), strict=True):
            model.learn_one(row, target)
        return lambda X: (_as_tensor([model.predict_one(row) for row in _dictionaries(X)]), None)


@final
class FunctionAdapter(ModelAdapter):
    """A function of the inputs to predict and the rows so far.

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
    """Forecasts given as input columns: nothing is trained, but the size of their errors is learned."""

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
    """Source code that would create a model, for messages."""
    if isinstance(value, type):
        return f"{value.__name__}()"
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name if name.isidentifier() else "function"
    return f"{type(value).__name__}(...)"


def as_adapter(value: object) -> str | None:
    """Source code that wraps a model, function or model class as an external model; ``None`` if there is no way."""
    if isinstance(value, ModelAdapter) or (isinstance(value, type) and issubclass(value, ModelAdapter)):
        return spelled(value)
    if _has(value, "learn_one", "predict_one"):
        return f"RiverAdapter({spelled(value)})"
    if _has(value, "fit", "predict_proba"):
        return f"ClassifierAdapter({spelled(value)})"
    if _has(value, "fit", "predict"):
        return f"RegressorAdapter({spelled(value)})"
    return f"FunctionAdapter({spelled(value)})" if callable(value) and not isinstance(value, type) else None


def check_methods(value: object, kind: str, *methods: str) -> None:
    """Raise unless a model is an object with the given methods."""
    if isinstance(value, type):
        raise TypeError(f"{kind} takes an object, got the class {value.__name__}: instantiate it")
    if not _has(value, *methods):
        other = as_adapter(value)
        hint = "" if other is None else f"; use {other}"
        raise TypeError(f"{kind} takes an object with {' and '.join(methods)}, got {spelled(value)}{hint}")


def _has(value: object, *methods: str) -> bool:
    return all(callable(getattr(value, method, None)) for method in methods)


def _fitted(regressor: Any, X: Tensor, y: Tensor) -> Any:
    """A trained copy; arrays are copied, too, as some regressors overwrite their arguments."""
    model = copy.deepcopy(regressor)
    model.fit(X.numpy().copy(), y.numpy().copy())
    return model


def _predicted(model: Any, X: Tensor) -> tuple[Tensor, Tensor | None]:
    """Predictions of a model, and their standard deviations if it returns any."""
    rows = X.numpy().copy()
    if "return_std" in inspect.signature(model.predict).parameters:
        mean, deviation = model.predict(rows, return_std=True)
        return _as_tensor(mean), _as_tensor(deviation)
    return _as_tensor(model.predict(rows)), None


def _dictionaries(X: Tensor) -> list[dict[str, float]]:
    """Rows of X (N, D) as dictionaries for river."""
    return [{f"x{number}": value for number, value in enumerate(row)} for row in X.tolist()]


def _as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device="cpu")


# Reasons for a missing prediction and remedies.
FAILURES = {
    SILENT: (
        "it returned no prediction (NaN)",
        "expected if no forecast exists for such rows; otherwise fill the gaps in its inputs",
    ),
    ILLEGAL_MEAN: ("its mean was infinite or beyond 1e30", "it must predict targets with mean 0 and variance 1"),
    ILLEGAL_DEVIATION: (
        "its deviation was not positive and finite",
        "return standard deviations or None; quantiles must increase with their levels",
    ),
    WRONG_LENGTH: (
        "its result had the wrong shape",
        "return means (N,) and deviations (N,), or only means, for inputs (N, D)",
    ),
    FAILED_PREDICTION: ("it failed to predict", "try model.fit(rows)(X) on inputs X of such a row"),
    FAILED_TRAINING: ("it failed to train", "try model.fit(rows) on its own; the next training is as scheduled"),
    UNTRAINED: ("it is not trained yet", "it needs ten targets, and the row of its first scheduled training"),
}


def described(reason: int, words: Tensor) -> tuple[str, str]:
    """The reason recorded in a state, and the remedy."""
    (why, fix), text = FAILURES[reason], bytes(words.tolist()).rstrip(b"\0").decode(errors="ignore")
    return (f"{why} ({text})" if text else why), fix


def encoded(text: str, num_bytes: int = _NUM_BYTES) -> Tensor:
    """The first bytes of a text, padded with zeros."""
    data = " ".join(text.split()).encode()[:num_bytes].ljust(num_bytes, b"\0")
    return torch.tensor(list(data), dtype=torch.uint8, device="cpu")
