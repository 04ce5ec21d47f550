"""Places of series, by name, in the arrays that hold their states."""

from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor


class Slots:
    """Places of series by name; places of retired series are reused."""

    def __init__(self) -> None:
        self._places: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._num_used = 0

    @property
    def names(self) -> tuple[Hashable, ...]:
        """Names of all series, in the order in which they were added."""
        return tuple(self._places)

    @property
    def size(self) -> int:
        """Places in use and free ones between them."""
        return self._num_used

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._places

    def places(self, names: Sequence[Hashable]) -> Tensor:
        """Places of series, integers, in the order of the names, which may come several times.

        Raises:
            KeyError: If a series is unknown; names the first such.
        """
        try:
            return torch.tensor([self._places[name] for name in names], dtype=torch.int64, device="cpu")
        except KeyError:
            unknown = list(dict.fromkeys(name for name in names if name not in self._places))
        raise KeyError(f"unknown series {_few(unknown)}; add them first with fleet.add([...])")

    def size_with(self, num_new: int) -> int:
        """The size after adding a number of series."""
        return self._num_used + max(0, num_new - len(self._free))

    def check_new(self, names: Sequence[Hashable]) -> None:
        """Raise unless series are new and distinct.

        Raises:
            ValueError: Names the first ones that are not.
        """
        known = [name for name in names if name in self._places]
        if known:
            raise ValueError(f"series {_few(known)} are in the fleet already; retire them first, or leave them out")
        if len(set(names)) < len(names):
            seen: set[Hashable] = set()
            twice = [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
            raise ValueError(f"series {_few(twice)} are named twice; every series is added once")

    def add(self, names: Sequence[Hashable]) -> Tensor:
        """Give places to new series; see :meth:`check_new` for what is raised."""
        self.check_new(names)
        taken = [self._free.pop() for _ in range(min(len(names), len(self._free)))]
        more = len(names) - len(taken)
        taken += range(self._num_used, self._num_used + more)
        self._num_used += more
        self._places.update(zip(names, taken, strict=True))
        return torch.tensor(taken, dtype=torch.int64, device="cpu")

    def retire(self, names: Iterable[Hashable]) -> None:
        """Remove series.

        Raises:
            KeyError: If one is unknown; then all stay.
        """
        names = list(dict.fromkeys(names))
        self.places(names)
        self._free += [self._places.pop(name) for name in names][::-1]


def _few(names: Sequence[Hashable]) -> str:
    """The first names of a list, and how many more there are."""
    shown = ", ".join(repr(name) for name in names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
