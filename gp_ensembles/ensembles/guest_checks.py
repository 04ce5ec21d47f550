"""What was given where a record of a further expert or a guest is needed, and how it is wrapped."""

from gp_ensembles.ensembles.further import FurtherExpert
from gp_ensembles.experts.guest import Guest
from gp_ensembles.experts.wrapping import as_guest, spelled


def check_further(where: str, value: object) -> None:
    """Raise unless a value is a record of a further expert.

    Args:
        where: What the value is called.
        value: What was given.

    Raises:
        TypeError: Saying how what was given becomes one.

    Example:
        >>> from gp_ensembles.experts.boosting import HistogramBoosting
        >>> check_further("further[0]", HistogramBoosting())
        Traceback (most recent call last):
        TypeError: further[0] must be a record such as WindowGP(), got HistogramBoosting(...); use
        GuestModel(HistogramBoosting(...))
    """
    if isinstance(value, FurtherExpert):
        return
    if isinstance(value, str):
        hint = f"; for a column of forecasts use ForecastColumns({value!r})"
    elif isinstance(value, type) and issubclass(value, FurtherExpert):
        hint = f"; call it, {value.__name__}(...)"
    else:
        guest = as_guest(value)
        hint = "" if guest is None else f"; use GuestModel({guest})"
    raise TypeError(f"{where} must be a record such as WindowGP(), got {_given(value)}{hint}")


def check_guest(value: object) -> None:
    """Raise unless a value is a guest.

    Raises:
        TypeError: Saying how what was given becomes one.

    Example:
        >>> check_guest(len)
        Traceback (most recent call last):
        TypeError: guest of GuestModel must be a guest such as RegressorGuest(KNeighborsRegressor()), got len; use
        GuestModel(FunctionGuest(len))
    """
    if isinstance(value, Guest):
        return
    if isinstance(value, FurtherExpert):
        hint = f"; {type(value).__name__} stands in further by itself"
    else:
        guest = as_guest(value)
        hint = "" if guest is None else f"; use GuestModel({guest})"
    raise TypeError(
        f"guest of GuestModel must be a guest such as RegressorGuest(KNeighborsRegressor()), got {_given(value)}{hint}"
    )


def _given(value: object) -> str:
    if isinstance(value, str | int | float | None):
        return repr(value)
    return f"the class {value.__name__}" if isinstance(value, type) else spelled(value)
