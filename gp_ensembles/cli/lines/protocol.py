"""The protocol of lines: a row to predict, its target, or both."""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_LARGEST = 10**300
Identity = str | int | float  # whole numbers are whole: 7.0 is 7


class LineError(ValueError):
    """A line that cannot be used."""


class Line(NamedTuple):
    """The content of a line.

    Attributes:
        identity: The id of its row; ``None`` without one.
        record: Inputs by column, if it has any.
        target: The target as written; ``None`` without one.
        is_lost: Whether it says that the target of an earlier row will never arrive.
    """

    identity: Identity | None
    record: dict[str, Any]
    target: Any
    is_lost: bool = False


def read_line(text: str, target: str, identity: str, features: Sequence[str] | None = None) -> Line:
    """Read a line of JSON.

    Raises:
        LineError: If it is no JSON object, a value is no number, text or Boolean, or inputs and target are missing.
    """
    try:
        found = json.loads(text.lstrip("\ufeff"))
    except json.JSONDecodeError as error:
        raise LineError(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except ValueError:  # Python limits the number of digits
        raise LineError("not usable JSON: a number has thousands of digits") from None
    except RecursionError:
        raise LineError("not usable JSON: it is nested too deeply") from None
    if not isinstance(found, dict):
        raise LineError(f'not a JSON object such as {{"{identity}": 1, ...}}, but {type(found).__name__}')
    for name, value in found.items():
        if isinstance(value, list | dict):
            raise LineError(f"{name} is a {type(value).__name__}; values are numbers, text, true, false or null")
        if isinstance(value, int) and abs(value) > _LARGEST:
            raise LineError(f"{name} is a whole number beyond 1e300")
    own = found.pop(identity, None)
    if isinstance(own, bool):
        raise LineError(f"the {identity} is {own}; it must be a number or text")
    if isinstance(own, float):
        if not math.isfinite(own):
            raise LineError(f"the {identity} is {own}; it must be a number or text")
        own = int(own) if own.is_integer() else own
    has_target = target in found
    value = found.pop(target, None)
    record = found if features is None else {name: found[name] for name in features if name in found}
    if not record and (own is None or not has_target):
        raise LineError(f"neither inputs of a row nor an {identity} with a {target}")
    return Line(own, record, value, is_lost=not record and value is None)
