"""Rows along sample paths: future inputs, followed by the path's own past targets."""

from collections.abc import Callable

import torch
from torch import Tensor

from gp_ensembles.engine.memory import TargetMemory


class PathRows:
    """Rows of S paths as the experts see them, from past targets (L,) and future inputs (H, D)."""

    def __init__(self, memory: TargetMemory | None, history: Tensor | None, inputs: Tensor, num_paths: int) -> None:
        self._inputs, self._num_paths = inputs, num_paths
        self._latest: tuple[int, Tensor] | None = None
        self._known: Tensor | None = None
        self._reach: tuple[Tensor, Tensor] | None = None
        if memory is not None and history is not None:
            past = history.unsqueeze(-1).expand(-1, num_paths)
            self._known = torch.cat([past, past.new_empty(inputs.shape[0], num_paths)])
            self._reach = memory.reach()
            self._first = history.shape[0]
            self._lagged = self._first - torch.tensor(memory.lags, dtype=torch.int64, device=inputs.device)

    def new_column(self) -> Tensor:
        """Room for a number of each path."""
        return self._inputs.new_empty(self._num_paths, dtype=torch.float64)

    def at(self, step: int, paths: Tensor) -> Tensor:
        """Rows of some paths at a step, shape (L, D + P)."""
        if self._latest is None or self._latest[0] != step:
            rows = self._inputs[step].expand(self._num_paths, -1)
            if self._known is not None:
                rows = torch.cat([rows, self._known[self._lagged + step].mT], dim=-1)
            self._latest = step, rows
        return self._latest[1][paths]

    def learn(self, step: int, y: Tensor) -> None:
        """Remember targets (S,) of a step."""
        if self._known is not None:
            self._known[self._first + step] = y

    def within_reach(self, y: Tensor) -> Tensor:
        """Targets clipped to the range that is ever remembered: some linear recursions grow without bound."""
        return y if self._reach is None else y.clamp(*self._reach)

    @classmethod
    def along_means(
        cls, memory: TargetMemory | None, history: Tensor | None, inputs: Tensor, mean: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Rows (H, D + P) of the path whose targets are their means, a function of the row (1, D + P)."""
        path, only = cls(memory, history, inputs, 1), torch.zeros(1, dtype=torch.int64, device=inputs.device)
        rows = []
        for step in range(inputs.shape[0]):
            rows.append(path.at(step, only))
            path.learn(step, path.within_reach(mean(rows[-1])))
        return torch.cat(rows)
