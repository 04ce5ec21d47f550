"""Average of a weight rule with a few reference experts, which bounds its loss to them."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.meta_learners.averaging import BayesianModelAveraging
from gp_ensembles.meta_learners.base import PLAIN, MetaLearner, MetaOutput, MetaState, check_block, check_share
from gp_ensembles.meta_learners.combined import CombinedRules
from gp_ensembles.meta_learners.switching import MarkovSwitching
from gp_ensembles.numerics.compiled import compiled
from gp_ensembles.numerics.reductions import readable_flags

Numbers = NDArray[np.float64]
_LARGEST = 600.0  # of a log density above another, lest its factor overflow


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
        """Log weights for the next target, shape (M,)."""
        inner, among, between = self._unpacked(state)
        weights = self._between.log_weights(between)
        return self._joined(self.rule.log_weights(inner), among.log_weights, weights[0], weights[1])

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; see :meth:`MetaLearner.update_block`."""
        check_block(state, log_prob)
        inner, among, between = self._unpacked(state)
        inner, own = self.rule.update_block(inner, log_prob)
        if isinstance(self.rule, CombinedRules):
            rows = self._rows(among, between, inner, own, log_prob)
            if rows is not None:
                return rows
        among, theirs = self._among.update_block(among, log_prob.index_select(0, self._place(log_prob)))
        between, over = self._weigh(between, torch.stack([own.log_prob, theirs.log_prob]))
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

    def _weigh(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """The rule against its references, log densities (2, B): switching of two, in plain numbers where it can be."""
        flags = None if log_prob.requires_grad else readable_flags(log_prob.isfinite().all(0))
        # Where derivatives are wanted, there is no row, numbers cannot be read, or a target is impossible.
        if not flags or not all(flags):
            return self._between.update_block(state, log_prob)
        ratios = (log_prob[1] - log_prob[0]).clamp(-_LARGEST, _LARGEST).double().exp().tolist()
        weight, kept, given, befores = float(state.log_weights[1].exp()), 1 - self.share, self.share * self.prior, []
        for ratio in ratios:
            before = kept * weight + given
            befores.append(before)
            weight = before * ratio / (1 - before + before * ratio)
        parts = torch.tensor([*befores, weight], dtype=torch.float64, device=log_prob.device)
        log_weights = torch.stack([torch.log1p(-parts), parts.log()]).to(log_prob.dtype)
        after = state._replace(log_weights=log_weights[:, -1], num_seen=state.num_seen + len(ratios))
        return after, MetaOutput(log_weights[:, :-1], (log_weights[:, :-1] + log_prob).logsumexp(0))

    def _rows(
        self, among: MetaState, between: MetaState, inner: MetaState, own: MetaOutput, log_prob: Tensor
    ) -> tuple[MetaState, MetaOutput] | None:
        """Targets, given what the rule makes of them: numpy, as a call of torch costs more than its numbers."""
        is_plain = log_prob.dtype == torch.float64 and log_prob.device.type == "cpu" and not torch.is_grad_enabled()
        if not log_prob.shape[1] or not is_plain:
            return None
        try:
            targets, before, prior = log_prob.numpy(), among.log_weights.numpy(), between.log_weights.numpy()
            of_rule, now, after = own.log_weights.numpy(), own.log_prob.numpy(), inner.log_weights.numpy()
        except RuntimeError:  # inside vmap
            return None
        places, known = np.array(self.references, dtype=np.int64), np.concatenate([before, prior])
        if targets.shape[1] > 1:
            found, weights, density, joined, learned = refer_rows(
                places, self.share, self.prior, known, targets, of_rule, now, after
            )
        else:
            column, row = (np.ascontiguousarray(part[:, 0]) for part in (targets, of_rule))
            found, weights, one, joined, learned = refer_row(
                places, self.share, self.prior, known, column, row, float(now[0]), after
            )
            density = np.array([one])
        if not found:
            return None
        columns = [inner.log_weights.unsqueeze(-1), inner.memory, torch.from_numpy(learned).expand(len(targets), -1)]
        state = MetaState(torch.from_numpy(joined), inner.num_seen, torch.cat(columns, dim=-1))
        log_weights = torch.from_numpy(weights).reshape(own.log_weights.shape)
        return state, MetaOutput(log_weights, torch.from_numpy(density))

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


def refer_rows(
    references: NDArray[np.int64],
    share: float,
    prior: float,
    known: Numbers,
    log_prob: Numbers,
    of_rule: Numbers,
    density: Numbers,
    after: Numbers,
) -> tuple[bool, Numbers, Numbers, Numbers, Numbers]:
    """As :func:`refer_row` for a block: ``log_prob`` and ``of_rule`` of shape (M, B), ``density`` of shape (B,)."""
    theirs = log_prob[references]
    best = theirs.max(0)
    with np.errstate(invalid="ignore"):
        sums = np.concatenate([known[:-2, None], known[:-2, None] + np.cumsum(theirs - best, 1)], axis=1)
        top = sums.max(0)
        totals = top + np.log(np.exp(sums - top).sum(0))
    if not (np.isfinite(density).all() and np.abs(totals).max() < PLAIN):
        return False, of_rule, density, after, known
    among, mixed = sums - totals, best + np.diff(totals)
    weight, weights = float(np.exp(known[-1])), []
    for ratio in np.exp(np.clip(mixed - density, -_LARGEST, _LARGEST)).tolist():
        now = (1 - share) * weight + share * prior
        weights.append(now)
        weight = now * ratio / (1 - now + now * ratio)
    parts = np.array([*weights, (1 - share) * weight + share * prior])
    rest, own = np.log1p(-parts), np.log(parts)
    log_weights = np.concatenate([of_rule, after[:, None]], axis=1) + rest
    log_weights[references] = np.logaddexp(log_weights[references], among + own)
    learned = np.concatenate([among[:, -1], [np.log1p(-weight), np.log(weight)]])
    whole: Numbers = np.logaddexp(density + rest[:-1], mixed + own[:-1])
    return True, log_weights[:, :-1], whole, np.ascontiguousarray(log_weights[:, -1]), learned


@compiled
def refer_row(
    references: NDArray[np.int64],
    share: float,
    prior: float,
    known: Numbers,
    log_prob: Numbers,
    of_rule: Numbers,
    density: float,
    after: Numbers,
) -> tuple[bool, Numbers, float, Numbers, Numbers]:
    """Weigh one target, given what the rule makes of it, from arrays.

    Shapes: ``known`` (R + 2,), ``log_prob`` (M,), ``of_rule`` (M,), ``after`` (M,).
    """
    joint = known[:-2] + log_prob[references]
    best = joint.max()
    if not (np.isfinite(density) and np.isfinite(best)):
        return False, of_rule, density, after, joint
    theirs = best + np.log(np.exp(joint - best).sum())
    learned = np.empty_like(known)
    learned[:-2] = joint - theirs if abs(theirs) < PLAIN else joint - best - np.log(np.exp(joint - best).sum())
    weight = (1 - share) * np.exp(known[-1]) + share * prior
    ratio = np.exp(min(max(theirs - density, -_LARGEST), _LARGEST))
    moved = weight * ratio / (1 - weight + weight * ratio)
    following = (1 - share) * moved + share * prior
    learned[-2], learned[-1] = np.log(1 - moved), np.log(moved)
    log_weights, joined = of_rule + np.log1p(-weight), after + np.log1p(-following)
    log_weights[references] = np.logaddexp(log_weights[references], known[:-2] + np.log(weight))
    joined[references] = np.logaddexp(joined[references], learned[:-2] + np.log(following))
    whole = np.logaddexp(density + np.log1p(-weight), theirs + np.log(weight))
    return True, log_weights, whole, joined, learned
