"""Regret of a weight rule on a stream, and its bounds.

:func:`path_bound` and :func:`mixture_bound` have the bounds of this library's rules; register a function with them for
your own rule.
"""

import math
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.meta_learners import (
    BayesianModelAveraging,
    CombinedRules,
    DynamicModelAveraging,
    ExponentiatedGradient,
    FixedShare,
    MarkovSwitching,
    MetaLearner,
    OnlineNewton,
    ReferenceAveraging,
    SoftBayes,
)
from gp_ensembles.metrics import best_expert, best_fixed_mixture
from gp_ensembles.metrics.regret_bounds import (
    averaging_bound,
    exponentiated_gradient_bound,
    fixed_share_bound,
    forgetting_bound,
    newton_bound,
    path_prior_bound,
    soft_bayes_bound,
)


class Regret(NamedTuple):
    """Regret of a rule to one competitor.

    Attributes:
        regret: The competitor's log density of the stream minus the rule's, in nats; negative where the rule is ahead.
        bound: Upper bound of the regret, in nats; ``None`` where no finite one is known.
    """

    regret: float
    bound: float | None


class RegretReport(NamedTuple):
    """Regret of a rule to the best competitors in hindsight.

    Attributes:
        expert: To the best expert.
        mixture: To the best mixture of fixed weights.
        switching: To the sequence of experts that was given.
    """

    expert: Regret
    mixture: Regret
    switching: Regret


class StreamSize(NamedTuple):
    """Quantities that bounds depend on besides the rule.

    Attributes:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        largest_ratio: Largest ratio of the densities of one target under two experts; may be infinite.
    """

    num_experts: int
    num_steps: int
    largest_ratio: float


@torch.no_grad()
def regret_report(rule: MetaLearner, log_prob: Tensor, path: Tensor) -> RegretReport:
    r"""Run a rule from its start and compute its regret to each competitor, with bounds.

    Where rule and competitor both gave a target density zero there is no regret: infinite losses cancel, one for one.
    There is no bound for a competitor under which a target was impossible that was not for another expert.

    Args:
        rule: The rule; its weights before the first target are those of ``rule.init``.
        log_prob: Log densities of the experts, each made before its target, shape (M, T), in nats; NaN for all of
            them where the target is missing.
        path: Expert of each step in the competing sequence, shape (T,), int64: the best one with S switches is
            ``gp_ensembles.metrics.best_switching_path(log_prob, S).path``.

    Raises:
        ValueError: If there is no expert or step, the rule was built for another number of experts, or the sequence
            does not fit.
        NumericalError: If a log density is NaN or plus infinity; names the expert and the step.

    Example:
        >>> import torch
        >>> from gp_ensembles.meta_learners import FixedShare
        >>> probability = [[0.9, 0.8, 0.1, 0.1], [0.1, 0.2, 0.9, 0.9]]
        >>> log_prob = torch.tensor(probability, dtype=torch.float64).log()
        >>> report = regret_report(FixedShare(0.2), log_prob, path=torch.tensor([0, 0, 1, 1]))
        >>> round(report.switching.regret, 4), round(report.switching.bound, 4)
        (2.6426, 3.2065)
        >>> report.mixture.bound is None  # fixed share looks for experts, not for mixtures
        True
    """
    _check(log_prob, path)
    log_prob = torch.where(torch.isnan(log_prob).all(0), 0.0, log_prob)
    own = rule.update_block(rule.init(log_prob.shape[0], log_prob), log_prob)[1].log_prob
    stream = StreamSize(log_prob.shape[0], log_prob.shape[1], _largest_ratio(log_prob))
    path = path.to(log_prob.device)
    expert, mixture = best_expert(log_prob), best_fixed_mixture(log_prob)
    best = log_prob.amax(0)
    return RegretReport(
        _against(expert.log_prob, own, best, path_bound(rule, stream, expert.expert.expand_as(path))),
        _against(mixture.log_prob, own, best, mixture_bound(rule, stream)),
        _against(log_prob.gather(0, path.unsqueeze(0)).squeeze(0), own, best, path_bound(rule, stream, path)),
    )


@singledispatch
def mixture_bound(rule: MetaLearner, stream: StreamSize) -> float:
    """Upper bound of the regret to any mixture of fixed weights, in nats; infinite where none is known."""
    return math.inf


@mixture_bound.register
def _(rule: ExponentiatedGradient, stream: StreamSize) -> float:
    return exponentiated_gradient_bound(
        stream.num_experts, stream.num_steps, rule.learning_rate, rule.share, stream.largest_ratio
    )


@mixture_bound.register
def _(rule: SoftBayes, stream: StreamSize) -> float:
    return soft_bayes_bound(stream.num_experts, stream.num_steps, rule.learning_rate)


@mixture_bound.register
def _(rule: OnlineNewton, stream: StreamSize) -> float:
    return newton_bound(stream.num_experts, stream.num_steps, rule.beta, rule.delta, rule.share, stream.largest_ratio)


@mixture_bound.register
def _(rule: CombinedRules, stream: StreamSize) -> float:
    return min(above + mixture_bound(part, stream) for above, part in _parts(rule, stream))


@mixture_bound.register
def _(rule: ReferenceAveraging, stream: StreamSize) -> float:
    return _above_references(rule, stream) + mixture_bound(rule.rule, stream)


@singledispatch
def path_bound(rule: MetaLearner, stream: StreamSize, path: Tensor) -> float:
    """Upper bound of the regret to one sequence of experts (T,), in nats; infinite where none is known."""
    return math.inf if _num_switches(path) else mixture_bound(rule, stream)


@path_bound.register
def _(rule: BayesianModelAveraging, stream: StreamSize, path: Tensor) -> float:
    if _num_switches(path) or rule.prune_below is not None:  # a pruned expert may have been right
        return math.inf
    return averaging_bound(stream.num_experts) if rule.log_prior is None else -float(rule.log_prior[path[0]])


@path_bound.register
def _(rule: FixedShare, stream: StreamSize, path: Tensor) -> float:
    return fixed_share_bound(stream.num_experts, stream.num_steps, _num_switches(path), rule.share)


@path_bound.register
def _(rule: MarkovSwitching, stream: StreamSize, path: Tensor) -> float:
    return path_prior_bound(rule.transition, path, None if rule.log_prior is None else rule.log_prior.exp())


@path_bound.register
def _(rule: DynamicModelAveraging, stream: StreamSize, path: Tensor) -> float:
    num_switches = _num_switches(path)
    return forgetting_bound(stream.num_experts, stream.num_steps, num_switches, rule.forgetting, stream.largest_ratio)


@path_bound.register
def _(rule: CombinedRules, stream: StreamSize, path: Tensor) -> float:
    return min(above + path_bound(part, stream, path) for above, part in _parts(rule, stream))


@path_bound.register
def _(rule: ReferenceAveraging, stream: StreamSize, path: Tensor) -> float:
    through = _above_references(rule, stream) + path_bound(rule.rule, stream, path)
    if _num_switches(path) or int(path[0]) not in rule.references:
        return through
    straight = math.log(len(rule.references) / rule.prior)
    return min(through, straight - (stream.num_steps - 1) * math.log1p(-rule.share * (1 - rule.prior)))


def _above_references(rule: ReferenceAveraging, stream: StreamSize) -> float:
    """Upper bound of the regret to the rule inside from weighing it against its references."""
    return -math.log1p(-rule.prior) - (stream.num_steps - 1) * math.log1p(-rule.share * rule.prior)


def _parts(rule: CombinedRules, stream: StreamSize) -> list[tuple[float, MetaLearner]]:
    """Each of the rules, with the bound of the regret to it; mixtures differ no more than experts do."""
    above = stream._replace(num_experts=len(rule.rules))
    paths = torch.arange(len(rule.rules), device="cpu").unsqueeze(1).expand(-1, stream.num_steps)
    return [(path_bound(rule.over, above, path), part) for path, part in zip(paths, rule.rules, strict=True)]


def _num_switches(path: Tensor) -> int:
    return int((path[1:] != path[:-1]).sum())


def _largest_ratio(log_prob: Tensor) -> float:
    """The largest ratio; a target that is impossible under all experts counts as missing."""
    best = log_prob.double().amax(0)
    spread = torch.where(best == -torch.inf, 0.0, best - log_prob.double().amin(0))
    return float(spread.amax().exp())


def _against(rival: Tensor, own: Tensor, best: Tensor, bound: float) -> Regret:
    lost, own_lost = torch.isneginf(rival), torch.isneginf(own)
    ahead = float((rival.double().masked_fill(lost, 0.0) - own.double().masked_fill(own_lost, 0.0)).sum())
    times = int(own_lost.sum()) - int(lost.sum())
    regret = ahead if times == 0 else math.copysign(math.inf, times)
    covered = bound < math.inf and not bool((lost & ~torch.isneginf(best)).any())
    return Regret(regret, bound if covered else None)


def _check(log_prob: Tensor, path: Tensor) -> None:
    if log_prob.ndim != 2 or 0 in log_prob.shape:
        raise ValueError(
            f"log densities must be (M, T) with at least one expert and one step, got {tuple(log_prob.shape)}"
        )
    if path.shape != log_prob.shape[1:] or path.dtype != torch.int64:
        raise ValueError(
            f"path must have one index per step, int64, shape ({log_prob.shape[1]},), "
            f"got {path.dtype} and {tuple(path.shape)}"
        )
    if not bool(((path >= 0) & (path < log_prob.shape[0])).all()):
        raise ValueError(f"path must contain indices of experts, 0 to {log_prob.shape[0] - 1}")
