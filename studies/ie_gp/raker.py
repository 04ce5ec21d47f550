"""Online multi-kernel gradient descent on random features: the rival that has no posterior."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures

STEPS = (0.3, 1.0, 3.0, 10.0, 30.0)  # in units of one over the square root of the stream's length
PENALTIES = (0.0, 1e-4, 1e-2)
_MAX_STEP = 0.9  # features have norm one, so that steps below one cannot diverge on a single row
_ROWS = 256  # rows whose features are computed at once
State = TypeVar("State")


class Loss(NamedTuple):
    """A loss of a prediction and a target.

    Attributes:
        value: The loss, from predictions (...) and a target that broadcasts.
        slope: Its derivative by the prediction.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _log_loss(score: Tensor, label: Tensor) -> Tensor:
    return torch.nn.functional.softplus(score) - label * score


SQUARED = Loss(lambda value, y: (y - value).square(), lambda value, y: 2 * (value - y))
LOGISTIC = Loss(_log_loss, lambda score, label: score.sigmoid() - label)  # of labels 0 and 1


class RakerState(NamedTuple):
    r"""What gradient descent has learned.

    Attributes:
        weights: Weights of the features of each of M kernels, shape (\*batch, M, F).
        log_weights: Unnormalized log weights of the kernels, shape (\*batch, M).
    """

    weights: Tensor
    log_weights: Tensor


class RakerSettings(NamedTuple):
    r"""How it learns; entries of a batch learn side by side.

    Attributes:
        step: Step size :math:`\eta` of the weights and of the multiplicative update alike, shape (\*batch).
        penalty: Strength :math:`\lambda` of the penalty on the weights' squared norm, shape (\*batch).
    """

    step: Tensor
    penalty: Tensor


def init_raker(Phi: Tensor, settings: RakerSettings) -> RakerState:
    """The state before any row, for features (M, B, F) of the kind of ``Phi``."""
    shape = (*settings.step.shape, Phi.shape[0], Phi.shape[-1])
    return RakerState(Phi.new_zeros(shape), Phi.new_zeros(shape[:-1]))


def descend_(state: RakerState, Phi: Tensor, values: Tensor, y: Tensor, settings: RakerSettings, loss: Loss) -> None:
    r"""Learn a row in place: features (M, F), what each kernel says (\*batch, M) and the target."""
    step, penalty = settings.step.unsqueeze(-1), settings.penalty.unsqueeze(-1)
    cost = loss.value(values, y) + penalty * state.weights.square().sum(-1)
    slope = step * loss.slope(values, y)
    state.log_weights.sub_(step * cost)
    state.weights.mul_((1 - 2 * step * penalty).unsqueeze(-1)).sub_(slope.unsqueeze(-1) * Phi)


@torch.no_grad()
def run_raker(
    state: RakerState, Phi: Tensor, y: Tensor, settings: RakerSettings, loss: Loss = SQUARED
) -> tuple[RakerState, Tensor]:
    r"""Predict each target, then descend: the algorithm Raker of Shen, Chen and Giannakis (2019), section 3.

    With the loss :math:`L_{m,t} = \ell(\phi_{m,t}^\top \theta_m, y_t) + \lambda \|\theta_m\|^2` of kernel m,

    .. math::
        \hat y_t = \sum_m \bar w_{m,t} \phi_{m,t}^\top \theta_{m,t}, \quad
        \theta_{m,t+1} = \theta_{m,t} - \eta \nabla L_{m,t}, \quad w_{m,t+1} = w_{m,t} e^{-\eta L_{m,t}},

    where the bar normalizes. The weights stay in logarithms, so that no kernel is lost to underflow.

    Args:
        state: State before the rows.
        Phi: Features of each kernel, shape (M, B, F).
        y: Targets, shape (B,); NaN where missing, from which nothing is learned.
        settings: Step sizes and penalties, shape (\*batch).
        loss: :data:`SQUARED`, or :data:`LOGISTIC` for labels 0 and 1, of which predictions are the log odds.

    Returns:
        The state after the rows, and the predictions made before each target, shape (\*batch, B).

    Raises:
        ValueError: If the shapes do not fit.

    Example:
        >>> Phi = torch.ones(1, 3, 1, dtype=torch.float64, device="cpu")
        >>> settings = RakerSettings(Phi.new_tensor(0.25), Phi.new_tensor(0.0))
        >>> state, mean = run_raker(init_raker(Phi, settings), Phi, Phi.new_tensor([1.0, 1.0, 1.0]), settings)
        >>> mean
        tensor([0.0000, 0.5000, 0.7500], dtype=torch.float64)
    """
    check_rows(Phi, y)
    state = RakerState(state.weights.clone(), state.log_weights.clone())
    means, missing = [], torch.isnan(y).tolist()
    for t, features in enumerate(Phi.unbind(1)):
        values = (state.weights * features).sum(-1)
        means.append((state.log_weights.softmax(-1) * values).sum(-1))
        if not missing[t]:
            descend_(state, features, values, y[t], settings, loss)
    return state, torch.stack(means, -1)


def check_rows(Phi: Tensor, y: Tensor) -> None:
    """Raise unless features are (M, B, F) and targets (B,)."""
    if Phi.ndim != 3 or y.shape != Phi.shape[1:2]:
        raise ValueError(f"Phi must be (M, B, F) and y (B,), got {tuple(Phi.shape)} and {tuple(y.shape)}")


def run_rows(
    run: Callable[[State, Tensor, Tensor], tuple[State, Tensor]],
    state: State,
    features: BoundFeatures,
    X: Tensor,
    y: Tensor,
) -> tuple[State, Tensor]:
    """A run over features and targets, from inputs X (N, D): their features are computed a few rows at a time."""
    parts = []
    for rows, targets in zip(X.split(_ROWS), y.split(_ROWS), strict=True):
        state, mean = run(state, features(rows), targets)
        parts.append(mean)
    return state, torch.cat(parts, -1)


def tuned_raker(
    features: BoundFeatures,
    X: Tensor,
    y: Tensor,
    num_rows: int,
    loss: Loss = SQUARED,
    steps: Sequence[float] = STEPS,
    penalties: Sequence[float] = PENALTIES,
) -> tuple[RakerState, RakerSettings]:
    r"""The setting that predicts the warm-up rows best, and what it has learned from them.

    Step sizes are of the order :math:`1/\sqrt T` that the regret bound asks for, with factors from a grid.

    Args:
        features: Features of M kernels, as a plain function.
        X: Warm-up inputs, shape (N, D).
        y: Warm-up targets, shape (N,); NaN where missing.
        num_rows: Length T of the stream, the warm-up rows included.
        loss: What is to be small.
        steps: Factors of :math:`1/\sqrt T`.
        penalties: Penalties.

    Raises:
        ValueError: If ``num_rows`` is not positive.
    """
    if num_rows < 1:
        raise ValueError(f"the stream must have at least one row, got {num_rows}")
    grid = X.new_tensor(
        [(min(factor / num_rows**0.5, _MAX_STEP), penalty) for factor in steps for penalty in penalties]
    )
    settings = RakerSettings(grid[:, 0], grid[:, 1])
    run = partial(run_raker, settings=settings, loss=loss)
    state, mean = run_rows(run, init_raker(features(X[:1]), settings), features, X, y)
    best = least(mean, y, loss)
    return RakerState(state.weights[best], state.log_weights[best]), RakerSettings(grid[best, 0], grid[best, 1])


def least(mean: Tensor, y: Tensor, loss: Loss) -> int:
    """Which of S predictions (S, N) loses least on the targets (N,) that were observed."""
    seen = ~torch.isnan(y)
    return int(torch.nan_to_num(loss.value(mean[:, seen], y[seen]).mean(-1), nan=torch.inf).argmin())
