"""Engine of an ensemble: pure functions on a state, the object that owns a state, and their predictions.

``ensemble`` (state in, state out), ``online`` (owns a state), ``predictions``, ``membership`` (experts added and
revived), ``regret``, ``external_report`` (external models in a running ensemble), ``causality`` (checks that they use
past rows only).
"""

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.membership import add_experts, revive_experts
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import EnsemblePredictions
from gp_ensembles.engine.regret import RegretReport, regret_report
from gp_ensembles.engine.state import EnsembleState

__all__ = [
    "Ensemble",
    "EnsemblePredictions",
    "EnsembleState",
    "OnlineEnsemble",
    "RegretReport",
    "add_experts",
    "regret_report",
    "revive_experts",
]
