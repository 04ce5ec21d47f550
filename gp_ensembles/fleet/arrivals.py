"""Batches of rows that arrive in any order, for any of the series."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

LENGTHS = (64, 8, 1)


def batches(places: Tensor, lengths: Sequence[int] = LENGTHS) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows, of series at places (N,), as batches with equally many of each series, in the order of each series.

    A batch is distinct places, ascending, shape (S,), and numbers of rows in the call in the order of time, (S, B).
    """
    order = places.argsort(stable=True)
    series, counts = places[order].unique_consecutive(return_counts=True)
    starts = counts.cumsum(0) - counts
    left = counts.clone()
    for length in lengths:
        steps = torch.arange(length, device=places.device)
        while True:
            here = (left >= length).nonzero().flatten()
            if here.numel() == 0:
                break
            yield series[here], order[starts[here].unsqueeze(-1) + steps]
            starts[here] += length
            left[here] -= length


def numbered(names: Sequence[Hashable], like: Tensor) -> tuple[Tensor, list[Hashable]]:
    """A number for each distinct name, (N,), on the device of ``like``, and the names by number."""
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(name, len(numbers)) for name in names]
    return torch.tensor(codes, dtype=torch.int64, device=like.device), list(numbers)
