r"""Structural time series models: level, trend and season; time is the only input.

The slope of a trend may be a random walk:

.. math::
    \mu_{t+1} = \mu_t + b_t, \qquad b_{t+1} = \phi\, b_t + \zeta_t, \quad \zeta_t \sim N(0, q)

(the local linear trend, damped where :math:`\phi < 1`: Harvey 1989, section 2.3; Durbin and Koopman 2012, section 3.2).
Level and slope are the first and the last of F states; the others are static or random walks, like the level.
"""

import itertools
import math
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert, LinearRow, Plans, Season, Slope, Traits
from gp_ensembles.experts.gaussian import check_single_output
from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.filters.block import apply_gain, condition_joint, joint_covariance, joint_moments
from gp_ensembles.filters.rows import Rows, as_rows
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    StepPredictions,
    StructuralState,
    gaussian_state,
    in_dtype,
)
from gp_ensembles.filters.transitions import RandomWalk, Transition
from gp_ensembles.filters.update import predict, update_block

_MOST_WAVES = 6
_BLOCK = 16  # rows, about the number of states: hundreds of small filters run in parallel
# Prior deviations relative to those of the warm-up's targets: level, trend over the warm-up, waves.
_LEVEL, _TREND, _WAVE = 2.0, 4.0, 1.0
# Search grids of variances: of the noise and of a step of the level, of a step of the season, and
# around the best of the first two.
_HALF_DECADES = tuple(10.0 ** (-k / 2) for k in range(9))
_SEASONAL_STEPS = (0.0, 1e-5, 1e-3)
_EIGHTHS = tuple(10.0 ** (k / 8) for k in range(-2, 3))


def _row(bound: "BoundStructural", state: StructuralState, features: FeatureMap) -> LinearRow | None:
    if bound.noise.numel() != 1:
        return None
    walk = bound.walk.of_each((1, state.moments.shape[-2]))
    return LinearRow(walk, bound.noise.detach().reshape(-1).numpy(), bound.season(state))


@final
class BoundStructural(BoundExpert):
    """The view of a structural expert for loops."""

    plans = Plans(row=_row)

    noise: Tensor

    def __init__(self, expert: "StructuralExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self._expert = expert
        self.period: int = expert.season or 1  # period of the design of level and season
        self.noise, level, season = expert.variances.double().unbind(-1)
        scale = [_LEVEL, _TREND, *([_WAVE] * (2 * expert.num_waves))]
        steps = [level, torch.zeros_like(level), *([season] * (2 * expert.num_waves))]
        self.slope: WalkingSlope | None = None
        if expert.slope is not None:  # the last state, in units of the level
            variance, damping = expert.slope.double().unbind(-1)
            self.slope = WalkingSlope(variance / _LEVEL**2, damping)
            scale, steps = [*scale, _LEVEL], [*steps, torch.zeros_like(level)]
        self._scale = level.new_tensor(scale)
        # steps of level and season before every row, without the effect of the slope on the level
        self.walk: RandomWalk = RandomWalk(torch.stack(steps, -1) / self._scale.square())

    def update_block(
        self, state: FilterState, Phi: Tensor, y: Tensor | Rows
    ) -> tuple[StructuralState, StepPredictions]:
        assert isinstance(state, StructuralState)
        rows = as_rows(y)
        # Trend and season advance by whole steps.
        whole = torch.ones_like(rows.y, dtype=torch.int64) if rows.steps is None else rows.steps.round().long()
        numbers = state.num_rows - 1 + whole.cumsum(0)
        moments, design = GaussianState(state.moments.double()), self.design(numbers) * Phi.double()
        rows = rows._replace(y=rows.y.double())
        if self.slope is None:
            after, steps = update_block(moments, design, rows, self.walk, self.noise)
        else:
            passed = whole.double() if rows.steps is None else rows.steps.double()
            cross, mean, covariance, drift, later = self.slope.joint(
                moments, design, self.walk.variance, passed.cumsum(0), whole.cumsum(0)
            )
            gain, steps = condition_joint(cross, mean, covariance, drift, rows, self.noise)
            after = apply_gain(later, gain)
        return StructuralState(after.moments, state.num_rows + whole.sum()), in_dtype(steps, Phi)

    def predict(self, state: FilterState, Phi: Tensor, steps: Tensor | None = None) -> StepPredictions:
        assert isinstance(state, StructuralState)
        whole = torch.ones_like(state.num_rows).reshape(1) if steps is None else steps.round().long()
        moments = GaussianState(state.moments.double())
        if self.slope is not None:
            moments = self.slope.advance(moments, whole.squeeze(0))
        design = self.design(state.num_rows - 1 + whole) * Phi.double()
        return in_dtype(predict(moments, design, self.walk, self.noise, steps=steps), Phi)

    def ahead(self, state: StructuralState, num_rows: int) -> tuple[Tensor, Tensor]:
        r"""The joint distribution of the targets of the next rows, in double precision.

        Returns: mean (\*batch, H) and covariance (\*batch, H, H), noise included.
        """
        counts = torch.arange(1, num_rows + 1, device=state.num_rows.device)
        moments, design = GaussianState(state.moments.double()), self.design(state.num_rows - 1 + counts)
        design, walk = design.expand(*self.noise.shape, *design.shape), self.walk.variance
        if self.slope is None:
            _, mean, covariance, _ = joint_moments(moments, design, self.noise, walk, counts.double())
        else:
            _, mean, covariance, *_ = self.slope.joint(moments, design, walk, counts.double(), counts)
        return mean, covariance + torch.diag_embed(self.noise.unsqueeze(-1).expand_as(mean))

    def season(self, state: StructuralState) -> Season:
        """The design of a single series, row by row."""
        whole = self.design(torch.arange(self.period + 1, device=state.num_rows.device)).numpy()
        slope = None
        if self.slope is not None:
            moments = state.moments.numpy().reshape(state.moments.shape[-2:])
            slope = Slope(moments, moments.copy(), float(self.slope.variance), float(self.slope.damping))
        return Season(whole[:1].copy(), state.num_rows.numpy(), float(whole[1, 1]), whole[:-1, 2:].copy(), slope)

    def take(self, index: Tensor) -> "BoundStructural":
        return self._expert.take(index).bind()

    def design(self, rows: Tensor) -> Tensor:
        """Contribution of each state to the targets of rows with these numbers (B,), zero for the slope, (B, F)."""
        season, waves = self.period, torch.arange(1, self._expert.num_waves + 1, device=rows.device)
        # Whole periods are subtracted in integer arithmetic, so that waves never lose precision.
        angle = (rows.unsqueeze(-1) * waves % season).double() * (2 * math.pi / season)
        age = (rows.double() / self._expert.num_warm_up).unsqueeze(-1)
        columns = [torch.ones_like(age), age, angle.cos(), angle.sin()]
        if self.slope is not None:
            columns.append(torch.zeros_like(age))
        return torch.cat(columns, dim=-1) * self._scale


@final
class StructuralExpert(Expert):
    r"""A batch of series with a random-walk level, a trend and a time-varying season.

    .. math::
        y_t &= \mu_t + \beta t + \sum_{k=1}^K
               (a_{kt} \cos(2 \pi k t / s) + b_{kt} \sin(2 \pi k t / s)) + \varepsilon_t \\
        \mu_{t+1} &= \mu_t + \nu_t + \eta_t, \qquad \nu_{t+1} = \phi \nu_t + \zeta_t, \qquad \nu_0 = 0

    Args:
        variances: Of noise, of a step of the level and of a step of each :math:`a` and :math:`b`, shape (\*batch, 3),
            in squared units of the standardized target; the dtype and device are the expert's.
        season: Season length s in rows; ``None`` for no season.
        num_inputs: Number of input columns D, whose values are ignored.
        num_warm_up: Rows over which the trend is measured: its change over them has prior deviation 4.
        slope: Variance of :math:`\zeta` in these units and damping :math:`\phi`, shape (\*batch, 2); ``None`` for a
            linear trend.

    Raises:
        ValueError: If a number is out of range.
    """

    traits = Traits(shares_state=True)
    season: int | None
    num_warm_up: int
    variances: Tensor
    slope: Tensor | None

    def __init__(
        self, variances: Tensor, season: int | None, num_inputs: int, num_warm_up: int, slope: Tensor | None = None
    ) -> None:
        if (season is not None and season < 2) or num_warm_up < 1:
            raise ValueError(f"a season needs at least two rows and a warm-up one, got {season} and {num_warm_up}")
        legal = (variances[..., :2] > 0).all() & (variances >= 0).all() & torch.isfinite(variances).all()
        if variances.shape[-1] != 3 or not bool(legal):
            raise ValueError(
                "variances must be those of noise, level and season, (..., 3): two positive, the third at least zero"
            )
        if slope is not None:
            _check_slope(slope, variances)
            slope = slope.detach().clone() if bool((slope[..., 0] > 0).any()) else None
        super().__init__(ConstantFeatures(num_inputs, torch.ones_like(variances[..., 0])).requires_grad_(False), None)
        self.register_buffer("variances", variances.detach().clone())
        self.register_buffer("slope", slope)
        self.season, self.num_warm_up = season, num_warm_up
        self.num_waves: int = 0 if season is None else min(season // 2, _MOST_WAVES)

    def init(self) -> StructuralState:
        ones = torch.ones_like(self.variances[..., 0], dtype=torch.float64)
        start = gaussian_state(ones, 2 + 2 * self.num_waves)
        moments = start.moments
        if self.slope is not None:  # initially zero
            moments = torch.nn.functional.pad(start.covariance, (0, 2, 0, 1))
        return StructuralState(moments, torch.zeros((), dtype=torch.int64, device=ones.device))

    def bind(self) -> BoundStructural:
        return BoundStructural(self)

    def check_targets(self, y: Tensor) -> None:
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """For consecutive rows from the first on, NaN where missing; see :meth:`Expert.log_evidence`."""
        bound, state, evidence = self.bind(), self.init(), []
        for rows, targets in zip(X.split(_BLOCK), y.split(_BLOCK), strict=True):
            state, steps = bound.update_block(state, bound.features(rows), targets)
            evidence.append(steps.log_prob.nansum(-1))
        return torch.stack(evidence).sum(0)

    def take(self, index: Tensor) -> "StructuralExpert":
        index = index.to(self.variances.device)
        variances = self.variances.reshape(-1, 3)[index]
        slope = None if self.slope is None else self.slope.reshape(-1, 2)[index]
        return StructuralExpert(variances, self.season, self.features.num_inputs, self.num_warm_up, slope)

    def with_transition(self, transition: Transition | None) -> "StructuralExpert":
        """Return this expert; no transition is supported."""
        if transition is not None:
            raise ValueError("a structural expert takes no transition; its variances set its walks")
        return self


@torch.no_grad()
def fit_structural(y: Tensor, season: int, num_inputs: int) -> StructuralExpert:
    """The structural expert with the highest evidence on a grid of variances, refined to eighths of decades.

    Shapes: ``y`` (N,); returns (1,).
    """
    coarse = list(itertools.product(_HALF_DECADES, _HALF_DECADES, _SEASONAL_STEPS))
    noise, level, step = _best(y, season, num_inputs, coarse).variances[0].tolist()
    fine = [(noise * one, level * other, step) for one, other in itertools.product(_EIGHTHS, _EIGHTHS)]
    return _best(y, season, num_inputs, fine)


def _best(y: Tensor, season: int, num_inputs: int, variances: list[tuple[float, float, float]]) -> StructuralExpert:
    experts = StructuralExpert(y.new_tensor(variances), season, num_inputs, y.shape[0])
    evidence = experts.log_evidence(y.new_zeros(y.shape[0], num_inputs), y)
    return experts.take(evidence.argmax().reshape(1))


def _check_slope(slope: Tensor, variances: Tensor) -> None:
    variance, damping = slope[..., 0], slope[..., -1]
    legal = (variance >= 0) & torch.isfinite(variance) & (damping > 0) & (damping <= 1)
    if slope.shape != (*variances.shape[:-1], 2) or not bool(legal.all()):
        raise ValueError(
            f"slope must have a variance, at least zero, and a damping, above zero and at most one, for "
            f"each expert, {(*variances.shape[:-1], 2)}; got shape {tuple(slope.shape)}"
        )


class Passage(NamedTuple):
    r"""Level and slope some steps later, :math:`\mu + g b` and :math:`d b`, with noise; (\*batch, ...) each."""

    gain: Tensor  # g
    decay: Tensor  # d
    level: Tensor  # variance that the noise of the slope adds to the level
    both: Tensor  # covariance that it adds between level and slope
    slope: Tensor  # variance that it adds to the slope

    def then(self, later: "Passage") -> "Passage":
        """The composition of this passage and a later one."""
        g, d = later.gain, later.decay
        return Passage(
            self.gain + g * self.decay,
            d * self.decay,
            self.level + 2 * g * self.both + g.square() * self.slope + later.level,
            d * (self.both + g * self.slope) + later.both,
            d.square() * self.slope + later.slope,
        )


@final
class WalkingSlope:
    r"""Dynamics of level and slope.

    Args:
        variance: q, in squared units of the level's state, shape (\*batch).
        damping: :math:`\phi`, shape (\*batch).
    """

    variance: Tensor
    damping: Tensor

    def __init__(self, variance: Tensor, damping: Tensor) -> None:
        self.variance, self.damping = variance, damping
        self._last: tuple[int, tuple[Passage, Passage]] | None = None  # for a block of rows one step apart

    def over(self, counts: Tensor) -> Passage:
        r"""The passage over a number of steps, by repeated squaring.

        Shapes: ``counts`` (...); returns (\*batch, ...).
        """
        shape = (*self.damping.shape, *[1] * counts.ndim)
        damping, variance = self.damping.reshape(shape), self.variance.reshape(shape)
        one, zero = torch.ones_like(damping), torch.zeros_like(damping)
        whole = Passage(*(value + zero * counts for value in (zero, one, zero, zero, zero)))
        power, left = Passage(one, damping, zero, zero, variance), counts
        while bool((left > 0).any()):
            longer, odd = whole.then(power), left % 2 == 1
            whole = Passage(*(torch.where(odd, new, old) for new, old in zip(longer, whole, strict=True)))
            power, left = power.then(power), left // 2
        return whole

    def advance(self, state: GaussianState, count: Tensor) -> GaussianState:
        """The state ``count`` steps later, an integer (), without the random walk of the states."""
        return _moved(state, self.over(count))

    def joint(
        self, state: GaussianState, design: Tensor, walk: Tensor, steps: Tensor, counts: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, GaussianState]:
        r"""Joint moments of a block of B rows and of the state after it, before any of its targets is observed.

        Returns: covariance of the values of the rows with the state after them (\*batch, B, F), mean (\*batch, B) and
        covariance (\*batch, B, B) of the values without noise, the variance that the walk adds to each state
        (\*batch, F), and the state after the block, without that walk and without the targets' information.

        Shapes: ``design`` (\*batch, B, F), ``walk`` (\*batch, F), ``steps`` (B,), ``counts`` (B,).
        """
        to_rows, between = self._passages(counts)
        level = design[..., 0]
        seen = torch.cat([design[..., :-1], (level * to_rows.gain).unsqueeze(-1)], dim=-1)
        joint = seen @ state.moments
        cross, covariance, drift = joint_covariance(joint[..., :-1], seen, self.variance, walk, steps)
        shared = to_rows.level.unsqueeze(-1) + between.gain * to_rows.both.unsqueeze(-1)
        upper = level.unsqueeze(-1) * shared * level.unsqueeze(-2)
        covariance = covariance + torch.triu(upper) + torch.triu(upper, diagonal=1).mT
        end = Passage(*(value[..., -1] for value in to_rows))
        gain, decay, slope = end.gain[..., None, None], end.decay[..., None, None], cross[..., -1:]
        to_level = cross[..., :1] + gain * slope + (level * shared[..., -1]).unsqueeze(-1)
        to_slope = decay * slope + (level * between.decay[..., -1] * to_rows.both).unsqueeze(-1)
        cross = torch.cat([to_level, cross[..., 1:-1], to_slope], dim=-1)
        return cross, joint[..., -1], covariance, drift, _moved(state, end)

    def _passages(self, counts: Tensor) -> tuple[Passage, Passage]:
        r"""Passages to each row, (\*batch, B), and from each row to every row not before it, (\*batch, B, B)."""
        num_rows = counts.shape[0]
        is_regular = bool((counts == torch.arange(1, num_rows + 1, device=counts.device)).all())
        if is_regular and self._last is not None and self._last[0] == num_rows:
            return self._last[1]
        found = self.over(counts), self.over((counts - counts.unsqueeze(-1)).clamp_min(0))
        if is_regular:
            self._last = num_rows, found
        return found


def _moved(state: GaussianState, passage: Passage) -> GaussianState:
    r"""The state after a passage, (\*batch)."""
    gain, decay = passage.gain[..., None, None], passage.decay[..., None, None]
    slope = state.moments[..., -1:, :]
    rows = torch.cat([state.moments[..., :1, :] + gain * slope, state.moments[..., 1:-1, :], decay * slope], dim=-2)
    slope = rows[..., -2:-1]
    moments = torch.cat([rows[..., :1] + gain * slope, rows[..., 1:-2], decay * slope, rows[..., -1:]], dim=-1)
    moments[..., 0, 0] += passage.level
    moments[..., 0, -2] += passage.both
    moments[..., -1, 0] += passage.both
    moments[..., -1, -2] += passage.slope
    return GaussianState(moments)
