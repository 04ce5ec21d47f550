"""Readable names: which family an expert belongs to, and how fast it adapts, from its name in tables and files."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from gp_ensembles.ensembles.further import FurtherExpert
from gp_ensembles.ensembles.guests import Boosting, ForecastColumns, GuestModel
from gp_ensembles.ensembles.refitted import Refitted
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.wide import WideFeatures
from gp_ensembles.ensembles.windows import WindowGP

FIXED, WALKING_LEVEL = "fixed weights", "walking level"
# Kinds by the first word of a basis' name; what follows it are settings that are not the default ones.
_BASES = {
    "rff": "Fourier features",
    "hsgp": "Hilbert features",
    "rbf": "radial functions",
    "linear": "linear",
    "spline": "splines",
    "poly": "polynomials",
}
_WHOLE = {
    "rbf kernel": ("Gaussian kernel", None),
    "lags": ("linear in past values", None),
    "previous value": ("previous value", WALKING_LEVEL),
    "value a season ago": ("value a season ago", FIXED),
    "trend and season": ("level, trend and season", WALKING_LEVEL),
    "changing trend": ("level, changing trend and season", WALKING_LEVEL),
    "fast changing trend": ("level, fast changing trend and season", WALKING_LEVEL),
}
_EXPERT = re.compile(r"(?P<base>.*?)(?P<speed>/static|/dynamic [^/]+)?(/\d+)?", re.DOTALL)
_POLYNOMIAL = re.compile(r"poly\d+")
_LAGS = " with lags"


class Family(NamedTuple):
    """What experts have in common.

    Attributes:
        kind: What they are made of.
        speed: How they adapt.
    """

    kind: str
    speed: str


def families_of(names: Sequence[str], spec: EnsembleSpec | None = None) -> list[Family]:
    """The family of each expert of an ensemble.

    Args:
        names: Names of the experts as in ``weights.csv``.
        spec: What the ensemble was built from, which knows the length of windows and the names of guests.

    Example:
        >>> from gp_ensembles.ensembles.presets import auto
        >>> for family in families_of(["hsgp/static/0", "rff with lags/dynamic 0.01/0", "window/0", "my own/0"], auto):
        ...     print(", ".join(family))
        Hilbert features, fixed weights
        Fourier features with past values, fast walk
        window of 1 250 rows, last rows only
        my own, fixed weights
    """
    further = {} if spec is None else {record.name: _further(record) for record in spec.further}
    return [_family(name, further) for name in names]


def _family(name: str, further: dict[str, Family]) -> Family:
    found = _EXPERT.fullmatch(name)
    assert found is not None  # the pattern takes any text
    base, speed = found["base"], found["speed"]
    if base in further and speed is None:
        return further[base]
    kind, own = _kind(base)
    if speed is None or speed == "/static":
        return Family(kind, own or FIXED)
    return Family(kind, _walk(float(speed.removeprefix("/dynamic "))))


def _kind(base: str) -> tuple[str, str | None]:
    if base in _WHOLE:
        return _WHOLE[base]
    plain = base.removesuffix(_LAGS)
    word, _, settings = plain.partition(" ")
    word = "poly" if _POLYNOMIAL.fullmatch(word) else word
    if word not in _BASES or (settings and "=" not in settings):
        return base, None
    kind = _BASES[word] + (f" ({settings})" if settings else "")
    return kind + (" with past values" if base.endswith(_LAGS) else ""), None


def _walk(variance: float) -> str:
    """How fast weights walk, whose steps add this variance to a standardized function.

    Example:
        >>> [_walk(variance) for variance in (1e-4, 1e-3, 1e-2)]
        ['slow walk', 'medium walk', 'fast walk']
    """
    return "slow walk" if variance < 3e-4 else "medium walk" if variance < 3e-3 else "fast walk"


def _further(record: FurtherExpert) -> Family:
    """The family of an expert that is no basis with a transition; one that was given a name keeps it."""
    if isinstance(record, WindowGP):
        rows = f"{record.num_rows:,}".replace(",", " ")
        return Family(f"window of {rows} rows" if record.name == "window" else record.name, "last rows only")
    if isinstance(record, Boosting):
        return Family("boosted trees" if record.name == "boosting" else record.name, "trained anew")
    if isinstance(record, GuestModel):
        return Family(record.name, "trained anew")
    if isinstance(record, ForecastColumns):
        return Family("forecasts of the table" if record.name == "forecast" else record.name, "from outside")
    if isinstance(record, Refitted):
        return Family("refitted features" if record.name == "refitted" else record.name, "fitted anew")
    if isinstance(record, WideFeatures):
        return Family("wide Fourier features" if record.name == "wide" else record.name, FIXED)
    return Family(record.name, FIXED)
