"""How long Hamiltonian trajectories are: a fixed length, or one that learns."""

import math
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

# Adam without momentum; a decay of the squares and a floor, as in Hoffman, Radul and Sountsov (2021).
_DECAY, _FLOOR = 0.95, 1e-8
_LARGEST_CHANGE = 0.35  # of the log length in one update, against noise of the first updates


@final
@dataclass(frozen=True)
class FixedLength:
    """Trajectories of a length that is not adapted, in units of the metric (a standard normal has a period of 2π).

    Args:
        length: The longest; each transition travels a part of it, uniform in (0, 1].

    Raises:
        ValueError: If the length is not positive.

    Example:
        >>> FixedLength(2.0)
        FixedLength(length=2.0)
    """

    length: float = math.pi

    def __post_init__(self) -> None:
        if not self.length > 0.0 or not math.isfinite(self.length):
            raise ValueError(f"the length of a trajectory must be positive, got {self.length}")


@final
@dataclass(frozen=True)
class ChEES:
    """Trajectories whose length climbs the change in the estimator of the expected square (Hoffman et al., 2021).

    It compares chains with one another, so that it needs four of them; fewer use ``FixedLength(start)``.

    Args:
        start: Longest trajectory after the first metric is known, in its units; it never falls below half of this.
        rate: Step of Adam on the log length.

    Raises:
        ValueError: If the length or the rate is not positive.

    Example:
        >>> ChEES(rate=0.05)
        ChEES(start=3.14..., rate=0.05)
    """

    start: float = math.pi
    rate: float = 0.05

    def __post_init__(self) -> None:
        if not (self.start > 0.0 and self.rate > 0.0 and math.isfinite(self.start + self.rate)):
            raise ValueError(f"length and rate must be positive, got {self.start} and {self.rate}")


class LengthState(NamedTuple):
    """Log of the longest trajectory now and averaged, Adam's mean square, and the number of updates."""

    log_length: float
    log_average: float
    square: float
    num_updates: int


def start_length(length: float) -> LengthState:
    """Begin at a length.

    Example:
        >>> start_length(1.0)
        LengthState(log_length=0.0, log_average=0.0, square=0.0, num_updates=0)
    """
    return LengthState(math.log(length), math.log(length), 0.0, 0)


def van_der_corput(index: int) -> float:
    """Number ``index`` (from 1) of Halton's sequence in base two, in (0, 1): jitter that fills evenly.

    Example:
        >>> [van_der_corput(index) for index in (1, 2, 3, 4)]
        [0.5, 0.25, 0.75, 0.125]
    """
    value, part = 0.0, 0.5
    while index:
        value += part * (index & 1)
        index >>= 1
        part *= 0.5
    return value


def chees_gradient(before: Tensor, after: Tensor, momentum: Tensor, acceptance: Tensor, time: float) -> float:
    r"""Derivative of the ChEES criterion over the time t, by the log of the time, averaged over the chains.

    .. math::
        \frac{\partial}{\partial\log t}\frac{\Delta_c^2}{4t}
        = \Delta_c\,(z'_c - \bar z')^\top q'_c - \frac{\Delta_c^2}{4t},\qquad
        \Delta_c = \lVert z'_c - \bar z'\rVert^2 - \lVert z_c - \bar z\rVert^2

    in whitened coordinates, means over the chains weighted by the acceptances. The criterion of Hoffman, Radul and
    Sountsov (2021) counts what a trajectory is worth and not what it costs; on mixtures of experts its trajectories
    cost several times as much for each effective draw as those of its rate. Means of Gaussians would like longer ones.

    Args:
        before: Whitened positions before the trajectories, shape (C, D).
        after: Whitened positions at their ends, shape (C, D).
        momentum: Momenta at their ends, which are velocities in whitened coordinates, shape (C, D).
        acceptance: Acceptance probabilities, shape (C,); chains with 0 may hold anything.
        time: Time traveled, t.

    Returns:
        The derivative; 0 if every acceptance is 0.

    Example:
        >>> import torch
        >>> z = torch.tensor([[1.0], [-1.0]])
        >>> chees_gradient(z, 2.0 * z, z, torch.ones(2), 1.0)
        3.75
    """
    total = acceptance.sum()
    if not bool(total > 0.0):
        return 0.0
    weight = acceptance / total
    moved = weight.unsqueeze(-1) > 0.0
    ends = torch.where(moved, after, before)
    velocity = torch.where(moved, momentum, 0.0)
    from_center = ends - weight @ ends
    change = from_center.square().sum(-1) - (before - before.mean(0)).square().sum(-1)
    slope = change * (from_center * velocity).sum(-1) - change.square() / (4.0 * time)
    gradient = float(weight @ slope)
    return gradient if math.isfinite(gradient) else 0.0


def update_length(state: LengthState, gradient: float, rate: float, *, shortest: float, longest: float) -> LengthState:
    """Climb one step of Adam with a derivative by the log length, and keep within the bounds.

    Example:
        >>> state = update_length(start_length(1.0), 2.0, 0.05, shortest=0.1, longest=10.0)
        >>> round(state.log_length, 6)
        0.05
    """
    count = state.num_updates + 1
    square = _DECAY * state.square + (1.0 - _DECAY) * gradient**2
    change = rate * gradient / (math.sqrt(square / (1.0 - _DECAY**count)) + _FLOOR)
    change = min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE)
    log_length = min(max(state.log_length + change, math.log(shortest)), math.log(longest))
    weight = max(1.0 / count, 0.05)
    return LengthState(log_length, weight * log_length + (1.0 - weight) * state.log_average, square, count)
