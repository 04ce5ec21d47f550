"""Rules that weigh experts by their log densities alone."""

from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import MetaLearner, MetaOutput, MetaState
from gp_ensembles.meta_learners.bounds import (
    averaging_bound,
    exponentiated_gradient_bound,
    fixed_share_bound,
    forgetting_bound,
    newton_bound,
    path_prior_bound,
    soft_bayes_bound,
)
from gp_ensembles.meta_learners.combined import CombinedRules
from gp_ensembles.meta_learners.forgetting import DynamicModelAveraging, FixedShare
from gp_ensembles.meta_learners.gradient import ExponentiatedGradient, SoftBayes
from gp_ensembles.meta_learners.hindsight import (
    BestExpert,
    BestMixture,
    best_expert,
    best_fixed_mixture,
)
from gp_ensembles.meta_learners.newton import DiscountedOnlineNewton, OnlineNewton
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.meta_learners.transitions import edoebe_transition, group_transition, sticky_transition

__all__ = [
    "BayesianModelAveraging",
    "BestExpert",
    "BestMixture",
    "CombinedRules",
    "DiscountedOnlineNewton",
    "DynamicModelAveraging",
    "ExponentiatedGradient",
    "FixedShare",
    "MarkovSwitching",
    "MetaLearner",
    "MetaOutput",
    "MetaState",
    "OnlineNewton",
    "SoftBayes",
    "averaging_bound",
    "best_expert",
    "best_fixed_mixture",
    "edoebe_transition",
    "exponentiated_gradient_bound",
    "fixed_share_bound",
    "forgetting_bound",
    "group_transition",
    "newton_bound",
    "path_prior_bound",
    "soft_bayes_bound",
    "sticky_transition",
]
