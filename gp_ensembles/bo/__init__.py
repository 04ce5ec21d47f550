"""The BoTorch plug-in: ensembles as surrogate models, and what they make possible in Bayesian optimization."""

from gp_ensembles.bo.active_learning import ExpertInformation, IntegratedVariance, MixtureEntropy
from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.paths import EnsemblePath, draw_paths
from gp_ensembles.bo.posterior import MixturePosterior, ViewNeededError
from gp_ensembles.bo.recipes import kernel_ensemble
from gp_ensembles.bo.sampler import mixture_sampler
from gp_ensembles.bo.thompson import ThompsonLoop, ThompsonSettings
from gp_ensembles.bo.views import EqualView, ExpertsView, GaussianView, WeightedAcquisition

__all__ = [
    "EnsembleModel",
    "EnsemblePath",
    "EqualView",
    "ExpertInformation",
    "ExpertsView",
    "GaussianView",
    "IntegratedVariance",
    "MixtureEntropy",
    "MixturePosterior",
    "ThompsonLoop",
    "ThompsonSettings",
    "ViewNeededError",
    "WeightedAcquisition",
    "draw_paths",
    "kernel_ensemble",
    "mixture_sampler",
]
