r"""Regret bounds of weight rules, in nats, against rivals chosen in hindsight.

Each bound holds for every sequence of densities, at every length T, from equal initial weights (or the prior weights
that are given). Steps include missing targets, on which there is no loss. ``largest_ratio`` ρ is the largest ratio
of the densities of two experts for one target. No bound is known for the discounted Newton step with β = 1.
"""

import math

import torch
from torch import Tensor


def averaging_bound(num_experts: int) -> float:
    r"""Most that Bayesian model averaging loses to its best expert: :math:`\log M`.

    Raises:
        ValueError: If there is no expert.
    """
    _check(num_experts, 1)
    return math.log(num_experts)


def fixed_share_bound(num_experts: int, num_steps: int, num_switches: int, share: float) -> float:
    """Most that fixed share loses to a sequence of its experts with S switches.

    Raises:
        ValueError: If a number is out of range.
    """
    _check(num_experts, num_steps)
    _check_switches(num_steps, num_switches)
    _check_share(share)
    if num_switches and share == 0:
        return math.inf
    switching = num_switches * math.log(num_experts / share) if num_switches else 0.0
    stay = math.log1p(-share * (num_experts - 1) / num_experts)
    return math.log(num_experts) + switching - (num_steps - 1 - num_switches) * stay


def path_prior_bound(transition: Tensor, path: Tensor, prior_weights: Tensor | None = None) -> float:
    """Most that Markov switching loses to one sequence of its experts: minus the log prior probability of it.

    Shapes: ``transition`` (M, M), ``path`` (T,), ``prior_weights`` (M,).

    Raises:
        ValueError: If there is no step, or an index is not an expert's.
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

    Raises:
        ValueError: If a number is out of range.
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
    """Most that exponentiated gradient loses to the best fixed mixture, where densities are within a factor.

    Raises:
        ValueError: If a number is out of range.
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
    """Most that Soft-Bayes loses to the best fixed mixture, whatever the densities.

    Raises:
        ValueError: If a number is out of range.
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

    Raises:
        ValueError: If a number is out of range.
    """
    _check(num_experts, num_steps)
    _check_share(share)
    if not (beta > 0 and largest_ratio >= 1):
        raise ValueError(f"beta must be positive and the factor at least one, got {beta} and {largest_ratio}")
    excess = delta * (1 + 1 / beta) - 1
    most = min(largest_ratio, num_experts / share if share else math.inf)  # of the entries of a gradient
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
