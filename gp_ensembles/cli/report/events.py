"""Events of a run and families of its experts, under names for readers."""

import re
from collections.abc import Mapping, Sequence

import torch

from gp_ensembles.cli.report.history import EventCounts, Family, RunHistory
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.ensembles.expert_records import ExpertRecord
from gp_ensembles.ensembles.external_models import Boosting, ExternalModel, ForecastColumns
from gp_ensembles.ensembles.refitted import Refitted
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.ensembles.wide import WideFeatures
from gp_ensembles.ensembles.windows import WindowGP
from gp_ensembles.filters.states import ExternalState, RefittedState, WindowState
from gp_ensembles.streaming.health import failures

# A count without a title has its own name.
_TITLES = {
    "inputs_moved": "inputs far outside the range seen before, clipped",
    "targets_discounted": "targets far outside all predictions, down-weighted",
    "targets_left_out": "outliers among the warm-up targets, treated as missing",
    "inputs_imputed": "imputed inputs",
    "inputs_activated": "inputs constant during warm-up that have varied since",
    "experts_failed": "experts quarantined after a failure",
    "bad_rows": "rows with an infinite or implausibly large number",
}


def new_history(scored: ScoredStream) -> RunHistory:
    """An empty history for the next rows of a stream."""
    spec = scored.model.config.ensemble
    families = families_of(scored.model.names, spec)
    history = RunHistory(spec.name, scored.target_name, families, scored.baselines.names, count_events(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def count_events(scored: ScoredStream) -> EventCounts:
    """Event counts of a stream: every field of ``AnomalyCounts``, bad rows, failures, external models."""
    counts = {name: int(number) for name, number in scored.anomaly_counts._asdict().items()}
    counts["bad_rows"] = scored.bad_rows.num_rows
    counts["experts_failed"] = sum(failure.times for failure in failures(scored.newest))
    counts["inputs_activated"] = sum(column.activated_at > 0 for column in scored.newest.columns)
    online = scored.newest.online
    assert online is not None
    ensemble, state = online.ensemble, online.state
    if state.external_models is not None:
        absent = ExternalCounts(*state.external_models).num_absent.tolist()
        for place, number in zip(ensemble.layers.external_models, absent, strict=True):
            counts[f"absent {_base(ensemble.expert_names[place])}"] = int(number)
    due, start = {}, 0
    for expert, part in zip(ensemble.experts, state.experts, strict=True):
        if isinstance(part, ExternalState | RefittedState | WindowState):
            row = int(part.due.max()) if part.due.numel() else 0
            if 0 < row < 2**62:
                due[_base(ensemble.expert_names[start])] = row
        start += expert.num_experts
    return EventCounts(counts, due)


def title_of(kind: str) -> str:
    """Title of a kind of event."""
    if kind.startswith("absent "):
        return f"rows without a prediction of {kind.removeprefix('absent ')}"
    if kind.startswith("refit "):
        return f"{kind.removeprefix('refit ')} refitted"
    return _TITLES.get(kind, kind.replace("_", " "))


def _base(name: str) -> str:
    """Name of an expert object from that of one of its experts."""
    return name.rpartition("/")[0] or name


_FIXED, _LEVEL = "fixed weights", "random-walk level"
# Kinds by the first word of a basis' name; non-default settings follow it.
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


def families_of(names: Sequence[str], spec: EnsembleSpec | None = None) -> list[Family]:
    """The family of each expert of an ensemble, by its name in ``weights.csv`` and the records of a spec."""
    records = {} if spec is None else {record.name: _family_of_record(record) for record in spec.extra_experts}
    return [_family(name, records) for name in names]


def _family(name: str, records: Mapping[str, Family]) -> Family:
    found = _EXPERT.fullmatch(name)
    assert found is not None  # the pattern matches any text
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
    """The family of an expert record; a given name is kept."""
    kind, speed = _RECORDS.get(type(record), (record.name, _FIXED))
    if record.name != type(record).name:
        kind = record.name
    return Family(kind.format(rows=f"{getattr(record, 'num_rows', 0):,}".replace(",", " ")), speed)
