"""Switching between two experts in plain numbers: a tensor operation costs a microsecond whatever its size."""

from typing import NamedTuple

import torch
from torch import Tensor

_SMALLEST = 1e-12  # of a transition: weights stay far from the smallest number
_LOWEST = 1e-290  # of a density relative to the better expert's, lest it be inexact


class PairSteps(NamedTuple):
    """A block of two experts.

    Attributes:
        log_weights: Log weights in force before each target, shape (2, B).
        log_prob: Log density of each target under the mixture, shape (B,).
        learned: Log weights after the last target, before the next switch, shape (2,).
        switched: Those after it, shape (2,).
    """

    log_weights: Tensor
    log_prob: Tensor
    learned: Tensor
    switched: Tensor


def is_pair(log_prob: Tensor) -> bool:
    """Whether log densities (M, B) are of two experts, on the CPU, and no derivative of them is wanted."""
    num_experts, num_rows = log_prob.shape
    return num_experts == 2 and num_rows > 0 and log_prob.device.type == "cpu" and not torch.is_grad_enabled()


def switch_pair(transition: Tensor, log_weights: Tensor, log_prob: Tensor) -> PairSteps | None:
    """Weigh a block of targets under two experts, each time by Bayes' rule and then a switch.

    Shapes: ``transition`` (2, 2), ``log_weights`` (2,), ``log_prob`` (2, B).
    """
    best = log_prob.amax(0)
    try:
        (stay, come), (go, remain) = transition.tolist()
        first, second = log_weights.exp().tolist()
        ones, twos = (log_prob - best).exp().tolist()
    except RuntimeError:  # inside vmap
        return None
    if min(first, second) < _LOWEST or min(stay, come, go, remain) < _SMALLEST:
        return None
    before, densities = [], []
    one, two = first, second
    for p, q in zip(ones, twos, strict=True):
        before.append((first, second))
        one, two = first * p, second * q
        total = one + two
        if not total > _LOWEST:
            return None
        densities.append(total)
        one, two = one / total, two / total
        first, second = stay * one + come * two, go * one + remain * two
    after = log_prob.new_tensor([[one, two], [first, second]]).log()
    return PairSteps(log_prob.new_tensor(before).log().mT, log_prob.new_tensor(densities).log() + best, *after)
