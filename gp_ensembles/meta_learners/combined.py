"""Mixtures of weight rules, weighted by a rule or averaged with references, and their single-target path."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gp_ensembles.meta_learners import steps
from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import (
    PLAIN,
    SMALLEST_DENSITY,
    MetaLearner,
    MetaOutput,
    MetaState,
    check_block,
    check_share,
    form_on,
    run_linear,
)
from gp_ensembles.meta_learners.steps import LARGEST, moved
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.numerics.backends import as_arrays, rows_of

Numbers = NDArray[np.float64]
# Parameters of :class:`ReferenceAveraging`: indices of the references, share, and their prior weight.
References = tuple[tuple[int, ...], float, float]


class CombinedRules(MetaLearner):
    r"""A mixture of several rules' mixtures of the same experts.

    With :math:`w_{r}` the weights of rule r before a target, its mixture predicts :math:`p_r = w_r^\top p`, and
    another rule weights these predictions:

    .. math:: w = \sum_r W_r\, w_r, \qquad w^\top p = \sum_r W_r\, p_r

    The log loss exceeds that of the best rule by at most the regret of the upper rule, log R for Bayesian
    model averaging of R rules. No rule is best on all streams (a single expert is best on some, a mixture on others);
    this makes the choice unnecessary.

    Attributes:
        forms: The forms of all rules and of the upper rule, if they can run in one pass; some have c > 0.

    Args:
        rules: The rules, at least two; none may be built for a number of experts other than the ensemble's.
        over: The upper rule, for R = ``len(rules)`` predictions.

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
            raise ValueError(f"rules must contain at least two rules, got {len(rules)}")
        self._modules_of_rules = nn.ModuleList(rules)
        self.rules: tuple[MetaLearner, ...] = tuple(rules)  # the same objects, typed
        self.over = over
        forms = tuple(rule.form for rule in (*rules, over) if rule.form is not None)
        can_run_at_once = len(forms) > len(rules) and any(give for _, _, give in forms[:-1])
        self.forms: tuple[tuple[float, float, float], ...] | None = forms if can_run_at_once else None

    def numbers(self, log_weights: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Coefficients a, b and c of the rules, (R, 1) each, and of the upper rule, (1, 1), for experts (M,)."""
        assert self.forms is not None
        kind = log_weights.dtype, log_weights.device
        return form_on(self.forms[:-1], len(log_weights), *kind), form_on(self.forms[-1:], len(self.rules), *kind)

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: those of all rules and of the upper rule."""
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
        """Add experts with total weight ``share`` under every rule; see :meth:`MetaLearner.grow`."""
        states, over = self._unpack(state)
        grown = [rule.grow(s, num_new, share) for rule, s in zip(self.rules, states, strict=True)]
        return self._pack(grown, over)

    def _at_once(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """A block of all rules and the upper rule in one pass; ``None`` if they must run separately."""
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
        """All states in one: a column of log weights and the memory of each rule, then the upper rule."""
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


class WeighedRow(NamedTuple):
    """The update by one target, before it is committed."""

    log_weights: Numbers  # log weights before it, shape (M,)
    log_prob: float  # its log density
    after: Numbers  # log weights after it, (M,)
    memory: Numbers  # the rule's memory after it, of the state's shape


@final
class RowRule:
    """R rules of linear form and an upper rule, optionally averaged with references, for one target at a time.

    ``numbers`` are the coefficients of the rules and of the upper rule, see
    :meth:`~gp_ensembles.meta_learners.CombinedRules.numbers`; the state is on the CPU, in double precision.
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
            self._places = np.array(references[0], dtype=np.int64)
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
        """Compute the update for log densities (M,); ``None`` if one is undefined, or a rule has almost no density."""
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
    """A block of one target (M, 1) by :class:`RowRule`; ``None`` if it does not apply."""
    arrays = as_arrays(log_prob, state.log_weights, state.memory)
    if arrays is None:
        return None
    row = RowRule(numbers, state, references).weigh(np.ascontiguousarray(arrays[0][:, 0]))
    if row is None:
        return None
    after = MetaState(torch.from_numpy(row.after), state.num_seen + 1, torch.from_numpy(row.memory))
    return after, MetaOutput(torch.from_numpy(row.log_weights).unsqueeze(1), log_prob.new_tensor([row.log_prob]))


def _check_rules(rules: Sequence[object]) -> None:
    """Raise a TypeError unless all are rule instances."""
    for rule in rules:
        if not isinstance(rule, MetaLearner):
            what = f"the class {rule.__name__}; instantiate it" if isinstance(rule, type) else repr(rule)
            raise TypeError(f"rules must be weight rules such as FixedShare(), got {what}")


class ReferenceAveraging(MetaLearner):
    r"""A rule's mixture and that of a few reference experts, averaged by Bayes' rule with a small share.

    If many experts differ by 0.001 nats per row, a rule that adapts within a hundred rows cannot
    identify the best: their differences are smaller than its share. Two predictions can be distinguished
    over thousands of rows. With :math:`w_r` the weights of the rule before a target, :math:`u` those of
    Bayesian model averaging of the references alone, and :math:`v` the weight of the latter,

    .. math:: w = (1 - v)\, w_r + v\, u, \qquad
              v_{t+1} = (1 - \delta) \frac{v_t\, u^\top p}{w^\top p} + \delta v_0

    The log loss exceeds that of the rule by at most :math:`-\log(1 - v_0) - T \log(1 - \delta v_0)` after T targets,
    and that of the best of R references by at most :math:`\log R - \log v_0 - T \log(1 - \delta (1 - v_0))`.

    Args:
        rule: The rule for all experts.
        references: Distinct indices of the reference experts.
        prior: :math:`v_0`, their initial weight and their part of the share, between 0 and 1.
        share: :math:`\delta`, above 0 and below 1.

    Raises:
        TypeError: If ``rule`` is not a weight rule.
        ValueError: If there is no reference, indices are negative or repeated, or a number is out of range.

    Example:
        >>> import torch
        >>> from gp_ensembles.meta_learners import FixedShare
        >>> rule = ReferenceAveraging(FixedShare(0.01), references=[2])
        >>> log_prob = torch.zeros(3, 2000, dtype=torch.float64)
        >>> log_prob[2] = 0.01  # ahead by a hundredth of a nat per row
        >>> state, _ = rule.update_block(rule.init(3, like=log_prob), log_prob)
        >>> bool(rule.log_weights(state)[2].exp() > 0.9), bool(FixedShare(0.01).update_block(
        ...     FixedShare(0.01).init(3, log_prob), log_prob)[0].log_weights[2].exp() < 0.7)
        (True, True)
    """

    def __init__(self, rule: MetaLearner, references: Sequence[int], prior: float = 0.2, share: float = 0.001) -> None:
        super().__init__()
        if not isinstance(rule, MetaLearner):
            raise TypeError(f"rule must be a weight rule such as FixedShare(), got {rule!r}")
        places = sorted(int(place) for place in references)
        if not places or places[0] < 0 or len(set(places)) < len(places):
            raise ValueError(f"references must be distinct non-negative indices, at least one, got {list(references)}")
        if not 0 < prior < 1:
            raise ValueError(f"prior must lie between 0 and 1, got {prior}")
        check_share(share, lowest_is_legal=False)
        self.rule = rule
        self.references: tuple[int, ...] = tuple(places)
        self.prior = prior
        self.share = share
        self.numbers: References = self.references, share, prior
        self._among: BayesianModelAveraging = BayesianModelAveraging()
        weights = torch.tensor([1 - prior, prior], dtype=torch.float64, device="cpu")
        stay = torch.diag_embed(torch.full_like(weights, 1 - share))
        self._between: MarkovSwitching = MarkovSwitching(stay + share * weights.unsqueeze(-1), weights)
        self._places: dict[str, Tensor] = {}  # per device

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data.

        Raises:
            ValueError: If a reference index is too large, or the rule was built for another number of experts.
        """
        if self.references[-1] >= num_experts:
            raise ValueError(
                f"the rule has reference expert {self.references[-1]}, but the ensemble has {num_experts} experts, "
                f"counted from 0"
            )
        among = self._among.init(len(self.references), like)
        return self._packed(self.rule.init(num_experts, like), among, self._between.init(2, like))

    def log_weights(self, state: MetaState) -> Tensor:
        inner, among, between = self._unpacked(state)
        weights = self._between.log_weights(between)
        return self._joined(self.rule.log_weights(inner), among.log_weights, weights[0], weights[1])

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        if log_prob.shape[1] == 1 and isinstance(self.rule, CombinedRules) and self.rule.forms is not None:
            row = weigh_one(self.rule.numbers(state.log_weights), state, log_prob, self.numbers)
            if row is not None:
                return row
        inner, among, between = self._unpacked(state)
        inner, own = self.rule.update_block(inner, log_prob)
        found = self._on_arrays(state, inner, own, log_prob)
        if found is not None:
            return found
        among, theirs = self._among.update_block(among, log_prob.index_select(0, self._place(log_prob)))
        between, over = self._between.update_block(between, torch.stack([own.log_prob, theirs.log_prob]))
        log_weights = self._joined(own.log_weights, theirs.log_weights, over.log_weights[0], over.log_weights[1])
        return self._packed(inner, among, between), MetaOutput(log_weights, over.log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``, none of them a reference; see :meth:`MetaLearner.grow`."""
        check_share(share, lowest_is_legal=False)
        inner, among, between = self._unpacked(state)
        # The share goes entirely to the rule's part; the references' part shrinks like everything else.
        references = self._between.log_weights(between)[1].exp() * (1 - share)
        grown = self.rule.grow(inner, num_new, share / (1 - float(references)))
        after = torch.stack([1 - references, references])
        prior = after.new_tensor([1 - self.prior, self.prior])
        before = ((after - self.share * prior) / (1 - self.share)).clamp_min(torch.finfo(after.dtype).tiny)
        return self._packed(grown, among, between._replace(log_weights=before.log()))

    def _on_arrays(
        self, state: MetaState, inner: MetaState, own: MetaOutput, log_prob: Tensor
    ) -> tuple[MetaState, MetaOutput] | None:
        """A block (M, B), given the rule's own output; ``None`` if tensors are required.

        The references' average is one cumulative sum, in place of :func:`~gp_ensembles.meta_learners.steps.refer`.
        """
        arrays = as_arrays(log_prob, state.memory, own.log_weights, own.log_prob, inner.log_weights)
        if arrays is None or not log_prob.shape[1]:
            return None
        targets, memory, of_rule, density, after = arrays
        places, known = list(self.references), memory[0, -len(self.references) - 2 :]
        theirs = targets[places]
        best = theirs.max(0)
        with np.errstate(invalid="ignore", over="ignore"):  # results are checked
            sums = np.concatenate([0 * known[:-2, None], np.cumsum(theirs - best, 1)], 1) + known[:-2, None]
            top = sums.max(0)
            totals = top + np.log(np.exp(sums - top).sum(0))
            mixed = best + np.diff(totals)
            ratios = np.exp(np.clip(mixed - density, -LARGEST, LARGEST)).tolist()
        if not (np.isfinite(density).all() and np.abs(totals).max() < PLAIN):
            return None
        weight, weights = float(np.exp(known[-1])), []
        for ratio in ratios:
            weights.append((1 - self.share) * weight + self.share * self.prior)
            weight = moved(weights[-1], ratio)
        parts = np.array([*weights, (1 - self.share) * weight + self.share * self.prior])
        rest, part, among = np.log1p(-parts), np.log(parts), sums - totals
        log_weights = np.concatenate([of_rule, after[:, None]], axis=1) + rest
        log_weights[places] = np.logaddexp(log_weights[places], among + part)
        whole = np.logaddexp(density + rest[:-1], mixed + part[:-1])
        learned = np.concatenate([among[:, -1], [np.log1p(-weight), np.log(weight)]])
        found, scores, last = map(torch.from_numpy, (log_weights, whole, learned))
        columns = [inner.log_weights.unsqueeze(-1), inner.memory.to(last), last.expand(len(targets), -1)]
        new = MetaState(found[:, -1].clone(), inner.num_seen, torch.cat(columns, dim=-1))
        if not isinstance(self.rule, CombinedRules):  # its weights are those for the next target
            new = new._replace(log_weights=self.log_weights(new))
        return new, MetaOutput(found[:, :-1], scores)

    def _place(self, like: Tensor) -> Tensor:
        places = self._places.get(str(like.device))
        if places is None or places.device != like.device:  # indices read from a file are on the CPU
            places = torch.tensor(self.references, dtype=torch.int64, device=like.device)
            self._places[str(like.device)] = places
        return places

    def _joined(self, own: Tensor, theirs: Tensor, rule_weight: Tensor, reference_weight: Tensor) -> Tensor:
        """Log weights of all experts, (M, ...), from those within both parts and the parts' log weights (...)."""
        places, whole = self._place(own), own + rule_weight
        return whole.index_copy(0, places, torch.logaddexp(whole.index_select(0, places), theirs + reference_weight))

    def _packed(self, inner: MetaState, among: MetaState, between: MetaState) -> MetaState:
        """All states in one: a column of the rule's log weights, its memory, and the state of the references."""
        known = torch.cat([among.log_weights, between.log_weights])
        num_experts = inner.log_weights.shape[0]
        columns = [inner.log_weights.unsqueeze(-1), inner.memory.to(inner.log_weights), known.expand(num_experts, -1)]
        weights = self._between.log_weights(between)
        joined = self._joined(self.rule.log_weights(inner), among.log_weights, weights[0], weights[1])
        return MetaState(joined, inner.num_seen, torch.cat(columns, dim=-1))

    def _unpacked(self, state: MetaState) -> tuple[MetaState, MetaState, MetaState]:
        size = len(self.references)
        own, known = state.memory[:, : -size - 2], state.memory[0, -size - 2 :]
        empty = state.memory[:, :0]
        inner = MetaState(own[:, 0], state.num_seen, own[:, 1:])
        among = MetaState(known[:size], state.num_seen, empty[:size])
        return inner, among, MetaState(known[size:], state.num_seen, empty[:2])


def row_rule(rule: MetaLearner, state: MetaState) -> RowRule | None:
    """A single-target rule in the memory of its state, on the CPU; ``None`` for rules of another form."""
    inner, references = (rule.rule, rule.numbers) if isinstance(rule, ReferenceAveraging) else (rule, None)
    if not isinstance(inner, CombinedRules) or inner.forms is None:
        return None
    return RowRule(inner.numbers(state.log_weights), state, references)
