"""Forward substitution for one right-hand side, in the memory of the factor."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dtrsv

Numbers = NDArray[np.float64]
_PANEL = 128  # rows of the factor whose triangle is copied into the first-level cache; the columns before them are not


def forward_row(factor: Numbers, right: Numbers) -> Numbers:
    """Solve :math:`L v = r` with the first n rows and columns of a lower factor, which are read once and not copied.

    Shapes: ``factor`` (C, C), ``right`` (n,); returns (n,).
    """
    solved = right.copy()
    for start in range(0, len(right), _PANEL):
        part = slice(start, min(start + _PANEL, len(right)))
        if start > 0:
            solved[part] -= factor[part, :start] @ solved[:start]
        lower = np.ascontiguousarray(factor[part, part])
        solved[part] = dtrsv(lower.T, solved[part], lower=0, trans=1)
    return solved
