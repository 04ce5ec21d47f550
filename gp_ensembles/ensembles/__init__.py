"""Ensembles: the pure functions, the shell that owns a state, what they predict, and the papers' presets."""

from gp_ensembles.ensembles.ensemble import Ensemble, EnsembleState
from gp_ensembles.ensembles.latent_mixture import LatentMixture
from gp_ensembles.ensembles.membership import add_experts, revive_experts
from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.ensembles.predictions import EnsemblePredictions
from gp_ensembles.ensembles.regret import RegretReport, regret_report
from gp_ensembles.ensembles.student_t_mixture import StudentTMixture

__all__ = [
    "Ensemble",
    "EnsemblePredictions",
    "EnsembleState",
    "LatentMixture",
    "Mixture",
    "OnlineEnsemble",
    "RegretReport",
    "StudentTMixture",
    "add_experts",
    "regret_report",
    "revive_experts",
]
