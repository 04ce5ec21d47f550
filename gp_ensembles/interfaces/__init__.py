"""Doors for users of other libraries: :mod:`.scikit_learn` and :mod:`.river`, each imported by its own name."""
