"""Inputs of an ensemble from the columns of a table: imputation, scales, constant columns, indicators, range.

One text for one series and for many: constants and states of many have an axis in front, and so have their rows.
"""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from gp_ensembles.distributions import LatentMixture
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.engine.predictions import AnyMixture, EnsemblePredictions
from gp_ensembles.streaming.checks import (
    FARTHEST,
    CleanRows,
    IllegalRow,
    clean_rows,
    earliest,
    first_outlying,
    illegal_input,
    illegal_target,
    outlying_numbers,
)
from gp_ensembles.streaming.columns import Columns, standard_forecasts
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.input_states import Gaps, InactiveColumns, InputRange

_INACTIVE_WIDTH = 2.0  # of the range of a column that was constant in the warm-up, in its scales
_EFFECT_ROWS = 64  # of the warm-up, at which effects are measured
_COLUMNS_AT_ONCE = 16  # whose effects are measured by one prediction
_MOST_UNCERTAINTY = 1.0  # variance of the standardized target


class InputState(NamedTuple):
    """State of the inputs over a stream, or over many side by side."""

    num_rows: Tensor  # number of rows so far, shape (...)
    gaps: Gaps  # last values of the K inputs
    inactive_columns: InactiveColumns  # scales of those that were constant in the warm-up
    effect: Tensor  # mean squared change of the prediction when a column is replaced by its mean, (..., K)
    within: InputRange  # the range so far of all inputs, indicators among them

    def packed(self) -> Tensor:
        """All numbers of a series side by side, shape (..., P), which :meth:`unpacked` reads back."""
        parts = (*self.gaps, *self.inactive_columns, self.effect, *self.within)
        return torch.cat([self.num_rows.unsqueeze(-1), *parts], dim=-1)

    @staticmethod
    def packed_size(num_inputs: int) -> int:
        """The number P of numbers of a series of K inputs without indicators."""
        return 1 + 12 * num_inputs

    @classmethod
    def unpacked(cls, numbers: Tensor, num_inputs: int) -> "InputState":
        """The state whose numbers (..., P) these are, of K inputs."""
        num_ranges = (numbers.shape[-1] - 1 - 9 * num_inputs) // 3
        num_rows, *parts = numbers.split([1, *[num_inputs] * 9, *[num_ranges] * 3], dim=-1)
        inactive_columns, within = InactiveColumns(*parts[3:8]), InputRange(*parts[9:])
        return cls(num_rows.squeeze(-1), Gaps(*parts[:3]), inactive_columns, parts[8], within)


class Standard(NamedTuple):
    """Rows in standardized units."""

    scaled: Tensor  # K columns, followed by indicators, shape (..., N, K + I); float64
    inputs: Tensor  # what the ensemble takes: these within range and forecasts, in the precision of the run
    extra: Tensor | None  # noise variance that gaps add to each row, (..., N); ``None`` if there is no gap
    num_moved: Tensor  # how many inputs of each row were moved into range, (..., N)
    state: InputState  # the state after the rows


@final
class InputPath:
    """The transformation of rows, which is constant after the warm-up.

    Args:
        config: Settings of the stream; many series share them.
        columns: The use of the columns.
    """

    def __init__(self, config: StreamConfig, columns: Columns) -> None:
        self.columns = columns
        self._config = config
        self._adds_noise = config.ensemble.target.is_real and config.ensemble.target.num_outputs is None
        self._has_inactive = bool(columns.inactive.any())

    def warm_up(self, X: Tensor) -> Standard:
        """The first rows X (..., N, D) of a stream, whose range is taken from them."""
        scales, inactive = self.columns.scales, self.columns.inactive
        is_known = (~self.columns.of_table(X).isnan()).any(-2)
        zero = torch.zeros_like(scales.X_mean)
        base = torch.where(inactive & is_known, scales.X_mean, torch.nan)
        everywhere = InputRange.everywhere(
            zero.new_zeros(*zero.shape[:-1], zero.shape[-1] + len(self.columns.indicators))
        )
        start = InputState(zero[..., 0], Gaps.none(zero), InactiveColumns.of(base), zero, everywhere)
        found = self.follow(start, X)
        if not self._config.limit_inputs:
            return found
        within = InputRange.of(found.scaled)
        width = within.width.clone()
        width[..., : zero.shape[-1]].masked_fill_(inactive, _INACTIVE_WIDTH)
        return found._replace(state=found.state._replace(within=within._replace(width=width)))

    def with_effects(self, warm: Standard, predict: Callable[[Tensor], Tensor]) -> InputState:
        """The state after the rows of a warm-up, from which an ensemble has learned.

        ``predict`` gives mean predictions (..., R) at inputs (..., R, K + I + F) that come next.
        """
        effect = torch.zeros_like(warm.state.effect)
        if self._adds_noise:
            places = torch.linspace(
                0,
                warm.inputs.shape[-2] - 1,
                min(warm.inputs.shape[-2], _EFFECT_ROWS),
                dtype=torch.float64,
                device=effect.device,
            )
            rows = warm.inputs[..., places.round().long(), :]
            predicted, may_move = predict(rows).unsqueeze(-2), ~self.columns.inactive
            moving = may_move.reshape(-1, effect.shape[-1]).any(0).nonzero().flatten()
            for some in moving.split(_COLUMNS_AT_ONCE):
                left_out = one_hot(some, rows.shape[-1]).bool().unsqueeze(-2)
                without = rows.unsqueeze(-3).masked_fill(left_out, 0.0)
                moved = predict(without.flatten(-3, -2)).unflatten(-1, (len(some), -1))
                effect = effect.index_copy(-1, some, (moved - predicted).double().square().mean(-1))
            effect = torch.where(may_move, effect, 0.0).clamp_max(_MOST_UNCERTAINTY)
        return warm.state._replace(effect=effect)

    def follow(self, state: InputState, X: Tensor) -> Standard:
        """Standardize consecutive rows X (..., N, D) in their units."""
        columns, scales = self.columns, self.columns.scales
        gaps, last, age = state.gaps.follow(columns.of_table(X))
        has_gaps, inactive_columns = bool(age.any()), state.inactive_columns
        values = columns.imputation.fill(last, age) if has_gaps else last
        scaled = (values - scales.X_mean.unsqueeze(-2)) / scales.X_scale.unsqueeze(-2)
        if self._has_inactive:
            is_own = columns.inactive.unsqueeze(-2)
            inactive_columns, own = inactive_columns.follow(torch.where(is_own, last, torch.nan), state.num_rows)
            scaled = torch.where(is_own, own, scaled)
        if self._config.clip is not None:
            scaled = scaled.clamp(-self._config.clip, self._config.clip)
        extra = None
        if self._adds_noise and has_gaps:
            uncertainty = columns.imputation.uncertainty(last, age) * state.effect.unsqueeze(-2)
            extra = uncertainty.sum(-1).clamp_max(_MOST_UNCERTAINTY).to(self._config.torch_dtype)
        if columns.indicators:
            flags = (age[..., list(columns.indicators)] > 0).to(scaled)
            scaled = torch.cat([scaled, (flags - columns.gap_share) / columns.gap_scale], dim=-1)
        within, limited, num_moved = state.within.follow(scaled)
        after = InputState(state.num_rows + X.shape[-2], gaps, inactive_columns, state.effect, within)
        return Standard(scaled, self.taken(limited, X), extra, num_moved, after)

    def each(self, state: InputState, X: Tensor) -> Standard:
        """Standardize rows X (N, D) that all come next, each on its own, after one state, or one for each (N, ...)."""
        numbers = state.packed().expand(len(X), -1)
        found = self.follow(InputState.unpacked(numbers, state.effect.shape[-1]), X.unsqueeze(-2))
        extra = None if found.extra is None else found.extra.squeeze(-1)
        return found._replace(scaled=found.scaled.squeeze(-2), inputs=found.inputs.squeeze(-2), extra=extra)

    def targets(self, y: Tensor) -> Tensor:
        """Targets as the ensemble sees them: standardized if they are real numbers; float64."""
        return (y - self.columns.scales.y_mean) / self.columns.scales.y_scale

    def in_units(self, mixture: AnyMixture) -> AnyMixture:
        """Mixtures of standardized targets in the units of the target, in float64; of latent values as they are."""
        if not self._config.ensemble.target.is_real:
            return mixture
        assert not isinstance(mixture, LatentMixture)
        doubles = {name: value.double() for name, value in mixture._asdict().items()}
        if mixture.log_weights.dtype != torch.float64:  # they sum to one in single precision only
            doubles["log_weights"] = doubles["log_weights"].log_softmax(0)
        return mixture._replace(**doubles).rescale(self.columns.scales.y_mean, self.columns.scales.y_scale)

    def cleaned(self, follow: Callable[[Tensor], Standard], X: Tensor, y: Tensor) -> tuple[Standard, CleanRows]:
        """Rows X (N, D), y (N,) or (N, O) in standardized units, by ``follow``, without numbers that cannot be learned.

        Besides them what became of these numbers, see ``StreamConfig.on_bad_row``.
        """
        standard = follow(X)
        outlying, refused = self._illegal(standard.scaled, X, y)
        if refused is None or self._config.on_bad_row == "refuse":
            return standard, CleanRows(X, y, refused=refused)
        rows = self._without_bad(outlying, X, y)
        standard = follow(rows.X)
        return standard, rows._replace(refused=self._illegal(standard.scaled, rows.X, rows.y)[1])

    def _illegal(self, scaled: Tensor, X: Tensor, y: Tensor) -> tuple[Tensor, IllegalRow | None]:
        """Mask of outlying numbers, (N, K + O), and the first row that cannot be learned; ``scaled`` are its inputs."""
        config, kept = self._config, self.columns.kept
        outlying = outlying_numbers(X, y, scaled[:, : len(kept)], self.targets(y), kept, config.torch_dtype)
        of_kind = illegal_target(config.ensemble.target, y)
        return outlying, earliest(illegal_input(X), of_kind, first_outlying(outlying, X, y, kept))

    def _without_bad(self, outlying: Tensor, X: Tensor, y: Tensor) -> CleanRows:
        """Rows without infinite and outlying numbers, a mask (N, K + O)."""
        columns, kept, on_bad_row = self.columns, self.columns.kept, self._config.on_bad_row
        wrong = torch.cat([X, y.reshape(len(y), -1)], dim=-1).isinf()
        wrong[:, [*kept, *range(X.shape[1], wrong.shape[1])]] |= outlying
        limited = None
        if on_bad_row == "limit":  # the range moves them further
            mean, reach = columns.scales.X_mean, 0.5 * FARTHEST * columns.scales.X_scale
            near = columns.of_table(X).clamp(mean - reach, mean + reach)
            limited = torch.full_like(X, torch.nan)
            limited[:, kept] = torch.where(columns.inactive, torch.nan, near)
        first = earliest(illegal_input(X), first_outlying(outlying, X, y, kept))
        return clean_rows(X, y, wrong, first, on_bad_row, limited)

    def taken(self, scaled: Tensor, X: Tensor) -> Tensor:
        """Standardized rows within range and the forecasts of rows X (..., N, D), in the precision of the run."""
        columns, config = self.columns, self._config
        if columns.forecasts:
            forecasts = standard_forecasts(config.ensemble, X[..., columns.forecasts], columns.scales)
            scaled = torch.cat([scaled, forecasts], dim=-1)
        return scaled.to(config.torch_dtype)

    def build_ensemble(
        self, warm: Standard, y: Tensor, *, progress: bool = False
    ) -> tuple[OnlineEnsemble, EnsemblePredictions]:
        """The ensemble of the config, fitted to the rows of a warm-up and y (N,) or (N, O).

        Besides it, predictions of these rows, each made before its target was learned.
        """
        config, generator = self._config, torch.Generator().manual_seed(self._config.seed)  # on the CPU everywhere
        targets, fit = self.targets(y).to(config.torch_dtype), config.ensemble.fit_and_predict
        online, predictions = fit(warm.inputs, targets, generator=generator, progress=progress)
        online.is_ranked = True  # a stream goes on, and earns its weights
        if config.block_size is not None:
            online.block_size = config.block_size
        return online, predictions
