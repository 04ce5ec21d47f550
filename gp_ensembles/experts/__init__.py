"""Experts: features, a likelihood and a filter; and how their hyperparameters are found."""

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.empirical_bayes import LBFGS, Adam, EvidenceFit, fit_empirical_bayes, log_posterior
from gp_ensembles.experts.evidence import log_evidence
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.hyper_laplace import LaplaceInformation, negative_hessian, sample_hyperparameters
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.latent_update import LaplaceUpdate, LatentUpdate, MomentMatchingUpdate
from gp_ensembles.experts.multi_output import MultiOutputExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import InverseGammaNoise, StudentTExpert

__all__ = [
    "LBFGS",
    "Adam",
    "BoundExpert",
    "EvidenceFit",
    "Expert",
    "GaussianExpert",
    "InverseGammaNoise",
    "LaplaceExpert",
    "LaplaceInformation",
    "LaplaceUpdate",
    "LatentUpdate",
    "MomentMatchingUpdate",
    "MultiOutputExpert",
    "RobustExpert",
    "StudentTExpert",
    "fit_empirical_bayes",
    "log_evidence",
    "log_posterior",
    "negative_hessian",
    "sample_hyperparameters",
]
