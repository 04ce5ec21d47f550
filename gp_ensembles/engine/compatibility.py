"""Experts of an ensemble together: predictions of targets of one kind, the size of a block, and memory."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.laplace import BoundLaplace
from gp_ensembles.experts.refitted import RefittedExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.filters.stream import choose_block_size
from gp_ensembles.likelihoods.predictive import num_classes
from gp_ensembles.likelihoods.response import conditional, latent_dim
from gp_ensembles.numerics.devices import check_memory
from gp_ensembles.numerics.gpytorch_types import Likelihood


class _Kind(NamedTuple):
    """The kind of an expert's targets; ``None`` where an entry does not apply."""

    likelihood: str | None
    num_outputs: int | None
    num_classes: int | None
    num_latent: int
    support: tuple[bool, float, float] | None  # whether discrete, and its ends


def count_outputs(experts: Sequence[Expert]) -> int | None:
    """Number of outputs O of the first expert: targets have shape (B, O); ``None`` where they have shape (B,)."""
    return _kind(experts[0]).num_outputs


def check_compatible(experts: Sequence[Expert], names: Sequence[str]) -> None:
    """Raise unless all experts predict targets of one kind, so that their predictions have a mixture.

    Raises:
        ValueError: Naming two experts that do not fit, how they differ, and how to correct it.
    """
    kinds = [_kind(expert) for expert in experts]
    start = 0
    for expert, kind in zip(experts, kinds, strict=True):
        problem = _difference(kinds[0], kind)
        if problem is not None:
            raise ValueError(f"experts {names[0]!r} and {names[start]!r} cannot be mixed: {problem}")
        start += expert.num_experts


def _difference(one: _Kind, other: _Kind) -> str | None:
    first, second = one.likelihood, other.likelihood
    if (first is None) != (second is None):
        return (
            f"one has the likelihood {first or second}, the other predicts real-valued targets without one; give both "
            f"a likelihood (LaplaceExpert) or neither"
        )
    if one.num_outputs != other.num_outputs:
        return (
            f"one predicts {_outputs(one)} and the other {_outputs(other)}; use MultiOutputExpert for both, with one "
            f"num_outputs"
        )
    if one.num_classes != other.num_classes:
        return (
            f"{first} has {_classes(one)} and {second} has {_classes(other)}; give both a likelihood of the same "
            f"classes"
        )
    if one.num_latent != other.num_latent:
        return (
            f"{first} has {one.num_latent} latent value(s) behind each target and {second} {other.num_latent}; "
            f"choose unordered classes or ordered levels for both"
        )
    # Classes are numbered from zero, so the same number of them is the same support however it is specified.
    if one.num_classes is None and None not in (one.support, other.support) and one.support != other.support:
        return f"{first} and {second} are for targets of different kinds of values; give both one kind of likelihood"
    return None


def _kind(expert: Expert) -> _Kind:
    bound = expert.bind()
    if isinstance(bound, BoundLaplace):
        name, classes = type(bound.likelihood).__name__, num_classes(bound.likelihood)
        return _Kind(name, None, classes, bound.num_latent, _support(bound.likelihood, bound))
    return _Kind(None, expert.traits.num_outputs, None, 1, None)


@torch.no_grad()
def _support(likelihood: Likelihood, bound: BoundLaplace) -> tuple[bool, float, float] | None:
    """Kind and ends of the support of the likelihood's distribution, at latent values of zero."""
    dim = latent_dim(likelihood)
    if bound.prior_variance.is_meta:
        return None
    support = conditional(likelihood, bound.prior_variance.new_zeros((1, dim) if dim > 1 else 1)).support
    assert support is not None
    if support is torch.distributions.constraints.boolean:
        return True, 0.0, 1.0
    lower = bound.prior_variance.new_tensor(getattr(support, "lower_bound", -torch.inf))
    upper = bound.prior_variance.new_tensor(getattr(support, "upper_bound", torch.inf))
    return bool(support.is_discrete), float(lower.amin()), float(upper.amax())


def _outputs(kind: _Kind) -> str:
    return "a single target, y (B,)" if kind.num_outputs is None else f"{kind.num_outputs} output(s), y (B, O)"


def _classes(kind: _Kind) -> str:
    return "no classes" if kind.num_classes is None else f"{kind.num_classes} classes"


_LONGER_BLOCK = 256  # rows that windows and external models predict at once
_MANY_OBJECTS, _LONG_BLOCK = 12, 64  # the fixed cost of a block is paid for each object
_MANY_ROWS, _FIELDS = 10_000, 10  # rows from which memory is checked, and numbers kept of each prediction
_COPIES = 2  # states and their copies, while they are made and in snapshots


def usual_block_size(experts: Sequence[Expert]) -> int:
    """The fastest block size: that of the largest object, or a long one for many small objects."""
    if any(expert.traits.stores_rows for expert in experts):
        return _LONGER_BLOCK
    if len(experts) >= _MANY_OBJECTS:
        return _LONG_BLOCK
    widest = max(experts, key=lambda e: e.num_experts * e.features.num_features**2)
    return choose_block_size(widest.features.num_features, widest.num_experts)


def state_bytes(experts: Sequence[Expert], like: Tensor) -> int:
    """Bytes of the states of experts in the dtype of ``like``, without trees and external models."""
    return sum(_state_bytes(expert, like.element_size()) for expert in experts)


def check_states_fit(experts: Sequence[Expert], block_size: int, like: Tensor) -> None:
    """Raise if experts cannot run on a GPU: a lower bound of their memory, twice their states and one block of rows.

    Raises:
        ValueError: Naming the memory needed, free and missing.
    """
    if like.device.type != "cuda":
        return
    states = state_bytes(experts, like)
    block = sum(_block_bytes(expert, block_size, like.element_size()) for expert in experts)
    what = (
        f"an ensemble of {sum(expert.num_experts for expert in experts)} experts (states of {states / 1e9:.3g} GB, "
        f"which are kept twice, and blocks of {block_size} rows)"
    )
    fix = "take fewer experts or features, float32, or the device cpu"
    check_memory(_COPIES * states + block, like.device, what, fix)


def check_answers_fit(X: Tensor, num_experts: int) -> None:
    """Raise if predictions of all rows X (N, D) at once cannot fit into memory.

    Raises:
        ValueError: Naming the memory needed and free.
    """
    if X.shape[0] > _MANY_ROWS:
        what = f"the predictions of {num_experts} experts for {X.shape[0]} rows"
        check_memory(X.shape[0] * num_experts * X.element_size() * _FIELDS, X.device, what, "pass fewer rows per call")


def _state_bytes(expert: Expert, each: int) -> int:
    size, number = expert.features.num_features, expert.num_experts
    if isinstance(expert, WindowExpert):
        return 8 * number * (2 * expert.num_rows) ** 2  # a factor in double precision, with room for as many rows again
    if isinstance(expert, ExternalExpert | RefittedExpert):
        return 0
    return number * size * (size + 1) * each


def _block_bytes(expert: Expert, num_rows: int, each: int) -> int:
    """Memory of a block: three matrices (B, F) and one (B, B) for each expert."""
    if isinstance(expert, WindowExpert | ExternalExpert | RefittedExpert):
        return 0
    return expert.num_experts * num_rows * (3 * expert.features.num_features + num_rows) * each
