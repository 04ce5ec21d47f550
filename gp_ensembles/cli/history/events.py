"""Events of a run: what was done to its rows and experts, as counts that a history follows, and their names."""

import torch

from gp_ensembles.cli.history.families import families_of
from gp_ensembles.cli.history.record import EventCounts, RunHistory
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.filters.states import ExternalState, RefittedState, WindowState
from gp_ensembles.streaming.health import failures

# A count that is not here is called by its name.
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
    """An empty history for what a stream is going to predict."""
    spec = scored.model.config.ensemble
    families = families_of(scored.model.names, spec)
    history = RunHistory(spec.name, scored.target_name, families, scored.baselines.names, count_events(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def count_events(scored: ScoredStream) -> EventCounts:
    """Events since the stream began: every field of ``AnomalyCounts``, bad rows, failures, external models."""
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
    """What readers call a kind of event."""
    if kind.startswith("absent "):
        return f"rows without a prediction of {kind.removeprefix('absent ')}"
    if kind.startswith("refit "):
        return f"{kind.removeprefix('refit ')} refitted"
    return _TITLES.get(kind, kind.replace("_", " "))


def _base(name: str) -> str:
    """Name of an expert object from that of one of its experts."""
    return name.rpartition("/")[0] or name
