"""Warnings that name the line of whoever called the library, however deep they come from."""

import contextlib
import functools
import sys
import warnings
from pathlib import Path

import torch

_PACKAGES = Path(torch.__file__).parents[1]
_INSIDE = (
    *(str(_PACKAGES / name / "_")[:-1] for name in ("torch", "gpytorch", "botorch")),
    str(Path(__file__).parents[1]),
    contextlib.__file__,
    functools.__file__,
)


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither the library's own nor of what it is built on."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
