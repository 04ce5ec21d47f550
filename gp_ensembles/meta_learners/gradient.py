r"""Rules for the best mixture, which follow the gradient of the mixture's log density, or also its curvature.

The gradient at weights w is the vector of ratios :math:`r_m = p_m(y_t) / \sum_j w_j p_j(y_t)`, whose mean under the
weights is one. If no expert is right, a mixture beats each of them, and these rules search for it; Bayesian model
averaging searches for the best expert.

With :math:`g_t = p(y_t) / w_t^\top p(y_t)` the gradient at the current weights, :math:`g_t g_t^\top` is the negative
Hessian. The second-order rules accumulate it, and end a step with the exact projection onto the simplex in the norm of
the curvature.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.meta_learners.base import (
    MetaLearner,
    MetaOutput,
    MetaState,
    Step,
    check_block,
    check_densities,
    check_share,
    form_on,
    grown_weights,
    initial_state,
    pack,
    run_by_form,
    run_steps,
)
from gp_ensembles.numerics.reductions import readable_all
from gp_ensembles.numerics.simplex_path import Followed, Growth, follow_minimizer


class ExponentiatedGradient(MetaLearner):
    r"""Weights multiplied by the exponential of the gradient, followed by a small share.

    .. math:: w_{t+1} = (1 - \delta)\, \frac{w_t \circ e^{\eta r_t}}{w_t^\top e^{\eta r_t}} + \frac{\delta}{M}

    (Helmbold, Schapire, Singer and Warmuth 1998; the share is that of Herbster and Warmuth 1998.) A ratio can be as
    large as one over the weight, so without a share the rule is unsafe: an expert that lost its weight and then
    explains one target gets all weight at once. The share bounds ratios by M / δ. Without it ratios may overflow;
    the weights are then the exact limit. Weight is also shared at a missing target: time passes.

    Args:
        learning_rate: Step η, positive.
        share: Share δ of the weight that is redistributed after each target, from 0 to below 1.

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
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        # The largest possible exponent: ratios are at most one over the smallest weight.
        largest = self.learning_rate * log_prob.shape[0] / self.share if self.share else math.inf
        found = None
        if largest < 0.9 * math.log(torch.finfo(log_prob.dtype).max):
            found = self._in_numbers(state, log_prob)
        return run_steps(self._exact_step(state), state, log_prob) if found is None else found

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        return grown_weights(state, num_new, share)

    def _in_numbers(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """The block in linear space, if no weight comes close to underflow."""
        best = log_prob.detach().amax(0)
        kept, rate = (log_prob.new_full((), number) for number in (1 - self.share, self.learning_rate))
        part = kept.new_full((), self.share / log_prob.shape[0])
        weights, densities = [state.log_weights.exp()], []
        for column in (log_prob - best).exp().unbind(1):
            densities.append(torch.dot(weights[-1], column))
            factor = torch.exp(column * (rate / densities[-1]))
            weights.append(torch.addcmul(part, weights[-1], factor * (kept / torch.dot(weights[-1], factor))))
        relative = torch.stack(densities)
        info = torch.finfo(log_prob.dtype)
        if not readable_all(relative > info.tiny / info.eps):
            return None
        log_weights = torch.cat([state.log_weights.unsqueeze(1), torch.stack(weights[1:], dim=1).log()], dim=1)
        after = state._replace(log_weights=log_weights[:, -1], num_seen=state.num_seen + log_prob.shape[1])
        return after, MetaOutput(log_weights[:, :-1], relative.log() + best)

    def _exact_step(self, state: MetaState) -> Step:
        keep = math.log1p(-self.share)
        part = state.log_weights.new_full((), self.share / state.log_weights.shape[0]).log()

        def exact(log_weights: Tensor, column: Tensor, _: int) -> Tensor:
            # Exponents are taken relative to the largest one, so that canceling terms are finite: the factor
            # may be clamped to the largest number, as every difference that it multiplies is above round-off.
            largest = torch.finfo(column.dtype).max / (4 * max(1.0, self.learning_rate))
            alive = log_weights > -torch.inf
            log_ratio = torch.where(alive, column - (log_weights + column).logsumexp(0), -torch.inf)
            top = log_ratio.amax(0)
            factor = self.learning_rate * top.exp().clamp(max=largest)
            moved = torch.log_softmax(log_weights + factor * torch.expm1(log_ratio - top), 0)
            return torch.logaddexp(moved + keep, part) if self.share else moved

        return exact


class SoftBayes(MetaLearner):
    r"""Partial steps of Bayes' rule: safe for any densities, with no constant to choose.

    .. math:: w_{t+1} = \frac{\alpha_{t+1}}{\alpha_t}\, w_t \circ (1 - \alpha_t + \alpha_t r_t) +
              \Bigl(1 - \frac{\alpha_{t+1}}{\alpha_t}\Bigr) \frac1M,
              \qquad \alpha_t = \sqrt{\frac{\log M}{2 M t}}

    (Orseau, Lattimore and Legg 2017, "Soft-Bayes".) As :math:`w_t \circ r_t` is the Bayes posterior, each step mixes
    the weights before the target with those after it. Regret against the best fixed mixture is bounded whatever the
    densities, see :func:`~gp_ensembles.metrics.regret_bounds.soft_bayes_bound`. A missing target moves weights toward
    equal ones and decreases the rate: time passes.

    Args:
        learning_rate: A fixed rate α in (0, 1), without mixing with equal weights: for tracking at
            constant speed. ``None`` for the anytime rate above.

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
            raise ValueError(f"learning_rate must lie between 0 and 1, got {learning_rate}; None is the anytime rate")
        self.learning_rate = learning_rate
        self.form = None if learning_rate is None else (1 - learning_rate, learning_rate, 0.0)

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        if self.form is None:
            return run_by_form(_anytime_form(state, log_prob), state, log_prob)
        form = form_on((self.form,), len(log_prob), log_prob.dtype, log_prob.device)
        return run_by_form(form, state, log_prob, gives=False)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``, for any number of experts; the rate follows that number."""
        return grown_weights(state, num_new, share)


def _anytime_form(state: MetaState, log_prob: Tensor) -> list[Tensor]:
    """Coefficients of old weights, posterior and equal weights in the new ones, (B, 1, 1) each."""
    num_experts, num_steps = log_prob.shape
    times = (state.num_seen + torch.arange(1, num_steps + 1, device=log_prob.device)).double()
    rate = (math.log(num_experts) / (2 * num_experts) / times).sqrt()
    ratio = (times / (times + 1)).sqrt()  # of consecutive rates
    learn = ratio * rate
    parts = ratio - learn, learn, (1 - ratio) / num_experts
    return [part.to(log_prob.dtype).reshape(-1, 1, 1) for part in parts]


Numbers = NDArray[np.float64]


class OnlineNewton(MetaLearner):
    r"""Online Newton step: a quadratic approximation of the log density of every target so far.

    .. math::
        A_t &= A_{t-1} + g_t g_t^\top, \qquad b_t = b_{t-1} + (1 + 1/\beta)\, g_t, \qquad A_0 = I, \; b_0 = 0 \\
        w_{t+1} &= (1 - \eta)\, \Pi_{A_t}(\delta A_t^{-1} b_t) + \eta / M

    (Agarwal, Hazan, Kale and Schapire 2006.) :math:`\Pi_A` is the projection onto the simplex in the norm of A; here
    it is exact. For a missing target all ratios are one, which leaves the projection unchanged.

    The projection is the minimum of a sum of squares, :math:`|w|^2 + \sum_t (g_t^\top w - c)^2` with
    :math:`c = \delta (1 + 1/\beta)`, recomputed after each target from the experts that had weight before it.

    Weights are computed from the memory in float64 whatever the dtype of the densities, and carry no gradient;
    the mixture's log density carries that of the experts' densities at the target itself.

    Args:
        beta: Constant β, positive; smaller values select fewer experts.
        delta: Constant δ, positive.
        share: Share η of the weight that is distributed equally, between 0 and 1; it bounds ratios by M / η.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> rule = OnlineNewton()
        >>> log_prob = torch.tensor([[0.7, 0.1], [0.2, 0.8], [0.1, 0.1]]).log().repeat(1, 40)
        >>> state, output = rule.update_block(rule.init(3, like=log_prob), log_prob)
        >>> rule.log_weights(state).exp()
        tensor([0.2200, 0.7767, 0.0033])
    """

    def __init__(self, beta: float = 0.01, delta: float = 0.8, share: float = 0.01) -> None:
        super().__init__()
        _check_positive("beta", beta)
        _check_positive("delta", delta)
        check_share(share, lowest_is_legal=False)
        self.beta = beta
        self.delta = delta
        self.share = share

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, and the memory [A | b], shape (M, M + 1), in float64."""
        state = initial_state(None, num_experts, like)
        curvature = _identity_memory(num_experts, 1.0, like)
        return state._replace(memory=torch.cat([curvature, curvature.new_zeros(num_experts, 1)], dim=1))

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        ratio = 1 + 1 / self.beta
        return _follow(state, log_prob, Growth(1.0, 0.0, self.delta * ratio, False, self.share), ratio)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share`` for the next target; for any number of experts.

        After it, weights follow from the memory, in which the new experts count as having predicted like the mixture
        with the current weights.
        """
        grown = grown_weights(state, num_new, share)
        num_experts = state.log_weights.shape[0]
        _check_state_size(self, state, num_experts + 1)
        weights, memory = state.log_weights.double().exp(), state.memory.double()
        curvature = _grown_curvature(memory[:, :num_experts], weights, num_new, 1.0)
        sums = torch.cat([memory[:, -1], (weights @ memory[:, -1]).expand(num_new)])
        return grown._replace(memory=torch.cat([curvature, sums.unsqueeze(1)], dim=1))


class DiscountedOnlineNewton(MetaLearner):
    r"""Online Newton step from the previous weights, with discounted curvature.

    .. math::
        A_t &= \gamma A_{t-1} + (1 - \gamma)\, \varepsilon I + g_t g_t^\top, \qquad A_0 = \varepsilon I \\
        v_{t+1} &= \Pi_{A_t}\bigl(v_t + A_t^{-1} g_t / \beta\bigr), \qquad w_t = (1 - \delta)\, v_t + \delta / M

    (the discounted Online Newton step as used for stacking by Waxman, Llorente and Djurić 2025, with an exact
    projection and a share.) The projection may take all weight from an expert, whose ratio is then
    unbounded: the share bounds it by M / δ. For a missing target all ratios are one: the curvature is
    discounted, as time passes, and weights are unchanged.

    Weights are computed in float64 whatever the dtype of the densities, and carry no gradient; the mixture's log
    density carries that of the experts' densities at the target itself.

    Args:
        beta: Constant β, positive; the step is 1 / β times Newton's.
        discount: Discount γ in (0, 1]; with 0.99 the curvature has a memory of about 100 targets.
        epsilon: Curvature ε without data, positive.
        share: Share δ of the weight distributed equally, from 0 to below 1. Without it an expert can have weight
            exactly zero, which an online ensemble treats as dead, and a target with almost no density under the
            current weights makes the curvature numerically singular, which raises an error.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> rule = DiscountedOnlineNewton()
        >>> log_prob = torch.tensor([[0.7, 0.1], [0.2, 0.8], [0.1, 0.1]]).log().repeat(1, 40)
        >>> state, output = rule.update_block(rule.init(3, like=log_prob), log_prob)
        >>> rule.log_weights(state).exp()
        tensor([3.8306e-01, 6.1690e-01, 3.3333e-05])
    """

    def __init__(self, beta: float = 1.0, discount: float = 0.99, epsilon: float = 1.0, share: float = 1e-4) -> None:
        super().__init__()
        _check_positive("beta", beta)
        _check_positive("epsilon", epsilon)
        if not 0 < discount <= 1:
            raise ValueError(f"discount must be above 0 and at most 1, got {discount}; 1 forgets nothing")
        check_share(share, lowest_is_legal=True)
        self.beta = beta
        self.discount = discount
        self.epsilon = epsilon
        self.share = share

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, and the memory [A | v], shape (M, M + 1), in float64."""
        state = initial_state(None, num_experts, like)
        curvature = _identity_memory(num_experts, self.epsilon, like)
        leader = curvature.new_full((num_experts, 1), 1 / num_experts)
        return state._replace(memory=torch.cat([curvature, leader], dim=1))

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        refill = (1 - self.discount) * self.epsilon
        return _follow(state, log_prob, Growth(self.discount, refill, 1 / self.beta, True, self.share))

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``, for any number of experts.

        In the curvature they count as having predicted like the mixture with the current weights.
        """
        grown = grown_weights(state, num_new, share)
        _check_state_size(self, state, state.log_weights.shape[0] + 1)
        memory = state.memory.double()
        curvature, leader = memory[:, :-1], memory[:, -1]
        curvature = _grown_curvature(curvature, leader, num_new, self.epsilon)
        leader = torch.cat([(1 - share) * leader, leader.new_full((num_new,), share / num_new)])
        return grown._replace(memory=torch.cat([curvature, leader.unsqueeze(1)], dim=1))


def _check_positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a positive number, got {value}")


def _check_state_size(rule: MetaLearner, state: MetaState, width: int) -> None:
    """Raise unless a state to be extended has the memory, (M, ``width``), that the rule needs."""
    if state.memory.shape[-1] != width:
        raise ValueError(
            f"{type(rule).__name__} needs a memory of {width} numbers per expert, but the state has "
            f"{state.memory.shape[-1]}: it belongs to another rule; use a rule without memory, or start with init"
        )


def _identity_memory(num_experts: int, scale: float, like: Tensor) -> Tensor:
    """A multiple of the identity, shape (M, M), in float64: curvature exceeds the precision of float32."""
    return torch.diag(like.new_full((num_experts,), scale, dtype=torch.float64))


def _follow(state: MetaState, log_prob: Tensor, growth: Growth, scale: float = 1.0) -> tuple[MetaState, MetaOutput]:
    """Update the weights over a block by the minimizers of an accumulated quadratic.

    The memory, (M, M + 1), is [A | v] if the quadratic restarts from its minimizer v, else [A | b] with ``scale`` times
    the sum b of all gradients.
    """
    check_block(state, log_prob)
    if log_prob.shape[1] == 0:
        return pack(state, state.log_weights, [], [])
    check_densities(log_prob)
    num_seen = state.num_seen + log_prob.shape[1]
    if log_prob.is_meta:  # there are no values to select a support
        output = MetaOutput(torch.empty_like(log_prob), log_prob.new_empty(log_prob.shape[1:]))
        return state._replace(num_seen=num_seen), output
    with torch.no_grad():
        memory, weights = state.memory.double(), state.log_weights.double().exp()
        sums, leader = torch.zeros_like(weights), memory[:, -1]
        if not growth.is_proximal:
            sums, leader = memory[:, -1] / scale, _near_leader(weights, growth.share)
        parts = memory[:, :-1], sums, leader, weights.unsqueeze(0)
        before = Followed(*(part.cpu().numpy() for part in parts))
        after = follow_minimizer(before, _relative_densities(log_prob), growth)
        column = after.leader if growth.is_proximal else scale * after.sums
        memory = torch.from_numpy(np.concatenate([after.matrix, column[:, None]], axis=1)).to(memory.device)
        later = torch.from_numpy(after.weights).to(weights).log().mT.to(log_prob.dtype)
    log_weights = torch.cat([state.log_weights.unsqueeze(1), later[:, 1:-1]], dim=1)
    output = MetaOutput(log_weights, (log_weights + log_prob).logsumexp(0))
    return MetaState(later[:, -1], num_seen, memory), output


def _relative_densities(log_prob: Tensor) -> Numbers:
    """Densities relative to the best of each target, one row per target, shape (B, M), in float64."""
    values = log_prob.detach().double().mT
    best = values.amax(1, keepdim=True)
    relative: Numbers = torch.where(best == -torch.inf, 0.0, values - best).exp().contiguous().cpu().numpy()
    return relative


def _near_leader(weights: Tensor, share: float) -> Tensor:
    """An approximate leader, recovered from current weights; its support is exact except for tiny weights."""
    raw = ((weights - share / weights.shape[0]) / (1 - share)).clamp(min=0)
    kept = torch.where(raw > 1e-6 * raw.max(), raw, 0.0)
    return kept / kept.sum()


def _grown_curvature(curvature: Tensor, weights: Tensor, num_new: int, epsilon: float) -> Tensor:
    """Curvature with n additional experts that predicted like the mixture with these weights, (M + n, M + n)."""
    num_experts = weights.shape[0]
    old = torch.diag(torch.ones_like(weights))
    mapping = torch.cat([old, weights.expand(num_new, num_experts)])
    learned = mapping @ (curvature - epsilon * old) @ mapping.mT
    return learned + epsilon * torch.diag(torch.ones_like(learned[0]))
