"""Specifications of ensembles: one frozen record each, fitted to the first rows of a stream.

``spec`` (an ensemble as one record), ``bases`` and ``targets`` (its parts), ``presets`` (the papers' ensembles and the
default), ``build`` (from records to experts), ``records`` (in files), ``external_models`` (boosted trees, other
libraries' models and forecasts in the table, as records). What runs an ensemble is :mod:`gp_ensembles.engine`.
"""

from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.spec import EnsembleSpec

__all__ = ["EnsembleSpec", "FitSettings"]
