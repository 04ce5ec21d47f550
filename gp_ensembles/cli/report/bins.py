"""Series in constant room: consecutive rows share a bin, and bins join in pairs when all are taken."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
CAPACITY = 4096  # bins, an even number


class Bins:
    """Sums, least and greatest values over runs of equally many rows, at most ``capacity`` of them.

    A run is one row at first. When all bins are taken, each joins its neighbor, and a run is twice as long.

    Args:
        sums: Names of the series that are summed.
        ranges: Names of the series of which the least and the greatest value are kept.
        capacity: Most bins, even.

    Example:
        >>> bins = Bins(["y"], ["y"], capacity=2)
        >>> bins.add({"y": np.array([1.0, np.nan, 4.0])}, {"y": np.array([1.0, np.nan, 4.0])})
        >>> bins.width, bins.sum("y").tolist(), bins.greatest("y").tolist()
        (2, [1.0, 4.0], [1.0, 4.0])
    """

    capacity: int
    num_rows: int
    width: int

    def __init__(self, sums: Sequence[str], ranges: Sequence[str], *, capacity: int = CAPACITY) -> None:
        self.width, self.num_rows, self.capacity = 1, 0, capacity
        self._sums = {name: np.zeros(capacity) for name in sums}
        self._least = {name: np.full(capacity, np.nan) for name in ranges}
        self._greatest = {name: np.full(capacity, np.nan) for name in ranges}

    @property
    def num_bins(self) -> int:
        """Bins in use; the last may not be full."""
        return -(-self.num_rows // self.width)

    @property
    def sizes(self) -> Array:
        """Rows in each bin."""
        sizes = np.full(self.num_bins, float(self.width))
        if self.num_bins:
            sizes[-1] = self.num_rows - self.width * (self.num_bins - 1)
        return sizes

    def add(self, sums: Mapping[str, Array], ranges: Mapping[str, Array]) -> None:
        """Add rows, a value (B,) of each series; what is not finite adds nothing."""
        num = len(next(iter(sums.values())))
        while self.num_rows + num > self.width * self.capacity:
            self._join()
        places = (self.num_rows + np.arange(num)) // self.width
        for name, values in sums.items():
            np.add.at(self._sums[name], places, np.where(np.isfinite(values), values, 0.0))
        for name, values in ranges.items():
            kept = np.where(np.isfinite(values), values, np.nan)
            np.fmin.at(self._least[name], places, kept)
            np.fmax.at(self._greatest[name], places, kept)
        self.num_rows += num

    def sum(self, name: str) -> Array:
        """Sums of a series by bin."""
        return self._sums[name][: self.num_bins]

    def least(self, name: str) -> Array:
        """Least values of a series by bin; NaN where there is none."""
        return self._least[name][: self.num_bins]

    def greatest(self, name: str) -> Array:
        """Greatest values of a series by bin; NaN where there is none."""
        return self._greatest[name][: self.num_bins]

    def _join(self) -> None:
        half = self.capacity // 2
        for values in self._sums.values():
            values[:half] = values[0::2] + values[1::2]
            values[half:] = 0.0
        for kept, reduce in ((self._least, np.fmin), (self._greatest, np.fmax)):
            for values in kept.values():
                values[:half] = reduce(values[0::2], values[1::2])
                values[half:] = np.nan
        self.width *= 2

    def to_plain(self) -> dict[str, Any]:
        """Plain containers and tensors."""
        used = self.num_bins
        parts = (self._sums, self._least, self._greatest)
        tables = [{name: torch.from_numpy(part[name][:used].copy()) for name in part} for part in parts]
        head = {"width": self.width, "num_rows": self.num_rows, "capacity": self.capacity}
        return {**head, **dict(zip(("sums", "least", "greatest"), tables, strict=True))}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Bins":
        """What :meth:`to_plain` wrote."""
        bins = cls(list(plain["sums"]), list(plain["least"]), capacity=plain["capacity"])
        bins.width, bins.num_rows = plain["width"], plain["num_rows"]
        for part, name in ((bins._sums, "sums"), (bins._least, "least"), (bins._greatest, "greatest")):
            for series, values in plain[name].items():
                part[series][: len(values)] = values.numpy()
        return bins
