"""Readable names of experts: the family that one belongs to, and how fast it adapts."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gp_ensembles.ensembles.expert_records import ExpertRecord
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.refitted import Refitted
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.wide import WideFeatures
from gp_ensembles.ensembles.windows import WindowGP

_FIXED, _LEVEL = "fixed weights", "random-walk level"
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
    "rbf kernel": ("Gaussian kernel", _FIXED),
    "lags": ("linear in past values", _FIXED),
    "previous value": ("previous value", _LEVEL),
    "value a season ago": ("value a season ago", _FIXED),
    "trend and season": ("level, trend and season", _LEVEL),
    "changing trend": ("level, changing trend and season", _LEVEL),
    "fast changing trend": ("level, fast changing trend and season", _LEVEL),
}
# By the type of a record: its kind if it has the default name, and how it adapts.
_RECORDS: dict[type[ExpertRecord], tuple[str, str]] = {
    WindowGP: ("window of {rows} rows", "last rows only"),
    Boosting: ("boosted trees", "refitted"),
    ExternalModel: ("external", "refitted"),
    ForecastColumns: ("forecasts of the table", "external"),
    Refitted: ("refitted features", "refitted"),
    WideFeatures: ("wide Fourier features", _FIXED),
}
_EXPERT = re.compile(r"(?P<base>.*?)(/(?P<static>static)|/dynamic (?P<variance>[^/]+))?(/\d+)?", re.DOTALL)


class Family(NamedTuple):
    """What experts have in common: what they are made of, and how they adapt."""

    kind: str
    speed: str


def families_of(names: Sequence[str], spec: EnsembleSpec | None = None) -> list[Family]:
    """The family of each expert of an ensemble, by its name in ``weights.csv`` and the records of a spec."""
    records = {} if spec is None else {record.name: _family_of_record(record) for record in spec.extra_experts}
    return [_family(name, records) for name in names]


def _family(name: str, records: Mapping[str, Family]) -> Family:
    found = _EXPERT.fullmatch(name)
    assert found is not None  # the pattern takes any text
    base, variance = found["base"], found["variance"]
    if base in records and not (found["static"] or variance):
        return records[base]
    kind, speed = _WHOLE.get(base) or (_kind(base), _FIXED)
    if variance:
        timing = "slow" if float(variance) < 3e-4 else "medium" if float(variance) < 3e-3 else "fast"
        speed = f"{timing} random walk"
    return Family(kind, speed)


def _kind(base: str) -> str:
    word, _, settings = base.removesuffix(" with lags").partition(" ")
    word = re.sub(r"^poly\d+$", "poly", word)
    if word not in _BASES or (settings and "=" not in settings):
        return base
    kind = _BASES[word] + (f" ({settings})" if settings else "")
    return kind + (" with past values" if base.endswith(" with lags") else "")


def _family_of_record(record: ExpertRecord) -> Family:
    """The family of an expert that is no basis with a transition; one that was given a name keeps it."""
    kind, speed = _RECORDS.get(type(record), (record.name, _FIXED))
    if record.name != type(record).name:
        kind = record.name
    return Family(kind.format(rows=f"{getattr(record, 'num_rows', 0):,}".replace(",", " ")), speed)
