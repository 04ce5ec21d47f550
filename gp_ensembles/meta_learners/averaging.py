"""Bayesian model averaging, and dynamic model averaging, which forgets by flattening the weights."""

import math

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import (
    MetaLearner,
    MetaOutput,
    MetaState,
    bayes_step,
    check_block,
    check_num_experts,
    check_prior_weights,
    grown_weights,
    initial_state,
    normalized,
    pack,
    run_bayes,
)
from gp_ensembles.numerics.reductions import readable_all

_WINDOW = 64  # targets per pass while experts may be pruned: bounds the work repeated after each pruning


class BayesianModelAveraging(MetaLearner):
    r"""Weights proportional to prior weight times likelihood, in log space throughout.

    .. math:: \log w_{t,m} = \log w_{0,m} + \sum_{s < t} \log p_m(y_s \mid y_{1:s-1}) + \text{const}

    (Lu et al. 2022, equations 20 and 25; Waxman and Djurić 2024, equation 23.) A block is one cumulative sum. Weights
    never underflow: an expert at log weight -10 000 recovers if the data turn in its favor.

    Args:
        prior_weights: Prior weights, shape (M,), normalized here; ``None`` for equal weights and any M.
        prune_below: An expert whose normalized weight is below this **before** a target is removed permanently
            after it, as in the papers with 1e-16; a collapsed mixture stays collapsed. Off (``None``) by default.

    Raises:
        ValueError: If a prior weight is negative or not finite, or ``prune_below`` is not in (0, 1).

    Example:
        >>> import torch
        >>> rule = BayesianModelAveraging()
        >>> log_prob = torch.tensor([[0.0, -1.0], [-2.0, -1.0]])
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> output.log_weights.exp()
        tensor([[0.5000, 0.8808],
                [0.5000, 0.1192]])
        >>> rule.log_weights(state).exp()
        tensor([0.8808, 0.1192])
    """

    log_prior: Tensor | None

    def __init__(self, prior_weights: Tensor | None = None, prune_below: float | None = None) -> None:
        super().__init__()
        if prune_below is not None and not 0 < prune_below < 1:
            raise ValueError(f"prune_below must lie between 0 and 1, got {prune_below}; None turns it off")
        self.prune_below = prune_below
        log_prior = None if prior_weights is None else check_prior_weights(prior_weights)
        self.register_buffer("log_prior", log_prior)

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data: the prior weights; see :meth:`MetaLearner.init`.

        Raises:
            ValueError: If the prior weights belong to another number of experts, or ``prune_below`` would
                remove experts of average weight.
        """
        if self.prune_below is not None and self.prune_below * num_experts >= 1:
            raise ValueError(
                f"prune_below={self.prune_below} is not below the average weight of {num_experts} experts; "
                f"choose a smaller one, for instance 1e-16"
            )
        return initial_state(self.log_prior, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; see :meth:`MetaLearner.update_block`.

        If every remaining expert gives a target density zero, the weights are unchanged and the mixture's log density
        is minus infinity.
        """
        check_block(state, log_prob)
        if log_prob.shape[1] == 0:
            return pack(state, state.log_weights, [], [])
        result = self._pruned(state, log_prob) if self.prune_below is not None else _average(state, log_prob)
        if result is not None:
            return result
        threshold = self._threshold
        return run_bayes(
            lambda weights: weights,
            state,
            log_prob,
            lambda weights: torch.where(weights < threshold, -torch.inf, weights),
        )

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``; prior weights, if any, must cover all M + n experts.

        Raises:
            ValueError: If the prior weights belong to another number of experts, a number is out of range, or
                ``prune_below`` would remove the new experts at once.
        """
        grown = grown_weights(state, num_new, share)
        if self.log_prior is not None:
            check_num_experts(self.log_prior.shape[0], grown.log_weights.shape[0])
        if self.prune_below is not None and share / num_new <= self.prune_below:
            raise ValueError(
                f"a share of {share} gives each of {num_new} new experts no more weight than "
                f"prune_below={self.prune_below}; use a larger share"
            )
        return grown

    @property
    def _threshold(self) -> float:
        return -torch.inf if self.prune_below is None else math.log(self.prune_below)

    def _pruned(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """Cumulative sums between prunings; ``None`` if the block needs the loop."""
        weights, densities = [], []
        start = 0
        while start < log_prob.shape[1]:
            result = _average(state, log_prob[:, start : start + _WINDOW])
            if result is None:
                return None
            after, output = result
            current = output.log_weights.detach()
            dying = (current < self._threshold) & (current > -torch.inf)
            steps = dying.any(0)
            if readable_all(~steps):
                length = steps.shape[0]
            else:
                length = int(steps.int().argmax()) + 1
                survivors = output.log_weights[:, length - 1].masked_fill(dying[:, length - 1], -torch.inf)
                last, density = bayes_step(survivors, log_prob[:, start + length - 1])
                if not readable_all(density.isfinite()):
                    return None
                after = _after(state, last, length)
            # An expert pruned at a target still has weight in its prediction.
            weights.append(output.log_weights[:, :length])
            densities.append(output.log_prob[:length])
            state = after
            start += length
        return state, MetaOutput(torch.cat(weights, dim=1), torch.cat(densities))


class DynamicModelAveraging(MetaLearner):
    r"""Bayesian model averaging with exponential forgetting of old targets.

    .. math:: w_{t \mid t-1} \propto w_{t-1 \mid t-1}^{\gamma}, \qquad
              w_{t \mid t} \propto w_{t \mid t-1} \circ p(y_t)

    (Raftery, Kárný and Ettler 2010), so that a target s steps back has its log density multiplied by
    :math:`\gamma^s`. A block is one matrix product. Flattening comes before the first target too, and before a
    missing one: time passes. It never revives an expert of weight zero.

    Args:
        forgetting: Exponent γ in (0, 1]; 1 is Bayesian model averaging, 0.99 has a memory of about 100 targets.

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
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights for the next target, flattened, shape (M,)."""
        return torch.log_softmax(self.forgetting * state.log_weights, 0)

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        num_steps = log_prob.shape[1]
        if num_steps == 0:
            return pack(state, state.log_weights, [], [])
        # The best log density of each target is subtracted first to avoid round-off in large sums.
        best = log_prob.detach().amax(0)
        columns = torch.cat([state.log_weights.unsqueeze(1), log_prob - best], dim=1)
        times = torch.arange(num_steps + 1, device=log_prob.device)
        # Entry (s, t): the share of step s that remains before the step after t.
        age = (times - times.unsqueeze(1)).to(log_prob.dtype)
        decay = torch.pow(log_prob.new_full((), self.forgetting), age.clamp(min=0.0)).triu()
        after = columns @ decay
        weights = torch.log_softmax(self.forgetting * after[:, :-1], 0)
        density = (weights + columns[:, 1:]).logsumexp(0) + best
        if not readable_all(density.isfinite()):
            return run_bayes(lambda weights: torch.log_softmax(self.forgetting * weights, 0), state, log_prob)
        last = torch.log_softmax(after[:, -1], 0)
        return state._replace(log_weights=last, num_seen=state.num_seen + num_steps), MetaOutput(weights, density)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``, before the next flattening; for any number of experts."""
        return grown_weights(state, num_new, share)


def _average(state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
    """Bayes' rule for a block by one cumulative sum; ``None`` if a target is impossible or undefined."""
    num_steps = log_prob.shape[1]
    before = state.log_weights.unsqueeze(1)
    if num_steps == 1:  # online use has one target per call: minimize operations
        joint = before + log_prob
        density = joint.logsumexp(0)
        if not readable_all(density.isfinite()):
            return None
        return _after(state, normalized(joint, density).squeeze(1), 1), MetaOutput(before, density)
    # The best log density of each target is subtracted first to avoid round-off in large sums.
    best = log_prob.detach().amax(0)
    joint = torch.cat([before, before + (log_prob - best).cumsum(1)], dim=1)
    normalizer = joint.logsumexp(0)
    # Infinite or undefined sums remain so: checking the last one is enough.
    if not readable_all(normalizer[-1].isfinite()):
        return None
    log_weights = normalized(joint, normalizer)
    density = best + normalizer.diff()
    return _after(state, log_weights[:, -1], num_steps), MetaOutput(log_weights[:, :-1], density)


def _after(state: MetaState, log_weights: Tensor, num_steps: int) -> MetaState:
    return state._replace(log_weights=log_weights, num_seen=state.num_seen + num_steps)
