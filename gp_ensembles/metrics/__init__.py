"""Scores of probabilistic predictions, and regret.

Predictions are made before each target, with the weights at that time; a missing target and its score are NaN.

- :mod:`~gp_ensembles.metrics.scores`, of a whole stream at once: log score (:func:`log_score`, :func:`median_mnlp`),
  squared error (:func:`nmse`, :func:`running_nmse`, :func:`sample_srmse`), CRPS, PIT and coverage of a mixture of
  normals.
- :mod:`~gp_ensembles.metrics.streaming`, the same for real targets, accumulated block by block:
  :func:`init_scores`, :func:`update_scores`, :func:`summarize`; mean absolute and squared standardized errors too.
- :mod:`~gp_ensembles.metrics.discrete`, for classes and counts: error rate, log loss, Brier score, calibration error,
  ranked probability score.
- :mod:`~gp_ensembles.metrics.regret`: the loss of a stream compared with a rival (:func:`cumulative_regret`), and the
  rivals that are best in hindsight: an expert, a mixture of fixed weights, a sequence of experts.
- :mod:`~gp_ensembles.metrics.regret_bounds`: the most that each weight rule can lose to those.
"""

from gp_ensembles.metrics.regret import best_expert, best_fixed_mixture, best_switching_path, cumulative_regret
from gp_ensembles.metrics.scores import covered, crps_mixture, log_score, median_mnlp, nmse, pit, sample_srmse
from gp_ensembles.metrics.streaming import summarize

__all__ = [
    "best_expert",
    "best_fixed_mixture",
    "best_switching_path",
    "covered",
    "crps_mixture",
    "cumulative_regret",
    "log_score",
    "median_mnlp",
    "nmse",
    "pit",
    "sample_srmse",
    "summarize",
]
