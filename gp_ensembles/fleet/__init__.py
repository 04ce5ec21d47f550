"""Fleets: one model for each of many series.

In the units of each series: ``model`` (the public object), ``notes`` (units), ``warm_up`` and ``fitting`` (the shared
ensemble, its hyperparameters and those of each series), ``calls`` (validation), ``predictions``, ``exported`` (a
single series). Below: ``ensemble_fleet`` (an ensemble for each series), ``store`` (states by place), ``arrivals`` (rows
that are processed together), ``step`` (the computation for a batch of rows), ``checkpoint`` (fleets in files).
"""

from gp_ensembles.fleet.model import Fleet

__all__ = ["Fleet"]
