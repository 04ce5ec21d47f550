"""Sparse Gaussian processes with K knots (inducing points), and selection of their number and locations.

Start with :func:`select_knots`: its result has knots, model, history, stop reason and ``predict``.
Targets are normal; for counts and labels use BoTorch's ``SingleTaskVariationalGP``.
"""

from gp_ensembles.papers.sparse.collapsed import DIC, DTC, FIC, FITC, VFE
from gp_ensembles.papers.sparse.greedy import GreedyBlocks
from gp_ensembles.papers.sparse.initialization import kmeans_knots
from gp_ensembles.papers.sparse.one_at_a_time import BayesianOptimization, OneAtATime, RandomSubset
from gp_ensembles.papers.sparse.online import start_online
from gp_ensembles.papers.sparse.regression import ExactGP, SparseGP
from gp_ensembles.papers.sparse.selection import select_knots
from gp_ensembles.papers.sparse.strategies import Adadelta, Simultaneous

__all__ = [
    "DIC",
    "DTC",
    "FIC",
    "FITC",
    "VFE",
    "Adadelta",
    "BayesianOptimization",
    "ExactGP",
    "GreedyBlocks",
    "OneAtATime",
    "RandomSubset",
    "Simultaneous",
    "SparseGP",
    "kmeans_knots",
    "select_knots",
    "start_online",
]
