"""The interface of external models: trained on rows, they predict the mean and the standard deviation of targets."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Inputs (N, D) to means and standard deviations, (N,) each; None for the size of past errors.
PredictFunction = Callable[[Tensor], tuple[Tensor, Tensor | None]]

LAST_ERRORS = 500  # their size replaces a deviation that a model does not give
LEAST_DEVIATION = 1e-3  # of standardized targets, as of the noise of other experts
_LEAST_ERRORS = 10
_SCALE_ERRORS, _LEAST_SCALE_ERRORS = 4000, 100  # that a second model learns the scale from
_SMALLEST = 1e-3  # error, in root mean squares of all: its logarithm tells no more of the scale
_LOG_NORMAL = 0.5 * (math.log(2) + 0.5772156649015329)  # minus the mean logarithm of a standard normal number's size


class TrainingRows(NamedTuple):
    """Training data of a model: N observed rows in the order of time, on the CPU, in double precision.

    Attributes:
        inputs: Shape (N, D).
        targets: Shape (N,).
        errors: Target minus the prediction made before it, shape (N,); NaN without a prediction.
    """

    inputs: Tensor
    targets: Tensor
    errors: Tensor


class ModelAdapter(ABC):
    """An external model that is trained from time to time on stored rows.

    Attributes:
        initial: Its forecast before the first training; ``None`` if it has to be trained.
    """

    initial: PredictFunction | None = None

    @abstractmethod
    def fit(self, rows: TrainingRows) -> PredictFunction:
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


def fit_scale(
    rows: TrainingRows, train: Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]
) -> Callable[[Tensor], Tensor] | None:
    """Standard deviations by a second model, trained on the logarithms of the sizes of the last 4000 errors.

    ``train`` takes inputs (N, D) and logarithms (N,). ``None`` while there are fewer than 100 errors.
    """
    known = (~torch.isnan(rows.errors)).nonzero().flatten()[-_SCALE_ERRORS:]
    if known.shape[0] < _LEAST_SCALE_ERRORS:
        return None
    errors = rows.errors[known]
    size = max(float(errors.square().mean().sqrt()), LEAST_DEVIATION)
    expected = train(rows.inputs[known], (errors.abs() + _SMALLEST * size).log())
    # The errors are taken for normal ones.
    return lambda X: (expected(X) + _LOG_NORMAL).exp().clamp_min(LEAST_DEVIATION)


def normal_of_quantiles(quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the normal whose quantiles are closest, in squared distance, to given ones.

    Shapes: ``quantiles`` (N, K), ``levels`` (K,); returns (N,).
    """
    scores = torch.special.ndtri(levels)
    centered = scores - scores.mean()
    deviation = (quantiles * centered).sum(-1) / centered.square().sum()
    return quantiles.mean(-1) - deviation * scores.mean(), deviation


def moments_of(predicted: Tensor, levels: Sequence[float] = ()) -> tuple[Tensor, Tensor | None]:
    """Means (N,) and standard deviations (N,) from predictions of N rows; ``None`` for deviations of means alone.

    ``predicted`` has shape (N,) for means, (N, K) for K levels, or for K members of an ensemble where there are none.

    Raises:
        ValueError: If there are not as many columns as levels.
    """
    if levels:
        if predicted.ndim != 2 or predicted.shape[-1] != len(levels):
            raise ValueError(f"{len(levels)} quantiles per row were expected, got shape {tuple(predicted.shape)}")
        return normal_of_quantiles(predicted, predicted.new_tensor(list(levels)))
    if predicted.ndim == 2 and predicted.shape[-1] > 1:
        return predicted.mean(-1), predicted.std(-1)
    return (predicted.squeeze(-1) if predicted.ndim == 2 else predicted), None


def check_levels(levels: Sequence[float]) -> None:
    """Raise a ValueError unless levels are empty, or at least two distinct probabilities."""
    legal = all(0 < level < 1 for level in levels) and len(set(levels)) == len(levels) != 1
    if not legal:
        raise ValueError(f"levels must be at least two distinct probabilities between 0 and 1, got {tuple(levels)}")
