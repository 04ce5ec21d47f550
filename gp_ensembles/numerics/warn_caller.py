"""Warnings that name the line of whoever called the library, however deep they come from."""

import contextlib
import functools
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

_BUILT_ON = (
    "torch",
    "gpytorch",
    "botorch",
    "linear_operator",
    "sklearn",
    "joblib",
    "optuna",
    "river",
    "skpro",
    "sktime",
)


@functools.cache
def _inside() -> tuple[str, ...]:
    """Beginnings of the files of the library and of what it is built on or called by."""
    found = (find_spec(name) for name in _BUILT_ON)
    origins = (Path(spec.origin).parent for spec in found if spec is not None and spec.origin is not None)
    folders = (Path(__file__).parents[1], *origins)
    return (*(str(folder / "_")[:-1] for folder in folders), contextlib.__file__, functools.__file__)


def warn_caller(text: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the innermost line that is neither the library's own nor of what it is built on or called by."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_inside()):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)
