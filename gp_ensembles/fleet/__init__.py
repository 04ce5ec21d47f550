"""A model for each of many series.

``model`` (in their own units), ``scales`` (these units), ``fitting`` (hyperparameters that series share),
``ensemble_fleet`` (an ensemble for each), ``slots`` and ``store`` (who stands where, and the states), ``arrivals``
(which rows are worked on together), ``step`` and ``lanes`` (what a batch of rows goes through), ``said`` (what was said
of the rows of a call), ``checkpoint`` (fleets in files).
"""

from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.fleet.model import Fleet, FleetPredictions

__all__ = ["EnsembleFleet", "Fleet", "FleetPredictions"]
