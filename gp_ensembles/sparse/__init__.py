"""Sparse Gaussian processes: collapsed objectives, predictions that fit them, and the choice of knots."""

from gp_ensembles.sparse.adadelta import Adadelta
from gp_ensembles.sparse.allocators import KnotAllocator, Placement
from gp_ensembles.sparse.approximations import DIC, DTC, FIC, FITC, VFE, Approximation, PowerEP, TightVFE, upper_bound
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.collapsed import Projection, log_density, project
from gp_ensembles.sparse.fitting import Fit, fit_sparse
from gp_ensembles.sparse.gains import Candidates, measure_candidates
from gp_ensembles.sparse.greedy import pick_greedily
from gp_ensembles.sparse.greedy_blocks import GreedyBlocks
from gp_ensembles.sparse.kernels import Covariance
from gp_ensembles.sparse.laplace_model import SparseLaplaceGP
from gp_ensembles.sparse.leverage import dpp_knots, leverage_knots, ridge_leverage_scores
from gp_ensembles.sparse.model import SparseGP
from gp_ensembles.sparse.one_at_a_time import OneAtATime
from gp_ensembles.sparse.online import OnlineStart, WeightsPosterior, inducing_features, start_online, weights_posterior
from gp_ensembles.sparse.placed import Placed
from gp_ensembles.sparse.placement import greedy_variance_knots, greedy_variance_rows, kmeans_knots, random_knots
from gp_ensembles.sparse.proposals import BayesianOptimization, KnotProposal, RandomSubset
from gp_ensembles.sparse.refits import AdadeltaRefit, LBFGSRefit, Refit
from gp_ensembles.sparse.run import Picked, Selection, Step, Strategy
from gp_ensembles.sparse.selection import select_knots, select_laplace_knots, select_variational_knots
from gp_ensembles.sparse.simultaneous import Simultaneous
from gp_ensembles.sparse.variational_model import SparseVariationalGP

__all__ = [
    "DIC",
    "DTC",
    "FIC",
    "FITC",
    "VFE",
    "Adadelta",
    "AdadeltaRefit",
    "Approximation",
    "BayesianOptimization",
    "Candidates",
    "Covariance",
    "Fit",
    "GreedyBlocks",
    "KnotAllocator",
    "KnotModel",
    "KnotProposal",
    "LBFGSRefit",
    "OneAtATime",
    "OnlineStart",
    "Picked",
    "Placed",
    "Placement",
    "PowerEP",
    "Projection",
    "RandomSubset",
    "Refit",
    "Selection",
    "Simultaneous",
    "SparseGP",
    "SparseLaplaceGP",
    "SparseVariationalGP",
    "Step",
    "Strategy",
    "TightVFE",
    "WeightsPosterior",
    "dpp_knots",
    "fit_sparse",
    "greedy_variance_knots",
    "greedy_variance_rows",
    "inducing_features",
    "kmeans_knots",
    "leverage_knots",
    "log_density",
    "measure_candidates",
    "pick_greedily",
    "project",
    "random_knots",
    "ridge_leverage_scores",
    "select_knots",
    "select_laplace_knots",
    "select_variational_knots",
    "start_online",
    "upper_bound",
    "weights_posterior",
]
