"""Mixture of weight rules, themselves weighed by another rule; and its path of single targets on plain arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gp_ensembles.meta_learners import steps
from gp_ensembles.meta_learners.base import (
    SMALLEST_DENSITY,
    MetaLearner,
    MetaOutput,
    MetaState,
    check_block,
    form_on,
    run_linear,
)
from gp_ensembles.numerics.backends import as_arrays, rows_of

Numbers = NDArray[np.float64]


class CombinedRules(MetaLearner):
    r"""A mixture of the mixtures that several rules make of the same experts.

    With :math:`w_{r}` the weights of rule r before a target, its mixture is a prediction :math:`p_r = w_r^\top p` of
    its own, and another rule weighs these predictions:

    .. math:: w = \sum_r W_r\, w_r, \qquad w^\top p = \sum_r W_r\, p_r

    The log loss exceeds that of the best rule by no more than the regret of the rule over them, log R for Bayesian
    model averaging of R rules. No rule is best on all streams (one expert is right on some, their mixture on others);
    this makes the choice unnecessary.

    Attributes:
        forms: The forms of all rules and of that over them, where they can run in one pass; some give to all experts.

    Args:
        rules: The rules, at least two; none may be built for another number of experts than the ensemble has.
        over: The rule that weighs them, for R = ``len(rules)`` predictions.

    Raises:
        ValueError: If there are fewer than two rules.

    Example:
        >>> import torch
        >>> from gp_ensembles.meta_learners import BayesianModelAveraging, SoftBayes
        >>> rule = CombinedRules([BayesianModelAveraging(), SoftBayes()], over=BayesianModelAveraging())
        >>> log_prob = torch.tensor([[0.0, 0.0], [-2.0, -2.0]], dtype=torch.float64)
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> output.log_weights.exp().sum(0)
        tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(self, rules: Sequence[MetaLearner], over: MetaLearner) -> None:
        super().__init__()
        _check_rules([*rules, over])
        if len(rules) < 2:
            raise ValueError(f"there must be at least two rules to combine, got {len(rules)}")
        self._modules_of_rules = nn.ModuleList(rules)
        self.rules: tuple[MetaLearner, ...] = tuple(rules)  # the same objects with their type
        self.over = over
        forms = tuple(rule.form for rule in (*rules, over) if rule.form is not None)
        can_run_at_once = len(forms) > len(rules) and any(give for _, _, give in forms[:-1])
        self.forms: tuple[tuple[float, float, float], ...] | None = forms if can_run_at_once else None

    def numbers(self, log_weights: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The numbers a, b and c of the rules, (R, 1) each, and of that over them, (1, 1), for experts (M,)."""
        assert self.forms is not None
        kind = log_weights.dtype, log_weights.device
        return form_on(self.forms[:-1], len(log_weights), *kind), form_on(self.forms[-1:], len(self.rules), *kind)

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: that of every rule, and of the rule over them."""
        states = [rule.init(num_experts, like) for rule in self.rules]
        return self._pack(states, self.over.init(len(self.rules), like))

    def log_weights(self, state: MetaState) -> Tensor:
        if self.forms is not None:
            num = len(self.rules)
            return (state.memory[:, :num] + state.memory[0, num:]).logsumexp(1)
        states, over = self._unpack(state)
        own = torch.stack([rule.log_weights(s) for rule, s in zip(self.rules, states, strict=True)])
        return (self.over.log_weights(over).unsqueeze(-1) + own).logsumexp(0)

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        found = self._at_once(state, log_prob)
        if found is not None:
            return found
        states, over = self._unpack(state)
        results = [rule.update_block(s, log_prob) for rule, s in zip(self.rules, states, strict=True)]
        outputs = [output for _, output in results]
        over, above = self.over.update_block(over, torch.stack([output.log_prob for output in outputs]))
        own = torch.stack([output.log_weights for output in outputs])
        log_weights = (above.log_weights.unsqueeze(1) + own).logsumexp(0)
        return self._pack([after for after, _ in results], over), MetaOutput(log_weights, above.log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together under every rule; see :meth:`MetaLearner.grow`."""
        states, over = self._unpack(state)
        grown = [rule.grow(s, num_new, share) for rule, s in zip(self.rules, states, strict=True)]
        return self._pack(grown, over)

    def _at_once(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """A block of all rules in one pass, and of the rule over them; ``None`` where each has to run by itself."""
        num_experts, num_rows = log_prob.shape
        if self.forms is None or not num_rows:
            return None
        num, (numbers, of_over) = len(self.rules), self.numbers(state.log_weights)
        row = weigh_one((numbers, of_over), state, log_prob) if num_rows == 1 else None
        if row is not None:
            return row
        block = run_linear(numbers, state.memory[:, :num].mT, log_prob)
        above = None if block is None else run_linear(of_over, state.memory[:1, num:], block.log_prob)
        if block is None or above is None:
            return None
        log_weights = (above.weights @ block.weights).squeeze(1).log().mT
        last = above.log_weights[-1].expand(num_experts, -1)
        memory = torch.cat([block.log_weights[-1].mT, last], dim=-1)
        after = MetaState(log_weights[:, -1], state.num_seen + num_rows, memory)
        return after, MetaOutput(log_weights[:, :-1], above.log_prob[0])

    def _pack(self, states: Sequence[MetaState], over: MetaState) -> MetaState:
        """All states as one: a column of log weights and the memory of each rule, then the rule over them."""
        num_experts = states[0].log_weights.shape[0]
        above = torch.cat([over.log_weights, over.memory.reshape(-1).to(over.log_weights)])
        columns = [torch.cat([s.log_weights.unsqueeze(-1), s.memory.to(s.log_weights)], dim=-1) for s in states]
        memory = torch.cat([*columns, above.expand(num_experts, -1)], dim=-1)
        own = torch.stack([rule.log_weights(s) for rule, s in zip(self.rules, states, strict=True)])
        log_weights = (self.over.log_weights(over).unsqueeze(-1) + own).logsumexp(0)
        return MetaState(log_weights, states[0].num_seen, memory)

    def _unpack(self, state: MetaState) -> tuple[list[MetaState], MetaState]:
        num_experts, num_rules = state.log_weights.shape[0], len(self.rules)
        start, states = 0, []
        for rule in self.rules:
            width = rule.init(num_experts, state.log_weights).memory.shape[-1]
            columns = state.memory[:, start : start + 1 + width]
            states.append(MetaState(columns[:, 0], state.num_seen, columns[:, 1:]))
            start += 1 + width
        above = state.memory[0, start:]
        memory = above[num_rules:].reshape(num_rules, -1)
        return states, MetaState(above[:num_rules], state.num_seen, memory)


class References(NamedTuple):
    """Reference experts with which a rule is averaged, see :class:`~gp_ensembles.meta_learners.ReferenceAveraging`."""

    places: tuple[int, ...]  # places of the references among the experts
    share: float  # what is shared out after each target
    prior: float  # the part of the references in it


class WeighedRow(NamedTuple):
    """A weighed target, before the rule learns it."""

    log_weights: Numbers  # log weights before it, shape (M,)
    log_prob: float  # its log density
    after: Numbers  # log weights after it, (M,)
    memory: Numbers  # the rule's memory after it, of the state's shape


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
        if self._references is not None:
            _, share, prior = self._references
            weight = (1 - share) * np.exp(self._known[-1]) + share * prior
            mixture *= 1 - weight
            mixture[self._places] += weight * np.exp(self._known[:-2])
        return np.log(mixture, out=mixture)

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


def _check_rules(rules: Sequence[object]) -> None:
    """Raise a TypeError unless each is a rule, and not its class."""
    for rule in rules:
        if not isinstance(rule, MetaLearner):
            what = f"the class {rule.__name__}; call it" if isinstance(rule, type) else repr(rule)
            raise TypeError(f"a rule to combine must be a weight rule such as FixedShare(), got {what}")
