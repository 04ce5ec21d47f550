"""Ensembles: the pure functions, the shell that owns a state, and the papers' presets."""

from gp_ensembles.ensembles.ensemble import Ensemble, EnsemblePredictions, EnsembleState
from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.ensembles.online import OnlineEnsemble

__all__ = ["Ensemble", "EnsemblePredictions", "EnsembleState", "Mixture", "OnlineEnsemble"]
