"""Numerics in plain torch."""

from gp_ensembles.numerics.cholesky import NumericalError

__all__ = ["NumericalError"]
