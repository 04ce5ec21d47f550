"""The fast path of a single row through the whole pipeline, on plain arrays, for ensembles that support it.

The numbers are those of blocks to round-off, see :class:`~gp_ensembles.streaming.model.OnlineModel`. Rows with anything
unusual (a missing number, an outlier, a column that changes for the first time) are left to the blocks: nothing changes
until a row is learned.
"""

import math
from typing import NamedTuple, TypeGuard, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gp_ensembles.calibration.levels import IntervalLevels
from gp_ensembles.calibration.recalibration import ROW, RecalibrationState, map_components, map_log_weights
from gp_ensembles.distributions import Recalibrated, StudentTMixture
from gp_ensembles.engine.bound import RowEnsemble, RowMixture, StagedRow
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.numerics.compiled import compiled
from gp_ensembles.numerics.normal_scores import TAIL
from gp_ensembles.numerics.student_t import mixture_cdf, normal_score_of, typical_width_of
from gp_ensembles.streaming.calibration import CalibrationState
from gp_ensembles.streaming.checks import FARTHEST
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.input_states import FAR, GROWTH, REACH, SETTLED, Gaps, InactiveColumns, InputRange
from gp_ensembles.streaming.inputs import InputState
from gp_ensembles.streaming.predictions import Intervals, OnlinePredictions

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
_formulas, _grid, _rules = ROW
_MAPS = map_components(torch.zeros(0, dtype=torch.float64, device="cpu"))
_SQUARES = (_MAPS[0].square() + _MAPS[1].square()).numpy()


def is_plain(value: object, shape: tuple[int, ...]) -> TypeGuard[Tensor]:
    """Whether something is a tensor of a shape in double precision on the processor."""
    if not isinstance(value, Tensor) or value.dtype != torch.float64 or not value.is_cpu:
        return False
    return value.shape == shape


class PipelineRow(NamedTuple):
    """A row that is predicted and not yet learned."""

    staged: StagedRow  # the update of the ensemble
    predictions: OnlinePredictions  # the predictions
    followed: InputState  # state of the inputs after the row
    num_moved: int  # number of its inputs moved into range
    calibration: CalibrationState  # state of the calibration after it


@final
class RowPipeline:
    """The layers around an ensemble, with all constants read once."""

    def __init__(self, online: OnlineEnsemble, ensemble: RowEnsemble, config: StreamConfig, columns: Columns) -> None:
        self.online, self.ensemble = online, ensemble
        scales, kept, indicators = columns.scales, columns.kept, columns.indicators
        self._kept = np.array(kept, dtype=np.int64)
        # A row without gaps: its indicators are zero.
        self._flags = np.zeros(len(indicators))
        self._mean = np.concatenate([scales.X_mean.numpy(), columns.gap_share.numpy()])
        self._scale = np.concatenate([scales.X_scale.numpy(), columns.gap_scale.numpy()])
        self._inactive = columns.inactive.nonzero().flatten().tolist()
        self._shift, self._unit = float(scales.y_mean), float(scales.y_scale)
        self._clip = math.inf if config.clip is None else config.clip
        self._levels = IntervalLevels(config.coverages)
        self._df = torch.from_numpy(ensemble.degrees_of_freedom).unsqueeze(-1)
        self._ones = np.ones(ensemble.num_copies)  # a product with ones costs a tenth of a sum over few columns
        self._no_age = torch.zeros(len(kept), dtype=torch.float64, device="cpu")

    def stage(self, X: Tensor, y: Tensor, followed: InputState, calibration: CalibrationState) -> PipelineRow | None:
        """Predict a row X (1, D) and compute the update from its target y (1,); nothing changes."""
        target = y.item()
        legal, row, inputs, lower, upper, num_moved = self._limited(X, followed)
        scaled = (target - self._shift) / self._unit
        if not (legal and abs(scaled) < FARTHEST):
            return None
        staged = self.ensemble.stage(inputs, scaled)
        if staged is None:
            return None
        within = InputRange(torch.from_numpy(lower), torch.from_numpy(upper), followed.within.width)
        gaps = Gaps(torch.from_numpy(row), self._no_age, followed.gaps.num_imputed)
        num_rows = torch.from_numpy(np.array(followed.num_rows.item() + 1))  # a sum of tensors costs ten times as much
        after = InputState(num_rows, gaps, followed.inactive_columns, followed.effect, within)
        mean, variance = self._in_units(staged.mixture)
        weights = np.exp(staged.mixture.log_weights)
        pit = mixture_cdf(target, weights, mean.ravel(), variance.ravel(), self.ensemble.degrees_of_freedom)
        base = self._mixture(staged.mixture.log_weights[:, None], mean, variance)
        distribution: StudentTMixture | Recalibrated = base
        recalibration, levels, intervals, gain, spread = calibration.recalibration, calibration.levels, None, 0.0, 1.0
        if recalibration is not None:
            recalibration, log_weights, gain, pit, spread = recalibrate_row(recalibration, pit)
            distribution = Recalibrated(base, torch.from_numpy(log_weights).unsqueeze(-1), *_MAPS)
        if levels is not None:
            width = typical_width_of(weights, mean.ravel(), variance.ravel())
            levels, output = self._levels.update_row(levels, pit, width * spread)
            intervals = Intervals(self._levels.coverages, *output)
        log_prob = torch.from_numpy(np.array([staged.weighed.log_prob - math.log(self._unit) + gain]))
        by_expert = torch.from_numpy(np.log(weights.reshape(mean.shape).dot(self._ones)[:, None]))
        predictions = OnlinePredictions(distribution, log_prob, by_expert, 0, intervals)
        return PipelineRow(staged, predictions, after, num_moved, CalibrationState(recalibration, levels))

    def predict(
        self, X: Tensor, followed: InputState, calibration: CalibrationState
    ) -> StudentTMixture | Recalibrated | None:
        """The distribution of a row X (1, D) that comes next; arguments and ``None`` as in :meth:`stage`."""
        legal, _, inputs, *_ = self._limited(X, followed)
        if not legal:
            return None
        mixture = self.ensemble.predict(inputs)
        if mixture is None:
            return None
        base = self._mixture(mixture.log_weights, *self._in_units(mixture))
        if calibration.recalibration is None:
            return base
        return Recalibrated(base, map_log_weights(calibration.recalibration), *_MAPS)

    def _limited(self, X: Tensor, followed: InputState) -> tuple[bool, Numbers, Numbers, Numbers, Numbers, int]:
        """Whether a row is usual, its inputs in their units, and the results of :func:`_limit`."""
        row, unchanged, scale = X.detach().numpy()[0], True, self._scale
        if self._inactive:
            unchanged, scale = self._scales_of(row[self._kept], followed.inactive_columns)
        ends = (part.numpy() for part in followed.within)
        found = _limit(row, self._kept, self._flags, self._mean, scale, self._clip, *ends)
        return found if unchanged else (False, *found[1:])

    def _scales_of(self, values: Numbers, inactive_columns: InactiveColumns) -> tuple[bool, Numbers]:
        """Whether values (K,) of columns that were constant in the warm-up leave their state unchanged; all scales."""
        here, scale = self._inactive, self._scale.copy()
        scale[here] = own = inactive_columns.scale.numpy()[here]
        deviation = np.abs(values[here] - inactive_columns.base.numpy()[here])
        usual = (deviation == 0) | (
            (inactive_columns.num.numpy()[here] >= SETTLED) & (deviation <= FAR * own) & (deviation > 1e-9 * own)
        )
        return bool(usual.all()), scale

    def _in_units(self, mixture: RowMixture) -> tuple[Numbers, Numbers]:
        return mixture.mean * self._unit + self._shift, mixture.variance * self._unit**2

    def _mixture(self, log_weights: Numbers, mean: Numbers, variance: Numbers) -> StudentTMixture:
        location, spread = (torch.from_numpy(part.reshape(-1, 1)) for part in (mean, variance))
        return StudentTMixture(torch.from_numpy(log_weights), location, spread, self._df)


def pipeline_of(
    last: RowPipeline | None, online: OnlineEnsemble, config: StreamConfig, columns: Columns
) -> RowPipeline | None:
    """The pipeline of an ensemble, the last one if it is still that; ``None`` where only blocks can run."""
    if last is not None and last.online is online and last.ensemble.is_current():
        return last
    ensemble = None if columns.forecasts else online.one_row
    return None if ensemble is None else RowPipeline(online, ensemble, config, columns)


def recalibrate_row(state: RecalibrationState, u: float) -> tuple[RecalibrationState, Numbers, float, float, float]:
    """:func:`~gp_ensembles.calibration.recalibration.recalibrate_block` of one observed target on plain arrays.

    Returns: the state after it, log weights (K,) of the map before it, gain, transform, and by what the map widens.
    """
    probability, z = np.array([u]), np.array([normal_score_of(u)])
    is_within = TAIL <= u <= 1 - TAIL  # as nearly always; a call of arrays costs more than their numbers
    p, value = _formulas.inside(z, _grid.shift, _grid.scale) if is_within else _formulas.at(_grid, probability, z)
    learned, shared, weights, density, moved = _formulas.step(
        _rules, state.candidates.numpy(), state.shares.numpy(), p, value, probability
    )
    after = RecalibrationState(torch.from_numpy(learned), torch.from_numpy(shared))
    return after, np.log(weights), math.log(density[0]), moved[0], math.sqrt(weights.dot(_SQUARES))


@compiled
def _limit(
    row: Numbers,
    kept: Places,
    flags: Numbers,
    mean: Numbers,
    scale: Numbers,
    clip: float,
    lower: Numbers,
    upper: Numbers,
    width: Numbers,
) -> tuple[bool, Numbers, Numbers, Numbers, Numbers, int]:
    """The inputs (K,) of a row (D,), and with indicators in warm-up standard deviations and within range.

    Returns: whether all of it can be learned; the inputs in their units and in these; lower and upper ends of the range
    after it; how many were moved.
    """
    own = row[kept]
    inputs = np.minimum(np.maximum((np.concatenate((own, flags)) - mean) / scale, -clip), clip)
    legal = bool((np.abs(inputs) < FARTHEST).all()) and not bool(np.isinf(row).any())
    moved = np.minimum(np.maximum(inputs, lower - REACH * width), upper + REACH * width)
    highest = np.maximum(upper, np.minimum(inputs, upper + GROWTH * width))
    lowest = np.minimum(lower, np.maximum(inputs, lower - GROWTH * width))
    return legal, own, moved, lowest, highest, int((moved != inputs).sum())
