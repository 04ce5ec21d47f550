"""What an external model has to offer: trained on rows, it predicts the mean and the deviation of targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Inputs (N, D) to means and standard deviations, (N,) each; None for the size of past errors.
Forecast = Callable[[Tensor], tuple[Tensor, Tensor | None]]

LAST_ERRORS = 500  # whose size stands in for a deviation that a model does not state
LEAST_DEVIATION = 1e-3  # of standardized targets, as of the noise of other experts
_LEAST_ERRORS = 10
_SCALE_ERRORS, _LEAST_SCALE_ERRORS = 4000, 100  # that a second model learns the scale from
_SMALLEST = 1e-3  # error, in root mean squares of all: its logarithm tells no more of the scale
_LOG_NORMAL = 0.5 * (math.log(2) + 0.5772156649015329)  # minus the mean logarithm of a standard normal number's size


class TrainingRows(NamedTuple):
    """What a model is trained on: N observed rows in the order of time, on the CPU, in double precision.

    Attributes:
        inputs: Shape (N, D).
        targets: Shape (N,).
        errors: What was left of each target by the prediction made before it, shape (N,); NaN where there was none.
    """

    inputs: Tensor
    targets: Tensor
    errors: Tensor


class ModelAdapter(ABC):
    """An external model, trained now and then on rows that were stored.

    Attributes:
        initial: What it forecasts before it is trained; ``None`` for one that has to be.
    """

    initial: Forecast | None = None

    @abstractmethod
    def fit(self, rows: TrainingRows) -> Forecast:
        """Train on rows from scratch.

        Returns: a function of inputs (N, D), double precision on the CPU, that gives means (N,) and standard deviations
        (N,). ``None`` instead of these means the size of the model's last errors.
        """


def error_size(rows: TrainingRows) -> float:
    """Root mean square of the last 500 errors; while there are fewer than ten, the targets' standard deviation."""
    values = rows.errors[~torch.isnan(rows.errors)][-LAST_ERRORS:]
    if values.shape[0] < _LEAST_ERRORS:
        values = rows.targets - rows.targets.mean()
    return max(math.sqrt(float(values.square().mean())), LEAST_DEVIATION)


class ScaleRows(NamedTuple):
    """What a second model learns the scale of errors from: logarithms of past errors, N of them.

    Attributes:
        inputs: Shape (N, D).
        logarithms: Shape (N,).
    """

    inputs: Tensor
    logarithms: Tensor


def scale_rows(rows: TrainingRows) -> ScaleRows | None:
    """The last 4000 errors as logarithms of their size; ``None`` while there are fewer than 100."""
    known = (~torch.isnan(rows.errors)).nonzero().flatten()[-_SCALE_ERRORS:]
    if known.shape[0] < _LEAST_SCALE_ERRORS:
        return None
    errors = rows.errors[known]
    size = max(float(errors.square().mean().sqrt()), LEAST_DEVIATION)
    return ScaleRows(rows.inputs[known], (errors.abs() + _SMALLEST * size).log())


def scale_deviation(logarithms: Tensor) -> Tensor:
    """Standard deviations from expected logarithms of the size of normal errors."""
    return (logarithms + _LOG_NORMAL).exp().clamp_min(LEAST_DEVIATION)


def normal_of_quantiles(quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the normal whose quantiles are closest, in squared distance, to given ones.

    Shapes: ``quantiles`` (N, K), ``levels`` (K,); returns (N,).
    """
    scores = torch.special.ndtri(levels)
    centered = scores - scores.mean()
    deviation = (quantiles * centered).sum(-1) / centered.square().sum()
    return quantiles.mean(-1) - deviation * scores.mean(), deviation


def moments_of(predicted: Tensor, levels: Sequence[float] = ()) -> tuple[Tensor, Tensor | None]:
    """Means and deviations from what a model says of N rows.

    Shapes: ``predicted`` (N,) or (N, 1). Returns: means (N,), and deviations (N,); ``None`` where only a mean was
    said.

    Raises:
        ValueError: If there are not as many columns as levels.
    """
    if levels:
        if predicted.ndim != 2 or predicted.shape[-1] != len(levels):
            raise ValueError(f"{len(levels)} quantiles a row were expected, got shape {tuple(predicted.shape)}")
        return normal_of_quantiles(predicted, predicted.new_tensor(list(levels)))
    if predicted.ndim == 2 and predicted.shape[-1] > 1:
        return predicted.mean(-1), predicted.std(-1)
    return (predicted.squeeze(-1) if predicted.ndim == 2 else predicted), None


def check_levels(levels: Sequence[float]) -> None:
    """Raise a ValueError unless levels are none, or at least two distinct probabilities."""
    legal = all(0 < level < 1 for level in levels) and len(set(levels)) == len(levels) != 1
    if not legal:
        raise ValueError(f"levels must be at least two distinct probabilities between 0 and 1, got {tuple(levels)}")
