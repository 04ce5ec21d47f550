"""Average of a weight rule with a few reference experts, which bounds its loss to them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import PLAIN, MetaLearner, MetaOutput, MetaState, check_block, check_share
from gp_ensembles.meta_learners.combined import CombinedRules, References, RowRule, weigh_one
from gp_ensembles.meta_learners.steps import LARGEST, moved
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.numerics.backends import as_arrays


class ReferenceAveraging(MetaLearner):
    r"""A rule's mixture and that of a few reference experts, averaged by Bayes' rule with a small share.

    Where many experts differ by a thousandth of a nat per row, a rule that follows changes within a hundred rows cannot
    tell which of them is best: their differences are lost in what it shares out. Two predictions can be distinguished
    over thousands of rows. With :math:`w_r` the weights that the rule gives before a target, :math:`u` those of
    Bayesian model averaging of the references alone, and :math:`v` the weight of the latter,

    .. math:: w = (1 - v)\, w_r + v\, u, \qquad
              v_{t+1} = (1 - \delta) \frac{v_t\, u^\top p}{w^\top p} + \delta v_0

    So the log loss exceeds that of the rule by at most :math:`-\log(1 - v_0) - T \log(1 - \delta v_0)` after T targets,
    and that of the best of R references by at most :math:`\log R - \log v_0 - T \log(1 - \delta (1 - v_0))`.

    Args:
        rule: The rule for all experts.
        references: Places of the reference experts among them, distinct.
        prior: :math:`v_0`, their weight at the start and in what is shared out, between 0 and 1.
        share: :math:`\delta`, above 0 and below 1.

    Raises:
        TypeError: If ``rule`` is not a weight rule.
        ValueError: If there is no reference, places are not distinct and from zero, or a number is out of range.

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
            raise ValueError(f"references must be distinct places from zero, at least one, got {list(references)}")
        if not 0 < prior < 1:
            raise ValueError(f"prior must lie between 0 and 1, got {prior}")
        check_share(share, lowest_is_legal=False)
        self.rule = rule
        self.references: tuple[int, ...] = tuple(places)
        self.prior = prior
        self.share = share
        self.numbers: References = References(self.references, share, prior)
        self._among: BayesianModelAveraging = BayesianModelAveraging()
        weights = torch.tensor([1 - prior, prior], dtype=torch.float64, device="cpu")
        stay = torch.diag_embed(torch.full_like(weights, 1 - share))
        self._between: MarkovSwitching = MarkovSwitching(stay + share * weights.unsqueeze(-1), weights)
        self._places: dict[torch.device, Tensor] = {}

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data.

        Raises:
            ValueError: If a reference is not among so many experts, or the rule was built for another number.
        """
        if self.references[-1] >= num_experts:
            raise ValueError(
                f"the rule has a reference expert {self.references[-1]} and the ensemble has {num_experts} experts, "
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
        """New experts with weight ``share`` together; see :meth:`MetaLearner.grow`. None of them is a reference."""
        check_share(share, lowest_is_legal=False)
        inner, among, between = self._unpacked(state)
        # All of the share is to be inside the rule's part, and the references' part to shrink like everything else.
        references = self._between.log_weights(between)[1].exp() * (1 - share)
        grown = self.rule.grow(inner, num_new, share / (1 - float(references)))
        after = torch.stack([1 - references, references])
        prior = after.new_tensor([1 - self.prior, self.prior])
        before = ((after - self.share * prior) / (1 - self.share)).clamp_min(torch.finfo(after.dtype).tiny)
        return self._packed(grown, among, between._replace(log_weights=before.log()))

    def _on_arrays(
        self, state: MetaState, inner: MetaState, own: MetaOutput, log_prob: Tensor
    ) -> tuple[MetaState, MetaOutput] | None:
        """A block (M, B), given what the rule makes of it; ``None`` where only tensors will do.

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
        if not isinstance(self.rule, CombinedRules):  # their weights are those for the next target
            new = new._replace(log_weights=self.log_weights(new))
        return new, MetaOutput(found[:, :-1], scores)

    def _place(self, like: Tensor) -> Tensor:
        if like.device not in self._places:
            self._places[like.device] = torch.tensor(self.references, dtype=torch.int64, device=like.device)
        return self._places[like.device]

    def _joined(self, own: Tensor, theirs: Tensor, rule_weight: Tensor, reference_weight: Tensor) -> Tensor:
        """Log weights of all experts, (M, ...), from both parts' and the log weights (...) of these."""
        places, whole = self._place(own), own + rule_weight
        return whole.index_copy(0, places, torch.logaddexp(whole.index_select(0, places), theirs + reference_weight))

    def _packed(self, inner: MetaState, among: MetaState, between: MetaState) -> MetaState:
        """All states as one: a column of the rule's log weights, its memory, and what is known of the references."""
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
    """A rule for one target at a time, in the memory of its state on the processor; ``None`` for other kinds."""
    inner, references = (rule.rule, rule.numbers) if isinstance(rule, ReferenceAveraging) else (rule, None)
    if not isinstance(inner, CombinedRules) or inner.forms is None:
        return None
    return RowRule(inner.numbers(state.log_weights), state, references)
