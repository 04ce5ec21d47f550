"""Inputs of an ensemble from the columns of a table: imputation, scales, constant columns, indicators, range."""

from collections.abc import Sequence
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.streaming.checks import IllegalRow, illegal_target, outlying_number
from gp_ensembles.streaming.columns import Columns
from gp_ensembles.streaming.config import StreamConfig
from gp_ensembles.streaming.forecasts import standard_forecasts
from gp_ensembles.streaming.gaps import Gaps
from gp_ensembles.streaming.inactive_columns import InactiveColumns
from gp_ensembles.streaming.input_range import InputRange

_INACTIVE_WIDTH = 2.0  # of the range of a column that was constant in the warm-up, in its scales
_EFFECT_ROWS = 64  # of the warm-up, at which effects are measured
_MOST_UNCERTAINTY = 1.0  # variance of the standardized target


class InputState(NamedTuple):
    """State of the inputs over a stream.

    Attributes:
        gaps: Last values of the K inputs.
        inactive_columns: Scales of those that were constant in the warm-up.
        effect: Mean squared change of the prediction when a column is replaced by its mean, (K,).
        within: The range so far of all inputs, indicators among them; ``None`` where they are not limited.
    """

    gaps: Gaps
    inactive_columns: InactiveColumns
    effect: Tensor
    within: InputRange | None

    def to_plain(self) -> dict[str, Any]:
        """Tensors in plain containers, which :meth:`from_plain` reads back."""
        within = None if self.within is None else [part.clone().cpu() for part in self.within]
        gaps, inactive_columns = (
            [part.clone().cpu() for part in parts] for parts in (self.gaps, self.inactive_columns)
        )
        return {"gaps": gaps, "inactive": inactive_columns, "effect": self.effect.clone().cpu(), "within": within}

    @classmethod
    def from_plain(cls, plain: dict[str, Any], device: torch.device) -> "InputState":
        """The state that :meth:`to_plain` wrote, on a device."""
        within = plain["within"]
        return cls(
            Gaps(*(part.to(device) for part in plain["gaps"])),
            InactiveColumns(*(part.to(device) for part in plain["inactive"])),
            plain["effect"].to(device),
            None if within is None else InputRange(*(part.to(device) for part in within)),
        )


class Standard(NamedTuple):
    """Rows in standardized units, before they are moved into range.

    Attributes:
        inputs: K columns, followed by indicators, shape (N, K + I).
        extra: Noise variance that gaps add to each row, (N,); ``None`` if there is no gap.
        state: The state after the rows, but for the range.
    """

    inputs: Tensor
    extra: Tensor | None
    state: InputState


@final
class InputPath:
    """The transformation of rows, which is constant after the warm-up."""

    def __init__(self, config: StreamConfig, columns: Columns) -> None:
        self.columns = columns
        self._config = config
        self._adds_noise = config.ensemble.target.is_real and config.ensemble.target.num_outputs is None

    @classmethod
    def of(cls, config: StreamConfig, X: Tensor, y: Tensor, names: Sequence[str]) -> "InputPath":
        """From warm-up rows X (N, D) and y (N,) or (N, O), NaN where missing, and the names of the columns.

        Raises:
            ValueError: If all inputs are constant, or targets are not of their kind.
        """
        return cls(config, Columns.of(config, X, y, names))

    def start(self) -> InputState:
        """Before any row."""
        scales, inactive = self.columns.scales, list(self.columns.inactive)
        base = torch.where(self.columns.is_known[inactive], scales.X_mean[inactive], torch.nan)
        zero = torch.zeros_like(scales.X_mean)
        return InputState(Gaps.none(zero), InactiveColumns.of(base), zero, None)

    def after_warm_up(self, online: OnlineEnsemble, X: Tensor) -> InputState:
        """After warm-up rows X (N, D), to which an ensemble is fitted."""
        inputs, _, state = self.follow(self.start(), X, 1)
        if self._config.limit_inputs:
            within = InputRange.of(inputs)
            width = within.width.clone()
            width[list(self.columns.inactive)] = _INACTIVE_WIDTH
            state = state._replace(within=within._replace(width=width))
        return state._replace(effect=self._effect(online, self.with_forecasts(inputs, X)))

    def follow(self, state: InputState, X: Tensor, first_row: int) -> Standard:
        """Standardize consecutive rows X (N, D) in their units, the first of which has a number in the stream."""
        X = self.columns.of_table(X)
        gaps, last, age = state.gaps.follow(X)
        inputs = self._scaled(last, age)
        inactive_columns, inactive = state.inactive_columns, list(self.columns.inactive)
        if inactive:
            inputs = inputs.clone()
            inactive_columns, inputs[:, inactive] = inactive_columns.follow(last[:, inactive], first_row)
        return self._standard(inputs, last, age, state._replace(gaps=gaps, inactive_columns=inactive_columns))

    def each(self, state: InputState, X: Tensor) -> Standard:
        """Standardize rows X (N, D) that all come next, each on its own; the state stays."""
        last, age = state.gaps.each(self.columns.of_table(X))
        inputs, inactive = self._scaled(last, age), list(self.columns.inactive)
        if inactive:
            inputs = inputs.clone()
            inputs[:, inactive] = state.inactive_columns.each(last[:, inactive])
        return self._standard(inputs, last, age, state)

    def targets(self, y: Tensor) -> Tensor:
        """Targets as the ensemble sees them: standardized if they are real numbers; float64."""
        return (y - self.columns.scales.y_mean) / self.columns.scales.y_scale

    def illegal(self, standard: Standard, X: Tensor, y: Tensor | None = None) -> IllegalRow | None:
        """The first row X (N, D), with its target y (N,) if there is one, that cannot be learned, if there is one."""
        config, kept = self._config, self.columns.kept
        if y is None:
            y = X.new_full((X.shape[0], *self.columns.scales.y_mean.shape), torch.nan)
        wrong = illegal_target(config.ensemble.target, y)
        outlier = outlying_number(X, y, standard.inputs[:, : len(kept)], self.targets(y), kept, config.torch_dtype)
        return wrong if wrong is not None and (outlier is None or wrong.row <= outlier.row) else outlier

    def limited(self, state: InputState, standard: Standard, X: Tensor) -> Tensor:
        """Rows X (N, D) that all come next, as the ensemble takes them: within range, with forecasts."""
        inputs = standard.inputs if state.within is None else state.within.limit(standard.inputs)
        return self.with_forecasts(inputs, X)

    def with_forecasts(self, inputs: Tensor, X: Tensor) -> Tensor:
        """Standardized inputs of rows X (N, D) followed by their forecasts, in the precision of the run."""
        columns, config = self.columns, self._config
        if columns.forecasts:
            forecasts = standard_forecasts(config.ensemble, X[:, columns.forecasts], columns.scales)
            inputs = torch.cat([inputs, forecasts], dim=-1)
        return inputs.to(config.torch_dtype)

    def build_ensemble(self, X: Tensor, y: Tensor, *, is_fitted: bool, progress: bool = False) -> OnlineEnsemble:
        """The ensemble of the config, built from warm-up rows X (N, D) and y (N,) or (N, O), and fitted to them or not.

        Raises:
            NumericalError: If an expert's evidence cannot be computed where it starts.
        """
        config, generator = self._config, torch.Generator().manual_seed(self._config.seed)  # on the CPU everywhere
        inputs = self.with_forecasts(self.follow(self.start(), X, 1).inputs, X)
        targets = self.targets(y).to(config.torch_dtype)
        if is_fitted:
            online = config.ensemble.fit(inputs, targets, generator=generator, progress=progress)
        else:
            online = config.ensemble.unfitted(inputs, targets, generator=generator)
        if config.block_size is not None:
            online.block_size = config.block_size
        return online

    def _scaled(self, last: Tensor, age: Tensor) -> Tensor:
        return self.columns.scales.transform_inputs(self.columns.imputation.fill(last, age) if age.any() else last)

    def _standard(self, inputs: Tensor, last: Tensor, age: Tensor, state: InputState) -> Standard:
        missing, extra, imputation = age > 0, None, self.columns.imputation
        if self._adds_noise and bool(missing.any()):
            extra = (imputation.uncertainty(last, age) * state.effect).sum(-1).clamp_max(_MOST_UNCERTAINTY)
        if self._config.clip is not None:
            inputs = inputs.clamp(-self._config.clip, self._config.clip)
        if imputation.indicators:
            flags = missing[:, list(imputation.indicators)].to(inputs)
            inputs = torch.cat([inputs, (flags - self.columns.gap_share) / self.columns.gap_scale], dim=-1)
        return Standard(inputs, extra, state)

    @torch.no_grad()
    def _effect(self, online: OnlineEnsemble, inputs: Tensor) -> Tensor:
        """Mean squared changes of predictions at warm-up rows (N, ...) with a column at its mean, shape (K,)."""
        mean = self.columns.scales.X_mean
        effect = torch.zeros_like(mean)
        if not self._adds_noise:
            return effect
        num_rows = inputs.shape[0]
        places = torch.linspace(0, num_rows - 1, min(num_rows, _EFFECT_ROWS), dtype=torch.float64, device=inputs.device)
        rows = inputs[places.round().long()]
        predicted = online.predict(rows).mean
        for column in range(mean.shape[0]):
            if column not in self.columns.inactive:
                without = rows.clone()
                without[:, column] = 0.0
                effect[column] = (online.predict(without).mean - predicted).double().square().mean()
        return effect.clamp_max(_MOST_UNCERTAINTY)
