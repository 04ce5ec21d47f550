"""The pipeline with the interfaces of other libraries, each module imported by its own name.

:mod:`.scikit_learn` (:class:`OnlineRegressor`, :class:`OnlineClassifier`), :mod:`.river` (:class:`RiverRegressor`,
:class:`RiverClassifier`), :mod:`.skpro` and :mod:`.sktime`. :mod:`.optuna` has a sampler for Optuna.
"""
