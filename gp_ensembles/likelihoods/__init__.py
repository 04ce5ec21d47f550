"""Likelihoods that GPyTorch lacks, and densities, derivatives and predictions of any likelihood.

``classification``: :class:`LogisticLikelihood`, :class:`MulticlassLikelihood`, and :class:`OrdinalLikelihood` with a
:class:`Probit` or :class:`Logit` link; ``counts``: :class:`CountLikelihood`; ``poisson``:
:class:`LogPoissonLikelihood`; ``response``: densities given latent values, checks of targets; ``closed_forms``:
derivatives of log densities, predictions without quadrature; ``predictive``: predictions from normal latent values, by
quadrature (:class:`GaussHermite`) or as the papers approximate them (:class:`ProbitApproximation`).
"""

from gp_ensembles.likelihoods.classification import MulticlassLikelihood, OrdinalLikelihood
from gp_ensembles.likelihoods.counts import CountLikelihood
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import ProbitApproximation

__all__ = [
    "CountLikelihood",
    "LogPoissonLikelihood",
    "MulticlassLikelihood",
    "OrdinalLikelihood",
    "ProbitApproximation",
]
