"""What was given where a record of a further expert or an external model is needed, and how it is wrapped."""

from gp_ensembles.ensembles.expert_records import ExpertRecord
from gp_ensembles.experts.adapters import as_adapter, spelled
from gp_ensembles.experts.model_adapter import ModelAdapter


def check_records(where: str, value: object) -> None:
    """Raise unless a value is a record of a further expert.

    Raises:
        TypeError: Saying how what was given becomes one.
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
    """Raise unless a value is an external model.

    Raises:
        TypeError: Saying how what was given becomes one.
    """
    if isinstance(value, ModelAdapter):
        return
    if isinstance(value, ExpertRecord):
        hint = f"; {type(value).__name__} stands in further by itself"
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
