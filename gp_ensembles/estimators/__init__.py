"""The pipeline with the interfaces of other libraries, one module for each.

:mod:`.scikit_learn` (:class:`OnlineRegressor`, :class:`OnlineClassifier`), :mod:`.river` (:class:`RiverRegressor`,
:class:`RiverClassifier`), :mod:`.skpro` and :mod:`.sktime`. :mod:`.optuna` has a sampler for Optuna.
"""
