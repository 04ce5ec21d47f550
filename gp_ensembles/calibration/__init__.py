"""Calibration after the mixture: recalibrated distribution functions, and intervals that keep their coverage.

All are pure: state in, state out, any blocking, a missing target changes nothing. Those of numbers see probability
integral transforms and widths only, those of classes probabilities and labels. ``recalibration`` (a monotone map for
:class:`~gp_ensembles.distributions.Recalibrated`; its formulas are in ``maps``), ``levels`` (:class:`IntervalLevels`:
adaptive interval levels, of one series or of many, and their observed coverage), ``classes`` (probabilities of
classes), ``labels`` (the label chain), ``frequency`` (a probability and the frequency of its event).
:class:`~gp_ensembles.streaming.OnlineModel` applies them.
"""

from gp_ensembles.calibration.levels import IntervalLevels

__all__ = ["IntervalLevels"]
