"""Engine of an ensemble: pure functions on a state, the object that owns a state, and their predictions.

``ensemble`` (state in, state out), ``online`` (owns a state), ``predictions``, ``membership`` (experts added and
revived), ``regret``, ``external_report`` (external models in a running ensemble).
"""

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.membership import add_experts, revive_experts
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.regret import regret_report

__all__ = ["Ensemble", "OnlineEnsemble", "add_experts", "regret_report", "revive_experts"]
