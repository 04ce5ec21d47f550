"""Bayes' rule that forgets: by flattening the weights, or by sharing them out."""

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import MetaLearner, MetaOutput, MetaState, check_share, grown_weights
from gp_ensembles.meta_learners.bayes import (
    bayes_step,
    check_block,
    check_densities,
    initial_state,
    pack,
    readable_all,
)
from gp_ensembles.meta_learners.recursion import run_linear, run_steps, share_logs, share_out

_SMALLEST_SHARE = 1e-12  # with less, log space only: weights must stay far from the smallest number


class DynamicModelAveraging(MetaLearner):
    r"""Bayesian model averaging in which old targets count less and less.

    .. math:: w_{t \mid t-1} \propto w_{t-1 \mid t-1}^{\gamma}, \qquad
              w_{t \mid t} \propto w_{t \mid t-1} \circ p(y_t)

    (Raftery, Kárný and Ettler 2010), so that a target s steps back has its log density multiplied by
    :math:`\gamma^s`. A block is one matrix product. Flattening comes before the first target too, and before a
    missing one: time passes. It never revives an expert of weight zero.

    Args:
        forgetting: Exponent γ in (0, 1]; 1 is Bayesian model averaging, 0.99 remembers about 100 targets.

    Raises:
        ValueError: If the exponent is not in (0, 1].

    Example:
        >>> import torch
        >>> rule = DynamicModelAveraging(forgetting=0.5)
        >>> log_prob = torch.tensor([[0.0, 0.0], [-2.0, -2.0]])
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> output.log_weights.diff(dim=0)
        tensor([[ 0., -1.]])
        >>> rule.log_weights(state).diff()
        tensor([-1.5000])
    """

    def __init__(self, forgetting: float = 0.99) -> None:
        super().__init__()
        if not 0 < forgetting <= 1:
            raise ValueError(f"forgetting must be above 0 and at most 1, got {forgetting}; 1 forgets nothing")
        self.forgetting = forgetting

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, for any number of experts."""
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights in force for the next target, flattened, shape (M,)."""
        return torch.log_softmax(self.forgetting * state.log_weights, 0)

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; arguments, results and errors as in Bayesian model averaging."""
        check_block(state, log_prob)
        num_steps = log_prob.shape[1]
        if num_steps == 0:
            return pack(state, state.log_weights, [], [])
        # The best density of each target is taken out first, so that sums of large numbers do not round.
        best = log_prob.detach().amax(0)
        columns = torch.cat([state.log_weights.unsqueeze(1), log_prob - best], dim=1)
        times = torch.arange(num_steps + 1, device=log_prob.device)
        # Entry (s, t): what is left, before the step after t, of what was learned in s.
        age = (times - times.unsqueeze(1)).to(log_prob.dtype)
        decay = torch.pow(log_prob.new_tensor(self.forgetting), age.clamp(min=0.0)).triu()
        after = columns @ decay
        weights = torch.log_softmax(self.forgetting * after[:, :-1], 0)
        density = (weights + columns[:, 1:]).logsumexp(0) + best
        if not readable_all(density.isfinite()):
            return self._loop(state, log_prob)
        last = torch.log_softmax(after[:, -1], 0)
        return state._replace(log_weights=last, num_seen=state.num_seen + num_steps), MetaOutput(weights, density)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together, before the next flattening; for any number of experts."""
        return grown_weights(state, num_new, share)

    def _loop(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """The textbook recursion, for blocks in which a density is zero."""
        check_densities(log_prob)
        current, weights, densities = state.log_weights, [], []
        for column in log_prob.unbind(1):
            weights.append(torch.log_softmax(self.forgetting * current, 0))
            current, density = bayes_step(weights[-1], column)
            densities.append(density)
        return pack(state, current, weights, densities)


class FixedShare(MetaLearner):
    r"""Bayes' rule, after which every expert gets an equal part of a small share of the weight.

    .. math:: w_{t+1} = (1 - \delta)\, \frac{w_t \circ p(y_t)}{w_t^\top p(y_t)} + \frac{\delta}{M}

    (Herbster and Warmuth 1998; the receiver of the share may be its giver.) It is
    :class:`~gp_ensembles.meta_learners.MarkovSwitching` with ``sticky_transition(M, 1 - share + share / M)`` in O(M)
    and for any M: weights before each target are the same, as switching before the first of them leaves equal weights
    equal. A missing target shares too: time passes. No expert of weight zero stays dead.

    Args:
        share: Share δ of the weight given away after each target, from 0 (Bayesian model averaging) to below 1.

    Raises:
        ValueError: If the share is out of range.

    Example:
        >>> import torch
        >>> rule = FixedShare(share=0.2)
        >>> log_prob = torch.tensor([[0.0], [-50.0]])
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> rule.log_weights(state).exp()
        tensor([0.9000, 0.1000])
    """

    def __init__(self, share: float = 0.01) -> None:
        super().__init__()
        check_share(share, lowest_is_legal=True)
        self.share = share

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: equal weights, for any number of experts."""
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights in force for the next target, shape (M,)."""
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; arguments, results and errors as in Bayesian model averaging."""
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        if self.share >= _SMALLEST_SHARE:
            part = state.log_weights.new_tensor(self.share / log_prob.shape[0])
            kept = state.log_weights.new_tensor(1 - self.share)

            def linear(weights: Tensor, column: Tensor, _: int) -> tuple[Tensor, Tensor]:
                density = torch.dot(weights, column)
                return torch.addcmul(part, weights, column * (kept / density)), density

            result = run_linear(linear, state, log_prob)
            if result is not None:
                return result
        keep, log_part = share_logs(self.share, state)

        def step(log_weights: Tensor, column: Tensor, _: int) -> Tensor:
            return share_out(torch.log_softmax(log_weights + column, 0), keep, log_part)

        return run_steps(step, state, log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """New experts with weight ``share`` together, for any number of experts."""
        return grown_weights(state, num_new, share)
