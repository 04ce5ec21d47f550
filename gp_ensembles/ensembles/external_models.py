"""Records of external models as experts: boosted trees, models of other libraries, forecasts in the table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor

from gp_ensembles.ensembles.build import NamedExpert
from gp_ensembles.ensembles.extra_experts import ExpertRecord, WarmUp, check_adapter
from gp_ensembles.ensembles.spec_checks import check_fields
from gp_ensembles.experts.adapters import LAST_ERRORS, ColumnsAdapter, ModelAdapter, check_levels
from gp_ensembles.experts.classifiers import boosted_classes
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.external_row import HistogramBoosting
from gp_ensembles.features.linear import InputFeatures

_FIRST, _RENEWED = 10, 50  # rows until the size of errors of forecasts is first computed, and between updates of it
_TRAININGS = 4  # the first is after a quarter of the warm-up rows, so that errors are known at their end


@final
@dataclass(frozen=True)
class Boosting(ExpertRecord):
    """Histogram gradient boosting, retrained as rows come: best where the function has steps.

    A second model learns the scale of the errors, see :class:`~gp_ensembles.experts.external_row.HistogramBoosting`.
    Probabilities of classes are calibrated, see :class:`~gp_ensembles.experts.classifiers.ClassifierAdapter`. All are
    trained after a quarter, a half and all of the warm-up rows, and so on, see
    :class:`~gp_ensembles.experts.external.ExternalExpert`.

    Attributes:
        num_trees: Trees for the mean.
        learning_rate: Shrinkage of each tree.
        every: Most rows between trainings.
        num_rows: Most rows that it is trained on, the last ones.
        lags: Whether its inputs include past targets, if the ensemble has any.
        name: Name of the expert.

    Raises:
        TypeError: If a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.rand(300, 2, generator=generator, dtype=torch.float64)
        >>> y = (X > 0.5).double().sum(-1) - 1
        >>> online = replace(oebe, bases=(LinearBasis(),), extra_experts=(Boosting(),)).fit(X, y)
        >>> predictions = online.observe(X, y)
        >>> online.names[int(online.log_weights.argmax())]
        'boosting/0'
    """

    for_classes = True
    num_trees: int = 80
    learning_rate: float = 0.125
    every: int = 2000
    num_rows: int = 20_000
    lags: bool = True
    name: str = "boosting"

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        adapter: ModelAdapter = HistogramBoosting(self.num_trees, self.learning_rate)
        if warm_up.class_likelihood is not None:
            adapter = boosted_classes(self.num_trees, self.learning_rate)
        return [(self.name, _external(adapter, warm_up, self))]


@final
@dataclass(frozen=True)
class ExternalModel(ExpertRecord):
    """Your own model as an expert, retrained like :class:`Boosting`.

    Files cannot contain this record: save a model with it by pickling; the external model is then trained again.

    Attributes:
        adapter: The model, such as a :class:`~gp_ensembles.experts.adapters.RegressorAdapter`.
        every: Most rows between trainings.
        num_rows: Most rows that it is trained on, the last ones.
        lags: Whether its inputs include past targets, if the ensemble has any.
        name: Name of the expert.

    Raises:
        TypeError: If the adapter is not a :class:`ModelAdapter`, or a field is not a number.
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from sklearn.neighbors import KNeighborsRegressor
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.experts.adapters import RegressorAdapter
        >>> neighbors = ExternalModel(RegressorAdapter(KNeighborsRegressor()), every=100)
        >>> generator = torch.Generator().manual_seed(0)
        >>> X = torch.rand(300, 2, generator=generator, dtype=torch.float64)
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(neighbors,))
        >>> spec.fit(X, (9 * X[:, 0]).sin()).ensemble.expert_names[-1]
        'external/0'
    """

    for_classes = True
    adapter: ModelAdapter
    every: int = 1000
    num_rows: int = 20_000
    lags: bool = True
    name: str = "external"

    def __post_init__(self) -> None:
        check_fields(self)
        check_adapter(self.adapter)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        return [(self.name, _external(self.adapter, warm_up, self))]


@final
@dataclass(frozen=True)
class ForecastColumns(ExpertRecord):
    """Columns of forecasts in the table as an expert: of a weather model, a model run elsewhere, or a person.

    They are in the target's units, and no other expert sees them. The expert is absent from rows with NaN. The standard
    deviation of a mean alone is the root mean square of its last 500 errors, updated every 50 rows.

    Attributes:
        columns: Names of the columns: one of means; or several, of quantiles at ``levels``, or else of draws (the
            members of an ensemble forecast).
        deviation: Name of a column of standard deviations for one column of means.
        levels: Probabilities of the quantiles.
        name: Name of the expert.

    Raises:
        TypeError: If a name is not a string.
        ValueError: If there is no column, one appears twice, or their number is not that of the levels.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from gp_ensembles.ensembles.bases import LinearBasis
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> from gp_ensembles.streaming import OnlineModel, StreamConfig
        >>> spec = replace(oebe, bases=(LinearBasis(),), extra_experts=(ForecastColumns("nwp"),))
        >>> generator = torch.Generator().manual_seed(0)
        >>> table = torch.rand(100, 2, generator=generator, dtype=torch.float64)
        >>> model = OnlineModel(StreamConfig(spec, warmup=40), feature_names=["humidity", "nwp"])
        >>> predictions = model.observe(table, table[:, 1] ** 2)
        >>> model.used_features, model.external_models[0].name
        (('humidity',), 'forecast/0')
    """

    columns: tuple[str, ...]
    deviation: str | None = None
    levels: tuple[float, ...] = ()
    name: str = "forecast"

    def __post_init__(self) -> None:
        check_fields(self)
        given: object = self.columns
        columns = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "levels", tuple(float(level) for level in self.levels))
        for column in self.all_columns:
            if not isinstance(column, str):
                raise TypeError(f"columns of ForecastColumns must be names such as 'nwp', got {column!r}")
        if not columns or len(set(self.all_columns)) < len(self.all_columns):
            raise ValueError(f"ForecastColumns needs distinct columns, at least one, got {list(self.all_columns)}")
        if self.deviation is not None and len(columns) > 1:
            raise ValueError(f"a column of deviations needs exactly one column of means, got {list(columns)}")
        check_levels(self.levels)
        if self.levels and len(self.levels) != len(columns):
            raise ValueError(f"{len(columns)} columns of ForecastColumns need as many levels, got {len(self.levels)}")

    @property
    def all_columns(self) -> tuple[str, ...]:
        """Names of all its columns, the deviation last."""
        return self.columns if self.deviation is None else (*self.columns, self.deviation)

    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        places = [warm_up.forecasts[name] for name in self.all_columns]
        features = InputFeatures(len(places), warm_up.X.new_ones(()))
        adapter = ColumnsAdapter(self.levels, self.deviation is not None)
        return [(self.name, ExternalExpert(adapter, features, _FIRST, _RENEWED, LAST_ERRORS, places))]


def _external(adapter: ModelAdapter, warm_up: WarmUp, record: Boosting | ExternalModel) -> ExternalExpert:
    """An expert on the inputs, and on past targets if its record says so."""
    X = warm_up.seen(record.lags)
    features = warm_up.on_all(InputFeatures(X.shape[1], X.new_ones(())))
    counts = -(-X.shape[0] // _TRAININGS), record.every, record.num_rows
    return ExternalExpert(adapter, features, *counts, likelihood=warm_up.class_likelihood)


def without_forecasts(X: Tensor, forecasts: Sequence[str]) -> Tensor:
    """The inputs of rows (N, D + F) whose last F columns are forecasts."""
    if X.ndim != 2 or X.shape[1] <= len(forecasts):
        raise ValueError(f"X must have inputs followed by the forecasts {list(forecasts)}, got {tuple(X.shape)}")
    return X[:, : -len(forecasts)]
