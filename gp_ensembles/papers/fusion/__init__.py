"""Fusion of the predictions of Gaussian processes and other models (Ajirak, Waxman, Llorente and Djuric, 2024).

Experts and what they predict
    ``experts``: :class:`ExpertPredictions` (means, variances and noise of K experts), :func:`predict_experts`,
    :func:`predict_expert` (register a custom class, or subclass :class:`PredictiveExpert`), :func:`leave_one_out`
    (an exact Gaussian process of its own training rows).
    ``forecasts``: :func:`moment_forecast`, :func:`quantile_forecast`, :func:`sample_forecast`, from tables.
    ``regressors``: :func:`scale_regressors` and :func:`cross_fit` make experts of regressors in scikit-learn's manner.
    ``gathering``: :func:`gather_predictions` of experts and forecasts of all kinds.

Fusion without inference
    ``pools``: :func:`linear_pool` (a mixture) and :func:`fuse` (a product of experts, a normal density again),
    :func:`stacking_weights` and :func:`entropy_weights`.

Models whose weights depend on the input
    ``base``: :class:`FusionModel`, a log joint density of a flat vector of parameters.
    ``models``: :class:`PBHS` and :class:`BHS` stack fixed experts; :class:`MoGPE` and :class:`PoGPE` learn experts and
    weights together; :class:`HetGP` is one Gaussian process with input-dependent noise.
    ``function_priors``: the prior of weights, means and noises, :class:`FourierPrior` (random Fourier features);
    :func:`weight_prior` where none is given.

Inference
    ``fitted``: :func:`fit_fusion` and the :class:`FittedFusion` that predicts and is saved.
    ``inference``: the :class:`InferenceMethod` interface, its :class:`InferenceReport`, and :class:`MAP`.
    ``laplace``: :class:`LaplaceApproximation`.
    ``hmc``: :class:`HMC`, its chains weighted by :func:`stacked_chains` or :func:`equal_chains`.
    ``chees``: the sampler, :func:`sample_hmc` with :class:`HMCSettings`; ``leapfrog``: its trajectories;
    ``adaptation``: step size, metric and trajectory length.
    ``diagnostics``: :func:`rank_rhat`, :func:`bulk_ess`, :func:`mean_ess`, :func:`psis_loo`.

Elsewhere
    ``fused_model``: :class:`FusedModel`, a fitted fusion as a BoTorch model.
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
