"""Bayesian optimization: ensembles as BoTorch models.

``ExactEnsembleModel(X, Y).fit()`` replaces ``SingleTaskGP(X, Y)``; with several kernels its posterior is a
weighted mixture of normal distributions. ``EnsembleModel`` is for more than a thousand rows and drifting objectives.
The page "Acquisition functions: what to pass to each" explains how to use them.
"""

from gp_ensembles.bo.exact_model import ExactEnsembleModel
from gp_ensembles.bo.model import EnsembleModel
from gp_ensembles.bo.paths import thompson
from gp_ensembles.bo.posterior import MixturePosterior

__all__ = ["EnsembleModel", "ExactEnsembleModel", "MixturePosterior", "thompson"]
