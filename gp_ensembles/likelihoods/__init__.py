"""Likelihoods that GPyTorch lacks, and densities, derivatives and predictions of any likelihood.

- :mod:`~gp_ensembles.likelihoods.classification`: two classes with the logistic link
  (:class:`LogisticLikelihood`), several with the softmax (:class:`MulticlassLikelihood`), ordered levels
  (:class:`OrdinalLikelihood` with a :class:`Probit` or :class:`Logit` link).
- :mod:`~gp_ensembles.likelihoods.poisson`: counts whose log rate is the latent value
  (:class:`LogPoissonLikelihood`).
- :mod:`~gp_ensembles.likelihoods.response`: log densities of targets given latent values, of any likelihood and exact
  in both tails, and checks that targets are in its support.
- :mod:`~gp_ensembles.likelihoods.closed_forms`: predictions that need no quadrature.
- :mod:`~gp_ensembles.likelihoods.derivatives`: derivatives of log densities in closed form.
- :mod:`~gp_ensembles.likelihoods.predictive`: predictions of targets from normal latent values, by quadrature
  (:class:`GaussHermite`) or as the papers approximate them (:class:`ProbitApproximation`).
"""

from gp_ensembles.likelihoods.classification import (
    LogisticLikelihood,
    Logit,
    MulticlassLikelihood,
    OrdinalLikelihood,
    Probit,
)
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import GaussHermite, ProbitApproximation

__all__ = [
    "GaussHermite",
    "LogPoissonLikelihood",
    "LogisticLikelihood",
    "Logit",
    "MulticlassLikelihood",
    "OrdinalLikelihood",
    "Probit",
    "ProbitApproximation",
]
