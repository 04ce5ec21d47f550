"""Numerics in plain torch."""

from gp_ensembles.numerics import mixtures
from gp_ensembles.numerics.cholesky import NumericalError, cholesky

__all__ = ["NumericalError", "cholesky", "mixtures"]
