r"""Bounds on the regret, in nats, against rivals chosen in hindsight, and the regret against a fixed function.

Each bound holds for every sequence of densities, at every length T, from equal initial weights (or the prior weights
that are given). Steps include missing targets, on which nobody loses. ``largest_ratio`` ρ is the most by which the
densities of two experts for one target differ, as a factor. None is known for the discounted Newton step with β = 1.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics import normal


def averaging_bound(num_experts: int) -> float:
    r"""Most that Bayesian model averaging loses to its best expert: :math:`\log M`.

    The mixture's density of all targets is the mean of the experts', so at least one M-th of the best.

    Raises:
        ValueError: If there is no expert.

    Example:
        >>> round(averaging_bound(num_experts=10), 4)
        2.3026
    """
    _check(num_experts, 1)
    return math.log(num_experts)


def fixed_share_bound(num_experts: int, num_steps: int, num_switches: int, share: float) -> float:
    r"""Most that fixed share loses to a sequence of its experts with S switches.

    :math:`\log M + S \log \frac M\delta - (T - 1 - S) \log\bigl(1 - \delta + \frac\delta M\bigr)`: the mixture's
    density is a sum over all sequences of experts of their prior probability times their density, so at least one of
    its terms, and this is minus the logarithm of that probability (Herbster and Warmuth 1998). Sequences with fewer
    switches are bounded by their own, smaller value.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        num_switches: Switches S of the sequence, from 0 to T - 1.
        share: Share δ.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> round(fixed_share_bound(num_experts=2, num_steps=101, num_switches=1, share=0.02), 4)
        6.2933
    """
    _check(num_experts, num_steps)
    _check_switches(num_steps, num_switches)
    _check_share(share)
    if num_switches and share == 0:
        return math.inf
    switching = num_switches * math.log(num_experts / share) if num_switches else 0.0
    stay = math.log1p(-share * (num_experts - 1) / num_experts)
    return math.log(num_experts) + switching - (num_steps - 1 - num_switches) * stay


def switching_bound(num_experts: int, num_steps: int, num_switches: int, stay: float) -> float:
    r"""Most that sticky switching can lose to a sequence of its experts with S switches, in nats.

    :math:`\log M + S \log\frac{M - 1}{1 - q} + (T - 1 - S) \log\frac1q`: the ensemble's density of all targets is a sum
    over all sequences of their prior probability times their density, so it is at least one such product, and the
    bound is minus the logarithm of that probability (Herbster and Warmuth 1998; Lu et al. 2022). It holds against
    the experts' own predictions, whatever the experts, for equal initial weights and ``sticky_transition(M, q)``. For
    :math:`q \ge 1/M` it grows with S and so holds for fewer switches too; :math:`q = 1 - S / (T - 1)` makes it least.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T, missing targets included: the chain moves there too.
        num_switches: Switches S of the sequence.
        stay: Probability q of no switch.

    Returns:
        The bound; infinite if the chain cannot take such a sequence.

    Raises:
        ValueError: If M experts cannot switch S times in T steps, or ``stay`` is not a probability.

    Example:
        >>> round(switching_bound(num_experts=2, num_steps=101, num_switches=1, stay=0.99), 4)
        6.2933
    """
    if num_experts < 1 or not 0 <= num_switches <= (num_steps - 1 if num_experts > 1 else 0):
        raise ValueError(f"{num_experts} experts cannot switch {num_switches} times in {num_steps} steps")
    if not 0 <= stay <= 1:
        raise ValueError(f"stay must be a probability, got {stay}")
    if num_experts == 1:
        return 0.0
    num_stays = num_steps - 1 - num_switches
    if (num_switches > 0 and stay == 1) or (num_stays > 0 and stay == 0):
        return math.inf
    switching = num_switches * math.log((num_experts - 1) / (1 - stay)) if num_switches else 0.0
    return math.log(num_experts) + switching - (num_stays * math.log(stay) if num_stays else 0.0)


def path_prior_bound(transition: Tensor, path: Tensor, prior_weights: Tensor | None = None) -> float:
    r"""Most that Markov switching loses to one sequence of its experts: minus the log prior probability of it.

    :math:`-\log (Q w_0)_{m_1} - \sum_{t > 1} \log Q_{m_t, m_{t-1}}`, whatever the densities: the mixture's density of
    all targets is the sum over all sequences of prior times density. It is infinite for sequences that Q forbids, such
    as those between experts of different labels under :func:`~gp_ensembles.meta_learners.group_transition`, and met
    where every other sequence is impossible. :func:`fixed_share_bound` is its value for one transition.

    Args:
        transition: Matrix Q, shape (M, M), columns sum to one.
        path: Expert of each step, shape (T,), int64.
        prior_weights: Weights before the first switch, shape (M,), any scale; ``None`` for equal ones.

    Raises:
        ValueError: If there is no step, or an index is not an expert's.

    Example:
        >>> import torch
        >>> Q = torch.tensor([[0.9, 0.2], [0.1, 0.8]], dtype=torch.float64)
        >>> round(path_prior_bound(Q, torch.tensor([0, 0, 1])), 4)  # (0.9 + 0.2) / 2 * 0.9 * 0.1
        3.0058
    """
    num_experts = transition.shape[0]
    _check(num_experts, path.shape[0])
    if not bool(((path >= 0) & (path < num_experts)).all()):
        raise ValueError(f"a sequence of {num_experts} experts has indices 0 to {num_experts - 1}, got {path.tolist()}")
    Q = transition.detach().double()
    prior = torch.ones_like(Q[0]) if prior_weights is None else prior_weights.detach().to(Q)
    first = Q[path[0]] @ (prior / prior.sum())
    return -float(first.log() + Q[path[1:], path[:-1]].log().sum())


def forgetting_bound(
    num_experts: int, num_steps: int, num_switches: int, forgetting: float, largest_ratio: float
) -> float:
    r"""Most that dynamic model averaging loses to a sequence of its experts with S switches.

    .. math:: \log M + (T - 1)\, c + S \gamma \frac{1 - \gamma^{T - 1}}{1 - \gamma} \log \rho, \qquad
              c = \max_u \log \bigl(u + (M - 1)^{1 - \gamma} u^{1 - \gamma} (1 - u)^\gamma\bigr)
                \le (1 - \gamma) \log M

    As :math:`\log w_{t|t} = \gamma \log w_{t-1|t-1} - \log Z_t + \log r_t` for each expert, its lead over the mixture
    is a telescoping sum and, a step, :math:`(1 - \gamma) \log w + \log \sum_j w_j^\gamma`, which is largest where the
    others weigh alike: that is c, the price of forgetting at every step. At a switch the log weights of two experts
    differ by a discounted sum of terms that are at most :math:`\log \rho`. Without switches the bound is attained.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        num_switches: Switches S of the sequence, from 0 to T - 1.
        forgetting: Exponent γ in (0, 1].
        largest_ratio: The factor ρ, at least one; it matters with switches only.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> round(forgetting_bound(2, 101, 0, forgetting=0.99, largest_ratio=math.inf), 4)
        0.973
    """
    _check(num_experts, num_steps)
    _check_switches(num_steps, num_switches)
    if not (0 < forgetting <= 1 and largest_ratio >= 1):
        raise ValueError(
            f"forgetting must lie in (0, 1] and the factor be at least one, got {forgetting} and {largest_ratio}"
        )
    memory = forgetting * sum(forgetting**age for age in range(num_steps - 1))
    switching = num_switches * memory * math.log(largest_ratio) if num_switches and memory else 0.0
    return math.log(num_experts) + (num_steps - 1) * _cost_of_forgetting(num_experts, forgetting) + switching


def exponentiated_gradient_bound(
    num_experts: int, num_steps: int, learning_rate: float, share: float, largest_ratio: float
) -> float:
    r"""Most that exponentiated gradient loses to the best fixed mixture, where densities are within a factor.

    :math:`\frac1\eta \bigl(\log M + T \log \frac1{1 - \delta}\bigr) + \frac{\eta T (\rho - 1)^2}8` where densities of
    the experts for one target differ by a factor of ρ at most (after Helmbold et al. 1998, theorem 4.1; sharing costs
    the relative entropy to the rival at most :math:`\log \frac1{1 - \delta}` a step). The smallest ratio of a target
    is at most one, so ratios spread over no more than ρ - 1, to which Hoeffding's lemma is applied.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        learning_rate: Step η.
        share: Share δ.
        largest_ratio: The factor ρ, at least one.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> round(exponentiated_gradient_bound(2, 100, learning_rate=0.1, share=0.0, largest_ratio=2.0), 4)
        8.1815
    """
    _check(num_experts, num_steps)
    _check_share(share)
    if not (learning_rate > 0 and largest_ratio >= 1):
        raise ValueError(
            f"the learning rate must be positive and the factor at least one, got {learning_rate} and {largest_ratio}"
        )
    entropy = math.log(num_experts) - num_steps * math.log1p(-share)
    return entropy / learning_rate + learning_rate * num_steps * (largest_ratio - 1) ** 2 / 8


def soft_bayes_bound(num_experts: int, num_steps: int, learning_rate: float | None = None) -> float:
    r"""Most that Soft-Bayes loses to the best fixed mixture, whatever the densities.

    :math:`\frac{\log M}{\alpha_T} + M \sum_{t \le T} \log \frac1{1 - \alpha_t}`, with the anytime rate at most
    :math:`2 \sqrt{2 M T \log M} + \log M\, (1 + \log T) / (4 - 4 \alpha_1)` (after Orseau, Lattimore and Legg 2017). In
    short, with :math:`q_{t,m} = 1 - \alpha_t + \alpha_t r_{t,m}` and Q_t the largest of them: for each rival u,
    :math:`\log u^\top r_t \le \frac1{\alpha_t} u^\top \log q_t + \log Q_t + \log\frac1{1 - \alpha_t}`, by the chord of
    the concave function on the right. The first terms telescope to :math:`\log M / \alpha_T`. As the sum over all
    experts of :math:`\log (M w_{t,m})` is never positive, what one expert's weight gains in :math:`\log Q_t` the
    others' have lost, each at most :math:`\log\frac1{1 - \alpha_t}` a step.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        learning_rate: The fixed rate α, ``None`` for the anytime rate.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> round(soft_bayes_bound(num_experts=2, num_steps=100), 4)
        33.1773
    """
    _check(num_experts, num_steps)
    if learning_rate is not None:
        if not 0 < learning_rate < 1:
            raise ValueError(f"the learning rate must lie between 0 and 1, got {learning_rate}")
        loss = -num_experts * num_steps * math.log1p(-learning_rate)
        return math.log(num_experts) / learning_rate + loss
    times = torch.arange(1, num_steps + 1, device="cpu").double()
    rates = (math.log(num_experts) / (2 * num_experts * times)).sqrt()
    first = math.sqrt(2 * num_experts * num_steps * math.log(num_experts))
    return first - num_experts * float(torch.log1p(-rates).sum())


def newton_bound(
    num_experts: int, num_steps: int, beta: float, delta: float, share: float, largest_ratio: float
) -> float:
    r"""Most that the online Newton step loses to the best fixed mixture, where its steps are small enough.

    .. math:: \frac{\beta'}2 \Bigl(1 - \frac1M\Bigr) + \frac{\kappa^2}{2 \beta'} (M - 1) \log\Bigl(1 +
              \frac{T M D^2}{4 (M - 1)}\Bigr) + T \frac\eta{1 - \eta} \Bigl(1 - \frac1\rho\Bigr)

    with :math:`1 + 1/\beta' = \delta (1 + 1/\beta)`, G the smaller of ρ and M / η, the most a ratio can be,
    :math:`D = G (1 - 1/\rho)` their spread and :math:`\kappa = 1 + \beta' \min(1, \frac\eta{1 - \eta} (G - 1))`. **It
    assumes** :math:`\beta' \le 2 (G - 1 - \log G) / (G - 1)^2`, which makes the quadratics lie above the log densities,
    and is infinite otherwise; the paper's constants have :math:`\delta = 1`, a small β and :math:`\eta \sim 1/T`, for a
    loss of order M ρ log T (after Agarwal et al. 2006, and Hazan, Agarwal and Kale 2007). The weights follow the leader
    of strongly concave quadratics, so the last half of each step is not lost; the plane of the simplex has M - 1
    dimensions; mixing with equal weights costs the last term and the factor κ.

    Args:
        num_experts: Number of experts M.
        num_steps: Number of steps T.
        beta: Constant β of the rule.
        delta: Constant δ of the rule.
        share: Share η of the rule.
        largest_ratio: The factor ρ, at least one; it may be infinite with a positive share.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> round(newton_bound(2, 1000, beta=0.4, delta=1.0, share=1e-4, largest_ratio=2.0), 4)
        7.9214
    """
    _check_newton(num_experts, num_steps, beta, share, largest_ratio)
    excess = delta * (1 + 1 / beta) - 1
    most = _largest_gradient(num_experts, share, largest_ratio)
    if num_experts == 1:
        return 0.0
    if not (excess > 0 and 1 / excess <= _largest_beta(most)):
        return math.inf
    inner, plane = 1 / excess, num_experts - 1
    mixing = share / (1 - share)
    factor = 1 + inner * min(1.0, mixing * (most - 1))
    size = num_experts * (most * (1 - 1 / largest_ratio)) ** 2 / 4
    determinant = plane * math.log1p(num_steps * size / plane)
    start = inner / 2 * (1 - 1 / num_experts)
    return start + factor**2 / (2 * inner) * determinant + num_steps * mixing * (1 - 1 / largest_ratio)


class BatchEstimate(NamedTuple):
    r"""Functions fitted to all rows at once, the rivals of the incremental ensemble.

    Attributes:
        weights: Maximum a posteriori weights, shape (\*batch, F).
        log_prob: Log density of each target under the fixed function, shape (\*batch, T), NaN where it is missing.
        cost: What an expert that starts from the same prior and learns row by row loses to the function in all,
            shape (\*batch), in nats, exactly: :math:`\|\theta\|^2 / (2 \sigma_\theta^2) + \tfrac12 \log\det(I +
            \sigma_\theta^2 \Phi^\top \Phi / \sigma^2)`.
    """

    weights: Tensor
    log_prob: Tensor
    cost: Tensor


def batch_estimate(Phi: Tensor, y: Tensor, noise: Tensor, prior_variance: Tensor) -> BatchEstimate:
    r"""The fixed function of each expert that explains the whole stream best, and what learning it costs.

    Weights minimize :math:`\sum_t -\log N(y_t; \phi_t^\top \theta, \sigma^2) + \|\theta\|^2 / (2 \sigma_\theta^2)`,
    the hindsight estimate of Lu et al. (2022). Minus the log evidence is this minimum plus half the log determinant,
    and the log evidence is the sum of one-step log densities; so the cost is no bound but the regret itself.

    Args:
        Phi: Features of all T rows, shape (\*batch, T, F).
        y: Targets, shape (T,); NaN where missing.
        noise: Observation variances, positive, shape (\*batch) or a scalar.
        prior_variance: Prior variances of the weights, positive, shape (\*batch) or a scalar.

    Raises:
        ValueError: If y does not have T entries.

    Example:
        >>> import torch
        >>> one = torch.tensor(1.0)
        >>> estimate = batch_estimate(torch.ones(3, 1), torch.tensor([2.0, torch.nan, 2.0]), one, one)
        >>> estimate.weights, estimate.cost  # cost: (4/3)^2 / 2 + log(3) / 2
        (tensor([1.3333]), tensor(1.4382))
    """
    if Phi.ndim < 2 or y.shape != Phi.shape[-2:-1]:
        raise ValueError(f"Phi must be (..., T, F) and y (T,), got {tuple(Phi.shape)} and {tuple(y.shape)}")
    seen = ~torch.isnan(y)
    ratio = (prior_variance / noise)[..., None, None]
    targets, design = torch.where(seen, y, 0.0), torch.where(seen.unsqueeze(-1), Phi, 0.0)
    # Orthogonal, not by the normal equations: the prior's rows below make R regular whatever the design, and
    # conditioning is not squared. R^T R = I + (prior / noise) Phi^T Phi.
    scaled = design * ratio.sqrt()
    identity = torch.diag(Phi.new_ones(Phi.shape[-1])).expand(*scaled.shape[:-2], -1, -1)
    Q, R = torch.linalg.qr(torch.cat([scaled, identity], -2))
    rotated = Q[..., : y.shape[0], :].mT @ targets.unsqueeze(-1)
    weights = (ratio.sqrt() * torch.linalg.solve_triangular(R, rotated, upper=True)).squeeze(-1)
    error = targets - (design @ weights.unsqueeze(-1)).squeeze(-1)
    variance = noise.unsqueeze(-1)
    log_prob = normal.log_prob(error, torch.zeros_like(error), variance)
    half_log_determinant = R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    cost = 0.5 * weights.square().sum(-1) / prior_variance + half_log_determinant
    return BatchEstimate(weights, torch.where(seen, log_prob, torch.nan), cost)


def static_bound(
    theta_norm2: Tensor,
    prior_variance: Tensor,
    noise: Tensor,
    num_features: int,
    num_steps: int,
    feature_norm2: Tensor,
    num_experts: int,
) -> Tensor:
    r"""Most that a static Gaussian ensemble can lose to a fixed function of one of its experts, in nats.

    .. math:: \sum_t -\log p_t - \sum_t -\log N(y_t; \phi_t^\top \theta, \sigma^2) \le \log M +
              \frac{\|\theta\|^2}{2 \sigma_\theta^2} + \frac F2 \log\Bigl(1 + \frac{T \sigma_\theta^2}{F \sigma^2}
              \overline{\|\phi\|^2}\Bigr)

    for every stream of targets and all weights: averaging costs :math:`\log M` (one of M equal prior weights), the
    expert the ``cost`` of :class:`BatchEstimate`, and :math:`\log\det(I + A) \le F \log(1 + \mathrm{tr} A / F)` as the
    logarithm is concave (Kakade and Ng 2004, for the expert; Lu et al. 2022, for the ensemble). Experts with a random
    walk, and ones that were conditioned on other rows first, are not covered.

    Args:
        theta_norm2: Squared norm of the function's weights, any shape.
        prior_variance: Prior variance of the expert's weights.
        noise: Its observation variance.
        num_features: Number of its features F.
        num_steps: Observed targets T.
        feature_norm2: Mean (or largest) squared norm of its features over those rows; 1 for random Fourier features.
        num_experts: Experts M with equal prior weights; 1 for an expert alone.

    Raises:
        ValueError: If a number of features, steps or experts is not positive.

    Example:
        >>> import torch
        >>> one = torch.tensor(1.0)
        >>> static_bound(one, one, 0.1 * one, num_features=2, num_steps=100, feature_norm2=one, num_experts=3)
        tensor(7.8152)
    """
    if num_features < 1 or num_steps < 1 or num_experts < 1:
        raise ValueError(f"features, steps and experts must be one or more: {num_features}, {num_steps}, {num_experts}")
    growth = num_steps * feature_norm2 * prior_variance / (num_features * noise)
    return math.log(num_experts) + 0.5 * theta_norm2 / prior_variance + 0.5 * num_features * torch.log1p(growth)


def _cost_of_forgetting(num_experts: int, forgetting: float) -> float:
    """Most that one expert can gain a step on dynamic averaging that has all its weights right."""
    if num_experts == 1 or forgetting == 1:
        return 0.0
    # With x = (1 - u) / u the function (1 + k x^γ) / (1 + x) has one stationary point, below x = M - 1.
    scale = (num_experts - 1) ** (1 - forgetting)
    low, high = -700.0, math.log(num_experts - 1)
    for _ in range(100):
        middle = (low + high) / 2
        slope = forgetting * math.exp((forgetting - 1) * middle) - (1 - forgetting) * math.exp(forgetting * middle)
        low, high = (middle, high) if scale * slope > 1 else (low, middle)
    return math.log1p(scale * math.exp(forgetting * high)) - math.log1p(math.exp(high))


def _largest_gradient(num_experts: int, share: float, largest_ratio: float) -> float:
    return min(largest_ratio, num_experts / share if share else math.inf)


def _largest_beta(most: float) -> float:
    """Largest β for which log r <= (r - 1) - β / 2 (r - 1)^2 for all ratios r up to ``most``."""
    excess = most - 1
    if excess < 1e-3:
        return 1 - 2 * excess / 3
    return 2 * (1 - math.log1p(excess) / excess) / excess if excess < math.inf else 0.0


def _check(num_experts: int, num_steps: int) -> None:
    if num_experts < 1 or num_steps < 1:
        raise ValueError(f"at least one expert and one step are needed, got {num_experts} and {num_steps}")


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share}")


def _check_switches(num_steps: int, num_switches: int) -> None:
    if not 0 <= num_switches <= num_steps - 1:
        raise ValueError(f"a sequence of {num_steps} steps cannot switch {num_switches} times")


def _check_newton(num_experts: int, num_steps: int, beta: float, share: float, largest_ratio: float) -> None:
    _check(num_experts, num_steps)
    _check_share(share)
    if not (beta > 0 and largest_ratio >= 1):
        raise ValueError(f"beta must be positive and the factor at least one, got {beta} and {largest_ratio}")
