"""A series as level, trend and season: time itself is its only input."""

import itertools
import math
from typing import final

import torch
from torch import Tensor

from gp_ensembles.experts.base import BoundExpert, Expert
from gp_ensembles.experts.gaussian import check_single_output
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.filters.states import FilterState, GaussianState, StepPredictions, StructuralState, gaussian_state
from gp_ensembles.filters.transitions import RandomWalk, Transition, UnevenSteps
from gp_ensembles.filters.update import predict, update_block

_MOST_WAVES = 6
_BLOCK = 16  # rows, about as many as there are states: hundreds of small filters run side by side
# Deviations of what a series starts from, in those of the warm-up's targets: level, trend over the warm-up, waves.
_LEVEL, _TREND, _WAVE = 2.0, 4.0, 1.0
# Among these the variances are looked for: of the noise and of a step of the level, of a step of the season, and
# around the best of the first two.
_HALF_DECADES = tuple(10.0 ** (-k / 2) for k in range(9))
_SEASONAL_STEPS = (0.0, 1e-5, 1e-3)
_EIGHTHS = tuple(10.0 ** (k / 8) for k in range(-2, 3))


@final
class BoundStructural(BoundExpert):
    """A structural expert's numbers.

    Args:
        expert: The expert.
    """

    def __init__(self, expert: "StructuralExpert") -> None:
        super().__init__(expert.features.bind(), expert.features.prior_variance, None)
        self._expert = expert
        self.season = expert.season
        self.noise, level, season = expert.variances.double().unbind(-1)
        self._scale = level.new_tensor([_LEVEL, _TREND, *([_WAVE] * (2 * expert.num_waves))])
        steps = [level, torch.zeros_like(level), *([season] * (2 * expert.num_waves))]
        self._walk = RandomWalk(torch.stack(steps, -1) / self._scale.square())

    @property
    def walk(self) -> Transition:
        """How level and season walk before every row."""
        return self._walk if self.steps is None else UnevenSteps(self._walk, self.steps)

    def update_block(self, state: FilterState, Phi: Tensor, y: Tensor) -> tuple[StructuralState, StepPredictions]:
        """See :meth:`BoundExpert.update_block`."""
        assert isinstance(state, StructuralState)
        # Trend and season go on by whole steps.
        whole = torch.ones_like(y, dtype=torch.int64) if self.steps is None else self.steps.round().long()
        rows = state.num_rows - 1 + whole.cumsum(0)
        moments, design = GaussianState(state.moments.double()), self.design(rows) * Phi.double()
        after, steps = update_block(moments, design, y.double(), self.walk, self.noise)
        return StructuralState(after.moments, state.num_rows + whole.sum()), _in_dtype(steps, Phi)

    def predict(self, state: FilterState, Phi: Tensor) -> StepPredictions:
        """See :meth:`BoundExpert.predict`."""
        assert isinstance(state, StructuralState)
        row = state.num_rows.reshape(1) + (0 if self.steps is None else self.steps.round().long() - 1)
        moments, design = GaussianState(state.moments.double()), self.design(row) * Phi.double()
        return _in_dtype(predict(moments, design, self.walk, self.noise), Phi)

    def take(self, index: Tensor) -> "BoundStructural":
        """See :meth:`BoundExpert.take`."""
        return self._expert.take(index).bind()

    def design(self, rows: Tensor) -> Tensor:
        """What each state adds to the targets of rows by their numbers (B,), shape (B, 2 + 2 K)."""
        season, waves = self._expert.season, torch.arange(1, self._expert.num_waves + 1, device=rows.device)
        # Whole periods are taken away in whole numbers, so that waves keep their digits for ever.
        angle = (rows.unsqueeze(-1) * waves % season).double() * (2 * math.pi / season)
        age = (rows.double() / self._expert.num_warm_up).unsqueeze(-1)
        return torch.cat([torch.ones_like(age), age, angle.cos(), angle.sin()], dim=-1) * self._scale


@final
class StructuralExpert(Expert):
    r"""A batch of series with a level that walks, a straight trend and a season whose shape walks.

    .. math::
        y_t = \mu_t + \beta t + \sum_{k=1}^K (a_{kt} \cos(2 \pi k t / s) + b_{kt} \sin(2 \pi k t / s)) + \varepsilon_t

    with random walks :math:`\mu_t`, :math:`a_{kt}` and :math:`b_{kt}`: the basic structural model with a fixed trend
    (Harvey 1989, section 2.3). It looks at no input but the number of the row, rows with missing targets counted, and
    is a Kalman filter in double precision, whatever the dtype of the rows.

    Args:
        variances: Of noise, of a step of the level and of a step of each :math:`a` and :math:`b`, shape (\*batch, 3),
            in squared units of the standardized target; the dtype and device are the expert's.
        season: Rows s of a season.
        num_inputs: Number of input columns D, whose values do not matter.
        num_warm_up: Rows over which the trend is counted: the prior of its change over them has deviation 4.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> import torch
        >>> rows = torch.arange(60, dtype=torch.float64)
        >>> y = rows / 60 + (2 * torch.pi * rows / 12).sin()
        >>> expert = fit_structural(y, season=12, num_inputs=1)
        >>> _, steps = expert.update(expert.init(), torch.zeros(60, 1, dtype=torch.float64), y)
        >>> bool((steps.mean[0, 30:] - y[30:]).abs().max() < 0.05)
        True
    """

    variances: Tensor

    def __init__(self, variances: Tensor, season: int, num_inputs: int, num_warm_up: int) -> None:
        if season < 2 or num_warm_up < 1:
            raise ValueError(f"a season has at least two rows and a warm-up one, got {season} and {num_warm_up}")
        legal = (variances[..., :2] > 0).all() & (variances >= 0).all() & torch.isfinite(variances).all()
        if variances.shape[-1] != 3 or not bool(legal):
            raise ValueError(
                "variances must be of noise, level and season, (..., 3): two positive, the third at least zero"
            )
        super().__init__(ConstantFeatures(num_inputs, torch.ones_like(variances[..., 0])).requires_grad_(False), None)
        self.register_buffer("variances", variances.detach().clone())
        self.season, self.num_warm_up = season, num_warm_up
        self.num_waves = min(season // 2, _MOST_WAVES)

    def init(self) -> StructuralState:
        """State before any data."""
        ones = torch.ones_like(self.variances[..., 0], dtype=torch.float64)
        start = gaussian_state(ones, 2 + 2 * self.num_waves)
        return StructuralState(start.moments, torch.zeros((), dtype=torch.int64, device=ones.device))

    def bind(self) -> BoundStructural:
        """See :meth:`Expert.bind`."""
        return BoundStructural(self)

    def check_targets(self, y: Tensor) -> None:
        """Raise unless targets have shape (B,) and none is infinite; see :meth:`Expert.check_targets`."""
        check_single_output(y)

    def log_evidence(self, X: Tensor, y: Tensor) -> Tensor:
        """Of rows that follow one another from the first on, NaN where missing; see :meth:`Expert.log_evidence`."""
        bound, state, evidence = self.bind(), self.init(), []
        for rows, targets in zip(X.split(_BLOCK), y.split(_BLOCK), strict=True):
            state, steps = bound.update_block(state, bound.features(rows), targets)
            evidence.append(steps.log_prob.nansum(-1))
        return torch.stack(evidence).sum(0)

    def take(self, index: Tensor) -> "StructuralExpert":
        """See :meth:`Expert.take`."""
        variances = self.variances.reshape(-1, 3)[index.to(self.variances.device)]
        return StructuralExpert(variances, self.season, self.features.num_inputs, self.num_warm_up)

    def with_transition(self, transition: Transition | None) -> "StructuralExpert":
        """Itself.

        Raises:
            ValueError: If there is a transition: how its states walk is what it is made of.
        """
        if transition is not None:
            raise ValueError("a structural expert has walks of its own, given by its variances")
        return self


@torch.no_grad()
def fit_structural(y: Tensor, season: int, num_inputs: int) -> StructuralExpert:
    """The structural expert whose variances have the most evidence on a grid, eighths of decades around the best.

    Args:
        y: Targets of the warm-up, standardized, shape (N,); NaN where missing.
        season: Rows of a season.
        num_inputs: Number of input columns.

    Returns:
        The expert before any data, batch shape (1,).

    Raises:
        ValueError: If the season is shorter than two rows.
    """
    coarse = list(itertools.product(_HALF_DECADES, _HALF_DECADES, _SEASONAL_STEPS))
    noise, level, step = _best(y, season, num_inputs, coarse).variances[0].tolist()
    fine = [(noise * one, level * other, step) for one, other in itertools.product(_EIGHTHS, _EIGHTHS)]
    return _best(y, season, num_inputs, fine)


def _best(y: Tensor, season: int, num_inputs: int, variances: list[tuple[float, float, float]]) -> StructuralExpert:
    experts = StructuralExpert(y.new_tensor(variances), season, num_inputs, y.shape[0])
    evidence = experts.log_evidence(y.new_zeros(y.shape[0], num_inputs), y)
    return experts.take(evidence.argmax().reshape(1))


def _in_dtype(steps: StepPredictions, like: Tensor) -> StepPredictions:
    return StepPredictions(*(value.to(like.dtype) for value in steps))
