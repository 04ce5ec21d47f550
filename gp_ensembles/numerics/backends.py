"""Formulas written once: the same source runs on torch tensors, on numpy arrays, and compiled by numba.

A module of formulas asks :func:`backend_of` for the few operations that differ and is otherwise plain functions, whose
leading axes are free. Imported, it works on tensors, with derivatives and inside ``vmap``; :func:`arrays_of` executes
it once more for arrays, and :func:`rows_of` for the arrays of one row, where numba compiles the functions marked with
``jit``. numba keeps on disk only functions of a module that it finds by name, so these are modules as well.
"""

import importlib.util
import math
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.compiled import IS_COMPILED, compiled, elementwise

Numbers = NDArray[np.float64]
Operation = Callable[..., Any]
_OF_ARRAYS, _OF_ROWS = "_of_arrays", "_of_rows"


class Backend(NamedTuple):
    """Operations of formulas that differ between tensors, arrays and compiled functions."""

    xp: Any  # The module torch or numpy
    jit: Operation  # Decorator of functions that numba compiles, where it is installed
    part: Operation  # Decorator of those that only other such functions call
    where: Operation  # Elements of one or the other, by a condition
    cdf: Operation  # Standard normal distribution function of each element
    clip: Operation  # Numbers held between two bounds
    pick: Operation  # Places (K,) of the last axis but one, shape (*batch, K, M)
    total: Operation  # Sum over the last axis, which stays, shape (*batch, 1)
    peak: Operation  # Largest number of the last axis, which stays, shape (*batch, 1)
    take: Operation  # Places (K,) of the last axis, shape (*batch, K)
    up: Operation  # A further axis before the last one, shape (*batch, 1, K)
    inner: Operation  # Products of vectors (*batch, R, K) with one (*batch, K), shape (*batch, R, 1)
    blend: Operation  # Sum of vectors (*batch, R, K) with weights (*batch, R), shape (*batch, K)
    join: Operation  # Two arrays one after the other along the last axis


def backend_of(name: str) -> Backend:
    """The operations for a module of formulas, by its ``__name__``."""
    if name.endswith(_OF_ROWS):
        return _COMPILED
    return _ARRAYS if name.endswith(_OF_ARRAYS) else _TENSORS


def arrays_of(formulas: ModuleType) -> ModuleType:
    """A module of formulas as it works on arrays."""
    return _executed(formulas, _OF_ARRAYS)


def rows_of(formulas: ModuleType) -> ModuleType:
    """A module of formulas as it works on arrays without leading axes, compiled if numba is installed."""
    return _executed(formulas, _OF_ROWS if IS_COMPILED else _OF_ARRAYS)


def _executed(formulas: ModuleType, suffix: str) -> ModuleType:
    name = formulas.__name__ + suffix
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, formulas.__file__)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def as_arrays(*tensors: Tensor) -> list[Numbers] | None:
    """Double precision tensors on the CPU as arrays of the same memory; ``None`` for others."""
    if any(one.dtype != torch.float64 or not one.is_cpu for one in tensors):
        return None
    try:
        return [one.numpy() for one in tensors]
    except RuntimeError:
        return None


def _held(a: Numbers, lowest: float, highest: float) -> Numbers:  # quicker than numpy's clip
    found: Numbers = np.minimum(np.maximum(a, lowest), highest)
    return found


@compiled
def _pick(a: Numbers, places: Any) -> Numbers:
    found: Numbers = a[places]
    return found


def _up(a: Any) -> Any:
    return a[..., None, :]


def _matrix_times(a: Any, p: Any) -> Any:
    return a @ p[..., None]


def _times_matrix(weights: Any, a: Any) -> Any:
    return (weights[..., None, :] @ a)[..., 0, :]


def _same(function: Operation) -> Operation:
    return function


def _where(condition: bool, one: float, other: float) -> float:
    return one if condition else other


def _cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


@compiled
def _total(a: Numbers) -> Numbers:
    if a.ndim == 1:
        return np.array([a.sum()])
    found = np.empty((a.shape[0], 1))
    for r in range(a.shape[0]):
        found[r, 0] = a[r].sum()
    return found


@compiled
def _peak(a: Numbers) -> Numbers:
    return np.array([a.max()])


@compiled
def _row(a: Numbers) -> Numbers:
    return np.expand_dims(a, 0)


@compiled
def _inner(a: Numbers, p: Numbers) -> Numbers:
    found = np.zeros((a.shape[0], 1))
    for r in range(a.shape[0]):
        for k in range(a.shape[1]):
            found[r, 0] += a[r, k] * p[k]
    return found


@compiled
def _blend(weights: Numbers, a: Numbers) -> Numbers:
    found = np.zeros(a.shape[1])
    for r in range(a.shape[0]):
        for k in range(a.shape[1]):
            found[k] += weights[r] * a[r, k]
    return found


@compiled
def _join(one: Numbers, two: Numbers) -> Numbers:
    found: Numbers = np.concatenate((one, two))
    return found


_TENSORS = Backend(
    xp=torch,
    jit=_same,
    part=_same,
    where=torch.where,
    cdf=normal.cdf,
    clip=torch.clip,
    pick=lambda a, places: a.index_select(-2, places),
    total=lambda a: a.sum(-1, keepdim=True),
    peak=lambda a: a.amax(-1, keepdim=True),
    take=lambda a, places: a.index_select(-1, places),
    up=_up,
    inner=_matrix_times,
    blend=_times_matrix,
    join=lambda one, two: torch.cat([one, two], dim=-1),
)
_ARRAYS = Backend(
    xp=np,
    jit=_same,
    part=_same,
    where=np.where,
    cdf=special.ndtr,
    clip=_held,
    pick=lambda a, places: a.take(places, axis=-2),
    total=lambda a: np.add.reduce(a, -1, keepdims=True),
    peak=lambda a: np.maximum.reduce(a, -1, keepdims=True),
    take=lambda a, places: a.take(places, axis=-1),
    up=_up,
    inner=_matrix_times,
    blend=_times_matrix,
    join=lambda one, two: np.concatenate([one, two], axis=-1),
)
_COMPILED = _ARRAYS
if IS_COMPILED:
    _COMPILED = Backend(
        xp=np,
        jit=compiled,
        part=partial(compiled, is_part=True),
        where=elementwise(_where),
        cdf=elementwise(_cdf),
        clip=compiled(_held, is_part=True),
        pick=_pick,
        total=_total,
        peak=_peak,
        take=_pick,
        up=_row,
        inner=_inner,
        blend=_blend,
        join=_join,
    )
