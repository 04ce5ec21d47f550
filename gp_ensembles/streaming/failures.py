"""Experts of a model that have failed on the stream, with rows as its user counts them."""

from gp_ensembles.engine.quarantine import QuarantineReport
from gp_ensembles.streaming.model import OnlineModel


def failures(model: OnlineModel) -> tuple[QuarantineReport, ...]:
    """Experts that have failed, and when those that are kept out return; rows from the first of the stream.

    An expert fails when its predictive variance has vanished or is not a number. The others share its weight until it
    returns from its prior, see :mod:`gp_ensembles.engine.quarantine`; the model stops only when none is left.

    Args:
        model: The model; nobody has failed before its warm-up is over.

    Example:
        >>> from gp_ensembles.streaming import StreamConfig
        >>> from gp_ensembles.ensembles.presets import oebe
        >>> failures(OnlineModel(StreamConfig(oebe)))
        ()
    """
    if model.online is None:
        return ()
    before = model.num_rows - int(model.online.state.meta.num_seen)
    return tuple(report.later(before) for report in model.online.failures)
