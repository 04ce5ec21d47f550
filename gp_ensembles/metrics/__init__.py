"""Scores of probabilistic predictions, and regret.

Predictions are made before each target, with the weights at that time; a missing target and its score are NaN.

- :mod:`~gp_ensembles.metrics.scores`, of a whole stream at once: log score (:func:`log_score`, :func:`median_mnlp`),
  squared error (:func:`nmse`, :func:`running_nmse`, :func:`sample_srmse`), CRPS, PIT and coverage of a mixture of
  normals, and the divergence AUKL of a sparse approximation from the exact model (:func:`aukl`).
- :mod:`~gp_ensembles.metrics.streaming`, the same for real targets, accumulated block by block:
  :func:`init_scores`, :func:`update_scores`, :func:`summarize`; mean absolute and squared standardized errors too.
- :mod:`~gp_ensembles.metrics.discrete`, for classes and counts: error rate, log loss, Brier score, calibration error,
  ranked probability score.
- :mod:`~gp_ensembles.metrics.regret`: the loss of a stream compared with the expert that is best in hindsight
  (:func:`static_regret`) or so far (:func:`anytime_regret`), to the best mixture of fixed weights
  (:func:`mixture_regret`) or the best sequence of experts (:func:`switching_regret`), and who these rivals are.
- :mod:`~gp_ensembles.metrics.regret_bounds`: the most that each weight rule can lose to those, and what a Gaussian
  ensemble can lose to a fixed function (:func:`batch_estimate`, :func:`static_bound`).
"""

from gp_ensembles.metrics.regret import (
    anytime_regret,
    best_expert,
    best_fixed_mixture,
    best_switching_path,
    mixture_regret,
    static_regret,
    switching_regret,
)
from gp_ensembles.metrics.scores import covered, crps_mixture, log_score, median_mnlp, nmse, pit, sample_srmse
from gp_ensembles.metrics.streaming import summarize

__all__ = [
    "anytime_regret",
    "best_expert",
    "best_fixed_mixture",
    "best_switching_path",
    "covered",
    "crps_mixture",
    "log_score",
    "median_mnlp",
    "mixture_regret",
    "nmse",
    "pit",
    "sample_srmse",
    "static_regret",
    "summarize",
    "switching_regret",
]
