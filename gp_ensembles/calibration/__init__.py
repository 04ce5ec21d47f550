"""Calibration after the mixture: recalibrated distribution functions, and intervals that keep their coverage.

All are pure: state in, state out, any blocking, a missing target changes nothing. Those of numbers see probability
integral transforms only, those of classes probabilities and labels. ``recalibration`` (:func:`init_recalibration`,
:func:`update_recalibration`, :func:`recalibrate` for one row of many series, :func:`map_log_weights`,
:func:`map_components`: a monotone map for :class:`~gp_ensembles.distributions.Recalibrated`; its formulas are in
``maps``), ``levels`` (:class:`IntervalLevels`: adaptive interval levels, of one series or of many),
``coverage`` (the observed coverage of intervals), ``classes`` (probabilities of classes), ``labels`` (the label chain).
:class:`~gp_ensembles.streaming.OnlineModel` applies them.
"""

from gp_ensembles.calibration.levels import IntervalLevels

__all__ = ["IntervalLevels"]
