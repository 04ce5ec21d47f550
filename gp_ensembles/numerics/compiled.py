"""Compilation by numba, an optional extra: functions of plain arrays are compiled where it is installed.

Compiled code is cached on disk beside the source (where numba can write), so that it takes seconds once for each
version of the library and not in each process.
"""

from collections.abc import Callable
from typing import Any, TypeVar

try:
    import numba

    IS_COMPILED = not bool(numba.config.DISABLE_JIT)
except ImportError:
    IS_COMPILED = False

_Function = TypeVar("_Function", bound=Callable[..., Any])


def compiled(function: _Function, any_order: bool = False) -> _Function:
    """The function compiled by numba where that is installed, else itself; the numbers are the same to round-off."""
    if not IS_COMPILED:
        return function
    options = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"} if any_order else False}
    try:
        fast: _Function = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # there is nowhere to keep it
        fast = numba.njit(**options)(function)
    return fast
