"""Warm-up of Hamiltonian chains: step size by dual averaging, trajectory length by ChEES, diagonal metric."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Shrinkage, delay and decay of the averages. Hoffman and Gelman (2014) shrink by 0.05, for the acceptance of one chain;
# that of many is less noisy, and smaller changes end closer to the target after short windows.
_SHRINKAGE, _DELAY, _AVERAGING_DECAY = 0.1, 10.0, 0.75
# Of the log step size since the start: chains that cannot move at all would drive it to zero.
_LARGEST_STEP_CHANGE = 5.0


class DualAveraging(NamedTuple):
    """State of the dual averaging of a step size (Hoffman and Gelman, 2014, section 3.2)."""

    center: float  # log step size towards which the iterates are shrunk
    log_step: float  # to try next
    log_average: float  # to keep after the warm-up
    error: float  # running mean of (target acceptance - acceptance)
    num_updates: int


def init_averaging(step: float) -> DualAveraging:
    """The state before the first update; iterates are shrunk towards the given step size."""
    return DualAveraging(math.log(step), math.log(step), math.log(step), 0.0, 0)


def update_averaging(state: DualAveraging, acceptance: float, target_acceptance: float) -> DualAveraging:
    r"""One update with the acceptance of a transition, in [0, 1].

    .. math::
        \bar H_t = (1 - \eta_t)\bar H_{t-1} + \eta_t(\delta - \alpha_t),\quad
        \log\epsilon_t = \mu - \sqrt t\,\bar H_t / \gamma,\quad
        \log\bar\epsilon_t = t^{-\kappa}\log\epsilon_t + (1 - t^{-\kappa})\log\bar\epsilon_{t-1},
    """
    count = state.num_updates + 1
    rate = 1.0 / (count + _DELAY)
    error = (1.0 - rate) * state.error + rate * (target_acceptance - acceptance)
    change = -math.sqrt(count) * error / _SHRINKAGE
    log_step = state.center + min(max(change, -_LARGEST_STEP_CHANGE), _LARGEST_STEP_CHANGE)
    weight = count**-_AVERAGING_DECAY
    log_average = weight * log_step + (1.0 - weight) * state.log_average
    return DualAveraging(state.center, log_step, log_average, error, count)


# Adam without momentum: rate, decay of the squares and floor, after Hoffman, Radul and Sountsov (2021).
_RATE, _SQUARE_DECAY, _FLOOR = 0.05, 0.95, 1e-8
_LARGEST_LENGTH_CHANGE = 0.35  # of the log length in one update, against noise of the first updates


class LengthState(NamedTuple):
    """Log of the longest trajectory, its running average, Adam's mean square, and the number of updates."""

    log_length: float
    log_average: float
    square: float
    num_updates: int


def init_length(length: float) -> LengthState:
    """The state before the first update."""
    return LengthState(math.log(length), math.log(length), 0.0, 0)


def van_der_corput(index: int) -> float:
    """Number ``index`` (from 1) of Halton's sequence in base two, in (0, 1)."""
    bits = f"{index:b}"
    return int(bits[::-1], 2) / (1 << len(bits))


def chees_gradient(before: Tensor, after: Tensor, momentum: Tensor, acceptance: Tensor, time: float) -> float:
    r"""Derivative of the ChEES criterion over the time t, by the log of the time, averaged over the chains.

    .. math::
        \frac{\partial}{\partial\log t}\frac{\Delta_c^2}{4t}
        = \Delta_c\,(z'_c - \bar z')^\top q'_c - \frac{\Delta_c^2}{4t},\qquad
        \Delta_c = \lVert z'_c - \bar z'\rVert^2 - \lVert z_c - \bar z\rVert^2

    Shapes: ``before`` (C, D), ``after`` (C, D), ``momentum`` (C, D), ``acceptance`` (C,).
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


def update_length(state: LengthState, gradient: float, *, shortest: float, longest: float) -> LengthState:
    """One step of Adam with the derivative by the log length, within the bounds."""
    count = state.num_updates + 1
    square = _SQUARE_DECAY * state.square + (1.0 - _SQUARE_DECAY) * gradient**2
    change = _RATE * gradient / (math.sqrt(square / (1.0 - _SQUARE_DECAY**count)) + _FLOOR)
    change = min(max(change, -_LARGEST_LENGTH_CHANGE), _LARGEST_LENGTH_CHANGE)
    log_length = min(max(state.log_length + change, math.log(shortest)), math.log(longest))
    weight = max(1.0 / count, 0.05)
    return LengthState(log_length, weight * log_length + (1.0 - weight) * state.log_average, square, count)


# Observations that the typical scale of all coordinates counts for.
_PRIOR_COUNT = 5.0


class RunningMoments(NamedTuple):
    """Running means and sums of squared deviations of every chain, positions and gradients, shapes (C, D)."""

    mean: Tensor
    squares: Tensor
    gradient_mean: Tensor
    gradient_squares: Tensor
    num_draws: int


def init_moments(theta: Tensor) -> RunningMoments:
    """Moments before the first draw."""
    zero = torch.zeros_like(theta)
    return RunningMoments(zero, zero, zero, zero, 0)


def update_moments(moments: RunningMoments, theta: Tensor, gradient: Tensor) -> RunningMoments:
    """Add a draw of every chain and its gradient, shapes (C, D); Welford's recursion."""
    count = moments.num_draws + 1
    deviation, steepness = theta - moments.mean, gradient - moments.gradient_mean
    mean = moments.mean + deviation / count
    gradient_mean = moments.gradient_mean + steepness / count
    return RunningMoments(
        mean,
        moments.squares + deviation * (theta - mean),
        gradient_mean,
        moments.gradient_squares + steepness * (gradient - gradient_mean),
        count,
    )


def metric_scale(moments: RunningMoments, fallback: Tensor) -> Tensor:
    """Fourth roots of the variances of positions over those of gradients, within chains; shape (D,)."""
    log_scale = 0.25 * (moments.squares.mean(0).log() - moments.gradient_squares.mean(0).log())
    known = log_scale.isfinite()
    if moments.num_draws < 2 or not bool(known.any()):
        return fallback
    typical = torch.where(known, log_scale, 0.0).sum() / known.sum()
    freedom = len(moments.squares) * (moments.num_draws - 1)
    weight = freedom / (freedom + _PRIOR_COUNT)
    return torch.where(known, (weight * log_scale + (1.0 - weight) * typical).exp(), fallback)


def metric_windows(num_warmup: int) -> tuple[tuple[int, int], ...]:
    """Windows of the warm-up, (first, end) in transitions, at whose ends metrics are taken from their draws."""
    parts = [[int(part * num_warmup) for part in window] for window in ((0.05, 0.15), (0.25, 0.6))]
    return tuple((first, end) for first, end in parts if end > first)
