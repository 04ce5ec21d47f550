r"""Adaptive interval levels: each end of an interval follows the targets that have fallen beyond it.

For coverage c an interval ends at the normal scores :math:`\ell_t < h_t` of the predictive distribution, at first the
central interval's. With :math:`\alpha = 1 - c` and :math:`z_t = \Phi^{-1}(F_t(y_t))`, held within ±5,

.. math::

    \ell_{t+1} = \ell_t + \gamma (\alpha/2 - 1[z_t \le \ell_t]), \qquad
    h_{t+1} = h_t + \gamma (1[z_t \ge h_t] - \alpha/2)

the tracking of a quantile (Gibbs and Candes 2021; Angelopoulos, Candes and Tibshirani 2023) of the normal score, where
one step size suits all coverages. An end beyond ±5 is at infinity. An interval not wider than :math:`\gamma\alpha`
normal scores is empty, so that it never turns inside out. The width in normal scores then stays between 0 and
:math:`10 + 2\gamma` whatever happens, and as a miss widens it by :math:`\gamma(1 - \alpha)` and a hit narrows it by
:math:`\gamma\alpha`, after T targets, with the width :math:`W_1` of the central interval,

.. math:: |\text{share of misses} - \alpha| \le \frac{\max(W_1,\, 10 + 2\gamma - W_1)}{\gamma T}.

No assumption is made about the targets, and no density is changed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.compiled import compiled
from gp_ensembles.numerics.normal_scores import LIMIT, TAIL, normal_score, normal_score_of

Numbers = NDArray[np.float64]
_STEP = 0.1


class LevelsState(NamedTuple):
    """Ends of the intervals between two targets, in normal scores.

    Attributes:
        lower: Lower ends, shape (C,), float64.
        upper: Upper ends, shape (C,), float64.
    """

    lower: Tensor
    upper: Tensor


class LevelsOutput(NamedTuple):
    """Intervals of a block, each from what came before its target.

    Attributes:
        levels: Probabilities at the ends, shape (2, C, B), 0 and 1 for an end at infinity.
        covered: Whether each target lies in its interval, 0 or 1, shape (C, B); NaN where it is missing.
    """

    levels: Tensor
    covered: Tensor


@final
@dataclass(frozen=True)
class IntervalLevels:
    """Adaptive levels for intervals of some coverages.

    Attributes:
        coverages: The shares of targets that intervals are to cover, each between 0 and 1.

    Raises:
        TypeError: If they are not a sequence of numbers.
        ValueError: If a coverage is not between 0 and 1, or occurs twice.

    Example:
        >>> import torch
        >>> levels = IntervalLevels((0.9,))
        >>> pit = torch.linspace(0.3, 0.7, 1000, dtype=torch.float64)
        >>> pit = pit[torch.arange(1000) * 617 % 1000]
        >>> state, output = levels.update_block(levels.init(pit), pit)
        >>> # of the ends of the next interval
        >>> levels.probabilities(state).squeeze(-1).round(decimals=1)
        tensor([0.3000, 0.7000], dtype=torch.float64)
        >>> levels.bound(0.9, 1000)
        0.069...
    """

    coverages: tuple[float, ...] = (0.9,)

    def __post_init__(self) -> None:
        check_coverages(self.coverages)

    def init(self, like: Tensor) -> LevelsState:
        """The state before any target, on the device of ``like``: central intervals."""
        tails = like.new_tensor([(1 - coverage) / 2 for coverage in self.coverages], dtype=torch.float64)
        lower = normal_score(tails)
        return LevelsState(lower, -lower)

    def probabilities(self, state: LevelsState) -> Tensor:
        """Probabilities at the ends of the intervals of the next target, shape (2, C)."""
        lower, upper = self._ends(state.lower.unsqueeze(-1), state.upper.unsqueeze(-1))
        return _probabilities(lower, upper).squeeze(-1)

    def probabilities_each(self, state: LevelsState) -> Tensor:
        """The same for the states of S series, ends (C, S): shape (2, C, S)."""
        return _probabilities(*self._ends(state.lower, state.upper))

    def update_block(self, state: LevelsState, pit: Tensor) -> tuple[LevelsState, LevelsOutput]:
        """Learn a block of targets in order.

        Args:
            state: The state before the block.
            pit: Probability integral transforms of the targets under the final distribution, shape (B,); NaN where a
                target is missing.

        Returns:
            The state after the block, and the intervals before each target.

        Raises:
            ValueError: If pit has another shape.
        """
        if pit.ndim != 1:
            raise ValueError(f"pit must have shape (B,), got {tuple(pit.shape)}")
        scores = normal_score(pit.detach().to(state.lower))
        z = scores.tolist()
        if len(z) == 1 and scores.device.type == "cpu":
            down, up, ends, _, inside = self._track(state, z[0])
            return LevelsState(down, up), LevelsOutput(_probabilities(*ends), inside)  # the same bits as in a block
        paths = [
            _track(lower, upper, z, 1 - coverage)
            for lower, upper, coverage in zip(state.lower.tolist(), state.upper.tolist(), self.coverages, strict=True)
        ]
        walks = scores.new_tensor(paths).reshape(len(self.coverages), 2, len(z) + 1)
        lower, upper = self._ends(walks[:, 0, :-1], walks[:, 1, :-1])
        inside = ((scores > lower) & (scores < upper)).to(scores)
        covered = torch.where(scores.isnan(), torch.nan, inside)
        return LevelsState(walks[:, 0, -1], walks[:, 1, -1]), LevelsOutput(_probabilities(lower, upper), covered)

    def update_row(self, state: LevelsState, pit: float) -> tuple[LevelsState, LevelsOutput]:
        """:meth:`update_block` of one target, from a plain number: a call of torch costs more."""
        down, up, _, levels, covered = self._track(state, normal_score_of(pit))
        return LevelsState(down, up), LevelsOutput(levels, covered)

    def update_each(self, state: LevelsState, pit: Tensor) -> tuple[LevelsState, LevelsOutput]:
        """Learn one target of each of S series, whose states have ends (C, S).

        Args:
            state: The states before the targets.
            pit: Probability integral transforms of the targets, shape (S,); NaN where missing.

        Returns:
            The states after them, and levels (2, C, S) and covered (C, S) of the intervals before them.
        """
        z = normal_score(pit.detach().to(state.lower))
        lower, upper = self._ends(state.lower, state.upper)
        half = lower.new_tensor([(1 - coverage) / 2 for coverage in self.coverages]).unsqueeze(-1)
        below, above = (z <= lower).to(lower), ((z >= upper) & (z > lower)).to(lower)
        seen = ~z.isnan()
        down = torch.where(seen, state.lower + _STEP * (half - below), state.lower)
        up = torch.where(seen, state.upper + _STEP * (above - half), state.upper)
        covered = torch.where(seen, ((z > lower) & (z < upper)).to(lower), torch.nan)
        return LevelsState(down, up), LevelsOutput(_probabilities(lower, upper), covered)

    def _track(self, state: LevelsState, z: float) -> tuple[Tensor, ...]:
        misses = np.array([1 - coverage for coverage in self.coverages])
        return tuple(map(torch.from_numpy, _track_row(state.lower.numpy(), state.upper.numpy(), misses, z)))

    def bound(self, coverage: float, num_targets: int) -> float:
        """Largest difference of the observed share from a coverage after so many targets, whatever they are."""
        most = 2 * LIMIT + 2 * _STEP
        width = -2 * float(normal_score(torch.full((), (1 - coverage) / 2, dtype=torch.float64, device="cpu")))
        return max(width, most - width) / (_STEP * max(num_targets, 1))

    def _ends(self, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
        """Both ends (C, B) as they are reported: the middle twice where the interval is empty."""
        narrowest = lower.new_tensor([_STEP * (1 - coverage) for coverage in self.coverages]).unsqueeze(-1)
        middle = (lower + upper) / 2
        is_empty = upper - lower <= narrowest
        return torch.where(is_empty, middle, lower), torch.where(is_empty, middle, upper)


def check_coverages(coverages: object) -> None:
    """Raise unless all are shares that an interval can cover.

    Raises:
        TypeError: If they are not a sequence of numbers.
        ValueError: If one is not, or occurs twice.
    """
    if not isinstance(coverages, Sequence) or not all(isinstance(share, Real) for share in coverages):
        raise TypeError(f"coverages must be a tuple of numbers such as (0.9,), got {coverages!r}")
    for coverage in coverages:
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage must be above 0 and below 1, got {coverage!r}; 0.9 is 90 %")
        if coverage > 1 - 2 * TAIL:
            raise ValueError(f"a coverage must be at most {1 - 2 * TAIL:.6f}, got {coverage}")
    if len(set(coverages)) < len(coverages):
        raise ValueError(f"a coverage occurs twice in {coverages}")


def _track(lower: float, upper: float, scores: list[float], miss: float) -> tuple[list[float], list[float]]:
    """Both ends before each score and after the last; plain numbers, as each step is a few of them."""
    down, up = [lower], [upper]
    for z in scores:
        if z == z:  # a missing target changes nothing
            low, high = lower, upper
            if upper - lower <= _STEP * miss:
                low = high = (lower + upper) / 2
            below = z <= low
            lower += _STEP * (miss / 2 - below)
            upper += _STEP * ((z >= high and not below) - miss / 2)
        down.append(lower)
        up.append(upper)
    return down, up


@compiled
def _track_row(
    lower: Numbers, upper: Numbers, misses: Numbers, z: float
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    """:func:`_track` and the output for one target, for C intervals.

    Returns: both ends after it, (C,) each; those before it as they are reported, and the probabilities there, (2, C,
    1) each; and whether it lies inside.
    """
    number = len(lower)
    down, up, covered = lower.copy(), upper.copy(), np.empty((number, 1))
    ends, levels = np.empty((2, number, 1)), np.empty((2, number, 1))
    for c in range(number):
        low, high = lower[c], upper[c]
        if high - low <= _STEP * misses[c]:
            low = high = (low + high) / 2
        for side, end in enumerate((low, high)):
            ends[side, c, 0], inside = end, 0.5 * math.erfc(-end / math.sqrt(2.0))
            levels[side, c, 0] = 1.0 if end > LIMIT else 0.0 if end < -LIMIT else inside
        covered[c, 0] = z
        if z == z:  # a missing target changes nothing
            covered[c, 0] = 1.0 if low < z < high else 0.0
            below = 1.0 if z <= low else 0.0
            above = 1.0 if z >= high and z > low else 0.0
            down[c] += _STEP * (misses[c] / 2 - below)
            up[c] += _STEP * (above - misses[c] / 2)
    return down, up, ends, levels, covered


def _probabilities(lower: Tensor, upper: Tensor) -> Tensor:
    ends = torch.stack([lower, upper])
    return torch.where(ends > LIMIT, 1.0, torch.where(ends < -LIMIT, 0.0, normal.cdf(ends)))
