"""Events of a run and families of its experts, under names for readers."""

import re

import torch

from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.engine.external_counts import ExternalCounts
from gp_ensembles.streaming.health import failures

_ANOMALIES = {
    "inputs_moved": "inputs far outside the range seen before, clipped",
    "targets_discounted": "targets far outside all predictions, down-weighted",
    "targets_left_out": "outliers among the warm-up targets, treated as missing",
    "inputs_imputed": "imputed inputs",
}
_WORDS = {
    "rff": "Fourier features",
    "hsgp": "Hilbert features",
    "rbf kernel": "Gaussian kernel",
    "rbf": "radial functions",
}


def new_history(scored: ScoredStream) -> RunHistory:
    """An empty history for the next rows of a stream."""
    name, families = scored.model.config.ensemble.name, [family_of(name) for name in scored.model.names]
    history = RunHistory(name, scored.target_name, families, scored.baselines.names, count_events(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def count_events(scored: ScoredStream) -> dict[str, int]:
    """Event counts of a stream: every field of ``AnomalyCounts``, bad rows, failures, external models."""
    counts = {_ANOMALIES[name]: int(number) for name, number in scored.anomaly_counts._asdict().items()}
    counts["rows with an infinite or implausibly large number"] = scored.bad_rows.num_rows
    counts["experts quarantined after a failure"] = sum(failure.times for failure in failures(scored.newest))
    activated = [column.activated_at > 0 for column in scored.newest.columns]
    counts["inputs constant during warm-up that have varied since"] = sum(activated)
    online = scored.newest.online
    assert online is not None
    if online.state.external_models is not None:
        absent = ExternalCounts(*online.state.external_models).num_absent.tolist()
        for place, number in zip(online.ensemble.layers.external_models, absent, strict=True):
            counts[f"rows without a prediction of {online.ensemble.expert_names[place]}"] = int(number)
    return counts


def family_of(name: str) -> str:
    """Family of an expert: its name in ``weights.csv`` without numbers, in words."""
    base, _, variance = re.sub(r"(/static)?(/\d+)?$", "", name).partition("/dynamic ")
    base = re.sub("^(rff|hsgp|rbf kernel|rbf)\\b", lambda found: _WORDS[found[0]], base)
    if not variance:
        return base
    return f"{base}, {'slow' if float(variance) < 3e-4 else 'medium' if float(variance) < 3e-3 else 'fast'} random walk"
