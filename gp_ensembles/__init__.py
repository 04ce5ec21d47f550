"""Online ensembles of Gaussian processes and Bayesian basis expansions.

``import gp_ensembles as gpe`` gives the names below; nothing is loaded before it is used.

- ``OnlineModel``, made from a ``StreamConfig``: rows in their own units in, distributions in the target's units out.
- ``Fleet``: a model for each of many series.
- ``OnlineRegressor``, ``OnlineClassifier``, ``EnsembleGPLVM``: the same for scikit-learn; ``RiverRegressor``,
  ``RiverClassifier``: for river.
- ``auto``, ``light`` and ``deep``, and the papers' ensembles (``oebe``, ..., ``ie_gp``, ...): ``EnsembleSpec`` records.
  ``auto.fit(X, y)`` gives an ``OnlineEnsemble``; ``dataclasses.replace(auto, bases=..., target=...)`` makes another
  record.
- ``Ensemble``: the same as pure functions, from experts and a weight rule of your own.
- ``ExactEnsembleModel``, beyond a thousand rows ``EnsembleModel``; ``thompson``: for BoTorch.
- ``select_knots``, ``marginalize``, ``fit_fusion``, ``ie_gplvm``: the offline papers.
- The modules ``bases``, ``targets``, ``external_models`` (external models), ``experts``, ``features``, ``filters``,
  ``meta_learners`` (weight rules), ``metrics``, ``data``, ``plots``.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
