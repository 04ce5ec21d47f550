"""Likelihoods that GPyTorch lacks, and what online learning needs of any likelihood.

- :mod:`~gp_ensembles.likelihoods.classification`: two classes with the logistic link, several with the softmax, ordered
  levels (:class:`OrdinalLikelihood` with a :class:`Probit` or :class:`Logit` link).
- :mod:`~gp_ensembles.likelihoods.poisson`: counts whose log rate is the latent value.
- :mod:`~gp_ensembles.likelihoods.response`: log densities of targets given latent values, of any likelihood and exact
  in both tails, and whether targets are in its support.
- :mod:`~gp_ensembles.likelihoods.closed_forms`: predictions that need no quadrature.
- :mod:`~gp_ensembles.likelihoods.predictive`: predictions of targets from normal latent values, by quadrature
  (:class:`GaussHermite`) or as the papers approximate them (:class:`ProbitApproximation`).
"""

from gp_ensembles.likelihoods.classification import (
    LogisticLikelihood,
    Logit,
    MulticlassLikelihood,
    OrdinalLikelihood,
    OrdinalLink,
    Probit,
)
from gp_ensembles.likelihoods.closed_forms import closed_form
from gp_ensembles.likelihoods.poisson import LogPoissonLikelihood
from gp_ensembles.likelihoods.predictive import (
    GaussHermite,
    Predictive,
    ProbitApproximation,
    class_probabilities,
    num_classes,
)
from gp_ensembles.likelihoods.response import (
    IllegalTargetError,
    check_classes,
    check_support,
    conditional,
    latent_dim,
    log_prob,
)

__all__ = [
    "GaussHermite",
    "IllegalTargetError",
    "LogPoissonLikelihood",
    "LogisticLikelihood",
    "Logit",
    "MulticlassLikelihood",
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
