"""Rows seen, in bounded memory, and which of them is nearest to a new one: exactly, or by an index."""

from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor

CHUNK = 16384  # rows compared at once
_MOST_COMPARED = 100_000  # rows: about 40 ms for one search among rows of 256 entries
_SPARE = 7  # candidates of the index beyond those wanted: some may have been overwritten
SETTLED = 1024  # rows written since the index was last brought up to date that are compared one by one


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


@final
class FaissSearch:
    """An inverted file of faiss (extra ``faiss``): approximate, on the processor, for more than about 1e5 rows.

    Rows are parted into about the square root of their number of cells, of which the nearest few are searched. Rows
    written since the index was last brought up to date are compared exactly, and so is everything below ``least`` rows
    and every row with gaps. Cells are recomputed when the rows have doubled. The index is not part of a state: copies
    and loaded models build their own.

    A model takes a copy, so one object may be given to several.

    Args:
        num_probes: Cells searched; more is closer to exact, and slower.
        least: Rows below which the search is exact.

    Raises:
        ImportError: If faiss is not installed.
        ValueError: If a number is below one.

    Example:
        >>> from gp_ensembles.papers.gplvm import IEGPLVM
        >>> from gp_ensembles.papers.gplvm.neighbors import FaissSearch
        >>> from gp_ensembles.papers.gplvm.presets import rbf_features
        >>> features = rbf_features(num_latent=2)
        >>> search = FaissSearch(num_probes=32)  # doctest: +SKIP
        >>> model = IEGPLVM(features, num_outputs=12, search=search)  # doctest: +SKIP
    """

    num_probes: int
    least: int

    def __init__(self, num_probes: int = 16, least: int = 10_000) -> None:
        if num_probes < 1 or least < 1:
            raise ValueError(f"num_probes and least must be at least 1, got {num_probes} and {least}")
        self.num_probes, self.least = num_probes, least
        self._faiss = _faiss()
        self.reset()

    def nearest(self, store: RowStore, Y: Tensor, num_nearest: int = 1) -> Tensor:
        """As :func:`nearest_rows`, nearly always."""
        num_kept = int(store.num_kept)
        if num_kept < max(self.least, num_nearest) or bool(torch.isnan(Y).any()):
            return nearest_rows(store, Y, num_nearest)
        self._bring_up_to_date(store, num_kept)
        _, found = self._index.search(_plain(Y), num_nearest + _SPARE)
        places = torch.from_numpy(found).to(Y.device)
        fresh = store.num_kept.new_tensor(sorted(slot for slot in self._fresh if slot < num_kept))
        stale = (places < 0) | (places >= num_kept) | torch.isin(places, fresh)
        places = places.clamp(0, num_kept - 1)
        # Candidates are compared in the rows' own precision; the new row's size is the same for all.
        distance = store.size[places] - 2 * torch.einsum("bcd,bd->bc", store.rows[places], Y)
        distances = store.size[fresh] - 2 * Y @ store.rows[fresh].mT
        distance = torch.cat([distance.masked_fill(stale, torch.inf), distances], dim=-1)
        places = torch.cat([places, fresh.expand(len(Y), -1)], dim=-1)
        closest, order = distance.sort(stable=True)
        nearest = places.gather(-1, order[:, :num_nearest])
        lost = closest[:, num_nearest - 1].isinf()  # too many candidates were overwritten
        if bool(lost.any()):
            nearest[lost] = nearest_rows(store, Y[lost], num_nearest)
        return nearest

    def written(self, slots: Tensor) -> None:
        """Those rows are compared exactly until the index is brought up to date."""
        if self._index is not None:
            self._fresh.update(slots.tolist())

    def reset(self) -> None:
        """Forget the index."""
        self._index: Any = None
        self._num_trained = 0
        self._fresh: set[int] = set()

    def __reduce__(self) -> tuple[type[Self], tuple[int, int]]:
        """The same settings without an index."""
        return type(self), (self.num_probes, self.least)

    def _bring_up_to_date(self, store: RowStore, num_kept: int) -> None:
        if self._index is None or num_kept >= 2 * self._num_trained:
            self._build(store, num_kept)
        elif len(self._fresh) > SETTLED:
            slots = torch.tensor(
                sorted(slot for slot in self._fresh if slot < num_kept), dtype=torch.int64, device="cpu"
            )
            self._index.remove_ids(slots.numpy())
            self._index.add_with_ids(_plain(store.rows[slots.to(store.rows.device)]), slots.numpy())
            self._fresh.clear()

    def _build(self, store: RowStore, num_kept: int) -> None:
        rows = _plain(store.rows[:num_kept])
        num_cells = max(1, int(num_kept**0.5))
        quantizer = self._faiss.IndexFlatL2(rows.shape[1])
        index = self._faiss.IndexIVFFlat(quantizer, rows.shape[1], num_cells)
        index.cp.min_points_per_centroid = 1  # the least rows are the user's choice; faiss would print a warning
        index.train(rows)
        index.add(rows)
        index.nprobe = min(self.num_probes, num_cells)
        self._index, self._num_trained = index, num_kept
        self._fresh.clear()


def default_search(capacity: int) -> FaissSearch | None:
    """None up to 100 000 rows, all of which are compared; faiss beyond."""
    return None if capacity <= _MOST_COMPARED else FaissSearch()


def _plain(rows: Tensor) -> Any:
    """Rows as faiss takes them."""
    return rows.detach().cpu().float().contiguous().numpy()


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "FaissSearch needs faiss; pip install 'gp_ensembles[faiss]', or keep 100000 rows at most"
        ) from error
    return faiss
