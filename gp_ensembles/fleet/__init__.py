"""A model for each of many series.

In their own units: ``model`` (the object), ``settings`` (what it is made of), ``scales`` (the units), ``beginning``
and ``fitting`` (the ensemble and the hyperparameters that they share), ``variances`` and ``length_scales`` (those of
each), ``calls`` (rows of a call), ``predictions`` (what is said of them), ``exported`` (a series by itself). Below:
``ensemble_fleet`` (an ensemble for each), ``slots`` and ``store`` (who stands where, and the states), ``arrivals``
(which rows are worked on together), ``step`` and ``lanes`` (what a batch of rows goes through), ``said`` (what was said
of the rows of a call), ``checkpoint`` (fleets in files).
"""

from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.model import Fleet

__all__ = ["EnsembleFleet", "Fleet"]
