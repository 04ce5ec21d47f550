"""Bayesian optimization: ensembles as BoTorch models.

Begin with ``ExactEnsembleModel(X, Y).fit()`` in place of ``SingleTaskGP(X, Y)``; its posterior is a weighted mixture of
normal distributions. ``EnsembleModel`` is for more than a thousand rows, several outputs, objectives that drift and
ensembles of your own. Both, and the models of ``papers`` that BoTorch takes, are a ``MixtureModel``: it has what is the
same for all, a model says how its components predict and learn. Rows for good are learned by the model, imagined ones
by conditioning joint predictions (``fantasies``) or the experts' weights (``conditioning``).

The page "Which acquisition function takes which view" says which one of BoTorch takes the model, a view or a
``WeightedAcquisition``.
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
