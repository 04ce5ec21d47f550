"""A model for each of many series.

In their own units: ``model`` (the object), ``scales`` (the units), ``warm_up`` and ``fitting`` (the shared ensemble and
its hyperparameters), ``variances`` and ``length_scales`` (those of each series), ``calls`` (checks of settings and
rows), ``predictions``, ``exported`` (a series by itself). Below: ``ensemble_fleet`` (an ensemble for each), ``slots``
and ``store`` (places and states), ``arrivals`` (rows that are processed together), ``step`` and ``series_batches``
(the computation of a batch of rows), ``checkpoint`` (fleets in files).
"""

from gp_ensembles.fleet.model import Fleet

__all__ = ["Fleet"]
