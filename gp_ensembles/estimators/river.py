"""Online ensembles with river's interface: a regressor and a classifier that learn one dictionary at a time."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.distributions import Distribution, LatentMixture
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import auto, auto_for, oebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.estimators.scikit_learn import class_target
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.streaming.checks import LARGEST, clean_arrivals, too_large
from gp_ensembles.streaming.columns import constant_columns
from gp_ensembles.streaming.config import MIN_WARM_UP, OnBadRow
from gp_ensembles.streaming.predictions import running_mixture
from gp_ensembles.streaming.reports import AnomalyCounts

try:
    from river.base import MiniBatchClassifier, MiniBatchRegressor
except ImportError:
    raise ImportError("gp_ensembles.estimators.river needs river; install gp_ensembles[river]") from None

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]
Label = bool | str | int


class RowForecast(NamedTuple):
    """A prediction with uncertainty, in the units of the target."""

    mean: float
    std: float  # standard deviation, noise included
    lower: float  # lower end of the adaptive 90 % interval
    upper: float


class _OneRowAtATime(ABC):
    """Common base of regressor and classifier: settings, the rows of the warm-up, and the model after it."""

    def __init__(self, spec: EnsembleSpec | None, warmup: int, seed: int, on_bad_row: OnBadRow) -> None:
        self.spec = spec
        self.warmup = warmup
        self.seed = seed
        self.on_bad_row = on_bad_row
        if warmup < MIN_WARM_UP:
            raise ValueError(f"warmup is {warmup}; at least {MIN_WARM_UP} rows are needed to fit a model")
        self._rows = _KeptRows()
        self._model: OnlineModel | None = None

    @abstractmethod
    def learn_one(self, x: Row, y: Any) -> None:
        """Learn one row."""

    def learn_many(self, X: "pd.DataFrame", y: "pd.Series") -> None:
        """Learn rows in order; the same as one at a time, but faster.

        Raises:
            ValueError: As in :meth:`learn_one`; warm-up rows before the invalid one are kept.
        """
        if len(X) != len(y):
            raise ValueError(f"X has {len(X)} rows, but y has {len(y)}; give one target per row")
        rows, targets = list(rows_of(X)), y.tolist()
        taken = 0
        while taken < len(rows) and not self.is_fitted:
            self.learn_one(rows[taken], targets[taken])
            taken += 1
        if taken < len(rows):
            self._learn_rows(rows[taken:], targets[taken:])

    @property
    def is_fitted(self) -> bool:
        """Whether the warm-up is over."""
        return self._model is not None

    @property
    def anomaly_counts(self) -> AnomalyCounts:
        """Counts of unusual values so far, see :class:`~gp_ensembles.streaming.reports.AnomalyCounts`."""
        return AnomalyCounts() if self._model is None else self._model.anomaly_counts

    @property
    def expert_weights(self) -> dict[str, float]:
        """Weights for the next target, by expert; empty during the warm-up."""
        return {} if self._model is None else self._model.weights

    @abstractmethod
    def _learn_rows(self, rows: Sequence[Row], targets: Sequence[Any]) -> None:
        """Learn rows after the warm-up."""

    def _config(self, spec: EnsembleSpec) -> StreamConfig:
        return StreamConfig(spec, warmup=self.warmup, seed=self.seed, on_bad_row=self.on_bad_row)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        """Small settings for river's checks."""
        yield {"spec": replace(oebe, bases=(LinearBasis(),)), "warmup": 30}


class RiverRegressor(_OneRowAtATime, MiniBatchRegressor):
    """Online ensemble of Bayesian basis expansions with river's interface.

    Until ``warmup`` rows have arrived, at least ten of them with a target, and a feature and the target vary, rows
    are stored and predictions are the running mean; then scales and hyperparameters are fitted once, in seconds,
    and from then on the cost per row is constant. Features are those of the warm-up rows: one that is missing in a row,
    absent, ``None`` or NaN, is imputed, one that first appears later is ignored. A target that
    is ``None`` or NaN counts as missing. Encode text by one of river's encoders, earlier in the pipeline.

    Args:
        spec: Specification of the ensemble; :data:`~gp_ensembles.ensembles.presets.auto` if ``None``. Targets are real
            numbers or counts; for classes see :class:`RiverClassifier`.
        warmup: Rows for scales and hyperparameters.
        seed: Seed of all randomness.
        on_bad_row: Handling of numbers that are infinite or implausibly large, such as overflow codes, as in
            :class:`~gp_ensembles.streaming.StreamConfig`; ``anomaly_counts`` counts the rows affected.

    Example:
        >>> model = RiverRegressor(replace(oebe, bases=(LinearBasis(),)), warmup=30)
        >>> for t in range(60):
        ...     model.learn_one({"time": t, "season": math.sin(t)}, 5 + 2 * math.sin(t))
        >>> round(model.predict_one({"time": 60, "season": 1.0}), 1)
        7.0
    """

    def __init__(
        self, spec: EnsembleSpec | None = None, warmup: int = 300, seed: int = 0, on_bad_row: OnBadRow = "missing"
    ) -> None:
        super().__init__(spec, warmup, seed, on_bad_row)
        self._ensemble = auto if spec is None else spec
        check_made("spec", self._ensemble, EnsembleSpec, "gpe.auto or gpe.e_doebe")
        if self._ensemble.target.num_labels is not None:
            raise TypeError(f"spec.target is {self._ensemble.target}, which is for classes; use RiverClassifier")
        if self._ensemble.target.num_outputs is not None:
            raise TypeError("river's regressors have one target; for several use OnlineModel or OnlineRegressor")

    def learn_one(self, x: Row, y: float | None) -> None:
        """Learn one row.

        Raises:
            ValueError: If a feature is not a number, or by ``on_bad_row`` if a number is out of all proportion.
        """
        if self._model is not None:
            self._learn_rows([x], [y])
            return
        target = target_of(y)
        y_row, config = _column([target]), self._config(self._ensemble)
        wrong = clean_arrivals(y_row.new_zeros(1, 1), y_row, config).refused
        if wrong is not None:
            raise ValueError(wrong.message(len(self._rows.rows) + 1, None))
        rows = self._rows.with_row(x, target, self.on_bad_row)
        if rows.is_enough(self.warmup):
            self._model = rows.fit(config, _column(rows.targets))
            rows = _KeptRows(rows.names)
        self._rows = rows

    def predict_one(self, x: Row) -> float:
        """Mean of the predictive mixture."""
        return float(self._distribution([x]).mean)

    def forecast_one(self, x: Row) -> RowForecast:
        """Mean, standard deviation and 90 % interval, which contains 90 % of targets in the long run."""
        distribution = self._distribution([x])
        mean, variance = distribution.moments()
        if self._model is None:
            lower, upper = (distribution.quantile(level) for level in (0.05, 0.95))
        else:
            lower, upper = self._model.interval_of(distribution)
        return RowForecast(float(mean), math.sqrt(float(variance)), float(lower), float(upper))

    def predict_many(self, X: "pd.DataFrame") -> "pd.Series":
        """Means of the predictive mixtures, each one step ahead."""
        import pandas as pd  # it is there: X is a frame of it

        return pd.Series(self._distribution(list(rows_of(X))).mean.cpu().numpy(), index=X.index)

    def _learn_rows(self, rows: Sequence[Row], targets: Sequence[float | None]) -> None:
        assert self._model is not None
        self._model.observe(matrix_of(rows, self._rows.names), _column(list(map(target_of, targets))))

    def _distribution(self, rows: Sequence[Row]) -> Distribution:
        if self._model is None:
            matrix_of(rows, ())  # text is rejected from the first row on
            y = [math.nan if _is_too_large(target) else target for target in self._rows.targets]
            return running_mixture(self._ensemble.target, _column(y), len(rows))
        return self._model.predict(matrix_of(rows, self._rows.names))


class RiverClassifier(_OneRowAtATime, MiniBatchClassifier):
    """Online ensemble of Bayesian classifiers with river's interface.

    Like :class:`RiverRegressor`, for labels of any kind. The classes are those of the warm-up, which is extended until
    two have appeared; meanwhile probabilities are the frequencies of the labels. A label that first appears later has
    its frequency as its probability, whatever the features.

    Args:
        spec: Specification of the ensemble; :func:`~gp_ensembles.ensembles.presets.auto_for` the classes if ``None``. A
            target that is not for classes is replaced.
        warmup: Rows for scales and hyperparameters.
        seed: Seed of all randomness.
        on_bad_row: As in :class:`RiverRegressor`.

    Example:
        >>> model = RiverClassifier(replace(oebe, bases=(LinearBasis(),)), warmup=30)
        >>> for t in range(60):
        ...     model.learn_one({"tide": math.sin(t)}, "high" if math.sin(t) > 0 else "low")
        >>> model.predict_one({"tide": 0.9}), model.predict_proba_one({"tide": -0.9})["low"] > 0.9
        ('high', True)
    """

    def __init__(
        self, spec: EnsembleSpec | None = None, warmup: int = 300, seed: int = 0, on_bad_row: OnBadRow = "missing"
    ) -> None:
        super().__init__(spec, warmup, seed, on_bad_row)
        self._labels: list[Label] = []  # in the order of the model
        self._counts: Counter[Label] = Counter()

    @property
    def _multiclass(self) -> bool:
        return True

    def learn_one(self, x: Row, y: Label | None) -> None:
        """Learn one row.

        Raises:
            ValueError: If a feature is not a number, or by ``on_bad_row`` if a number is out of all proportion.
        """
        if self._model is not None:
            self._learn_rows([x], [y])
            return
        rows = self._rows.with_row(x, y, self.on_bad_row)
        if rows.is_enough(self.warmup):
            labels = _sorted({label for label in rows.targets if not _is_missing(label)})
            target = class_target(len(labels), None if self.spec is None else self.spec.target)
            spec = auto_for(target) if self.spec is None else replace(self.spec, target=target)
            self._model = rows.fit(self._config(spec), _codes(rows.targets, labels))
            self._labels, rows = labels, _KeptRows(rows.names)
        self._rows = rows
        self._count([y])

    def predict_proba_one(self, x: Row, **kwargs: Any) -> dict[Label, float]:
        """Probabilities of the labels seen so far; empty before the first. As in river, other arguments are ignored."""
        return self._probabilities([x])[0]

    def predict_proba_many(self, X: "pd.DataFrame") -> "pd.DataFrame":
        """Probabilities of the labels seen so far, one column per label."""
        import pandas as pd  # it is there: X is a frame of it

        return pd.DataFrame(self._probabilities(list(rows_of(X))), index=X.index)

    def _probabilities(self, rows: Sequence[Row]) -> list[dict[Label, float]]:
        total = sum(self._counts.values())
        frequencies = {label: count / total for label, count in self._counts.items()}
        if self._model is None:
            matrix_of(rows, ())  # text is rejected from the first row on
            return [dict(frequencies) for _ in rows]
        distribution = self._model.predict(matrix_of(rows, self._rows.names))
        assert isinstance(distribution, LatentMixture)
        late = {label: share for label, share in frequencies.items() if label not in self._labels}
        rest = 1.0 - sum(late.values())
        table = distribution.class_probabilities
        table = rest * table / table.sum(-1, keepdim=True)
        return [{**dict(zip(self._labels, row, strict=True)), **late} for row in table.tolist()]

    def _learn_rows(self, rows: Sequence[Row], labels: Sequence[Label | None]) -> None:
        assert self._model is not None
        self._model.observe(matrix_of(rows, self._rows.names), _codes(labels, self._labels))
        self._count(labels)

    def _count(self, labels: Sequence[Label | None]) -> None:
        self._counts.update(label for label in labels if label is not None and not _is_missing(label))


class _KeptRows(NamedTuple):
    """The raw rows of the warm-up."""

    names: tuple[Hashable, ...] = ()  # features in order of appearance
    rows: tuple[Row, ...] = ()
    targets: tuple[Any, ...] = ()

    def with_row(self, x: Row, y: Any, on_bad_row: OnBadRow) -> "_KeptRows":
        """The rows with one more appended."""
        check_made("x", x, Mapping, "{'load': 0.3, 'hour': 14}")
        if not x and not self.names:
            raise ValueError("the row has no feature; give at least one")
        row = matrix_of([x], tuple(x))
        wrong = too_large(row, row.new_zeros(1)) if x and on_bad_row == "refuse" else None
        if wrong is not None:
            raise ValueError(wrong.message(len(self.rows) + 1, tuple(str(name) for name in x)))
        new = tuple(name for name in x if name not in self.names)
        return _KeptRows((*self.names, *new), (*self.rows, dict(x)), (*self.targets, y))

    def is_enough(self, warmup: int) -> bool:
        """Whether a model can be fitted to these rows."""
        seen = [target for target in self.targets if not _is_missing(target) and not _is_too_large(target)]
        is_long = len(self.rows) >= warmup and len(seen) >= MIN_WARM_UP and len(set(seen)) > 1
        return is_long and len(constant_columns(self.X)) < len(self.names)

    def fit(self, config: StreamConfig, y: Tensor) -> OnlineModel:
        """A model fitted to these rows; only their names are needed afterwards."""
        return OnlineModel(config, [str(name) for name in self.names]).fit(self.X, y)

    @property
    def X(self) -> Tensor:
        """The rows as a matrix (N, D), NaN where a feature was missing."""
        return matrix_of(self.rows, self.names)


def matrix_of(rows: Sequence[Row], names: Sequence[Hashable]) -> Tensor:
    """Rows as a matrix (N, D) with NaN for features that are missing from a row."""
    for row in rows:
        check_made("x", row, Mapping, "{'load': 0.3, 'hour': 14}")
    values = [[_number(name, row.get(name)) for name in names] for row in rows]
    return torch.tensor(values, dtype=torch.float64, device="cpu").reshape(len(rows), len(names))


def _number(name: Hashable, value: Any) -> float:
    try:
        return math.nan if _is_missing(value) else float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"feature {name} is {value!r}, not a number; encode it before this model, for instance by "
            f"river.preprocessing.OneHotEncoder in a pipeline"
        ) from None


def rows_of(X: "pd.DataFrame") -> Iterator[dict[Hashable, Any]]:
    columns = list(X.columns)
    return (dict(zip(columns, values, strict=True)) for values in X.itertuples(index=False, name=None))


def _codes(labels: Sequence[Label | None], known: Sequence[Label]) -> Tensor:
    """Indices of labels in the model's order; NaN for missing labels and those unknown to the model."""
    places: dict[Any, float] = {label: float(place) for place, label in enumerate(known)}
    return _column([math.nan if _is_missing(label) else places.get(label, math.nan) for label in labels])


def _column(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64, device="cpu")


def _is_missing(value: Any) -> bool:
    """Whether a cell is ``None``, NaN, or a missing value of pandas or numpy."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    differs = value != value
    return isinstance(differs, bool | np.bool_) and bool(differs)


def _is_too_large(value: Any) -> bool:
    """Whether a target is a number whose square overflows."""
    return isinstance(value, float) and abs(value) > LARGEST


def target_of(y: Any) -> float:
    try:
        return math.nan if _is_missing(y) else float(y)
    except (TypeError, ValueError):
        raise ValueError(f"the target is {y!r}, not a number; for labels use RiverClassifier") from None


def _sorted(labels: set[Any]) -> list[Any]:
    """Labels sorted by value if possible, else by name."""
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=repr)


__all__ = ["RiverClassifier", "RiverRegressor", "RowForecast"]
