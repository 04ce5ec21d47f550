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
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.normal_scores import LIMIT, TAIL, normal_score, normal_score_of

_STEP = 0.1


class LevelsState(NamedTuple):
    """Ends of the intervals between two targets, in normal scores, of one stream or of a batch of series."""

    lower: Tensor  # lower ends, shape (*batch, C), float64
    upper: Tensor  # upper ends, shape (*batch, C), float64


class LevelsOutput(NamedTuple):
    """Intervals of a block, or of one row of each of B series, each from what came before its target."""

    levels: Tensor  # probabilities at the ends, shape (2, C, B), 0 and 1 for an end at infinity
    covered: Tensor  # whether each target lies in its interval, 0 or 1, shape (C, B); NaN where it is missing


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
        r"""Probabilities at the ends of the intervals of the next targets, shape (2, C, \*batch)."""
        ends = _ends(*state, 1 - self._on(state.lower))
        return _probabilities(torch.stack(ends)).movedim(-1, 1)

    def update(self, state: LevelsState, pit: Tensor) -> tuple[LevelsState, LevelsOutput]:
        r"""Learn one target of each series.

        Args:
            state: The states before the targets.
            pit: Probability integral transforms of the targets under the final distributions, shape (\*batch); NaN
                where a target is missing.

        Returns:
            The states after them; levels (2, C, \*batch) and covered (C, \*batch) of the intervals before them.
        """
        z = normal_score(pit.detach().to(state.lower)).unsqueeze(-1)
        *after, low, high = _track(*state, 1 - self._on(z), z)
        levels = _probabilities(torch.stack([low, high])).movedim(-1, 1)
        return LevelsState(*after), LevelsOutput(levels, _covered(low, high, z).movedim(-1, 0))

    def update_block(self, state: LevelsState, pit: Tensor) -> tuple[LevelsState, LevelsOutput]:
        """Learn a block of targets of one stream in order.

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
        walks = scores.new_tensor(self._walk(state, scores.tolist())).movedim(-1, 0)
        after, ends = LevelsState(*walks[:2, :, -1].contiguous()), walks[2:, :, 1:]
        return after, LevelsOutput(_probabilities(ends), _covered(ends[0], ends[1], scores))

    def update_row(self, state: LevelsState, pit: float) -> tuple[LevelsState, LevelsOutput]:
        """:meth:`update_block` of one target, from a plain number: a call of torch costs more."""
        z, columns = normal_score_of(pit), np.empty((5, len(self.coverages)))
        of_each = zip(state.lower.tolist(), state.upper.tolist(), self.coverages, strict=True)
        for place, (lower, upper, coverage) in enumerate(of_each):
            *ends, low, high = _track(lower, upper, 1 - coverage, z)
            covered = z if z != z else float(low < z < high)
            columns[:, place] = *ends, _probability(low), _probability(high), covered
        parts = columns[0], columns[1], columns[2:4, :, None], columns[4, :, None]
        down, up, levels, inside = map(torch.from_numpy, parts)  # views of arrays cost less than those of tensors
        return LevelsState(down, up), LevelsOutput(levels, inside)

    def _walk(self, state: LevelsState, scores: list[float]) -> list[list[tuple[float, float, float, float]]]:
        """Results of :func:`_track` for each interval and score, behind the start; plain numbers, as they are few."""
        walks = []
        for lower, upper, coverage in zip(state.lower.tolist(), state.upper.tolist(), self.coverages, strict=True):
            walk = [(lower, upper, lower, upper)]
            for z in scores:
                walk.append(_track(*walk[-1][:2], 1 - coverage, z))
            walks.append(walk)
        return walks

    def bound(self, coverage: float, num_targets: int) -> float:
        """Largest difference of the observed share from a coverage after so many targets, whatever they are."""
        most = 2 * LIMIT + 2 * _STEP
        width = -2 * float(normal_score(torch.full((), (1 - coverage) / 2, dtype=torch.float64, device="cpu")))
        return max(width, most - width) / (_STEP * max(num_targets, 1))

    def _on(self, like: Tensor) -> Tensor:
        """The coverages, shape (C,)."""
        return like.new_tensor(self.coverages)


def check_coverages(coverages: object) -> None:
    """Raise unless all are shares that an interval can cover."""
    if not isinstance(coverages, Sequence) or not all(isinstance(share, Real) for share in coverages):
        raise TypeError(f"coverages must be a tuple of numbers such as (0.9,), got {coverages!r}")
    for coverage in coverages:
        if not 0 < coverage < 1:
            raise ValueError(f"a coverage must be above 0 and below 1, got {coverage!r}; 0.9 is 90 %")
        if coverage > 1 - 2 * TAIL:
            raise ValueError(f"a coverage must be at most {1 - 2 * TAIL:.6f}, got {coverage}")
    if len(set(coverages)) < len(coverages):
        raise ValueError(f"a coverage occurs twice in {coverages}")


def _probability(end: float) -> float:
    """The probability up to an end, a normal score; nothing or all beyond the limit."""
    return float(end > 0) if abs(end) > LIMIT else 0.5 * math.erfc(-end / math.sqrt(2))


def _ends(lower: Any, upper: Any, miss: Any) -> tuple[Any, Any]:
    """Both ends as they are reported: the middle twice where the interval is empty; numbers or tensors."""
    is_empty = 1.0 * (upper - lower <= _STEP * miss)
    middle = is_empty * (0.5 * (lower + upper))
    return (1 - is_empty) * lower + middle, (1 - is_empty) * upper + middle


def _track(lower: Any, upper: Any, miss: Any, z: Any) -> tuple[Any, Any, Any, Any]:
    """Both ends after a score z, and before it as they are reported; a missing score, which is NaN, moves neither.

    Numbers or tensors that broadcast. Flags become the numbers 0 and 1, which are exact in any precision.
    """
    low, high = _ends(lower, upper, miss)
    seen, below, above = 1.0 * (z == z), 1.0 * (z <= low), 1.0 * ((z >= high) & (z > low))
    return lower + seen * (_STEP * (miss / 2 - below)), upper + seen * (_STEP * (above - miss / 2)), low, high


def _covered(low: Tensor, high: Tensor, z: Tensor) -> Tensor:
    """Whether scores lie inside, 0 or 1; NaN where they are missing."""
    return torch.where(z.isnan(), torch.nan, ((z > low) & (z < high)).to(low))


def _probabilities(ends: Tensor) -> Tensor:
    return torch.where(ends > LIMIT, 1.0, torch.where(ends < -LIMIT, 0.0, normal.cdf(ends)))
