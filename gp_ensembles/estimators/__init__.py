"""Doors for users of other libraries, each imported by its own name.

:mod:`.scikit_learn` (a regressor), :mod:`.latent` (a transformer for scikit-learn) and :mod:`.river`.
"""
