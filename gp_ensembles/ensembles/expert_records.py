"""Base class of records of extra experts: what to build from the warm-up rows, and what is refused in its place."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.ensembles.build import FitSettings, NamedExpert
from gp_ensembles.experts.adapters import as_adapter, spelled
from gp_ensembles.experts.model_adapter import ModelAdapter


class WarmUp(NamedTuple):
    """The warm-up rows, and how experts are fitted to them.

    Attributes:
        X: Inputs, standardized, shape (N, D).
        y: Targets, standardized, shape (N,); NaN where missing.
        inputs: Inputs of all experts, :attr:`X` followed by past targets, shape (N, D + P).
        fit: How hyperparameters are found.
        generator: Source of randomness.
        progress: Whether to show progress bars.
        forecasts: Column numbers of the forecasts in the rows of the ensemble, by name.
    """

    X: Tensor
    y: Tensor
    inputs: Tensor
    fit: FitSettings
    generator: torch.Generator | None = None
    progress: bool = False
    forecasts: Mapping[str, int] = MappingProxyType({})


class ExpertRecord(ABC):
    """Record of extra experts to build from warm-up rows, for targets of one real number.

    They have no copies on random walks.
    """

    name: str

    @abstractmethod
    def build(self, warm_up: WarmUp) -> list[NamedExpert]:
        """Fitted experts before any data, and their names, which begin with :attr:`name`.

        Raises:
            NumericalError: If an evidence cannot be computed at the starting hyperparameters.
        """


def warn_of_columns(name: str, num_columns: int, num_rows: int) -> None:
    """Warn that an exact Gaussian process of fewer rows than columns is omitted: its length scales are undetermined."""
    warnings.warn(
        f"the expert {name!r} is left out: its {num_rows} rows are fewer than its {num_columns} columns, including "
        f"past targets; give it more rows, or leave out columns",
        UserWarning,
        stacklevel=6,
    )


def check_records(where: str, value: object) -> None:
    """Raise unless a value is a record of an extra expert.

    Raises:
        TypeError: Saying how to make one from the value.
    """
    if isinstance(value, ExpertRecord):
        return
    if isinstance(value, str):
        hint = f"; for a column of forecasts use ForecastColumns({value!r})"
    elif isinstance(value, type) and issubclass(value, ExpertRecord):
        hint = f"; call it, {value.__name__}(...)"
    else:
        adapter = as_adapter(value)
        hint = "" if adapter is None else f"; use ExternalModel({adapter})"
    raise TypeError(f"{where} must be a record such as WindowGP(), got {_given(value)}{hint}")


def check_adapter(value: object) -> None:
    """Raise unless a value is an adapter of an external model.

    Raises:
        TypeError: Saying how to make one from the value.
    """
    if isinstance(value, ModelAdapter):
        return
    if isinstance(value, ExpertRecord):
        hint = f"; {type(value).__name__} goes into extra_experts directly"
    else:
        adapter = as_adapter(value)
        hint = "" if adapter is None else f"; use ExternalModel({adapter})"
    raise TypeError(
        f"adapter of ExternalModel must be such as RegressorAdapter(KNeighborsRegressor()), got {_given(value)}{hint}"
    )


def _given(value: object) -> str:
    if isinstance(value, str | int | float | None):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else spelled(value)
