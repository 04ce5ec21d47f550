"""Ensembles: what they are made of, the pure functions, the object that owns a state, and what they predict.

``spec`` (an ensemble as one record), ``bases`` and ``targets`` (what it is made of), ``presets`` (the papers' ones
and the default), ``build`` (from records to experts), ``records`` (in files); ``ensemble`` (state in, state out) and
``online`` (owns a state; on a GPU ``recorded``, from CUDA graphs); ``membership`` (experts added and revived),
``regret``; ``guests`` (boosted trees, models of one's own and forecasts in the table, as records),
``guest_report`` (what became of them), ``causality`` (whether they peek).
"""

from gp_ensembles.ensembles import bases, presets, targets
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.ensembles.membership import add_experts, revive_experts
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.predictions import EnsemblePredictions
from gp_ensembles.ensembles.regret import RegretReport, regret_report
from gp_ensembles.ensembles.spec import EnsembleSpec, StickySwitching, TwinSwitching
from gp_ensembles.ensembles.state import EnsembleState

__all__ = [
    "Ensemble",
    "EnsemblePredictions",
    "EnsembleSpec",
    "EnsembleState",
    "FitSettings",
    "OnlineEnsemble",
    "RegretReport",
    "StickySwitching",
    "TwinSwitching",
    "add_experts",
    "bases",
    "presets",
    "regret_report",
    "revive_experts",
    "targets",
]
