"""Checks of the fields of ensemble records; messages name the record, the field and the allowed values."""

import math
from numbers import Integral, Real
from typing import TypeGuard

from gp_ensembles.engine.input_checks import describe_argument
from gp_ensembles.filters.sites import LatentUpdate

_SMOOTHNESS = (0.5, 1.5, 2.5, math.inf)


MOST_FEATURES = 100_000  # the state of an expert has the square of their number


def check_count(
    record: object, field: str, value: object, *, even: bool = False, least: int = 1, most: int | None = None
) -> None:
    """Raise unless a size is a whole number from ``least`` to ``most``, and even (and at least two) if asked for.

    Raises:
        TypeError: If it is not a whole number.
        ValueError: If it is too small, too large or odd.
    """
    where = f"{field} of {type(record).__name__}"
    if not _is_whole(value):
        raise TypeError(f"{where} must be a whole number, got {value!r}")
    least = max(least, 2) if even else least
    if value < least or (even and value % 2):
        raise ValueError(f"{where} must be {'an even number of ' if even else ''}at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{where} must be at most {most}, got {value}")


def check_smoothness(record: object, nu: object) -> None:
    """Raise unless the smoothness is that of a Matern kernel with a closed form, or infinite.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is another number.
    """
    where = f"nu of {type(record).__name__}"
    if not _is_number(nu):
        raise TypeError(f"{where} must be a number, got {nu!r}")
    if float(nu) not in _SMOOTHNESS:
        raise ValueError(f"{where} must be 0.5, 1.5 or 2.5 (Matern) or infinity (RBF), got {nu}")


def check_starts(record: object, starts: object) -> None:
    """Raise unless the starting length scales are a tuple of positive numbers, at least one.

    Raises:
        TypeError: If it is not a tuple of numbers.
        ValueError: If it is empty, or an entry is not positive and finite.
    """
    where = f"starts of {type(record).__name__}"
    if not isinstance(starts, tuple) or not all(_is_number(start) for start in starts):
        raise TypeError(f"{where} must be a tuple of numbers such as (0.2, 0.7), got {starts!r}")
    if not starts or not all(0.0 < start < math.inf for start in starts):
        raise ValueError(f"{where} must be positive numbers, at least one, got {starts}")


def check_variances(record: object, field: str, variances: object) -> None:
    """Raise unless a field is a tuple of distinct positive numbers, at least one.

    Raises:
        TypeError: If it is not a tuple of numbers.
        ValueError: If it is empty, or an entry is not positive and finite, or two are equal.
    """
    where = f"{field} of {type(record).__name__}"
    if not isinstance(variances, tuple) or not all(_is_number(variance) for variance in variances):
        raise TypeError(f"{where} must be a tuple of numbers such as (0.01, 0.1), got {variances!r}")
    if not variances or not all(0.0 < v < math.inf for v in variances) or len(set(variances)) < len(variances):
        raise ValueError(f"{where} must be distinct positive numbers, at least one, got {variances}")


def check_orders(record: object, orders: object) -> None:
    """Raise unless the orders are a tuple of distinct whole numbers of at least one.

    Raises:
        TypeError: If it is not a tuple of whole numbers.
        ValueError: If it is empty, an order is below one, or two are equal.
    """
    where = f"orders of {type(record).__name__}"
    if not isinstance(orders, tuple) or not all(_is_whole(order) for order in orders):
        raise TypeError(f"{where} must be a tuple of whole numbers such as (2, 3), got {orders!r}")
    if not orders or min(orders) < 1 or len(set(orders)) < len(orders):
        raise ValueError(f"{where} must be distinct whole numbers of at least 1, at least one, got {orders}")


def check_name(record: object, name: object) -> None:
    """Raise unless a name is ``None`` or a string without a slash, which separates the parts of experts' names.

    Raises:
        TypeError: If it is not a string.
        ValueError: If it is blank or holds a slash.
    """
    where = f"name of {type(record).__name__}"
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{where} must be a string, got {name!r}")
    if not name.strip() or "/" in name:
        raise ValueError(f"{where} must not be blank and must not contain '/', got {name!r}")


def check_flag(record: object, field: str, value: object) -> None:
    """Raise unless a field is True or False.

    Raises:
        TypeError: If it is anything else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{field} of {type(record).__name__} must be True or False, got {value!r}")


def check_latent_update(record: object, value: object) -> None:
    """Raise unless the latent update is ``None`` or a :class:`LatentUpdate`.

    Raises:
        TypeError: If it is anything else, such as a name or a class.
    """
    if value is not None and not isinstance(value, LatentUpdate):
        raise TypeError(
            f"latent_update of {type(record).__name__} must be an object such as LaplaceUpdate() or "
            f"MomentMatchingUpdate(), or None for the default, got {describe_argument(value)}"
        )


def check_positive(record: object, field: str, value: object, *, most: float = math.inf) -> None:
    """Raise unless a field is a finite positive number, not above ``most``.

    Raises:
        TypeError: If it is not a number.
        ValueError: If it is out of range.
    """
    where = f"{field} of {type(record).__name__}"
    if not _is_number(value):
        raise TypeError(f"{where} must be a number, got {value!r}")
    if not (0 < value < math.inf and value <= most):
        limit = "finite" if most == math.inf else f"at most {most:g}"
        raise ValueError(f"{where} must be positive and {limit}, got {value}")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)
