"""Series in constant memory: consecutive rows share a bin, and neighbors are merged when all bins are in use."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
CAPACITY = 4096  # bins, an even number
_MERGE = {"sum": np.add, "count": np.add, "least": np.fmin, "greatest": np.fmax}


class Bins:
    """Statistics of series over runs of equally many rows, one row at first, in at most ``capacity`` bins.

    Args:
        series: What is kept, as in "sum y", "count y" (of finite values), "least y" and "greatest y".
        capacity: Most bins, even.
    """

    width: int
    num_rows: int

    def __init__(self, series: Sequence[str], *, capacity: int = CAPACITY) -> None:
        self.width, self.num_rows, self._capacity = 1, 0, capacity
        self._series = {key: np.full(capacity, _empty(key)) for key in series}

    def __getitem__(self, key: str) -> Array:
        """A series by bin; NaN where there is no least or greatest value."""
        return self._series[key][: self.num_bins]

    @property
    def num_bins(self) -> int:
        """Bins in use; the last may not be full."""
        return -(-self.num_rows // self.width)

    @property
    def sizes(self) -> Array:
        """Rows in each bin."""
        starts = self.width * np.arange(self.num_bins, dtype=np.float64)
        return np.minimum(self.width, self.num_rows - starts)

    def add(self, rows: Mapping[str, Array]) -> None:
        """Add rows, each series (B,); values that are not finite add nothing."""
        num = len(next(iter(rows.values())))
        while self.num_rows + num > self.width * self._capacity:
            self._merge_neighbors()
        places = (self.num_rows + np.arange(num)) // self.width
        for key, held in self._series.items():
            kind, _, name = key.partition(" ")
            is_finite = np.isfinite(rows[name])
            _MERGE[kind].at(
                held, places, is_finite if kind == "count" else np.where(is_finite, rows[name], _empty(key))
            )
        self.num_rows += num

    def _merge_neighbors(self) -> None:
        half = self._capacity // 2
        for key, held in self._series.items():
            held[:half] = _MERGE[key.partition(" ")[0]](held[0::2], held[1::2])
            held[half:] = _empty(key)
        self.width *= 2

    def to_plain(self) -> dict[str, Any]:
        """Plain containers and tensors."""
        series = {key: torch.from_numpy(self[key].copy()) for key in self._series}
        return {"width": self.width, "num_rows": self.num_rows, "capacity": self._capacity, "series": series}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Bins":
        """What :meth:`to_plain` wrote."""
        bins = cls(list(plain["series"]), capacity=plain["capacity"])
        bins.width, bins.num_rows = plain["width"], plain["num_rows"]
        for key, values in plain["series"].items():
            bins[key][:] = values.numpy()
        return bins


def _empty(key: str) -> float:
    return np.nan if key.startswith(("least", "greatest")) else 0.0
