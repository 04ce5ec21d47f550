"""Switching experts: fixed share, Markov switching, and its transition matrices."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from gp_ensembles.meta_learners.base import (
    MetaLearner,
    MetaOutput,
    MetaState,
    check_block,
    check_num_experts,
    check_prior_weights,
    check_share,
    form_on,
    grown_weights,
    initial_state,
    normalized,
    run_bayes,
    run_by_form,
)
from gp_ensembles.numerics.reductions import readable_all

_SMALLEST_SHARE = 1e-12  # below it, only log space is used: weights must stay far from underflow
_PLAIN = 1e3  # largest log density that leaves enough precision for weights
_STEPS_PER_SCALE = 16  # shares fall by at most the smallest entry of Q per step: no underflow in 16 steps


class FixedShare(MetaLearner):
    r"""Bayes' rule, followed by an equal redistribution of a small share of the weight.

    .. math:: w_{t+1} = (1 - \delta)\, \frac{w_t \circ p(y_t)}{w_t^\top p(y_t)} + \frac{\delta}{M}

    (Herbster and Warmuth 1998; experts also get part of their own share.) It is
    :class:`MarkovSwitching` with ``sticky_transition(M, 1 - share + share / M)`` in O(M)
    and for any M: weights before each target are the same, as switching before the first of them leaves equal weights
    equal. Weight is also shared at a missing target: time passes. Experts of weight zero recover.

    Args:
        share: Share δ of the weight redistributed after each target, from 0 (Bayesian model averaging) to below 1.

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
        self.form = (0.0, 1 - share, share) if share >= _SMALLEST_SHARE else None

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        return initial_state(None, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        return state.log_weights

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        check_block(state, log_prob)
        form = form_on(((0.0, 1 - self.share, self.share),), len(log_prob), log_prob.dtype, log_prob.device)
        known = self.form is not None
        return run_by_form(form, state, log_prob, keeps=False, gives=self.share > 0, in_numbers=known)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        return grown_weights(state, num_new, share)


class MarkovSwitching(MetaLearner):
    r"""Weights that follow a transition matrix before each target, then Bayes' rule.

    .. math:: w_{t \mid t-1} = Q\, w_{t-1 \mid t-1}, \qquad
              w_{t \mid t} \propto w_{t \mid t-1} \circ p(y_t)

    (Lu et al. 2022, equations 35 and 38; Waxman and Djurić 2024, equation 27.) The switch comes before the first
    target too, and before a missing one: time passes. A target is predicted with
    :math:`w_{t \mid t-1}`, never with weights that have seen it.

    Within a block the recursion runs in linear space. Experts that exchange weight, directly or through
    others, form a *community*; each community has its own scale in log space, so weights of different
    communities may differ by any factor. Within one, a predicted weight close to the smallest number
    of the dtype could be inaccurate; the block is then repeated in log space (exact, but slower).

    Args:
        transition: Matrix Q, shape (M, M), nonnegative, each **column** summing to one (to 1e-6): entry (i, j) is the
            probability of a switch from expert j to expert i.
        prior_weights: Weights before the first switch, shape (M,); ``None`` for equal weights.

    Raises:
        TypeError: If the transition is not a floating point tensor.
        ValueError: If it is not square, has a negative or infinite entry, or a column that does not sum to
            one (the column is named).

    Example:
        >>> import torch
        >>> from gp_ensembles.meta_learners import sticky_transition
        >>> rule = MarkovSwitching(sticky_transition(2, stay=0.9))
        >>> log_prob = torch.tensor([[0.0, 0.0], [-50.0, 0.0]])
        >>> state, output = rule.update_block(rule.init(2, like=log_prob), log_prob)
        >>> output.log_weights.exp()
        tensor([[0.5000, 0.9000],
                [0.5000, 0.1000]])
        >>> rule.log_weights(state).exp()
        tensor([0.8200, 0.1800])
    """

    transition: Tensor
    log_transition: Tensor
    log_prior: Tensor | None
    community: Tensor
    same_community: Tensor

    def __init__(self, transition: Tensor, prior_weights: Tensor | None = None) -> None:
        super().__init__()
        _check_transition(transition)
        log_prior = None if prior_weights is None else check_prior_weights(prior_weights)
        if log_prior is not None:
            check_num_experts(transition.shape[0], log_prior.shape[0])
        community = _communities(transition)
        transition = transition.detach() / transition.detach().sum(0)  # removes round-off from the sums
        self.register_buffer("transition", transition)
        self.register_buffer("log_transition", transition.log())
        self.register_buffer("log_prior", log_prior)
        self.register_buffer("community", community)
        same_community = community.unsqueeze(0) == community.unsqueeze(1)
        self.register_buffer("same_community", same_community.to(transition))

    def init(self, num_experts: int, like: Tensor) -> MetaState:
        """State before any data and before the first switch; see :meth:`MetaLearner.init`."""
        check_num_experts(self.transition.shape[0], num_experts)
        return initial_state(self.log_prior, num_experts, like)

    def log_weights(self, state: MetaState) -> Tensor:
        """Log weights for the next target, after the switch, shape (M,)."""
        return _switch(self.log_transition.to(state.log_weights.dtype), state.log_weights)

    def update_block(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput]:
        """Weigh a block of targets in order; see :meth:`MetaLearner.update_block`.

        If every remaining expert gives a target density zero, the weights switch but are not updated, and the
        mixture's log density is minus infinity.
        """
        check_block(state, log_prob)
        if log_prob.shape[1] == 1:
            before = _switch(self.log_transition.to(log_prob.dtype), state.log_weights).unsqueeze(1)
            joint = before + log_prob
            density = joint.logsumexp(0)
            if readable_all(density.abs() < _PLAIN):
                after = state._replace(log_weights=(joint - density).squeeze(1), num_seen=state.num_seen + 1)
                return after, MetaOutput(before, density)
        elif log_prob.shape[1] > 1:
            result = self._linear_space(state, log_prob)
            if result is not None:
                return result
        log_transition = self.log_transition.to(log_prob.dtype)
        return run_bayes(lambda weights: _switch(log_transition, weights), state, log_prob)

    def grow(self, state: MetaState, num_new: int, share: float) -> MetaState:
        """Add experts with total weight ``share``, before the next switch.

        Build a new rule with a transition for all M + n experts and call its method with the old state.

        Raises:
            ValueError: If the transition belongs to another number of experts, or a number is out of range.
        """
        grown = grown_weights(state, num_new, share)
        check_num_experts(self.transition.shape[0], grown.log_weights.shape[0])
        return grown

    def _linear_space(self, state: MetaState, log_prob: Tensor) -> tuple[MetaState, MetaOutput] | None:
        """The block with one scale per community, or ``None`` if round-off could matter."""
        num_experts, num_steps = log_prob.shape
        transition = self.transition.to(log_prob.dtype)
        # The state is the column before the first target. Scales cancel in the weights, so no gradient
        # need pass through them; a community without weight, before or after a target, has scale minus infinity
        # and arbitrary finite shares.
        columns = torch.cat([state.log_weights.unsqueeze(1), log_prob], dim=1)
        scale = self._largest(columns.detach())
        linear = (columns - scale).masked_fill(scale == -torch.inf, 0.0).exp().unbind(1)
        info = torch.finfo(log_prob.dtype)
        interval = _STEPS_PER_SCALE if info.eps < 1e-10 else _STEPS_PER_SCALE // 4
        current, predicted, totals = linear[0], [], []
        for step in range(num_steps):
            if step and step % interval == 0:
                totals.append(torch.mv(self.same_community.to(log_prob.dtype), current))
                current = current / totals[-1]
            predicted.append(torch.mv(transition, current))
            current = predicted[-1] * linear[step + 1]
        shares = torch.stack(predicted, dim=1)
        best = scale.amax(0)
        joint = (scale - best)[:, :-1].cumsum(1) + shares.log()
        if totals:
            growth = torch.stack(totals, dim=1).log().cumsum(1)
            growth = growth.repeat_interleave(interval, dim=1)[:, : num_steps - interval]
            joint = torch.cat([joint[:, :interval], joint[:, interval:] + growth], dim=1)
        log_weights = normalized(joint, joint.logsumexp(0))
        after = log_weights + (log_prob - best[1:])
        density = after.logsumexp(0)
        # A product that underflows has an error of at most ``tiny``: negligible for shares above this bound.
        exact = shares.detach() > num_experts * info.tiny / info.eps
        if not readable_all(exact.all() & density.isfinite().all()):
            return None
        last = state._replace(log_weights=normalized(after[:, -1], density[-1]), num_seen=state.num_seen + num_steps)
        return last, MetaOutput(log_weights, density + best[1:])

    def _largest(self, values: Tensor) -> Tensor:
        """Largest value of each expert's community, (M, B) to (M, B)."""
        lowest = torch.full_like(values, -torch.inf)
        index = self.community.unsqueeze(1).expand_as(values)
        return lowest.scatter_reduce(0, index, values, "amax").gather(0, index)


def sticky_transition(num_experts: int, stay: float) -> Tensor:
    r"""Stay with the expert with probability ``stay``, else switch to any other with equal probability.

    The switching IE-GP's matrix: :math:`Q_{mm}` = ``stay``, all other entries
    :math:`(1 - q_{mm}) / (M - 1)` (Lu et al. 2022, assumption as4).

    Args:
        num_experts: Number of experts M.
        stay: Probability of no switch, from 0 to 1; the papers use 0.99.

    Returns:
        Transition matrix, shape (M, M), float64; columns sum to one.

    Raises:
        ValueError: If ``num_experts`` is not positive or ``stay`` is not a probability.

    Example:
        >>> sticky_transition(3, stay=0.5)
        tensor([[0.5000, 0.2500, 0.2500],
                [0.2500, 0.5000, 0.2500],
                [0.2500, 0.2500, 0.5000]], dtype=torch.float64)
    """
    if num_experts < 1:
        raise ValueError(f"a transition needs at least one expert, got {num_experts}")
    if not 0 <= stay <= 1:
        raise ValueError(f"stay must be a probability, got {stay}")
    if num_experts == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    move = (1.0 - stay) / (num_experts - 1)
    transition = torch.full((num_experts, num_experts), move, dtype=torch.float64)
    return transition.fill_diagonal_(stay)


def group_transition(labels: Sequence[Hashable], delta: float) -> Tensor:
    r"""Experts with equal labels exchange weight ``delta``; none passes between labels.

    With k experts of one label, the diagonal entry is :math:`1 - (k - 1)\delta`, so columns sum to one. Labels
    0 to M - 1, repeated R times, give the transition of E-DOEBE: R groups of the same M experts with different random
    walks (Waxman and Djurić 2024, section 4.2; the paper prints :math:`1 - R\delta`, whose columns do not sum to one).

    Args:
        labels: One label for each of the M experts, for instance the name of the model that several experts
            share while they differ in the random walk of their weights.
        delta: Probability of a switch to each of the other experts of the same label.

    Returns:
        Transition matrix, shape (M, M), float64; columns sum to one.

    Raises:
        ValueError: If there are no labels, or ``delta`` is so large that a diagonal entry is negative.

    Example:
        >>> group_transition(["rbf", "linear", "rbf"], delta=0.1)
        tensor([[0.9000, 0.0000, 0.1000],
                [0.0000, 1.0000, 0.0000],
                [0.1000, 0.0000, 0.9000]], dtype=torch.float64)
    """
    if len(labels) == 0:
        raise ValueError("a transition needs at least one label")
    numbers = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    groups = torch.tensor([numbers[label] for label in labels])
    alike = (groups.unsqueeze(0) == groups.unsqueeze(1)).double()
    largest = int(alike.sum(0).max())
    if not 0 <= delta * (largest - 1) <= 1 or delta < 0:
        raise ValueError(
            f"delta={delta} is out of range for {largest} experts with the same label: "
            f"it must lie between 0 and 1/{max(largest - 1, 1)}"
        )
    transition = alike * delta
    stay = 1.0 - (alike.sum(0) - 1.0) * delta
    return transition - torch.diag(transition.diagonal()) + torch.diag(stay)


def _check_transition(transition: Tensor) -> None:
    """Raise unless a matrix is nonnegative with columns that sum to one."""
    if not isinstance(transition, Tensor) or not transition.is_floating_point():
        raise TypeError("the transition must be a floating point tensor of shape (M, M)")
    if transition.ndim != 2 or transition.shape[0] != transition.shape[1] or transition.shape[0] == 0:
        raise ValueError(f"the transition must have shape (M, M), got {tuple(transition.shape)}")
    illegal = ~((transition >= 0) & torch.isfinite(transition))
    if bool(illegal.any()):
        row, column = divmod(int(illegal.flatten().int().argmax()), transition.shape[0])
        raise ValueError(
            f"the transition is {float(transition[row, column])} in row {row}, column {column}; "
            f"entries are probabilities: finite and at least zero"
        )
    sums = transition.sum(0)
    error = (sums - 1).abs()
    if bool((error > max(1e-6, 16 * transition.shape[0] * torch.finfo(transition.dtype).eps)).any()):
        column = int(error.argmax())
        rows = (transition.sum(1) - 1).abs().max()
        hint = "; its rows do: pass the transpose" if bool(rows < error.max() * 1e-3) else ""
        total = float(sums[column])
        raise ValueError(f"column {column} of the transition sums to {total:.9g}, not to 1{hint}")


def _communities(transition: Tensor) -> Tensor:
    """For each expert, the first expert with which it exchanges weight, in any number of steps, shape (M,)."""
    linked = (transition + transition.mT > 0).cpu().numpy()
    labels = list(range(linked.shape[0]))
    for root in labels:
        if labels[root] != root:
            continue
        waiting = [root]
        while waiting:
            for neighbor in linked[waiting.pop()].nonzero()[0].tolist():
                if neighbor != root and labels[neighbor] == neighbor and neighbor > root:
                    labels[neighbor] = root
                    waiting.append(neighbor)
    return torch.tensor(labels, device=transition.device)


def _switch(log_transition: Tensor, log_weights: Tensor) -> Tensor:
    """Normalized log of Q w, in log space, exact for arbitrarily small weights."""
    joint = log_transition + log_weights
    if not joint.requires_grad:
        return joint.logsumexp(1)
    unreachable = joint.detach().amax(1) == -torch.inf  # for such a row the gradient must be zero, not NaN
    switched = joint.masked_fill(unreachable.unsqueeze(1), 0.0).logsumexp(1)
    return switched.masked_fill(unreachable, -torch.inf)
