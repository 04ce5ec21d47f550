"""Several innovation models on the errors of all experts of an ensemble: pure functions, exact in blocks."""

import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.innovations.model import InnovationModel
from gp_ensembles.innovations.one_row import RowModels, update_row
from gp_ensembles.innovations.recursions import (
    AutoregressionState,
    init_autoregression,
    predict_error,
    update_autoregression,
    update_scale,
)
from gp_ensembles.numerics.display import record_text

_NORMAL_DF = 20.0  # of the score that the scale of a normal model follows: gross errors do not make it useless


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

    def __repr__(self) -> str:
        return record_text(self)


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

    def __repr__(self) -> str:
        return record_text(self)


class _Scale(NamedTuple):
    """A recursion of the size of errors, which models that differ only in width share."""

    rate: float
    df: float
    is_autoregressive: bool

    @classmethod
    def of(cls, model: InnovationModel) -> "_Scale":
        return cls(model.rate, min(model.degrees_of_freedom, _NORMAL_DF), model.autoregressive)


@final
class InnovationBank:
    """Innovation models, applied to all experts at once.

    Models that differ only in their width share the recursion of their scale; all share one autoregression.

    Args:
        models: K models.

    Raises:
        ValueError: If there is none, or two are equal.

    Example:
        >>> import torch
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
        self._constants: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._followed = tuple(dict.fromkeys(_Scale.of(model) for model in models))
        self._places = [self._followed.index(_Scale.of(model)) for model in models]
        factors = [_variance(model.degrees_of_freedom) for model in models]
        self.row_models: RowModels = RowModels.of(self.models, self._followed, self._places, factors)

    def init(self, num_experts: int, like: Tensor) -> InnovationState:
        """State before any error, with the dtype and device of ``like``."""
        start = init_autoregression(num_experts, like)
        return InnovationState(like.new_ones(len(self._followed), num_experts), *start)

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
        if mean.shape[1] == 1 and share is None and missing is None and dead is None:
            row = update_row(self.row_models, *state, mean, variance, y)
            if row is not None:
                after_row = InnovationState(*row[:3], torch.zeros_like(state.age))
                return after_row, InnovationPredictions(*row[3:])
        if dead is not None:
            mean, variance = mean.masked_fill(dead[:, None], 0.0), variance.masked_fill(dead[:, None], 1.0)
        errors = y - mean
        if missing is not None:
            errors = errors.masked_fill(missing, 0.0)
        counted = errors if share is None else errors * share
        start = AutoregressionState(state.products, state.last_error, state.age)
        after, drift = update_autoregression(start, counted, variance, missing)
        squares = torch.stack([errors, errors - drift]).square() / variance
        squares = squares.clamp_max(torch.finfo(squares.dtype).max ** 0.5)  # a gross target's square may overflow
        rate, df, rows, _ = self._on(mean)
        scale, scales = update_scale(state.scale, squares[rows], rate, df, missing)
        moments = self._moments(mean, variance, drift, scales)
        log_prob = self._log_prob(squares, scales, variance)
        if missing is not None:
            log_prob = log_prob.masked_fill(missing, torch.nan)
        predictions = InnovationPredictions(moments[0], moments[1], log_prob, moments[2])
        if dead is not None:
            scale = torch.where(dead, state.scale, scale)
            products = torch.where(dead, state.products, after.products)
            after = after._replace(products=products, last_error=after.last_error.masked_fill(dead, 0.0))
            predictions = _without(predictions, dead[:, None, None])
        return InnovationState(scale, *after), predictions

    def predict(self, state: InnovationState, mean: Tensor, variance: Tensor) -> InnovationPredictions:
        """Predict rows that all come next, from the experts' moments (M, N); log densities are NaN."""
        start = AutoregressionState(state.products, state.last_error, state.age)
        drift = predict_error(start).unsqueeze(-1)
        mean, variance, df = self._moments(mean, variance, drift, state.scale.unsqueeze(-1))
        return InnovationPredictions(mean, variance, torch.full_like(mean, torch.nan), df)

    def grow(self, state: InnovationState, num_new: int) -> InnovationState:
        """A state with new experts, without errors so far, appended to the old ones."""
        new = self.init(num_new, state.scale)
        scale, products, errors = (torch.cat([old, more], -1) for old, more in zip(state[:3], new[:3], strict=True))
        return InnovationState(scale, products, errors, state.age)

    def _on(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Rates and degrees of freedom of the V recursions, (V, 1), the errors they follow, (V,); df of models (K,)."""
        key = like.dtype, like.device
        if key not in self._constants:
            numbers = [[f.rate for f in self._followed], [f.df for f in self._followed]]
            rate, df = (torch.tensor(one, dtype=like.dtype, device=like.device).unsqueeze(1) for one in numbers)
            rows = torch.tensor([f.is_autoregressive for f in self._followed], dtype=torch.int64, device=like.device)
            models = [model.degrees_of_freedom for model in self.models]
            degrees = torch.tensor(models, dtype=like.dtype, device=like.device)
            self._constants[key] = rate, df, rows, degrees
        return self._constants[key]

    def _moments(self, mean: Tensor, variance: Tensor, drift: Tensor, scales: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means, variances and degrees of freedom of all models, (M, K, N)."""
        drifted = mean + drift
        means = [drifted if model.autoregressive else mean for model in self.models]
        factors = [model.width * _variance(model.degrees_of_freedom) for model in self.models]
        variances = [variance * scales[v] * f for v, f in zip(self._places, factors, strict=True)]
        df = self._on(mean)[-1][:, None].expand(mean.shape[0], -1, mean.shape[1])
        return torch.stack(means, 1), torch.stack(variances, 1), df

    def _log_prob(self, squares: Tensor, scales: Tensor, variance: Tensor) -> Tensor:
        """Log densities of all models, (M, K, B), from squared errors (2, M, B) in the experts' variances."""
        half_log_variance = 0.5 * variance.log()
        densities = []
        for model, place in zip(self.models, self._places, strict=True):
            scale = scales[place] * model.width
            relative = squares[int(model.autoregressive)] / scale
            densities.append(_kernel(relative, model.degrees_of_freedom) - 0.5 * scale.log() - half_log_variance)
        return torch.stack(densities, 1)


def _variance(df: float) -> float:
    """Variance of a standard Student-t distribution."""
    return 1.0 if math.isinf(df) else df / (df - 2)


def _kernel(square: Tensor, df: float) -> Tensor:
    """Log density of a standard Student-t distribution at a squared value; normal for infinite degrees of freedom."""
    if math.isinf(df):
        return -0.5 * (square + math.log(2 * math.pi))
    constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
    return constant - 0.5 * (df + 1) * torch.log1p(square / df)


def _without(predictions: InnovationPredictions, dead: Tensor) -> InnovationPredictions:
    """The same, with NaN moments and densities of zero for experts that were not run."""
    mean, variance = (part.masked_fill(dead, torch.nan) for part in predictions[:2])
    possible = ~dead | predictions.log_prob.isnan()
    return InnovationPredictions(
        mean, variance, torch.where(possible, predictions.log_prob, -torch.inf), predictions.degrees_of_freedom
    )
