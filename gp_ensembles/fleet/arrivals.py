"""Batching of rows that arrive in any order, for any of the series."""

from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor

LENGTHS = (64, 8, 1)


def batches(places: Tensor, lengths: Sequence[int] = LENGTHS) -> Iterator[tuple[Tensor, Tensor]]:
    """Split rows of series at places (N,) into batches with equally many rows of each series, in time order.

    A batch consists of distinct ascending places (S,), and row numbers within the call in time order, (S, B).
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
    """Integer codes (N,) of names, on the device of ``like``, and the distinct names by code."""
    numbers: dict[Hashable, int] = {}
    codes = [numbers.setdefault(name, len(numbers)) for name in names]
    return torch.tensor(codes, dtype=torch.int64, device=like.device), list(numbers)
