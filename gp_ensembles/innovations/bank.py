"""Innovation models on the errors of all experts of an ensemble: pure functions, exact in blocks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.innovations import recursions
from gp_ensembles.innovations.recursions import Models
from gp_ensembles.numerics.backends import arrays_of, as_arrays, rows_of
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.numerics.reductions import readable_flags

_LEAST_DF = 2.0  # below, a Student-t distribution has no variance
_NORMAL_DF = 20.0  # of the score that the scale of a normal model follows: gross errors do not make it useless


@final
@dataclass(frozen=True)
class InnovationModel:
    r"""A further prediction, made from an expert's own one-step prediction and its past errors.

    With the expert's prediction :math:`N(m_t, s_t^2)` and its past errors :math:`e = y - m`, the target has location
    :math:`m_t + h_t` and squared scale :math:`c\, g_t s_t^2`, normal or Student-t with :math:`\nu` degrees of freedom:
    :math:`h_t` is the prediction of a first-order autoregression of the errors, :math:`g_t` follows their size.

    Attributes:
        degrees_of_freedom: :math:`\nu`, above 2; infinity for the normal distribution.
        rate: Share of the newest error in :math:`g_t`, from 0 (the expert's own scale, :math:`g_t = 1`) to below 1.
        width: c, a fixed factor of the squared scale; one that is small makes a narrow peak with heavy tails.
        autoregressive: Whether errors are predicted from the one before; else :math:`h_t = 0`.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> InnovationModel(degrees_of_freedom=4, rate=0.1).label
        'ar t4 rate 0.1'
    """

    degrees_of_freedom: float = math.inf
    rate: float = 0.05
    width: float = 1.0
    autoregressive: bool = True

    def __post_init__(self) -> None:
        if not self.degrees_of_freedom > _LEAST_DF:
            raise ValueError(f"degrees_of_freedom must be above {_LEAST_DF:g}, got {self.degrees_of_freedom}")
        if not 0 <= self.rate < 1:
            raise ValueError(f"rate must be at least 0 and below 1, got {self.rate}")
        if not 0 < self.width < math.inf:
            raise ValueError(f"width must be positive and finite, got {self.width}")
        if not isinstance(self.autoregressive, bool):
            raise TypeError(f"autoregressive must be True or False, got {self.autoregressive!r}")

    @property
    def label(self) -> str:
        """Its name, which follows that of an expert."""
        kind = "normal" if math.isinf(self.degrees_of_freedom) else f"t{self.degrees_of_freedom:g}"
        parts = ["ar"] * self.autoregressive + [kind, f"rate {self.rate:g}"]
        return " ".join([*parts, *([f"width {self.width:g}"] if self.width != 1 else [])])


@prints_fields
class InnovationState(NamedTuple):
    """State of the innovation models of M experts between two targets.

    Attributes:
        scale: Size of past errors in the experts' variances, one row for each of V models that follow it, (V, M).
        products: Sums of the autoregression of errors, shape (2, M).
        last_error: The last error that was observed, shape (M,).
        age: Rows since then, a scalar.
    """

    scale: Tensor
    products: Tensor
    last_error: Tensor
    age: Tensor


@prints_fields
class InnovationPredictions(NamedTuple):
    """Predictions of K models for each of M experts, one step ahead each.

    Attributes:
        mean: Location, which is the mean, shape (M, K, B).
        variance: Variance (not the squared scale), shape (M, K, B).
        log_prob: Log density of the target, shape (M, K, B); NaN where there is none.
        degrees_of_freedom: Infinity for a normal prediction, shape (M, K, B).
    """

    mean: Tensor
    variance: Tensor
    log_prob: Tensor
    degrees_of_freedom: Tensor


@final
class InnovationBank:
    """Innovation models, applied to all experts at once.

    Models that differ only in their width share the recursion of their scale; all share one autoregression.

    Args:
        models: K models.

    Raises:
        ValueError: If there is none, or two are equal.

    Example:
        >>> bank = InnovationBank([InnovationModel(rate=0.1)])
        >>> mean = torch.zeros(1, 200, dtype=torch.float64)
        >>> variance = torch.ones_like(mean)
        >>> generator = torch.Generator().manual_seed(0)
        >>> # three times as large as predicted
        >>> y = 3 * torch.randn(200, generator=generator, dtype=torch.float64)
        >>> state, predictions = bank.update_block(bank.init(1, mean), mean, variance, y)
        >>> float(predictions.variance[0, 0, 100:].mean().sqrt().round())
        3.0
    """

    def __init__(self, models: Sequence[InnovationModel]) -> None:
        if not models or len(set(models)) < len(models):
            raise ValueError(f"innovation models must be at least one and distinct, got {list(models)}")
        self.models: tuple[InnovationModel, ...] = tuple(models)
        self._followed = tuple(dict.fromkeys(map(_recursion, models)))
        self._constants: dict[tuple[torch.dtype, torch.device], Models] = {}
        on_processor = self.constants(torch.zeros((), dtype=torch.float64, device="cpu"))
        arrays = {name: value.numpy() for name, value in on_processor._asdict().items() if name != "most"}
        self.row_constants: Models = Models(**arrays, most=on_processor.most)

    def constants(self, like: Tensor) -> Models:
        """The models' numbers, with the dtype and device of ``like``."""
        key = like.dtype, like.device
        if key not in self._constants:
            of_scales = [(1 - rate, rate * (df + 1), df, follows) for rate, df, follows in self._followed]
            places = [self._followed.index(_recursion(model)) for model in self.models]
            of_models = [
                (
                    model.autoregressive,
                    model.width,
                    model.width * _variance(df),
                    math.isinf(df),
                    1.0 if math.isinf(df) else df,
                    _peak(df),
                )
                for model in self.models
                for df in [model.degrees_of_freedom]
            ]
            keep, gain, df, drifts, *rest = (
                torch.tensor(numbers, dtype=like.dtype, device=like.device).unsqueeze(1)
                for numbers in (*zip(*of_scales, strict=True), *zip(*of_models, strict=True))
            )
            shifts, width, factor, is_normal, model_df, constant = rest
            where = torch.tensor(places, dtype=torch.int64, device=like.device)
            most = torch.finfo(like.dtype).max ** 0.5
            self._constants[key] = Models(
                keep, gain, df, drifts > 0, where, shifts, width, factor, is_normal > 0, model_df, constant, most
            )
        return self._constants[key]

    @property
    def degrees_of_freedom(self) -> list[float]:
        """Those of the models, infinity for normal ones."""
        return [model.degrees_of_freedom for model in self.models]

    def init(self, num_experts: int, like: Tensor) -> InnovationState:
        """State before any error, with the dtype and device of ``like``: nothing is predicted of the next one."""
        products = torch.stack([like.new_zeros(num_experts), like.new_ones(num_experts)])
        scale = like.new_ones(len(self._followed), num_experts)
        return InnovationState(scale, products, like.new_zeros(num_experts), like.new_zeros(()))

    def update_block(
        self,
        state: InnovationState,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        *,
        share: Tensor | None = None,
        missing: Tensor | None = None,
        dead: Tensor | None = None,
    ) -> tuple[InnovationState, InnovationPredictions]:
        """Predict each target, then learn the experts' errors; any blocking gives the same numbers.

        Args:
            state: State before the block.
            mean: The experts' means, shape (M, B).
            variance: Their variances, shape (M, B).
            y: Targets, shape (B,).
            share: Weight of each error in the autoregression, shape (B,): less than one for an outlier.
            missing: Which targets are missing, shape (B,); ``None`` if none is. They keep the state.
            dead: Which experts were not run, shape (M,); ``None`` if all were. They keep their scale and the sums of
                their autoregression but have no last error; their moments are NaN and their densities zero.

        Returns:
            State after the block, and the predictions made before each target.
        """
        mean, variance = mean.mT, variance.mT
        if dead is not None:
            mean, variance = mean.masked_fill(dead, 0.0), variance.masked_fill(dead, 1.0)
        given: Sequence[Any] = (*state, mean, variance, y, torch.ones_like(y) if share is None else share)
        newest = None if missing is None else recursions.newest_of(missing)
        known = None if missing is None else readable_flags(missing)
        arrays = as_arrays(*given)
        if arrays is None:
            found = self._of_block(recursions, self.constants(mean), given, newest, known)
        else:
            rows = None if newest is None else newest.numpy()
            with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
                found = self._of_block(arrays_of(recursions), self.row_constants, arrays, rows, known)
        scale, products, last_error, age, means, variances, log_prob = map(torch.as_tensor, found)
        if missing is not None:
            log_prob = log_prob.masked_fill(missing[:, None, None], torch.nan)
        predictions = self._packed(means, variances, log_prob)
        if dead is not None:
            scale, products = torch.where(dead, state.scale, scale), torch.where(dead, state.products, products)
            last_error = last_error.masked_fill(dead, 0.0)
            predictions = _without(predictions, dead[:, None, None])
        return InnovationState(scale, products, last_error, age), predictions

    def predict(self, state: InnovationState, mean: Tensor, variance: Tensor) -> InnovationPredictions:
        """Predict rows that all come next, from the experts' moments (M, N); log densities are NaN."""
        drift = recursions.predict_error(*state.products.unbind(-2), state.last_error, state.age)
        means, variances = recursions.moments(self.constants(mean), state.scale, mean.mT, variance.mT, drift)
        return self._packed(means, variances, torch.full_like(means, torch.nan))

    def grow(self, state: InnovationState, num_new: int) -> InnovationState:
        """A state with new experts, without errors so far, appended to the old ones."""
        new = self.init(num_new, state.scale)
        scale, products, errors = (torch.cat([old, more], -1) for old, more in zip(state[:3], new[:3], strict=True))
        return InnovationState(scale, products, errors, state.age)

    def _of_block(
        self, formulas: Any, models: Models, given: Sequence[Any], newest: Any, known: Sequence[bool] | None
    ) -> tuple[Any, ...]:
        """The state after a block (B, M), means, variances and log densities (B, K, M), on tensors or on arrays."""
        scale, start, last, age, mean, variance, y, counts = given
        xp, where, errors = formulas.xp, formulas.where, y[:, None] - mean
        seen = None if newest is None else (newest[1:] > newest[:-1])[:, None]
        if seen is not None:
            errors = where(seen, errors, 0.0)
        counted = errors * counts[:, None]
        previous, ages, is_pair = formulas.neighbors(last, age, counted, newest)
        sums = formulas.sums_of_block(start, (previous, ages, is_pair), counted, variance)
        drift = formulas.predict_error(sums[0, :-1], sums[1, :-1], previous[:-1], ages[:-1])
        plain, drifted = formulas.squared_errors(models, errors, variance, drift)
        ratios, scales = formulas.ratios(models, plain, drifted), []
        step = (recursions if xp is torch else rows_of(recursions)).next_scale
        for row, ratio in enumerate(ratios):
            scales.append(scale)
            if known is None or not known[row]:
                after = step(models.keep, models.gain, scale, ratio)
                scale = after if seen is None or known is not None else where(seen[row], after, scale)
        befores = xp.stack(scales) if scales else xp.zeros_like(ratios)
        moments = formulas.moments(models, befores, mean, variance, drift)
        log_prob = formulas.log_densities(models, befores, variance, plain, drifted)
        return scale, sums[:, -1], previous[-1], ages[-1, 0], *moments, log_prob

    def _packed(self, mean: Tensor, variance: Tensor, log_prob: Tensor) -> InnovationPredictions:
        """Predictions (M, K, B) from parts (B, K, M)."""
        models = self.constants(mean)
        df = torch.where(models.is_normal, torch.inf, models.df).expand(mean.shape[-1], -1, len(mean))
        mean, variance, log_prob = (part.permute(2, 1, 0) for part in (mean, variance, log_prob))
        return InnovationPredictions(mean, variance, log_prob, df)


def _recursion(model: InnovationModel) -> tuple[float, float, bool]:
    """Rate, degrees of freedom and drift of its recursion of the size of errors; models of several widths share one."""
    return model.rate, min(model.degrees_of_freedom, _NORMAL_DF), model.autoregressive


def _variance(df: float) -> float:
    """Variance of a standard Student-t distribution."""
    return 1.0 if math.isinf(df) else df / (df - 2)


def _peak(df: float) -> float:
    """Log density of a standard Student-t distribution at zero."""
    if math.isinf(df):
        return -0.5 * math.log(2 * math.pi)
    return math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)


def _without(predictions: InnovationPredictions, dead: Tensor) -> InnovationPredictions:
    """The same, with NaN moments and densities of zero for experts that were not run."""
    mean, variance = (part.masked_fill(dead, torch.nan) for part in predictions[:2])
    possible = ~dead | predictions.log_prob.isnan()
    return InnovationPredictions(
        mean, variance, torch.where(possible, predictions.log_prob, -torch.inf), predictions.degrees_of_freedom
    )
