"""What follows from the sizes of experts: how many rows a block has, and the memory that an ensemble takes."""

from collections.abc import Sequence

from torch import Tensor

from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.refitted import RefittedExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.filters.stream import choose_block_size
from gp_ensembles.numerics.devices import check_memory

_LONGER_BLOCK = 256  # what a window solves for and an external model is asked for at once
_MANY_OBJECTS, _LONG_BLOCK = 12, 64  # what a block costs whatever its length counts once for each object
_MANY_ROWS, _FIELDS = 10_000, 10  # rows from which room is asked for, and numbers kept of each of their predictions
_COPIES = 2  # states as they are, and as they were: while they are made, and for the way back


def usual_block_size(experts: Sequence[Expert]) -> int:
    """Rows that run fastest as a block: those of the largest object, or many where there are many small ones."""
    if any(isinstance(expert, WindowExpert | ExternalExpert) for expert in experts):
        return _LONGER_BLOCK
    if len(experts) >= _MANY_OBJECTS:
        return _LONG_BLOCK
    widest = max(experts, key=lambda e: e.num_experts * e.features.num_features**2)
    return choose_block_size(widest.features.num_features, widest.num_experts)


def state_bytes(experts: Sequence[Expert], like: Tensor) -> int:
    """What the states of experts take in numbers like those of a tensor; trees and external models are left out."""
    return sum(_state_bytes(expert, like.element_size()) for expert in experts)


def check_states_fit(experts: Sequence[Expert], block_size: int, like: Tensor) -> None:
    """Raise if experts cannot run on a GPU: a lower bound of their memory, twice their states and one block of rows.

    Raises:
        ValueError: Saying what is needed, what is free and by how much it is too little.
    """
    if like.device.type != "cuda":
        return
    states = state_bytes(experts, like)
    block = sum(_block_bytes(expert, block_size, like.element_size()) for expert in experts)
    what = (
        f"an ensemble of {sum(expert.num_experts for expert in experts)} experts (states of {states / 1e9:.3g} GB, "
        f"which are there twice, and blocks of {block_size} rows)"
    )
    mend = "take fewer experts or features, float32, or the device cpu"
    check_memory(_COPIES * states + block, like.device, what, mend)


def check_answers_fit(X: Tensor, num_experts: int) -> None:
    """Raise if predictions of all rows X (N, D) at once cannot fit into memory.

    Raises:
        ValueError: Saying so.
    """
    if X.shape[0] > _MANY_ROWS:
        what = f"what {num_experts} predictions say of {X.shape[0]} rows"
        check_memory(X.shape[0] * num_experts * X.element_size() * _FIELDS, X.device, what, "give the rows in parts")


def _state_bytes(expert: Expert, each: int) -> int:
    size, number = expert.features.num_features, expert.num_experts
    if isinstance(expert, WindowExpert):
        return 8 * number * (2 * expert.num_rows) ** 2  # a factor in double precision, with room for as many rows again
    if isinstance(expert, ExternalExpert | RefittedExpert):
        return 0
    return number * size * (size + 1) * each


def _block_bytes(expert: Expert, num_rows: int, each: int) -> int:
    """Features of a block and what they teach: three matrices (B, F) and one (B, B) for each expert."""
    if isinstance(expert, WindowExpert | ExternalExpert | RefittedExpert):
        return 0
    return expert.num_experts * num_rows * (3 * expert.features.num_features + num_rows) * each
