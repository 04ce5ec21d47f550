"""Fusion of the predictions of Gaussian processes and other models (Ajirak, Waxman, Llorente and Djuric, 2024).

``fit_fusion(PBHS(X, y, experts))`` weighs experts and forecasts of any kind by the input and gives a
:class:`FittedFusion`; :func:`fuse` and :func:`linear_pool` of their :class:`ExpertPredictions` need no fit.
"""

from gp_ensembles.papers.fusion.experts import ExpertPredictions, predict_experts
from gp_ensembles.papers.fusion.fitted import FittedFusion, fit_fusion
from gp_ensembles.papers.fusion.function_priors import FourierPrior
from gp_ensembles.papers.fusion.fused_model import FusedModel
from gp_ensembles.papers.fusion.hmc import HMC
from gp_ensembles.papers.fusion.inference import MAP
from gp_ensembles.papers.fusion.laplace import LaplaceApproximation
from gp_ensembles.papers.fusion.models import BHS, PBHS, HetGP, MoGPE, PoGPE
from gp_ensembles.papers.fusion.pools import fuse, linear_pool, stacking_weights

__all__ = [
    "BHS",
    "HMC",
    "MAP",
    "PBHS",
    "ExpertPredictions",
    "FittedFusion",
    "FourierPrior",
    "FusedModel",
    "HetGP",
    "LaplaceApproximation",
    "MoGPE",
    "PoGPE",
    "fit_fusion",
    "fuse",
    "linear_pool",
    "predict_experts",
    "stacking_weights",
]
