"""Single-target path of the default rule on plain arrays, in the memory of its state."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.meta_learners import steps
from gp_ensembles.meta_learners.base import SMALLEST_DENSITY, MetaOutput, MetaState
from gp_ensembles.numerics.backends import as_arrays, rows_of

Numbers = NDArray[np.float64]


class References(NamedTuple):
    """Numbers of :class:`~gp_ensembles.meta_learners.ReferenceAveraging`.

    Attributes:
        places: Places of the references among the experts.
        share: What is shared out after each target.
        prior: The part of the references in it.
    """

    places: tuple[int, ...]
    share: float
    prior: float


class WeighedRow(NamedTuple):
    """A weighed target, before the rule learns it.

    Attributes:
        log_weights: Log weights before it, shape (M,).
        log_prob: Its log density.
        after: Log weights after it, (M,).
        memory: The rule's memory after it, of the state's shape.
    """

    log_weights: Numbers
    log_prob: float
    after: Numbers
    memory: Numbers


@final
class RowRule:
    """R rules of one form and a rule over them, averaged with references or not, for one target at a time.

    ``numbers`` are those of the rules and of the rule over them, see
    :meth:`~gp_ensembles.meta_learners.CombinedRules.numbers`; the state is of the processor, in double precision.
    """

    def __init__(
        self, numbers: Sequence[Sequence[Tensor]], state: MetaState, references: References | None = None
    ) -> None:
        self._log_weights, self._num_seen, self._memory = (part.numpy() for part in state)
        self._numbers, self._above = (tuple(part.numpy() for part in some) for some in numbers)
        self._formulas: Any = rows_of(steps)
        self._references, num = references, len(self._numbers[0])
        start = 0 if references is None else 1
        self._rules, self._rest = slice(start, start + num), slice(start + num, start + 2 * num)
        self._known = self._memory[0, start + 2 * num :]
        if references is not None:
            self._places = np.array(references.places, dtype=np.int64)
            self._ones = np.zeros((len(self._places), len(self._memory)))
            self._ones[np.arange(len(self._places)), self._places] = 1.0

    def log_weights(self) -> Numbers:
        """Log weights for the next target, shape (M,)."""
        mixture: Numbers = np.exp(self._memory[:, self._rules]).dot(np.exp(self._memory[0, self._rest]))
        if self._references is None:
            return np.log(mixture, out=mixture)
        _, share, prior = self._references
        weight = (1 - share) * np.exp(self._known[-1:]) + share * prior
        found: Numbers = self._formulas.mix(mixture, weight, self._known[:-2], self._ones)
        return found

    def weigh(self, log_prob: Numbers) -> WeighedRow | None:
        """Weigh log densities (M,) of a target; ``None`` where one is undefined, or all are next to impossible."""
        formulas, own, over = self._formulas, self._memory[:, self._rules].T.copy(), self._memory[0, self._rest]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # results are checked
            learned, shared, before, after, density, least = formulas.combine(
                self._numbers, self._above, own, over, log_prob
            )
            if not least[0] > SMALLEST_DENSITY:
                return None
            memory = np.empty_like(self._memory)
            memory[:, self._rules], memory[:, self._rest] = learned.T, shared
            if self._references is None:
                return WeighedRow(np.log(before), density.item(), np.log(after), memory)
            known, (_, share, prior) = self._known, self._references
            among, weight, moved, following, density = formulas.refer(
                self._places, share, prior, known[:-2], np.exp(known[-1:]), log_prob, density
            )
            if not np.isfinite(density[0]):
                return None
            log_weights = formulas.mix(before, weight, known[:-2], self._ones)
            joined = formulas.mix(after, following, among, self._ones)
            memory[:, 0], memory[:, self._rest.stop : -2] = np.log(after), among
            memory[:, -2], memory[:, -1] = np.log1p(-moved), np.log(moved)
        return WeighedRow(log_weights, density.item(), joined, memory)

    def commit(self, row: WeighedRow) -> None:
        """Learn a target."""
        self._log_weights[:], self._memory[:] = row.after, row.memory
        self._num_seen[...] += 1


def weigh_one(
    numbers: Sequence[Sequence[Tensor]], state: MetaState, log_prob: Tensor, references: References | None = None
) -> tuple[MetaState, MetaOutput] | None:
    """A block of one target (M, 1) by :class:`RowRule`; ``None`` where it does not apply."""
    arrays = as_arrays(log_prob, state.log_weights, state.memory)
    if arrays is None:
        return None
    row = RowRule(numbers, state, references).weigh(np.ascontiguousarray(arrays[0][:, 0]))
    if row is None:
        return None
    after = MetaState(torch.from_numpy(row.after), state.num_seen + 1, torch.from_numpy(row.memory))
    return after, MetaOutput(torch.from_numpy(row.log_weights).unsqueeze(1), log_prob.new_tensor([row.log_prob]))
