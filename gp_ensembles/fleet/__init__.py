"""A model for each of many series.

``ensemble_fleet`` (an ensemble for each), ``slots`` and ``store`` (who stands where, and the states), ``arrivals``
(which rows are worked on together), ``step`` and ``lanes`` (what a batch of rows goes through), ``said`` (what was said
of the rows of a call).
"""

from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet

__all__ = ["EnsembleFleet"]
