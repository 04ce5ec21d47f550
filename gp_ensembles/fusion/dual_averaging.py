"""Step sizes by dual averaging of the acceptance."""

import math
from typing import NamedTuple

# Shrinkage, delay and decay of the averages. Hoffman and Gelman (2014) shrink by 0.05, for the acceptance of one chain;
# that of many is less noisy, and smaller changes end closer to the target after short windows.
_SHRINKAGE, _DELAY, _DECAY = 0.1, 10.0, 0.75
# Of the log step size from where the adaptation began: chains that cannot move at all would drive it to zero.
_LARGEST_CHANGE = 5.0


class DualAveraging(NamedTuple):
    r"""Where an adaptation of a step size stands; the numbers of Hoffman and Gelman (2014), section 3.2.

    Args:
        center: Log step size towards which the iterates are shrunk, :math:`\mu`.
        log_step: Log step size to try next.
        log_average: Log step size to keep when the adaptation is over.
        error: Running mean of (target - acceptance).
        num_updates: Updates so far.
    """

    center: float
    log_step: float
    log_average: float
    error: float
    num_updates: int


def start_averaging(step: float) -> DualAveraging:
    r"""Begin at a step size, which is also what the iterates are shrunk towards.

    The original shrinks towards ten times the first step; short windows then spend most of their updates coming back.

    Example:
        >>> start_averaging(1.0).log_step
        0.0
    """
    return DualAveraging(math.log(step), math.log(step), math.log(step), 0.0, 0)


def update_averaging(state: DualAveraging, acceptance: float, target: float) -> DualAveraging:
    r"""One update with the acceptance of a transition, in [0, 1].

    .. math::
        \bar H_t = (1 - \eta_t)\bar H_{t-1} + \eta_t(\delta - \alpha_t),\quad
        \log\epsilon_t = \mu - \sqrt t\,\bar H_t / \gamma,\quad
        \log\bar\epsilon_t = t^{-\kappa}\log\epsilon_t + (1 - t^{-\kappa})\log\bar\epsilon_{t-1},

    with :math:`\eta_t = 1/(t + t_0)` (Hoffman and Gelman, 2014, Eq. 6).

    Example:
        >>> state = update_averaging(start_averaging(1.0), acceptance=1.0, target=0.75)
        >>> state.log_step > 0.0
        True
    """
    count = state.num_updates + 1
    rate = 1.0 / (count + _DELAY)
    error = (1.0 - rate) * state.error + rate * (target - acceptance)
    change = -math.sqrt(count) * error / _SHRINKAGE
    log_step = state.center + min(max(change, -_LARGEST_CHANGE), _LARGEST_CHANGE)
    weight = count**-_DECAY
    log_average = weight * log_step + (1.0 - weight) * state.log_average
    return DualAveraging(state.center, log_step, log_average, error, count)
