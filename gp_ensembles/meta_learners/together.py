r"""Several rules on the same experts in one pass over a block, where all are of one form.

.. math:: w_{t+1} = w_t \circ \Bigl(a + b\, \frac{p_t}{w_t^\top p_t}\Bigr) + \frac{c}{M}

is a fixed share for :math:`a = 0, b = 1 - \delta, c = \delta`, and Soft-Bayes of a fixed rate for
:math:`a = 1 - \alpha, b = \alpha, c = 0`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import MetaLearner, MetaState
from gp_ensembles.meta_learners.gradient import SoftBayes
from gp_ensembles.meta_learners.switching import SMALLEST_SHARE, FixedShare
from gp_ensembles.numerics.reductions import readable_all


class Together(NamedTuple):
    """A block of R rules.

    Attributes:
        states: Their states after it.
        weights: Their weights before each target, not logarithms, shape (B, R, M).
        log_prob: Log density of each target under each of their mixtures, shape (R, B).
    """

    states: list[MetaState]
    weights: Tensor
    log_prob: Tensor


def run_together(rules: Sequence[MetaLearner], states: Sequence[MetaState], log_prob: Tensor) -> Together | None:
    """Weigh a block of targets by several rules.

    Args:
        rules: The rules, R of them.
        states: Their states before the block.
        log_prob: Log densities of the targets, shape (M, B).

    Returns:
        What came of it; ``None`` where a rule is of another form, no rule keeps all weights far from the smallest
        number, or a target is impossible, undefined or next to impossible.
    """
    forms = [form for form in map(_form, rules) if form is not None]
    num_experts, num_rows = log_prob.shape
    if len(forms) < len(rules) or all(given == 0 for _, _, given in forms) or num_rows < 2:
        return None
    kept, gained, given = log_prob.new_tensor(forms).unbind(1)
    kept, given = (part.unsqueeze(-1).expand(-1, num_experts).contiguous() for part in (kept, given / num_experts))
    best = log_prob.detach().amax(0)
    current = torch.stack([state.log_weights for state in states]).exp()
    columns = (log_prob - best).exp().mT.contiguous()
    before, densities = [], []
    for column in columns.unbind(0):
        before.append(current)
        densities.append(torch.mv(current, column))
        current = torch.addcmul(given, current, torch.addr(kept, gained / densities[-1], column))
    relative = torch.stack(densities)
    info = torch.finfo(log_prob.dtype)
    if not readable_all(relative > info.tiny / info.eps):
        return None
    after = []
    for number, (state, (keep, gain, share)) in enumerate(zip(states, forms, strict=True)):
        if share > 0:
            last = current[number].log()
        else:  # a weight of any smallness keeps its logarithm
            last = state.log_weights + (keep + columns * (gain / relative[:, number : number + 1])).log().sum(0)
        after.append(state._replace(log_weights=last, num_seen=state.num_seen + num_rows))
    return Together(after, torch.stack(before), relative.mT.log() + best)


def _form(rule: MetaLearner) -> tuple[float, float, float] | None:
    """The numbers a, b and c of a rule; ``None`` if it is of another form."""
    if isinstance(rule, FixedShare) and rule.share >= SMALLEST_SHARE:
        return 0.0, 1 - rule.share, rule.share
    if isinstance(rule, SoftBayes) and rule.learning_rate is not None:
        return 1 - rule.learning_rate, rule.learning_rate, 0.0
    return None
