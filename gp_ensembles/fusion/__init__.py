"""Fusion of the predictions of Gaussian processes and of other models, by weights that depend on the input."""

from gp_ensembles.fusion.arviz_door import to_arviz
from gp_ensembles.fusion.cache import ExpertCache
from gp_ensembles.fusion.chain_weighting import ChainWeighting, EqualChains, StackedChains
from gp_ensembles.fusion.chees import Settings, sample
from gp_ensembles.fusion.constant_weights import pseudo_bma_plus_weights, pseudo_bma_weights, stacking_weights
from gp_ensembles.fusion.cross_validation import folds_of, k_fold
from gp_ensembles.fusion.diagnostics import bulk_ess, mean_ess, rank_rhat, tail_ess
from gp_ensembles.fusion.draws import Draws
from gp_ensembles.fusion.experts import ExpertPredictions, PredictiveExpert, predict_expert, predict_experts
from gp_ensembles.fusion.fitted import FittedFusion, WeightBands, fit_fusion
from gp_ensembles.fusion.fused_model import FusedModel
from gp_ensembles.fusion.gp_role import GPRole
from gp_ensembles.fusion.hamiltonian import HMC
from gp_ensembles.fusion.inference import Inference, Inferred
from gp_ensembles.fusion.joint_models import HetGP, MoGPE, PoGPE
from gp_ensembles.fusion.laplace import Laplace
from gp_ensembles.fusion.leave_one_out import LeaveOneOut, leave_one_out
from gp_ensembles.fusion.map_search import MAP, ModeWeights
from gp_ensembles.fusion.mean_field import MeanField
from gp_ensembles.fusion.model import Components, Functions, FusionModel
from gp_ensembles.fusion.numpyro_door import NUTS
from gp_ensembles.fusion.online import OnlineFusion
from gp_ensembles.fusion.online_pools import OnlineMixture, OnlinePool, OnlineProduct, combine_log_linearly
from gp_ensembles.fusion.pools import LogLinearPool, linear_pool, log_linear_pool
from gp_ensembles.fusion.psis import psis_loo, smooth_weights
from gp_ensembles.fusion.report import Report
from gp_ensembles.fusion.roles import Extension, FourierRole, Role
from gp_ensembles.fusion.rules import (
    Barycenter,
    CommitteeMachine,
    CommunicatingCommittee,
    Moments,
    ProductOfExperts,
    Rule,
    fuse,
)
from gp_ensembles.fusion.stacking_models import BHS, PBHS
from gp_ensembles.fusion.tabulated import TabulatedExpert
from gp_ensembles.fusion.temperature import fit_temperature
from gp_ensembles.fusion.trajectory_length import ChEES, FixedLength
from gp_ensembles.fusion.type_two import TypeTwo, maximize_evidence
from gp_ensembles.fusion.weightings import (
    EntropyWeights,
    EqualWeights,
    GivenWeights,
    Prior,
    SoftmaxVariance,
    UnitWeights,
    Weighting,
)

__all__ = [
    "BHS",
    "HMC",
    "MAP",
    "NUTS",
    "PBHS",
    "Barycenter",
    "ChEES",
    "ChainWeighting",
    "CommitteeMachine",
    "CommunicatingCommittee",
    "Components",
    "Draws",
    "EntropyWeights",
    "EqualChains",
    "EqualWeights",
    "ExpertCache",
    "ExpertPredictions",
    "Extension",
    "FittedFusion",
    "FixedLength",
    "FourierRole",
    "Functions",
    "FusedModel",
    "FusionModel",
    "GPRole",
    "GivenWeights",
    "HetGP",
    "Inference",
    "Inferred",
    "Laplace",
    "LeaveOneOut",
    "LogLinearPool",
    "MeanField",
    "MoGPE",
    "ModeWeights",
    "Moments",
    "OnlineFusion",
    "OnlineMixture",
    "OnlinePool",
    "OnlineProduct",
    "PoGPE",
    "PredictiveExpert",
    "Prior",
    "ProductOfExperts",
    "Report",
    "Role",
    "Rule",
    "Settings",
    "SoftmaxVariance",
    "StackedChains",
    "TabulatedExpert",
    "TypeTwo",
    "UnitWeights",
    "WeightBands",
    "Weighting",
    "bulk_ess",
    "combine_log_linearly",
    "fit_fusion",
    "fit_temperature",
    "folds_of",
    "fuse",
    "k_fold",
    "leave_one_out",
    "linear_pool",
    "log_linear_pool",
    "maximize_evidence",
    "mean_ess",
    "predict_expert",
    "predict_experts",
    "pseudo_bma_plus_weights",
    "pseudo_bma_weights",
    "psis_loo",
    "rank_rhat",
    "sample",
    "smooth_weights",
    "stacking_weights",
    "tail_ess",
    "to_arviz",
]
