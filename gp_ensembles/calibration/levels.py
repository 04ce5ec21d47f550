r"""Adaptive interval levels: each end of an interval follows the targets beyond it; and how much intervals covered.

For coverage c an interval ends at normal scores of the predictive distribution: at :math:`\ell_t - o_k` and
:math:`h_t + o_k`, where k tells to which fifth of the predicted widths so far the row's belongs. At first it is the
central interval, and o is zero. With :math:`\alpha = 1 - c`, :math:`z_t = \Phi^{-1}(F_t(y_t))` held within ±5, and
:math:`m_t` one where the target lies outside and else zero,

.. math::

    \ell_{t+1} = \ell_t + \gamma_t (\alpha/2 - 1[z_t \le \ell_t - o_k]), \qquad
    h_{t+1} = h_t + \gamma_t (1[z_t \ge h_t + o_k] - \alpha/2), \qquad o_k \leftarrow o_k + \gamma (m_t - \alpha) / 2

the tracking of a quantile (Gibbs and Candes 2021; Angelopoulos, Candes and Tibshirani 2023) of the normal score, where
one step size suits all coverages: :math:`\gamma = 0.05`, and :math:`\gamma_t = 50 / (t + 99)` as long as that is
larger. The ends that all rows share react at once; the fifths, which are those between running quantiles of the
logarithm of the width, make narrow intervals cover as much as wide ones. An end beyond ±5 is at infinity, offsets are
held within ±1, and an interval not wider than :math:`\gamma_t \alpha` normal scores is empty, so that it never turns
inside out. So :math:`W_t = h_t - \ell_t` stays between -2 and 13.5 whatever happens, and as
:math:`m_t - \alpha = (W_{t+1} - W_t) / \gamma_t` with steps that never grow, summation by parts gives after T targets

.. math:: |\text{share of misses} - \alpha| \le \frac{15.5}{\gamma_T T}.

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
from gp_ensembles.numerics.normal_scores import LIMIT, TAIL, normal_score
from gp_ensembles.numerics.student_t import normal_score_of

_STEP, _FIRST, _BEFORE = 0.05, 50.0, 100.0  # the step is 50 / (100 + targets so far), and at least 0.05
_FARTHEST = 1.0  # offset of a fifth
_PARTS = (0.2, 0.4, 0.6, 0.8)  # between fifths
_EDGE_STEP = 0.005  # of the logarithm of the width at such a quantile
WINDOW = 500  # targets, of which the coverage is counted
_RANGE = 15.5  # of the width in normal scores, whatever happens


class LevelsState(NamedTuple):
    """State of the intervals between two targets, of one stream or of a batch of series, in float64."""

    # Lower end, upper end, and what each fifth adds at either, in normal scores, shape (*batch, C, 7)
    ends: Tensor
    # Number of targets, and the running quantiles of the logarithm of the width between its fifths, shape (*batch, 5)
    quantiles: Tensor


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
        >>> pit, width = pit[torch.arange(1000) * 617 % 1000], torch.ones_like(pit)
        >>> state, output = levels.update_block(levels.init(pit), pit, width)
        >>> # of the ends of the next interval
        >>> levels.probabilities(state, width[:1]).squeeze(-1).squeeze(-1).round(decimals=1)
        tensor([0.3000, 0.7000], dtype=torch.float64)
        >>> levels.bound(5000)
        0.062
    """

    coverages: tuple[float, ...] = (0.9,)

    def __post_init__(self) -> None:
        check_coverages(self.coverages)

    def init(self, like: Tensor) -> LevelsState:
        """The state before any target, on the device of ``like``: central intervals."""
        tails = like.new_tensor([[(1 - coverage) / 2] for coverage in self.coverages], dtype=torch.float64)
        lower = normal_score(tails)
        return LevelsState(torch.cat([lower, -lower, lower.new_zeros(len(lower), 5)], dim=-1), lower.new_zeros(5))

    def probabilities(self, state: LevelsState, width: Tensor | None = None) -> Tensor:
        r"""Probabilities at the ends of the intervals of the next targets.

        Args:
            state: The state, or one of each series.
            width: Widths of the predictions, shape (N,), of one stream or of a row of each of N series; without them
                the ends that all rows share.

        Returns:
            Shape (2, C, N), or (2, C, \*batch) without widths.
        """
        lower, upper = state.ends[..., 0], state.ends[..., 1]
        offset = torch.zeros_like(lower) if width is None else _offsets(state, _log(width.to(lower)))[0]
        ends = _ends(lower - offset, upper + offset, _step(state.quantiles[..., :1]) * self._misses(lower))
        return _probabilities(torch.stack(ends)).movedim(-1, 1)

    def update(self, state: LevelsState, pit: Tensor, width: Tensor) -> tuple[LevelsState, LevelsOutput]:
        """Learn one target of each series.

        Args:
            state: The states before the targets.
            pit: Probability integral transforms of the targets under the final distributions, shape (S,); NaN where a
                target is missing.
            width: Widths of these distributions, on any scale that is a series' own, shape (S,).

        Returns:
            The states after them; levels (2, C, S) and covered (C, S) of the intervals before them.
        """
        z, w = normal_score(pit.detach().to(state.ends)).unsqueeze(-1), _log(width.to(state.ends)).unsqueeze(-1)
        num, edges, parts = state.quantiles[:, :1], state.quantiles[:, 1:], z.new_tensor(_PARTS)
        edges = torch.where(num == 0, w + 0.5 * (parts - 0.5), edges)
        offset, place = _offsets(state._replace(quantiles=torch.cat([num, edges], dim=-1)), w.squeeze(-1))
        shared = state.ends[..., 0], state.ends[..., 1]
        lower, upper, own, low, high = _track(*shared, offset, self._misses(z), _step(num), z)
        ends = torch.cat(
            [torch.stack([lower, upper], dim=-1), state.ends[..., 2:].scatter(-1, place, own[..., None])], -1
        )
        edges = edges + (1 / (num + 1)).clamp_min(_EDGE_STEP) * (parts - (w <= edges).to(w))
        quantiles = torch.where(z.isnan(), state.quantiles, torch.cat([num + 1, edges], dim=-1))
        levels = _probabilities(torch.stack([low, high])).movedim(-1, 1)
        return LevelsState(ends, quantiles), LevelsOutput(levels, _covered(low, high, z).movedim(-1, 0))

    def update_block(self, state: LevelsState, pit: Tensor, width: Tensor) -> tuple[LevelsState, LevelsOutput]:
        """Learn a block of targets of one stream in order.

        Args:
            state: The state before the block.
            pit: Probability integral transforms of the targets under the final distribution, shape (B,); NaN where a
                target is missing.
            width: Widths of these distributions on any scale, shape (B,), such as
                :meth:`~gp_ensembles.distributions.Recalibrated.typical_width`.

        Returns:
            The state after the block, and the intervals before each target.

        Raises:
            ValueError: If pit or width has another shape.
        """
        if pit.ndim != 1 or width.shape != pit.shape:
            raise ValueError(f"pit and width must have shape (B,), got {tuple(pit.shape)} and {tuple(width.shape)}")
        scores, (ends, quantiles) = normal_score(pit.detach().to(state.ends)), (part.tolist() for part in state)
        pairs = zip(scores.tolist(), _log(width.to(scores)).tolist(), strict=True)
        found = scores.new_tensor([self._learn(ends, quantiles, z, w) for z, w in pairs]).reshape(len(pit), 2, -1)
        low, high = found.movedim(0, -1)
        after = LevelsState(scores.new_tensor(ends).reshape(state.ends.shape), scores.new_tensor(quantiles))
        return after, LevelsOutput(_probabilities(found.movedim(0, -1)), _covered(low, high, scores))

    def update_row(self, state: LevelsState, pit: float, width: float) -> tuple[LevelsState, LevelsOutput]:
        """:meth:`update_block` of one target, from plain numbers: a call of torch costs more."""
        z, ends, quantiles = normal_score_of(pit), state.ends.tolist(), state.quantiles.tolist()
        found = self._learn(ends, quantiles, z, math.log(width) if 0 < width < math.inf else 0.0)
        num, own = len(ends), [number for each in ends for number in each]
        inside = [z if z != z else float(low < z < high) for low, high in zip(found, found[num:], strict=False)]
        numbers = np.array([*own, *quantiles, *map(_probability, found), *inside])
        first, second, third = 7 * num, 7 * num + 5, 9 * num + 5
        parts = numbers[:first].reshape(num, 7), numbers[first:second], numbers[second:third], numbers[third:, None]
        after, edges, levels, covered = map(torch.from_numpy, parts)  # views of arrays cost less than those of tensors
        return LevelsState(after, edges), LevelsOutput(levels.reshape(2, num, 1), covered)

    def _learn(self, ends: list[list[float]], quantiles: list[float], z: float, w: float) -> list[float]:
        """All lower ends and then the upper ones before a target; the numbers of the state become those after it."""
        num, *edges = quantiles
        if num == 0 and z == z:
            edges = [w + 0.5 * (part - 0.5) for part in _PARTS]
        place, step, lows, highs = 2, max(_STEP, _FIRST / (num + _BEFORE)), [], []
        for edge in edges:
            place += w > edge
        for own, coverage in zip(ends, self.coverages, strict=True):
            own[0], own[1], own[place], low, high = _track(own[0], own[1], own[place], 1 - coverage, step, z)
            lows.append(low)
            highs.append(high)
        if z == z:
            rate = max(_EDGE_STEP, 1 / (num + 1))
            edges = [edge + rate * (part - (w <= edge)) for edge, part in zip(edges, _PARTS, strict=True)]
            quantiles[:] = num + 1, *edges
        return lows + highs

    def bound(self, num_targets: int) -> float:
        """Largest difference of the observed share from a coverage after so many targets, whatever they are."""
        return _RANGE / (max(_STEP, _FIRST / (max(num_targets, 1) - 1 + _BEFORE)) * max(num_targets, 1))

    def _misses(self, like: Tensor) -> Tensor:
        """The shares of targets outside, shape (C,)."""
        return like.new_tensor([1 - coverage for coverage in self.coverages])


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


def _ends(lower: Any, upper: Any, least: Any) -> tuple[Any, Any]:
    """Both ends as they are reported: the middle twice where the interval is empty; numbers or tensors."""
    is_empty = 1.0 * (upper - lower <= least)
    middle = is_empty * (0.5 * (lower + upper))
    return (1 - is_empty) * lower + middle, (1 - is_empty) * upper + middle


def _track(lower: Any, upper: Any, offset: Any, miss: Any, step: Any, z: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Both ends and the offset after a score z, and the ends before it as they are reported; NaN moves nothing.

    Numbers or tensors that broadcast. Flags become the numbers 0 and 1, which are exact in any precision.
    """
    low, high = _ends(lower - offset, upper + offset, step * miss)
    seen, below, above = 1.0 * (z == z), 1.0 * (z <= low), 1.0 * ((z >= high) & (z > low))
    moved = offset + seen * (0.5 * _STEP * (below + above - miss))
    held = 0.5 * (abs(moved + _FARTHEST) - abs(moved - _FARTHEST))
    return lower + seen * (step * (miss / 2 - below)), upper + seen * (step * (above - miss / 2)), held, low, high


def _offsets(state: LevelsState, w: Tensor) -> tuple[Tensor, Tensor]:
    """Offsets (N, C) of rows with logarithms of widths w (N,), and their fifths (N, C, 1)."""
    offset = state.ends[..., 2:].expand(*w.shape, -1, 5)
    place = (w.unsqueeze(-1) > state.quantiles[..., 1:]).sum(-1)[:, None, None].expand(-1, offset.shape[1], 1)
    return offset.gather(-1, place).squeeze(-1), place


def _step(num: Tensor) -> Tensor:
    return (_FIRST / (num + _BEFORE)).clamp_min(_STEP)


def _log(width: Tensor) -> Tensor:
    """Logarithms of widths, zero where there is none."""
    return torch.where((width > 0) & width.isfinite(), width.log(), 0.0)


def _covered(low: Tensor, high: Tensor, z: Tensor) -> Tensor:
    """Whether scores lie inside, 0 or 1; NaN where they are missing."""
    return torch.where(z.isnan(), torch.nan, ((z > low) & (z < high)).to(low))


def _probabilities(ends: Tensor) -> Tensor:
    return torch.where(ends > LIMIT, 1.0, torch.where(ends < -LIMIT, 0.0, normal.cdf(ends)))


class CoverageState(NamedTuple):
    """Counts over a stream, each a float64 scalar."""

    num_targets: Tensor  # targets observed
    num_covered: Tensor  # targets covered
    width: Tensor  # sum of the finite widths of intervals, units of the target
    num_finite: Tensor  # how many of them there are
    window_targets: Tensor  # targets in the current window
    window_covered: Tensor  # targets covered in it
    num_windows: Tensor  # windows that are over
    num_kept: Tensor  # windows among them whose share of misses was within half of the nominal one


def init_coverage(like: Tensor) -> CoverageState:
    """Nothing counted yet, on the device of ``like``."""
    zero = like.new_zeros((), dtype=torch.float64)
    return CoverageState(*[zero] * len(CoverageState._fields))


def count_coverage(state: CoverageState, covered: Tensor, width: Tensor, coverage: float) -> CoverageState:
    """Count a block of intervals.

    Shapes: ``covered`` (B,), ``width`` (B,).
    """
    seen = ~covered.isnan()
    hits, width = covered[seen].double(), width.double()
    finite = width.isfinite() & seen
    total, inside = state.window_targets, state.window_covered
    num_windows, num_kept = state.num_windows, state.num_kept
    while hits.numel():
        part = hits[: int(WINDOW - total)]
        hits = hits[part.numel() :]
        total, inside = total + part.numel(), inside + part.sum()
        if int(total) == WINDOW:
            is_kept = (inside / total - coverage).abs() <= (1 - coverage) / 2 + 1e-12
            num_windows, num_kept = num_windows + 1, num_kept + is_kept
            total, inside = torch.zeros_like(total), torch.zeros_like(inside)
    return CoverageState(
        state.num_targets + seen.sum(),
        state.num_covered + covered[seen].double().sum(),
        state.width + width[finite].sum(),
        state.num_finite + finite.sum(),
        total,
        inside,
        num_windows,
        num_kept,
    )
