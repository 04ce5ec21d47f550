"""Checks of the fields of ensemble records; messages name the record, the field and the allowed values."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from numbers import Integral, Real
from typing import Any, TypeGuard

from gp_ensembles.filters.sites import LatentUpdate
from gp_ensembles.numerics.arguments import describe_argument

_SMOOTHNESS = (0.5, 1.5, 2.5, math.inf)
_MOST_FEATURES = 100_000  # the state of an expert has the square of their number


def check_count(
    record: object, field: str, value: object, *, even: bool = False, least: int = 1, most: int | None = None
) -> None:
    """Raise unless a size is a whole number from ``least`` to ``most``, and even (and at least two) if asked for."""
    where = f"{field} of {type(record).__name__}"
    if not _is_whole(value):
        raise TypeError(f"{where} must be a whole number, got {value!r}")
    least = max(least, 2) if even else least
    if value < least or (even and value % 2):
        raise ValueError(f"{where} must be {'an even number of ' if even else ''}at least {least}, got {value}")
    if most is not None and value > most:
        raise ValueError(f"{where} must be at most {most}, got {value}")


def check_smoothness(record: object, field: str, value: object) -> None:
    """Raise unless the smoothness is that of a Matern kernel with a closed form, or infinite."""
    where = f"{field} of {type(record).__name__}"
    if not _is_number(value):
        raise TypeError(f"{where} must be a number, got {value!r}")
    if float(value) not in _SMOOTHNESS:
        raise ValueError(f"{where} must be 0.5, 1.5 or 2.5 (Matern) or infinity (RBF), got {value}")


def check_numbers(
    record: object, field: str, value: object, *, example: str, whole: bool = False, distinct: bool = True
) -> None:
    """Raise unless a field is a tuple of positive numbers, at least one."""
    where, is_legal = f"{field} of {type(record).__name__}", _is_whole if whole else _is_number
    if not isinstance(value, tuple) or not all(map(is_legal, value)):
        raise TypeError(f"{where} must be a tuple of {'whole ' * whole}numbers such as {example}, got {value!r}")
    if not value or not all(0.0 < v < math.inf for v in value) or (distinct and len(set(value)) < len(value)):
        kind = "whole numbers of at least 1" if whole else "positive numbers"
        raise ValueError(f"{where} must be {'distinct ' * distinct}{kind}, at least one, got {value}")


def check_name(record: object, field: str, name: object) -> None:
    """Raise unless a name is ``None`` or a string without a slash, which separates the parts of experts' names."""
    where = f"{field} of {type(record).__name__}"
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{where} must be a string, got {name!r}")
    if not name.strip() or "/" in name:
        raise ValueError(f"{where} must not be blank and must not contain '/', got {name!r}")


def check_flag(record: object, field: str, value: object) -> None:
    """Raise unless a field is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{field} of {type(record).__name__} must be True or False, got {value!r}")


def check_latent_update(record: object, field: str, value: object) -> None:
    """Raise unless the latent update is ``None`` or a :class:`LatentUpdate`."""
    if value is not None and not isinstance(value, LatentUpdate):
        raise TypeError(
            f"{field} of {type(record).__name__} must be an object such as LaplaceUpdate() or "
            f"MomentMatchingUpdate(), or None for the default, got {describe_argument(value)}"
        )


def check_positive(record: object, field: str, value: object, *, most: float = math.inf) -> None:
    """Raise unless a field is a finite positive number, not above ``most``."""
    where = f"{field} of {type(record).__name__}"
    if not _is_number(value):
        raise TypeError(f"{where} must be a number, got {value!r}")
    if not (0 < value < math.inf and value <= most):
        limit = "finite" if most == math.inf else f"at most {most:g}"
        raise ValueError(f"{where} must be positive and {limit}, got {value}")


_CHECKS: Mapping[str, Callable[[object, str, object], None]] = {
    "num_features": partial(check_count, even=True, most=_MOST_FEATURES),
    **dict.fromkeys(("num_frequencies", "num_centers", "num_intervals"), partial(check_count, most=_MOST_FEATURES)),
    **dict.fromkeys(("num_rows", "num_trees", "num_outputs", "every", "refit_every"), check_count),
    **dict.fromkeys(("num_classes", "num_levels"), partial(check_count, least=2)),
    **dict.fromkeys(("learning_rate", "noise_discount"), partial(check_positive, most=1.0)),
    **dict.fromkeys(("threshold", "price"), check_positive),
    **dict.fromkeys(("lags", "train_centers", "is_probit"), check_flag),
    "nu": check_smoothness,
    "starts": partial(check_numbers, example="(0.2, 0.7)", distinct=False),
    "noises": partial(check_numbers, example="(0.01, 0.1)"),
    "orders": partial(check_numbers, example="(2, 3)", whole=True),
    "name": check_name,
    "latent_update": check_latent_update,
}


def check_fields(record: Any) -> None:
    """Raise unless the fields of a record are legal: each by its name, which means the same in all records.

    ``None`` is legal where it is the default.
    """
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name in _CHECKS and not (value is None and field.default is None):
            _CHECKS[field.name](record, field.name, value)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)
