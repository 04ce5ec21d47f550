"""Sparse Gaussian processes with K knots (inducing points), and how many knots to choose, and where.

``selection``
    :func:`select_knots` (the first call to try) returns a :class:`Selection`: knots, model, history, stop reason and
    ``predict``; :class:`LinearTrend` is a prior mean in the data's units. Targets are normal; for counts and labels
    BoTorch has ``SingleTaskVariationalGP``.
``strategies``, ``adaptive``, ``greedy``, ``one_at_a_time``
    How knots are chosen, each a :class:`Strategy`: :class:`AdaptiveKnots` (the default: all rows where that can be had,
    else knots until the bounds meet or the budget ends), :class:`GreedyBlocks` (blocks of the largest exact gains, see
    :func:`greedy_elbo_rows`), :class:`OneAtATime` (Garton, Niemi and Carriquiry, 2020; each knot from a
    :data:`KnotProposal`, :class:`RandomSubset` or :class:`BayesianOptimization`) and :class:`Simultaneous`.
``initialization``
    Knots from inputs and kernel: :func:`kmeans_knots`, :func:`greedy_variance_rows`.
``regression``
    The models, each a :class:`SparseModel` of GPyTorch and BoTorch: :class:`SparseGP`, and :class:`ExactGP`, whose
    knots are all rows. What they share is in ``base``.
``collapsed``
    What a :class:`SparseGP` maximizes and predicts, each an :class:`Approximation`: ``VFE``, ``FITC``,
    ``FIC``, ``DTC`` and ``DIC``.
``fitting``
    :func:`fit_sparse` fits hyperparameters and knots of a model by L-BFGS-B. Strategies take a :data:`KnotOptimizer`:
    :class:`LBFGSB`, or :class:`Adadelta` as published.
``tails``
    The tails of those predictions: Student's t of the errors of rows left out.
``online``
    :func:`start_online` makes fitted models the experts of an online ensemble; :func:`inducing_features` and
    :func:`weights_posterior` are its parts.
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
