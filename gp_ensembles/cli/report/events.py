"""What has happened to the rows and the experts of a run so far, as plain counts that a history can follow."""

from typing import NamedTuple

import torch

from gp_ensembles.cli.report.families import families_of
from gp_ensembles.cli.report.history import Happened, RunHistory
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.ensembles.guest_tally import GuestTally
from gp_ensembles.filters.states import ExternalState, RefittedState, WindowState
from gp_ensembles.streaming.failures import failures

# What counts are called where people read them; a count that is not here is called by its name.
_TITLES = {
    "inputs_moved": "inputs far beyond all seen before, moved into reach",
    "targets_discounted": "targets far outside all predictions, which counted less",
    "targets_left_out": "wild targets of the warm-up, taken for missing",
    "inputs_imputed": "missing inputs for which something stood in",
    "inputs_woken": "inputs that were constant in the warm-up and have moved since",
    "experts_failed": "experts that failed and were kept out for a while",
    "bad_rows": "rows with a number out of all proportion",
}


class Kind(NamedTuple):
    """How a count is told.

    Attributes:
        title: What was counted.
        is_absence: Whether it counts rows that a model did not answer.
    """

    title: str
    is_absence: bool = False


def new_history(scored: ScoredStream) -> RunHistory:
    """An empty history for what a stream is going to predict."""
    model = scored.model
    spec = model.config.ensemble
    families = families_of(model.names, spec)
    history = RunHistory(spec.name, scored.target_name, families, scored.baselines.names, happened(scored))
    history.first_row = scored.num_read + 1
    return history


@torch.no_grad()
def happened(scored: ScoredStream) -> Happened:
    """What has happened since the stream began: counts by kind, and when experts are refitted next.

    Every field of :class:`~gp_ensembles.streaming.notable.Notable` is a kind, and so are the rows that ``bad_rows``
    counts, and the rows that each model from outside did not answer.
    """
    counts = {name: int(number) for name, number in scored.notable._asdict().items()}
    counts["bad_rows"] = scored.bad_rows.num_rows
    counts["experts_failed"] = sum(failure.times for failure in failures(scored.newest))
    counts["inputs_woken"] = sum(column.woke > 0 for column in scored.newest.columns)
    online = scored.newest.online
    assert online is not None
    ensemble, state = online.ensemble, online.state
    if state.guests is not None:
        absent = GuestTally(*state.guests).num_absent.tolist()
        for place, number in zip(ensemble.layers.guests, absent, strict=True):
            counts[f"absent {_base(ensemble.expert_names[place])}"] = int(number)
    due, start = {}, 0
    for expert, part in zip(ensemble.experts, state.experts, strict=True):
        if isinstance(part, ExternalState | RefittedState | WindowState):
            row = int(part.due.max()) if part.due.numel() else 0
            if 0 < row < 2**62:
                due[_base(ensemble.expert_names[start])] = row
        start += expert.num_experts
    return Happened(counts, due)


def kind_of(name: str) -> Kind:
    """How a count is told.

    Example:
        >>> kind_of("bad_rows").title, kind_of("refit window").title, kind_of("inputs_delayed").title
        ('rows with a number out of all proportion', 'window fitted anew', 'inputs delayed')
    """
    if name.startswith("absent "):
        return Kind(f"rows without an answer of {name.removeprefix('absent ')}", is_absence=True)
    if name.startswith("refit "):
        return Kind(f"{name.removeprefix('refit ')} fitted anew")
    return Kind(_TITLES.get(name, name.replace("_", " ")))


def _base(name: str) -> str:
    """Name of an expert object from that of one of its experts."""
    return name.rpartition("/")[0] or name
