"""Single-target path of the default rule on plain arrays, in the memory of its state."""

from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.meta_learners.base import MetaLearner, MetaState
from gp_ensembles.meta_learners.combined import CombinedRules
from gp_ensembles.meta_learners.compiled_rules import row_forms, weigh_row
from gp_ensembles.meta_learners.reference import ReferenceAveraging, refer_row

Numbers = NDArray[np.float64]


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
    """Combined rules, averaged with references or not, for one target at a time."""

    def __init__(self, rules: CombinedRules, reference: ReferenceAveraging | None, state: MetaState) -> None:
        forms = row_forms(rules.rules, rules.over)
        assert forms is not None
        self._forms, self._num_rules = forms, len(forms) - 1
        self._reference = reference
        self._places = np.array([] if reference is None else reference.references, dtype=np.int64)
        self._log_weights, self._num_seen, self._memory = (part.numpy() for part in state)
        start = 0 if reference is None else 1
        self._own = self._memory[:, start : start + 2 * self._num_rules]
        self._known = self._memory[0, start + 2 * self._num_rules :]

    @classmethod
    def of(cls, rule: MetaLearner, state: MetaState) -> "RowRule | None":
        """The same for a rule and its state on the processor in double precision; ``None`` for rules of other kinds."""
        reference = rule if isinstance(rule, ReferenceAveraging) else None
        rules = rule.rule if isinstance(rule, ReferenceAveraging) else rule
        if not isinstance(rules, CombinedRules) or row_forms(rules.rules, rules.over) is None:
            return None
        return cls(rules, reference, state)

    def log_weights(self) -> Numbers:
        """Log weights for the next target, shape (M,)."""
        weights = np.exp(self._own)
        mixture: Numbers = weights[:, : self._num_rules].dot(weights[0, self._num_rules :])
        if self._reference is not None:
            among, between = np.exp(self._known[:-2]), np.exp(self._known[-1])
            share = (1 - self._reference.share) * between + self._reference.share * self._reference.prior
            mixture *= 1 - share
            mixture[self._places] += share * among
        return np.log(mixture, out=mixture)

    def weigh(self, log_prob: Numbers) -> WeighedRow | None:
        """Weigh log densities (M,) of a target; ``None`` where one is undefined, or all are next to impossible."""
        own = np.ascontiguousarray(self._own)
        found, learned, over, after, log_weights, density = weigh_row(self._forms, own, log_prob)
        if not found:
            return None
        memory = np.empty_like(self._memory)
        rest = memory
        if self._reference is not None:
            memory[:, 0], rest = after, memory[:, 1:]
            reference = self._reference
            found, log_weights, density, after, known = refer_row(
                self._places, reference.share, reference.prior, self._known, log_prob, log_weights, density, after
            )
            if not found:
                return None
            rest[:, 2 * self._num_rules :] = known
        rest[:, : self._num_rules], rest[:, self._num_rules : 2 * self._num_rules] = learned, over
        return WeighedRow(log_weights, density, after, memory)

    def commit(self, row: WeighedRow) -> None:
        """Learn a target."""
        self._log_weights[:], self._memory[:] = row.after, row.memory
        self._num_seen[...] += 1
