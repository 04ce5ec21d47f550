r"""Several rules on the same experts in one pass over a block, where all are of one form.

.. math:: w_{t+1} = w_t \circ \Bigl(a + b\, \frac{p_t}{w_t^\top p_t}\Bigr) + \frac{c}{M}

is a fixed share for :math:`a = 0, b = 1 - \delta, c = \delta`, and Soft-Bayes of a fixed rate for
:math:`a = 1 - \alpha, b = \alpha, c = 0`.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.meta_learners.base import MetaLearner, MetaState
from gp_ensembles.meta_learners.gradient import SoftBayes
from gp_ensembles.meta_learners.switching import SMALLEST_SHARE, FixedShare
from gp_ensembles.numerics.compiled import compiled
from gp_ensembles.numerics.reductions import readable_all

Numbers = NDArray[np.float64]
_SMALLEST = torch.finfo(torch.float64).tiny / torch.finfo(torch.float64).eps  # of a relative density


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


class Row(NamedTuple):
    """One target of R rules and the rule over them.

    Attributes:
        learned: Log weights of the experts under each rule after it, shape (M, R).
        over: Log weights of the rules after it, shape (R,).
        joint: Log weights of the experts in their mixture after it, shape (M,).
        log_weights: Those before it, shape (M, 1).
        log_prob: Log density of the target under that mixture, shape (1,).
    """

    learned: Tensor
    over: Tensor
    joint: Tensor
    log_weights: Tensor
    log_prob: Tensor


def run_row(rules: Sequence[MetaLearner], over: MetaLearner, before: Tensor, log_prob: Tensor) -> Row | None:
    """Weigh one target by several rules and a rule over them, on the processor: numpy, as a call of torch costs more.

    Shapes: ``before`` (M, 2 R), ``log_prob`` (M, 1).
    """
    forms = row_forms(rules, over)
    is_plain = log_prob.dtype == torch.float64 and log_prob.device.type == "cpu" and not torch.is_grad_enabled()
    if not is_plain or forms is None:
        return None
    try:
        known, column = before.numpy(), log_prob.numpy()[:, 0]
    except RuntimeError:  # inside vmap
        return None
    found, learned, last, joint, log_weights, density = weigh_row(forms, known, np.ascontiguousarray(column))
    if not found:
        return None
    return Row(*map(torch.from_numpy, (learned, last, joint, log_weights[:, None], np.array([density]))))


def run_rows(rules: Sequence[MetaLearner], over: MetaLearner, before: Tensor, log_prob: Tensor) -> Row | None:
    """The same for a block: log densities (M, B), current weights (M, B) and densities of the mixture (B,)."""
    forms = row_forms(rules, over)
    is_plain = log_prob.dtype == torch.float64 and log_prob.device.type == "cpu" and not torch.is_grad_enabled()
    if not is_plain or forms is None:
        return None
    try:
        known, columns = before.numpy(), np.ascontiguousarray(log_prob.numpy().T)
    except RuntimeError:  # inside vmap
        return None
    (num_rows, num_experts), num_rules = columns.shape, len(rules)
    best = columns.max(1)
    if not np.isfinite(best).all():
        return None
    relative = np.exp(columns - best[:, None])
    weights, above = np.empty((num_rows + 1, num_rules, num_experts)), np.empty((num_rows + 1, num_rules))
    weights[0], above[0] = np.exp(known[:, :num_rules].T), np.exp(known[0, num_rules:])
    densities, mixed = np.empty((num_rows, num_rules)), np.empty(num_rows)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # results are checked below
        _recurse(forms, relative, weights, above, densities, mixed)
    if not (densities.min() > _SMALLEST and mixed.min() > _SMALLEST):
        return None
    learned, last = known[:, :num_rules].copy(), known[0, num_rules:].copy()
    for r, (kept, gained, given) in enumerate(forms[:-1]):
        if given > 0:
            learned[:, r] = np.log(weights[-1, r])
        else:  # a weight of any smallness keeps its logarithm
            learned[:, r] += np.log(kept + gained * (relative / densities[:, r : r + 1])).sum(0)
    kept, gained, given = forms[-1]
    if given > 0:
        last = np.log(above[-1])
    else:
        last += np.log(kept + gained * (densities / mixed[:, None])).sum(0)
    joint = np.log(np.matmul(above[:, None], weights)[:, 0])
    return Row(*map(torch.from_numpy, (learned, last, joint[-1], joint[:-1].T, np.log(mixed) + best)))


@compiled
def _recurse(
    forms: Numbers, relative: Numbers, weights: Numbers, above: Numbers, densities: Numbers, mixed: Numbers
) -> None:
    """Weights after each of B targets, behind those before the first.

    Shapes: ``relative`` (B, M), ``weights`` (B + 1, R, M), ``above`` (B + 1, R), ``densities`` (B, R), ``mixed``
    (B,).
    """
    num_rows, num_experts = relative.shape
    num_rules = len(forms) - 1
    for t in range(num_rows):
        column, total = relative[t], 0.0
        for r in range(num_rules):
            own, after = weights[t, r], weights[t + 1, r]
            density = np.dot(own, column)
            densities[t, r] = density
            total += above[t, r] * density
            after[:] = column * (forms[r, 1] / density)
            if forms[r, 0] != 0.0:
                after += forms[r, 0]
            after *= own
            if forms[r, 2] != 0.0:
                after += forms[r, 2] / num_experts
        mixed[t] = total
        kept, gained, given = forms[num_rules]
        for r in range(num_rules):
            above[t + 1, r] = above[t, r] * (kept + gained * densities[t, r] / total) + given / num_rules


def row_forms(rules: Sequence[MetaLearner], over: MetaLearner) -> Numbers | None:
    """The numbers a, b and c of R rules and of the rule over them, (R + 1, 3), for :func:`weigh_row`."""
    forms = [form for form in map(_form, (*rules, over)) if form is not None]
    if len(forms) <= len(rules) or all(given == 0 for _, _, given in forms[:-1]):
        return None
    return np.array(forms)


@compiled
def weigh_row(
    forms: Numbers, before: Numbers, log_prob: Numbers
) -> tuple[bool, Numbers, Numbers, Numbers, Numbers, float]:
    """Weigh one target by R rules and a rule over them, from arrays.

    Shapes: ``before`` (M, 2 R), ``log_prob`` (M,); returns (M,).
    """
    num_experts, num_rules = len(log_prob), len(forms) - 1
    best, none = log_prob.max(), np.empty(0)
    if not np.isfinite(best):
        return False, np.empty((0, 0)), none, none, none, best
    weights, relative = np.exp(before), np.exp(log_prob - best)
    own, above = np.ascontiguousarray(weights[:, :num_rules]), weights[0, num_rules:].copy()
    densities = np.dot(relative, own)
    density = np.dot(above, densities)
    if not (densities.min() > _SMALLEST and density > _SMALLEST):
        return False, np.empty((0, 0)), none, none, none, best
    learned, joint, log_weights = np.empty((num_experts, num_rules)), np.zeros(num_experts), np.log(np.dot(own, above))
    factor = forms[num_rules, 0] + forms[num_rules, 1] * (densities / density)
    last = above * factor + forms[num_rules, 2] / num_rules
    log_last = np.log(last) if forms[num_rules, 2] > 0 else before[0, num_rules:] + np.log(factor)
    for r in range(num_rules):
        kept, gained, given = forms[r]
        factor = kept + gained * (relative / densities[r])
        after = own[:, r] * factor + given / num_experts
        # Where nothing is given, a weight of any smallness keeps its logarithm.
        learned[:, r] = np.log(after) if given > 0 else before[:, r] + np.log(factor)
        joint += last[r] * after
    return True, learned, log_last, np.log(joint), log_weights, np.log(density) + best


def run_together(rules: Sequence[MetaLearner], states: Sequence[MetaState], log_prob: Tensor) -> Together | None:
    """Weigh a block of targets by several rules.

    Shapes: ``log_prob`` (M, B).
    """
    forms = [form for form in map(_form, rules) if form is not None]
    num_experts, num_rows = log_prob.shape
    if len(forms) < len(rules) or all(given == 0 for _, _, given in forms) or num_rows < 2:
        return None
    if not readable_all(log_prob < torch.inf):
        return None
    kept, gained, given = _on(tuple(forms), log_prob.dtype, log_prob.device).unbind(1)
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


@lru_cache(maxsize=64)
def _on(forms: tuple[tuple[float, float, float], ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Forms as a tensor, (R, 3); copied to a device once."""
    with torch.inference_mode(False):
        return torch.tensor(forms, dtype=dtype, device=device)


def _form(rule: MetaLearner) -> tuple[float, float, float] | None:
    """The numbers a, b and c of a rule; ``None`` if it is of another form."""
    if isinstance(rule, FixedShare) and rule.share >= SMALLEST_SHARE:
        return 0.0, 1 - rule.share, rule.share
    if isinstance(rule, SoftBayes) and rule.learning_rate is not None:
        return 1 - rule.learning_rate, rule.learning_rate, 0.0
    return None
