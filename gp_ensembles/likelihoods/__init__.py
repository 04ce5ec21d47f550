"""Likelihoods that GPyTorch lacks, and what targets and predictions need of any likelihood."""

from gp_ensembles.likelihoods.closed_forms import NormalLaplace, closed_form
from gp_ensembles.likelihoods.links import Logit, OrdinalLink, Probit
from gp_ensembles.likelihoods.logistic import LogisticLikelihood
from gp_ensembles.likelihoods.ordinal import OrdinalCategorical, OrdinalLikelihood
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood, LogRatePoisson
from gp_ensembles.likelihoods.predictive import (
    GaussHermite,
    Predictive,
    ProbitApproximation,
    class_probabilities,
    num_classes,
)
from gp_ensembles.likelihoods.response import conditional, latent_dim, log_prob
from gp_ensembles.likelihoods.softmax import MulticlassLikelihood
from gp_ensembles.likelihoods.support import IllegalTargetError, check_classes, check_support

__all__ = [
    "GaussHermite",
    "IllegalTargetError",
    "LogPoissonLikelihood",
    "LogRatePoisson",
    "LogisticLikelihood",
    "Logit",
    "MulticlassLikelihood",
    "NormalLaplace",
    "OrdinalCategorical",
    "OrdinalLikelihood",
    "OrdinalLink",
    "Predictive",
    "Probit",
    "ProbitApproximation",
    "check_classes",
    "check_support",
    "class_probabilities",
    "closed_form",
    "conditional",
    "latent_dim",
    "log_prob",
    "num_classes",
]
