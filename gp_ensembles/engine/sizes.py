"""Block size and memory of an ensemble, from the sizes of its experts."""

from collections.abc import Sequence

from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.refitted import RefittedExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.filters.stream import choose_block_size
from gp_ensembles.numerics.devices import check_memory

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
