"""Experts: features, a likelihood and a filter; and how their hyperparameters are found.

- ``base``: ``Expert``, which all are, and its numbers for a loop.
- ``gaussian``, ``student_t``, ``robust``, ``laplace``, ``multi_output``: ``GaussianExpert``, ``StudentTExpert`` (noise
  learned online), ``RobustExpert`` (gross outliers), ``LaplaceExpert`` (any likelihood, learned by a ``LaplaceUpdate``
  or a ``MomentMatchingUpdate`` of ``latent_update``), ``MultiOutputExpert``.
- ``window``: ``WindowExpert``, the exact Gaussian process of the last rows; ``Refit``, when its hyperparameters are
  fitted anew (``gradient_ascent``: a few steps uphill from where they are).
- ``refitted``: ``RefittedExpert``, whose hyperparameters and lags are found anew every so many rows.
- ``structural``: ``StructuralExpert``, level, trend and season of a series; ``slope``: a trend whose slope walks;
  ``changing_trend``: which of them a warm-up asks for.
- ``external``: ``ExternalExpert``, trained by a schedule; ``model_adapter``: ``ModelAdapter``, what such
  a model offers; ``boosting``, ``adapters``: ``HistogramBoosting``, ``RegressorAdapter``, ``FunctionAdapter``, ...
- ``empirical_bayes``: ``fit_empirical_bayes`` by ``LBFGS`` or ``Adam``; ``evidence`` and ``laplace_evidence``: what it
  maximizes; ``hyper_laplace``: ``sample_hyperparameters`` around the maximum; ``hyper_perturbation``:
  ``perturb_hyperparameters`` where there are too many for that.
"""

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.empirical_bayes import LBFGS, Adam, fit_empirical_bayes
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.experts.hyper_laplace import sample_hyperparameters
from gp_ensembles.experts.laplace import LaplaceExpert
from gp_ensembles.experts.latent_update import LaplaceUpdate, MomentMatchingUpdate
from gp_ensembles.experts.multi_output import MultiOutputExpert
from gp_ensembles.experts.robust import RobustExpert
from gp_ensembles.experts.student_t import StudentTExpert
from gp_ensembles.experts.window import WindowExpert

__all__ = [
    "LBFGS",
    "Adam",
    "Expert",
    "GaussianExpert",
    "LaplaceExpert",
    "LaplaceUpdate",
    "MomentMatchingUpdate",
    "MultiOutputExpert",
    "RobustExpert",
    "StudentTExpert",
    "WindowExpert",
    "fit_empirical_bayes",
    "sample_hyperparameters",
]
