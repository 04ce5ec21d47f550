r"""What a weight rule can lose at most, in nats, to a rival that is chosen when all is known.

Each bound holds for every sequence of densities, at every length T, from equal initial weights. Steps include missing
targets, on which nobody loses. For the Newton rules with the constants that are used in practice no bound is known.
"""

import math

import torch


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
    if not 0 <= num_switches <= num_steps - 1:
        raise ValueError(f"a sequence of {num_steps} steps cannot switch {num_switches} times")
    _check_share(share)
    if num_switches and share == 0:
        return math.inf
    switching = num_switches * math.log(num_experts / share) if num_switches else 0.0
    stay = math.log1p(-share * (num_experts - 1) / num_experts)
    return math.log(num_experts) + switching - (num_steps - 1 - num_switches) * stay


def exponentiated_gradient_bound(
    num_experts: int, num_steps: int, learning_rate: float, share: float, largest_ratio: float
) -> float:
    r"""Most that exponentiated gradient loses to the best fixed mixture, where densities are within a factor.

    :math:`\frac1\eta \bigl(\log M + T \log \frac1{1 - \delta}\bigr) + \frac{\eta T \rho^2}8` where the densities of the
    experts for one target differ by a factor of ρ at most (Helmbold et al. 1998, theorem 4.1; sharing costs the
    relative entropy to the rival at most :math:`\log \frac1{1 - \delta}` a step). Ratios then lie between 0 and ρ.

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
        11.9315
    """
    _check(num_experts, num_steps)
    _check_share(share)
    if not (learning_rate > 0 and largest_ratio >= 1):
        raise ValueError(
            f"the learning rate must be positive and the factor at least one, got {learning_rate} and {largest_ratio}"
        )
    entropy = math.log(num_experts) - num_steps * math.log1p(-share)
    return entropy / learning_rate + learning_rate * num_steps * largest_ratio**2 / 8


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


def _check(num_experts: int, num_steps: int) -> None:
    if num_experts < 1 or num_steps < 1:
        raise ValueError(f"at least one expert and one step are needed, got {num_experts} and {num_steps}")


def _check_share(share: float) -> None:
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share}")
