r"""Regret: what a stream of predictions lost, in nats, against rivals that were chosen when all was known.

The loss of a step is minus the log density of its target, so regret is the rival's log density minus one's own,
summed. ``log_prob`` (T,) are log densities of the ensemble made before each target, ``expert_log_prob`` (M, T) those of
its experts; a missing target has zeros in both and adds nothing. Curves end in the regret of the whole stream. Where
both gave a target density zero there is no regret at that step: infinite losses cancel, one for one.

A rival can also be a function that never changes: give :func:`static_regret` the log densities of
:func:`batch_estimate`, one row an expert, for the regret of the incremental ensemble (Lu et al. 2022), which
:func:`static_bound` bounds. :func:`switching_bound` bounds :func:`switching_regret` of its switching variant.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.metrics.excess import best_in_all, check_streams, cumulative_excess


def static_regret(log_prob: Tensor, expert_log_prob: Tensor) -> Tensor:
    r"""Cumulative regret against the expert that is best at the **end** of the stream.

    :math:`R_t = \sum_{s \le t} (\ell_{m^*, s} - \ell_s)` with :math:`m^* = \arg\max_m \sum_{s \le T} \ell_{m, s}`.
    Under Bayesian model averaging with equal prior weights :math:`R_T \le \log M`.

    Args:
        log_prob: Log densities of the ensemble, shape (T,), in nats.
        expert_log_prob: Log densities of the experts, shape (M, T).

    Returns:
        The curve, shape (T,), in nats; negative where the ensemble is ahead.

    Raises:
        ValueError: If the shapes do not fit, there is no expert, or a log density is NaN (the row is named).

    Example:
        >>> import torch
        >>> experts = torch.tensor([[-1.0, -1.0], [-0.5, -2.0]])
        >>> static_regret(torch.tensor([-1.0, -1.5]), experts)
        tensor([0.0000, 0.5000])
    """
    check_streams(log_prob, expert_log_prob)
    return cumulative_excess(expert_log_prob[best_in_all(expert_log_prob)], log_prob)


def anytime_regret(log_prob: Tensor, expert_log_prob: Tensor) -> Tensor:
    r"""Cumulative regret against the expert that is best **so far**.

    :math:`R_t = \max_m \sum_{s \le t} (\ell_{m, s} - \ell_s)`, never below :func:`static_regret`; arguments, result
    and errors as there. A bound that holds for every length of a stream bounds the whole curve.

    Example:
        >>> import torch
        >>> experts = torch.tensor([[-1.0, -1.0], [-0.5, -2.0]])
        >>> anytime_regret(torch.tensor([-1.0, -1.5]), experts)
        tensor([0.5000, 0.5000])
    """
    check_streams(log_prob, expert_log_prob)
    return cumulative_excess(expert_log_prob, log_prob).amax(0)


def mixture_regret(log_prob: Tensor, mixture_log_prob: Tensor) -> Tensor:
    r"""Cumulative regret against one other stream of log densities, for instance the best fixed mixture's.

    The best fixed mixture, :math:`\log \sum_m w_m e^{\ell_{m, t}}`, is never worse than the best expert.

    Args:
        log_prob: Log densities of the ensemble, shape (T,), in nats.
        mixture_log_prob: Log densities of the rival, shape (T,).

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> import torch
        >>> mixture_regret(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]))
        tensor([0., 1.])
    """
    check_streams(log_prob, mixture_log_prob.unsqueeze(0))
    return cumulative_excess(mixture_log_prob, log_prob)


def switching_regret(log_prob: Tensor, expert_log_prob: Tensor, num_switches: int) -> Tensor:
    """Cumulative regret against the best sequence of experts with at most so many switches.

    The sequence is :func:`best_switching_path`, the best for the whole stream; without switches this is
    :func:`static_regret`.

    Args:
        log_prob: Log densities of the ensemble, shape (T,), in nats.
        expert_log_prob: Log densities of the experts, shape (M, T).
        num_switches: Most switches S of the rival; the curve is as there.

    Raises:
        ValueError: If the shapes do not fit, there is no expert, or ``num_switches`` is negative.

    Example:
        >>> import torch
        >>> experts = torch.tensor([[0.0, 0.0, -9.0], [-9.0, -9.0, 0.0]])
        >>> switching_regret(torch.full((3,), -1.0), experts, num_switches=1)
        tensor([1., 2., 3.])
    """
    check_streams(log_prob, expert_log_prob)
    path = best_switching_path(expert_log_prob, num_switches)
    return mixture_regret(log_prob, expert_log_prob.gather(0, path.unsqueeze(0)).squeeze(0))


@torch.no_grad()
def best_switching_path(expert_log_prob: Tensor, num_switches: int) -> Tensor:
    r"""The sequence of experts with at most S switches that has the largest sum of log densities.

    Exact, by a dynamic program over steps, switches used and experts,
    :math:`V_t(s, m) = \ell_{m, t} + \max\{V_{t-1}(s, m), \max_n V_{t-1}(s - 1, n)\}`: O(S M T) time and memory.

    Args:
        expert_log_prob: Log densities of the experts, shape (M, T), in nats.
        num_switches: Most switches S.

    Returns:
        Index of the expert of each step, shape (T,), int64; ties go to sequences that switch less, or earlier.

    Raises:
        ValueError: If there is no expert or ``num_switches`` is negative.

    Example:
        >>> import torch
        >>> best_switching_path(torch.tensor([[0.0, 0.0, -9.0], [-9.0, -9.0, 0.0]]), num_switches=1)
        tensor([0, 0, 1])
    """
    if expert_log_prob.ndim != 2 or expert_log_prob.shape[0] == 0:
        raise ValueError(f"log densities of at least one expert are needed, (M, T), got {tuple(expert_log_prob.shape)}")
    if num_switches < 0:
        raise ValueError(f"the number of switches must be at least zero, got {num_switches}")
    num_experts, num_steps = expert_log_prob.shape
    num_switches = min(num_switches, num_steps)
    values = expert_log_prob.new_zeros(num_switches + 1, num_experts)
    origins = expert_log_prob.new_empty((num_steps, num_switches + 1), dtype=torch.int64)  # best expert before
    moved = expert_log_prob.new_zeros((num_steps, num_switches + 1, num_experts), dtype=torch.bool)
    for t, column in enumerate(expert_log_prob.unbind(-1)):
        highest, origins[t] = values.max(-1)
        torch.gt(highest[:-1].unsqueeze(-1), values[1:], out=moved[t, 1:])
        values[1:] = torch.maximum(values[1:], highest[:-1].unsqueeze(-1))
        values += column
    used, expert = num_switches, int(values[-1].argmax())
    back, jumps, path = origins.cpu(), moved.cpu(), [0] * num_steps
    for t in range(num_steps - 1, -1, -1):
        path[t] = expert
        if bool(jumps[t, used, expert]):
            used -= 1
            expert = int(back[t, used])
    return torch.tensor(path, dtype=torch.int64, device=expert_log_prob.device)


class BatchEstimate(NamedTuple):
    r"""Functions fitted to all rows at once, the rivals of the incremental ensemble.

    Attributes:
        weights: Maximum a posteriori weights, shape (\*batch, F).
        log_prob: Log density of each target under the fixed function, shape (\*batch, T), zero where it is missing.
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
    log_prob = -0.5 * (error.square() / variance + variance.log() + math.log(2 * math.pi))
    half_log_determinant = R.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    cost = 0.5 * weights.square().sum(-1) / prior_variance + half_log_determinant
    return BatchEstimate(weights, torch.where(seen, log_prob, 0.0), cost)


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
