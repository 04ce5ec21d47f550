r"""First-order rules for the best mixture: they follow the gradient of the mixture's log density.

The gradient at weights w is the vector of ratios :math:`r_m = p_m(y_t) / \sum_j w_j p_j(y_t)`, whose mean under the
weights is one. Where no expert is right a mixture beats each of them, and these rules look for it; Bayesian model
averaging looks for the best expert.
"""

import math

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import (
    MetaLearner,
    MetaOutput,
    MetaState,
    Step,
    check_block,
    check_share,
    form_on,
    grown_weights,
    initial_state,
    pack,
    run_by_form,
    run_steps,
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
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        # The largest exponent that can be met: ratios are at most one over the smallest weight.
        largest = self.learning_rate * log_prob.shape[0] / self.share if self.share else math.inf
        found = None
        if largest < 0.9 * math.log(torch.finfo(log_prob.dtype).max):
            found = self._in_numbers(state, log_prob)
        return run_steps(self._exact_step(state), state, log_prob) if found is None else found

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together, for any number of experts."""
        return grown_weights(state, num_new, share)

    def _in_numbers(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """The block in plain numbers, where no weight falls near the smallest of them."""
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
            # Exponents are taken relative to the largest one, so that what cancels is never infinite: the factor
            # may be cut off at the largest number, as every difference that it multiplies is above round-off.
            largest = torch.finfo(column.dtype).max / (4 * max(1.0, self.learning_rate))
            alive = log_weights > -torch.inf
            log_ratio = torch.where(alive, column - (log_weights + column).logsumexp(0), -torch.inf)
            top = log_ratio.amax(0)
            factor = self.learning_rate * top.exp().clamp(max=largest)
            moved = torch.log_softmax(log_weights + factor * torch.expm1(log_ratio - top), 0)
            return torch.logaddexp(moved + keep, part) if self.share else moved

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
        self.form = None if learning_rate is None else (1 - learning_rate, learning_rate, 0.0)

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, for any number of experts."""
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
        """New experts with weight ``share`` together, for any number of experts; the rate follows that number."""
        return grown_weights(state, num_new, share)


def _anytime_form(state: MetaState, log_prob: Tensor) -> list[Tensor]:
    """Parts of old weights, of the posterior and of each expert in the new ones, each of shape (B, 1, 1)."""
    num_experts, num_steps = log_prob.shape
    times = (state.num_seen + torch.arange(1, num_steps + 1, device=log_prob.device)).double()
    rate = (math.log(num_experts) / (2 * num_experts) / times).sqrt()
    ratio = (times / (times + 1)).sqrt()  # of one rate to the one before it
    learn = ratio * rate
    parts = ratio - learn, learn, (1 - ratio) / num_experts
    return [part.to(log_prob.dtype).reshape(-1, 1, 1) for part in parts]
