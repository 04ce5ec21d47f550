"""Rows seen, in bounded memory, and which of them is nearest to a new one."""

from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK = 16384  # rows compared at once


class RowStore(NamedTuple):
    """A sample of the rows seen with their embeddings.

    Attributes:
        rows: Shape (C, D), the first ``num_kept`` of which are in use.
        embedding: Of each expert, shape (C, M, d).
        size: Squared lengths of the rows, shape (C,).
        num_kept: Rows in use, a scalar integer tensor.
        num_seen: Rows offered so far, a scalar integer tensor.
    """

    rows: Tensor
    embedding: Tensor
    size: Tensor
    num_kept: Tensor
    num_seen: Tensor


class Replaced(NamedTuple):
    """What :func:`keep_rows` wrote to, and what stood there in so far as it was in use."""

    slots: Tensor
    old: Tensor
    rows: Tensor
    embedding: Tensor
    num_kept: int
    num_seen: int


def row_store(like: Tensor, capacity: int, num_outputs: int, latent_shape: tuple[int, int]) -> RowStore:
    """An empty store for ``capacity`` rows of D entries, with embeddings of shape (M, d).

    Example:
        >>> import torch
        >>> row_store(torch.zeros(1), 10, 3, (2, 1)).embedding.shape
        torch.Size([10, 2, 1])
    """
    zero = torch.zeros((), dtype=torch.int64, device=like.device)
    rows, embedding = like.new_zeros(capacity, num_outputs), like.new_zeros(capacity, *latent_shape)
    return RowStore(rows, embedding, like.new_zeros(capacity), zero, zero.clone())


def nearest_rows(store: RowStore, Y: Tensor, num_nearest: int = 1) -> Tensor:
    """Numbers of the kept rows nearest to each row, exactly, by matrix products.

    Args:
        store: The rows seen; at least one.
        Y: Rows, shape (B, D); entries that are NaN are left out of the distance.
        num_nearest: How many K of them are wanted; fewer come back if fewer are kept.

    Returns:
        Positions in the store, shape (B, K), the nearest first.

    Raises:
        ValueError: If the store is empty.

    Example:
        >>> import torch
        >>> store = row_store(torch.zeros(1), 4, 2, (1, 1))
        >>> _ = keep_rows(store, torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.zeros(2, 1, 1), seed=0)
        >>> nearest_rows(store, torch.tensor([[4.0, torch.nan], [1.0, -1.0]]), 2)
        tensor([[1, 0],
                [0, 1]])
    """
    count = int(store.num_kept)
    if count == 0:
        raise ValueError("no rows have been seen yet; start the model before asking for neighbors")
    num_nearest = min(num_nearest, count)
    gaps = torch.isnan(Y).any(-1)
    if not bool(gaps.any()):
        return _nearest(store, Y, None, num_nearest)
    # Rows without gaps need not pay for the others.
    found = torch.empty(len(Y), num_nearest, dtype=torch.int64, device=Y.device)
    found[~gaps] = _nearest(store, Y[~gaps], None, num_nearest)
    found[gaps] = _nearest(store, Y[gaps].nan_to_num(), ~torch.isnan(Y[gaps]), num_nearest)
    return found


def _nearest(store: RowStore, Y: Tensor, seen: Tensor | None, num_nearest: int) -> Tensor:
    best = Y.new_empty(len(Y), 0)
    found = torch.empty(len(Y), 0, dtype=torch.int64, device=Y.device)
    count = int(store.num_kept)
    for first in range(0, count, _CHUNK):
        part = slice(first, min(first + _CHUNK, count))
        rows = store.rows[part]
        # The new row's own size is the same for all, so it is left out.
        size = store.size[part] if seen is None else seen.to(rows) @ rows.square().mT
        distance, place = (size - 2 * Y @ rows.mT).topk(min(num_nearest, len(rows)), largest=False)
        best, order = torch.cat([best, distance], dim=-1).sort(stable=True)
        found = torch.cat([found, place + first], dim=-1).gather(-1, order)
        best, found = best[:, :num_nearest], found[:, :num_nearest]
    return found


def keep_rows(store: RowStore, rows: Tensor, embedding: Tensor, *, seed: int) -> Replaced:
    """Offer rows to the store, which is changed in place: all are kept while there is room.

    Beyond that the store is a uniform sample of all rows offered (reservoir sampling; Vitter, 1985). Whether row number
    t is kept depends on ``seed`` and t only, so blocks of any length give the same store.

    Args:
        store: The store.
        rows: Complete rows, shape (B, D).
        embedding: Their embeddings, shape (B, M, d).
        seed: Chooses the sample.

    Returns:
        What was overwritten.

    Example:
        >>> import torch
        >>> store = row_store(torch.zeros(1), 3, 1, (1, 1))
        >>> _ = keep_rows(store, torch.arange(100.0).unsqueeze(-1), torch.zeros(100, 1, 1), seed=0)
        >>> store.num_kept.item(), store.num_seen.item()
        (3, 100)
    """
    capacity, num_seen = len(store.rows), int(store.num_seen)
    chosen: dict[int, int] = {}  # slot -> row that ends there
    source = torch.Generator()
    for number in range(len(rows)):
        slot = num_seen + number
        if slot >= capacity:
            source.manual_seed((seed * 1_000_003 + slot) % 2**63)
            slot = int(torch.randint(slot + 1, (1,), generator=source, device="cpu"))
        if slot < capacity:
            chosen[slot] = number
    slots = store.num_seen.new_tensor(list(chosen))
    numbers = store.num_seen.new_tensor(list(chosen.values()))
    num_kept = int(store.num_kept)
    old = slots[slots < num_kept]  # what the others held means nothing
    replaced = Replaced(slots, old, store.rows[old], store.embedding[old], num_kept, num_seen)
    _write(store, slots, rows[numbers], embedding[numbers])
    store.num_seen.add_(len(rows))
    store.num_kept.fill_(min(num_seen + len(rows), capacity))
    return replaced


def restore_rows(store: RowStore, replaced: Replaced) -> None:
    """Undo the last :func:`keep_rows`, in place."""
    unused = replaced.slots[replaced.slots >= replaced.num_kept]
    _write(store, unused, store.rows.new_zeros(()), store.embedding.new_zeros(()))
    _write(store, replaced.old, replaced.rows, replaced.embedding)
    store.num_kept.fill_(replaced.num_kept)
    store.num_seen.fill_(replaced.num_seen)


def _write(store: RowStore, slots: Tensor, rows: Tensor, embedding: Tensor) -> None:
    store.rows[slots], store.embedding[slots] = rows, embedding
    store.size[slots] = store.rows[slots].square().sum(-1)
