"""Rows seen, in bounded memory, and which of them is nearest to a new one."""

from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 16384  # rows compared at once


class RowStore(NamedTuple):
    """A sample of the rows seen with their embeddings."""

    rows: Tensor  # (C, D), the first ``num_kept`` of which are in use
    embedding: Tensor  # of each expert, (C, M, d)
    size: Tensor  # squared lengths of the rows, (C,)
    num_kept: Tensor  # rows in use, a scalar integer tensor
    num_seen: Tensor  # rows offered so far, a scalar integer tensor


class Replaced(NamedTuple):
    """What :func:`keep_rows` wrote to, and what stood there in so far as it was in use."""

    slots: Tensor
    old: Tensor
    rows: Tensor
    embedding: Tensor
    num_kept: int
    num_seen: int


def row_store(like: Tensor, capacity: int, num_outputs: int, latent_shape: tuple[int, int]) -> RowStore:
    """An empty store for ``capacity`` rows of D entries, with embeddings of shape (M, d)."""
    zero = torch.zeros((), dtype=torch.int64, device=like.device)
    rows, embedding = like.new_zeros(capacity, num_outputs), like.new_zeros(capacity, *latent_shape)
    return RowStore(rows, embedding, like.new_zeros(capacity), zero, zero.clone())


def nearest_rows(store: RowStore, Y: Tensor, num_nearest: int = 1) -> Tensor:
    """Positions (B, K) of the kept rows nearest to rows Y (B, D), NaN left out, the nearest first, all compared."""
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
    for first in range(0, count, CHUNK):
        part = slice(first, min(first + CHUNK, count))
        rows = store.rows[part]
        # The new row's own size is the same for all, so it is left out.
        size = store.size[part] if seen is None else seen.to(rows) @ rows.square().mT
        distance, place = (size - 2 * Y @ rows.mT).topk(min(num_nearest, len(rows)), largest=False)
        best, order = torch.cat([best, distance], dim=-1).sort(stable=True)
        found = torch.cat([found, place + first], dim=-1).gather(-1, order)
        best, found = best[:, :num_nearest], found[:, :num_nearest]
    return found


def keep_rows(store: RowStore, rows: Tensor, embedding: Tensor, *, seed: int) -> Replaced:
    """Offer rows to the store, which is changed in place: all are kept while there is room."""
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
