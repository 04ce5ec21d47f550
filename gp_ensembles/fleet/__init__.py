"""A model for each of many series.

In their own units: ``model`` (the object), ``notes`` (the units), ``warm_up`` and ``fitting`` (the shared ensemble, its
hyperparameters, and those of each series), ``calls`` (checks of settings and rows), ``predictions``, ``exported`` (a
series by itself). Below: ``ensemble_fleet`` (an ensemble for each), ``store`` (places and states), ``arrivals`` (rows
that are processed together), ``step`` (the computation of a batch of rows), ``checkpoint`` (fleets in files).
"""

from gp_ensembles.fleet.model import Fleet

__all__ = ["Fleet"]
