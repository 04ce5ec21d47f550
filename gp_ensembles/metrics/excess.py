"""Log densities that are compared: legal ones, and sums of differences in which infinite losses cancel."""

import torch
from torch import Tensor


def check_streams(log_prob: Tensor, expert_log_prob: Tensor) -> None:
    """Raise unless these are the log densities of one stream; minus infinity is legal, NaN and infinity are not.

    Args:
        log_prob: Log densities of the ensemble, shape (T,), in nats.
        expert_log_prob: Log densities of at least one expert, shape (M, T).

    Raises:
        ValueError: Naming the shapes, or the row (and expert) of a value that is no log density.

    Example:
        >>> check_streams(torch.tensor([-1.0, -torch.inf]), torch.tensor([[-2.0, -3.0]]))
    """
    if expert_log_prob.ndim != 2 or expert_log_prob.shape[0] == 0 or log_prob.shape != expert_log_prob.shape[1:]:
        raise ValueError(
            f"log_prob must be (T,) and expert_log_prob (M, T) with M at least one, got {tuple(log_prob.shape)} and "
            f"{tuple(expert_log_prob.shape)}"
        )
    for name, values in (("log_prob", log_prob.unsqueeze(0)), ("expert_log_prob", expert_log_prob)):
        illegal = ~(values < torch.inf)
        if values.is_meta or not bool(illegal.any()):
            continue
        row = int(illegal.any(0).int().argmax())
        expert = int(illegal[:, row].int().argmax())
        whose = f" of expert {expert}" if name == "expert_log_prob" else ""
        raise ValueError(
            f"{name} is {float(values[expert, row])} in row {row}{whose}; a log density is a number below infinity: "
            f"leave the row out, or set it to zero everywhere if its target is missing"
        )


def best_in_all(expert_log_prob: Tensor) -> Tensor:
    """Index of the expert with the fewest impossible targets and, among those, the largest sum of the rest, ().

    Args:
        expert_log_prob: Log densities of the experts, shape (M, T), in nats.

    Example:
        >>> best_in_all(torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, -9.0]]))
        tensor(1)
    """
    lost = torch.isneginf(expert_log_prob)
    times = lost.sum(-1)
    return torch.where(times == times.amin(), torch.where(lost, 0.0, expert_log_prob).sum(-1), -torch.inf).argmax()


def cumulative_excess(rival: Tensor, log_prob: Tensor) -> Tensor:
    """Running sum over the last axis of what a rival's log densities are ahead by.

    Infinite losses cancel one for one: where both have had as many impossible targets the rest decides, else who has
    had fewer is infinitely far ahead.

    Args:
        rival: Log densities, shape (..., T), in nats; minus infinity is legal.
        log_prob: Log densities that broadcast with them.

    Example:
        >>> impossible = -torch.inf
        >>> cumulative_excess(torch.tensor([-1.0, impossible, -1.0]), torch.tensor([-2.0, impossible, impossible]))
        tensor([1., 1., inf])
    """
    lost, own_lost = torch.isneginf(rival), torch.isneginf(log_prob)
    difference = torch.where(lost, 0.0, rival) - torch.where(own_lost, 0.0, log_prob)
    finite = difference.cumsum(-1)
    fewer = (own_lost.to(finite.dtype) - lost.to(finite.dtype)).cumsum(-1)
    return torch.where(fewer == 0, finite, torch.where(fewer > 0, torch.inf, -torch.inf))
