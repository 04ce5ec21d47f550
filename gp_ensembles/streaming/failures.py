"""Experts of a model that have failed on the stream, with rows as its user counts them."""

from gp_ensembles.engine.quarantine import QuarantineReport
from gp_ensembles.streaming.model import OnlineModel


def failures(model: OnlineModel) -> tuple[QuarantineReport, ...]:
    """Experts that have failed, and when those that are kept out return; rows from the first of the stream."""
    if model.online is None:
        return ()
    before = model.num_rows - int(model.online.state.meta.num_seen)
    return tuple(report.later(before) for report in model.online.failures)
