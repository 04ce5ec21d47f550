"""Compilation by numba, an optional extra: functions of plain arrays are compiled where it is installed.

Compiled code is cached on disk next to the source (where numba can write), so that it takes seconds once for each
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


def compiled(function: _Function, any_order: bool = False, is_part: bool = False) -> _Function:
    """The function compiled by numba where that is installed, else itself; the numbers are the same to round-off.

    A part of other compiled functions is compiled with each of them, and not by itself unless it is called.
    """
    if not IS_COMPILED:
        return function
    options = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "nsz"} if any_order else False}
    return _kept(numba.njit, function, inline="always" if is_part else "never", **options)


def elementwise(function: _Function) -> _Function:
    """A function of numbers as one of arrays, compiled by numba, which must be installed."""
    return _kept(numba.vectorize, function, nopython=True)


def _kept(decorator: Callable[..., Any], function: _Function, **options: Any) -> _Function:
    try:
        fast: _Function = decorator(cache=True, **options)(function)
    except RuntimeError:  # there is nowhere to keep it
        fast = decorator(**options)(function)
    return fast
