r"""First-order rules for the best mixture: they follow the gradient of the mixture's log density.

The gradient at weights w is the vector of ratios :math:`r_m = p_m(y_t) / \sum_j w_j p_j(y_t)`, whose mean under the
weights is one. Where no expert is right a mixture beats each of them, and these rules look for it; Bayesian model
averaging looks for the best expert.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import (
    LinearStep,
    MetaLearner,
    MetaOutput,
    MetaState,
    Step,
    check_block,
    check_share,
    grown_weights,
    initial_state,
    pack,
    run_linear,
    run_steps,
    share_logs,
    share_out,
)
from gp_ensembles.numerics.reductions import readable_all


class ExponentiatedGradient(MetaLearner):
    r"""Weights multiplied by the exponential of the gradient, then a little sharing.

    .. math:: w_{t+1} = (1 - \delta)\, \frac{w_t \circ e^{\eta r_t}}{w_t^\top e^{\eta r_t}} + \frac{\delta}{M}

    (Helmbold, Schapire, Singer and Warmuth 1998; the share is that of Herbster and Warmuth 1998.) A ratio can be as
    large as one over the weight, so without a share the rule is unsafe: an expert that lost its weight and then
    explains one target takes all weight at once. The share bounds ratios by M / δ. Without it ratios may exceed every
    number; the weights are then the exact limit. A missing target shares too: time passes.

    Args:
        learning_rate: Step η, positive.
        share: Share δ of the weight given away after each target, from 0 to below 1.

    Raises:
        ValueError: If the learning rate is not a positive number or the share is out of range.

    Example:
        >>> import torch
        >>> rule = ExponentiatedGradient(learning_rate=0.5, share=0.0)
        >>> log_prob = torch.tensor([[1.5], [0.5]]).log()  # ratios are 1.5 and 0.5
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> rule.log_weights(state).diff(dim=0)
        tensor([-0.5000])
    """

    def __init__(self, learning_rate: float = 0.01, share: float = 1e-3) -> None:
        super().__init__()
        if not 0 < learning_rate < math.inf:
            raise ValueError(f"learning_rate must be a positive number, got {learning_rate}")
        check_share(share, lowest_is_legal=True)
        self.learning_rate = learning_rate
        self.share = share

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, for any number of experts."""
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights for the next target, shape (M,)."""
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; see :meth:`MetaLearner.update_block`."""
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        num_experts = log_prob.shape[0]
        # The largest exponent that can be met: ratios are at most one over the smallest weight.
        largest = self.learning_rate * num_experts / self.share if self.share else math.inf
        if largest < 0.9 * math.log(torch.finfo(log_prob.dtype).max):
            result = run_linear(self._linear_step(state), state, log_prob)
            if result is not None:
                return result
        return run_steps(self._exact_step(*share_logs(self.share, state)), state, log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together, for any number of experts."""
        return grown_weights(state, num_new, share)

    def _linear_step(self, state: MetaState) -> LinearStep:
        part = state.log_weights.new_full((), self.share / state.log_weights.shape[0])
        kept = state.log_weights.new_full((), 1 - self.share)
        rate = state.log_weights.new_full((), self.learning_rate)

        def linear(weights: Tensor, column: Tensor, _: int) -> tuple[Tensor, Tensor]:
            density = torch.dot(weights, column)
            factor = torch.exp(column * (rate / density))
            return torch.addcmul(part, weights, factor * (kept / torch.dot(weights, factor))), density

        return linear

    def _exact_step(self, keep: float, part: Tensor | None) -> Step:
        def exact(log_weights: Tensor, column: Tensor, _: int) -> Tensor:
            # Exponents are taken relative to the largest one, so that what cancels is never infinite: the factor
            # may be cut off at the largest number, as every difference that it multiplies is above round-off.
            largest = torch.finfo(column.dtype).max / (4 * max(1.0, self.learning_rate))
            alive = log_weights > -torch.inf
            log_ratio = torch.where(alive, column - (log_weights + column).logsumexp(0), -torch.inf)
            top = log_ratio.amax(0)
            factor = self.learning_rate * top.exp().clamp(max=largest)
            moved = torch.log_softmax(log_weights + factor * torch.expm1(log_ratio - top), 0)
            return share_out(moved, keep, part)

        return exact


class SoftBayes(MetaLearner):
    r"""Bayes' rule taken only part of the way: safe for any densities, with no constant to choose.

    .. math:: w_{t+1} = \frac{\alpha_{t+1}}{\alpha_t}\, w_t \circ (1 - \alpha_t + \alpha_t r_t) +
              \Bigl(1 - \frac{\alpha_{t+1}}{\alpha_t}\Bigr) \frac1M,
              \qquad \alpha_t = \sqrt{\frac{\log M}{2 M t}}

    (Orseau, Lattimore and Legg 2017, "Soft-Bayes".) As :math:`w_t \circ r_t` is the Bayes posterior, each step mixes
    the weights before the target with those after it. Regret against the best fixed mixture is bounded whatever the
    densities, see :func:`~gp_ensembles.metrics.regret_bounds.soft_bayes_bound`. A missing target moves weights towards
    equal ones, and the rate falls: time passes.

    Args:
        learning_rate: A fixed rate α in (0, 1), with which weights are never mixed with equal ones: for tracking at
            one speed. ``None`` for the anytime rate above.

    Raises:
        ValueError: If the learning rate is not between 0 and 1.

    Example:
        >>> import torch
        >>> rule = SoftBayes(learning_rate=0.5)
        >>> log_prob = torch.tensor([[1.5], [0.5]]).log()  # ratios are 1.5 and 0.5
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> rule.log_weights(state).exp()
        tensor([0.6250, 0.3750])
    """

    def __init__(self, learning_rate: float | None = None) -> None:
        super().__init__()
        if learning_rate is not None and not 0 < learning_rate < 1:
            raise ValueError(f"learning_rate must lie between 0 and 1, got {learning_rate}; None for the anytime rate")
        self.learning_rate = learning_rate

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, for any number of experts."""
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights for the next target, shape (M,)."""
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; see :meth:`MetaLearner.update_block`."""
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        if self.learning_rate is None:
            rates = _anytime_rates(state, log_prob)
            result = run_linear(_anytime_linear(*rates), state, log_prob)
            return run_steps(_anytime_step(*rates), state, log_prob) if result is None else result
        result = _fixed_rate(self.learning_rate, state, log_prob)
        if result is not None:
            return result
        stay, learn = math.log1p(-self.learning_rate), math.log(self.learning_rate)

        def step(log_weights: Tensor, column: Tensor, _: int) -> Tensor:
            posterior = torch.log_softmax(log_weights + column, 0)
            return torch.logaddexp(log_weights + stay, posterior + learn)

        return run_steps(step, state, log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together, for any number of experts; the rate follows that number."""
        return grown_weights(state, num_new, share)


def _fixed_rate(rate: float, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
    """A block in plain numbers: what a weight is multiplied by each time, and the logarithms of all at the end."""
    best = log_prob.detach().amax(0)
    weights, stay = state.log_weights.exp(), log_prob.new_full((), 1 - rate)
    factors, densities = [], []
    for column in (log_prob - best).exp().unbind(1):
        density = torch.dot(weights, column)
        factor = torch.addcmul(stay, column, rate / density)
        weights = weights * factor
        factors.append(factor)
        densities.append(density)
    relative = torch.stack(densities)
    info = torch.finfo(log_prob.dtype)
    if not readable_all(relative > info.tiny / info.eps):
        return None
    steps = torch.cat([state.log_weights.unsqueeze(1), torch.stack(factors, dim=1).log()], dim=1).cumsum(1)
    last = state._replace(log_weights=steps[:, -1], num_seen=state.num_seen + log_prob.shape[1])
    return last, MetaOutput(steps[:, :-1], relative.log() + best)


def _anytime_rates(state: MetaState, log_prob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Parts of old weights, of the posterior and of equal weights in the new ones, each of shape (B,)."""
    num_experts, num_steps = log_prob.shape
    times = (state.num_seen + torch.arange(1, num_steps + 1, device=log_prob.device)).double()
    rate = (math.log(num_experts) / (2 * num_experts) / times).sqrt()
    ratio = (times / (times + 1)).sqrt()  # of one rate to the one before it
    learn = ratio * rate
    equal = (1 - ratio) / num_experts
    return (ratio - learn).to(log_prob.dtype), learn.to(log_prob.dtype), equal.to(log_prob.dtype)


def _anytime_linear(stay: Tensor, learn: Tensor, equal: Tensor) -> LinearStep:
    stays, learns, equals = stay.unbind(0), learn.unbind(0), equal.unbind(0)

    def linear(weights: Tensor, column: Tensor, number: int) -> tuple[Tensor, Tensor]:
        density = torch.dot(weights, column)
        factor = torch.addcmul(stays[number], column, learns[number] / density)
        return torch.addcmul(equals[number], weights, factor), density

    return linear


def _anytime_step(stay: Tensor, learn: Tensor, equal: Tensor) -> Step:
    stays, learns, equals = stay.log().unbind(0), learn.log().unbind(0), equal.log().unbind(0)

    def step(log_weights: Tensor, column: Tensor, number: int) -> Tensor:
        posterior = torch.log_softmax(log_weights + column, 0)
        moved = torch.logaddexp(log_weights + stays[number], posterior + learns[number])
        return torch.logaddexp(moved, equals[number])

    return step
