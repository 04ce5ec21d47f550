"""Experts (features, a likelihood and a filter) and fitting of their hyperparameters.

- ``base``: ``Expert``, the abstract base class, and ``BoundExpert``, its view for loops.
- ``gaussian``, ``student_t``, ``robust``, ``laplace``, ``multi_output``: ``GaussianExpert``, ``StudentTExpert`` (noise
  learned online), ``RobustExpert`` (gross outliers), ``LaplaceExpert`` (any likelihood, learned by a ``LaplaceUpdate``
  or a ``MomentMatchingUpdate`` of ``filters.sites``), ``MultiOutputExpert``.
- ``window``: ``WindowExpert``, an exact Gaussian process of the last rows; ``Refit``, the schedule of its refits.
- ``refitted``: ``RefittedExpert``, whose hyperparameters and lags are refitted on a schedule.
- ``structural``: ``StructuralExpert``, level, trend and season of a series; ``changing_trend``: selection of their
  trends from a warm-up.
- ``external``: ``ExternalExpert``, trained on a schedule; ``adapters``: ``ModelAdapter``, the interface of its
  model, ``RegressorAdapter``, ``FunctionAdapter``, ``HistogramBoosting``, ...; ``classifiers``: ``ClassifierAdapter``.
- ``empirical_bayes``: ``fit_empirical_bayes`` by ``LBFGS``, ``sample_hyperparameters`` around the maximum,
  and ``perturb_hyperparameters`` if there are too many for that; ``evidence``: its objective.
- ``linear_rows``: experts that are linear in features, one row at a time on plain arrays.
"""

from gp_ensembles.experts.empirical_bayes import LBFGS, fit_empirical_bayes, sample_hyperparameters
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.multi_output import MultiOutputExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.experts.window import WindowExpert

__all__ = [
    "LBFGS",
    "GaussianExpert",
    "LaplaceExpert",
    "MultiOutputExpert",
    "RobustExpert",
    "StudentTExpert",
    "WindowExpert",
    "fit_empirical_bayes",
    "sample_hyperparameters",
]
