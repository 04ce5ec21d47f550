"""Bayesian optimization: ensembles as BoTorch models.

Begin with ``ExactEnsembleModel(X, Y).fit()`` in place of ``SingleTaskGP(X, Y)``; its posterior is a weighted mixture of
normal distributions. ``EnsembleModel`` is for more than a thousand rows, several outputs, objectives that drift and
ensembles of your own.

- ``mixture_model``: ``MixtureModel``, the contract of every model of the library that BoTorch takes, also those of
  ``papers.sparse``, ``papers.fusion`` and ``papers.quadrature``; the page "Models for BoTorch" has the list.
- ``exact_model``: ``ExactEnsembleModel``, exact processes with three kernels, numbers and categories;
  ``exact_kernels`` is its mathematics.
- ``model``: ``EnsembleModel``, an online ensemble: experts in finite features, a row at the same cost whatever came
  before.
- ``default_ensemble``: ``kernel_ensemble``, Matern and RBF experts with BoTorch's priors.
- ``data``: training data, their transforms, and every check of them.
- ``conditioning``: the posterior of the experts' weights after rows and in batches of fantasies; joint predictions.
- ``fitting``: hyperparameters by maximum evidence.
- ``fantasies``: batches of fantasies, by conditioning joint predictions.
- ``posterior``: ``MixturePosterior`` (moments, quantiles, densities, draws) and its sampler; ``pointwise``: the same
  where weights depend on the input; ``outcomes``: outcome transforms of mixtures.
- ``views``: ``GaussianView`` and ``EquallyWeightedView``, for acquisition functions that ask for normal posteriors.
- ``acquisition``: ``WeightedAcquisition``, the weighted mean of an acquisition function over the experts; for active
  learning ``IntegratedVariance``, ``MixtureEntropy`` (uncertainty sampling) and ``ExpertInformation`` (mutual
  information with the index of the expert).
- ``thompson``: ``draw_paths``, functions drawn from the posterior; ``ThompsonLoop``, optimization by their maxima.
- ``ax``: ``register``, for Ax.

The page "Which acquisition function takes which view" says which one of BoTorch takes which of these.
"""

from gp_ensembles.bo.acquisition import WeightedAcquisition
from gp_ensembles.bo.default_ensemble import kernel_ensemble
from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.bo.thompson import ThompsonLoop, ThompsonSettings

__all__ = [
    "EnsembleModel",
    "ExactEnsembleModel",
    "MixturePosterior",
    "ThompsonLoop",
    "ThompsonSettings",
    "WeightedAcquisition",
    "kernel_ensemble",
]
