"""Rules that weigh experts by their log densities alone."""

from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import MetaLearner, MetaOutput, MetaState
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.meta_learners.transitions import edoebe_transition, group_transition, sticky_transition

__all__ = [
    "BayesianModelAveraging",
    "MarkovSwitching",
    "MetaLearner",
    "MetaOutput",
    "MetaState",
    "edoebe_transition",
    "group_transition",
    "sticky_transition",
]
