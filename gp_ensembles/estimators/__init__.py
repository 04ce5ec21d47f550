"""The pipeline with the interfaces of other libraries, each module imported by its own name.

:mod:`.scikit_learn` (:class:`OnlineRegressor`, :class:`OnlineClassifier`), :mod:`.river` (:class:`RiverRegressor`,
:class:`RiverClassifier`) and :mod:`.latent` (:class:`EnsembleGPLVM`, a transformer for scikit-learn).
"""
