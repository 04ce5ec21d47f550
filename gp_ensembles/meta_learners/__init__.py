"""Weight rules: mixture weights computed only from the experts' log densities.

- :mod:`~gp_ensembles.meta_learners.averaging`, one expert is right: :class:`BayesianModelAveraging`, and
  :class:`DynamicModelAveraging`, which forgets.
- :mod:`~gp_ensembles.meta_learners.switching`, the right expert changes: :class:`FixedShare`,
  :class:`MarkovSwitching` and its transition matrices: :func:`sticky_transition`, :func:`group_transition` between
  experts of one label.
- :mod:`~gp_ensembles.meta_learners.gradient`, a mixture is right: first-order :class:`ExponentiatedGradient` and
  :class:`SoftBayes`, second-order :class:`OnlineNewton` and :class:`DiscountedOnlineNewton`, which solve the quadratic
  programs of :mod:`~gp_ensembles.numerics.simplex_path`.
- :mod:`~gp_ensembles.meta_learners.combined`: a mixture of rules weighted by another, :class:`CombinedRules`, and a
  rule averaged with a few reference experts, :class:`ReferenceAveraging`.
- :mod:`~gp_ensembles.meta_learners.base`: :class:`MetaLearner`, the base class of rules, and their shared helpers;
  :mod:`~gp_ensembles.meta_learners.steps`: the updates for one target, on tensors and on arrays.

Regret bounds are in :mod:`gp_ensembles.metrics.regret_bounds`.
"""

from gp_ensembles.meta_learners.averaging import BayesianModelAveraging, DynamicModelAveraging
from gp_ensembles.meta_learners.base import MetaLearner
from gp_ensembles.meta_learners.combined import CombinedRules, ReferenceAveraging
from gp_ensembles.meta_learners.gradient import DiscountedOnlineNewton, ExponentiatedGradient, OnlineNewton, SoftBayes
from gp_ensembles.meta_learners.switching import FixedShare, MarkovSwitching, sticky_transition

__all__ = [
    "BayesianModelAveraging",
    "CombinedRules",
    "DiscountedOnlineNewton",
    "DynamicModelAveraging",
    "ExponentiatedGradient",
    "FixedShare",
    "MarkovSwitching",
    "MetaLearner",
    "OnlineNewton",
    "ReferenceAveraging",
    "SoftBayes",
    "sticky_transition",
]
