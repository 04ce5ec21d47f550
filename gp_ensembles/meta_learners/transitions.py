"""Transition matrices for switching between experts; column j says where the weight of expert j goes."""

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


def sticky_transition(num_experts: int, stay: float) -> Tensor:
    r"""Stay with the expert with probability ``stay``, else move to any other alike.

    The switching IE-GP's matrix: :math:`Q_{mm}` = ``stay``, all other entries
    :math:`(1 - q_{mm}) / (M - 1)` (Lu et al. 2022, section 5).

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
    r"""Experts with equal labels pass weight ``delta`` to one another; nothing passes between labels.

    With k experts of one label, the diagonal entry is :math:`1 - (k - 1)\delta`, so columns sum to one.

    Args:
        labels: One label for each of the M experts, for instance the name of the model that several experts
            share while they differ in the random walk of their weights.
        delta: Probability of a switch to each other expert of the same label.

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
            f"delta={delta} is not legal for {largest} experts of one label: "
            f"it must lie between 0 and 1/{max(largest - 1, 1)}"
        )
    transition = alike * delta
    stay = 1.0 - (alike.sum(0) - 1.0) * delta
    return transition - torch.diag(transition.diagonal()) + torch.diag(stay)


def edoebe_transition(num_experts_per_group: int, num_groups: int, delta: float) -> Tensor:
    r"""The E-DOEBE transition: R groups of the same M experts, differing in their random walk only.

    Blocks :math:`(1 - (R - 1)\delta) I_M` on the diagonal and :math:`\delta I_M` elsewhere (Waxman and
    Djurić 2024, section 4.2; the paper prints :math:`1 - R\delta`, whose columns do not sum to one).

    Args:
        num_experts_per_group: Number of experts M in a group, in the same order in each group.
        num_groups: Number of groups R.
        delta: Probability of a switch to the same expert of each other group; the paper uses 0.01.

    Returns:
        Transition matrix, shape (R M, R M), float64; columns sum to one.

    Raises:
        ValueError: If a number is not positive or ``delta`` is not in [0, 1/(R - 1)].

    Example:
        >>> edoebe_transition(2, 2, delta=0.25)
        tensor([[0.7500, 0.0000, 0.2500, 0.0000],
                [0.0000, 0.7500, 0.0000, 0.2500],
                [0.2500, 0.0000, 0.7500, 0.0000],
                [0.0000, 0.2500, 0.0000, 0.7500]], dtype=torch.float64)
    """
    if num_experts_per_group < 1 or num_groups < 1:
        raise ValueError(
            f"a transition needs at least one expert and one group, got {num_experts_per_group} and {num_groups}"
        )
    return group_transition(list(range(num_experts_per_group)) * num_groups, delta)
