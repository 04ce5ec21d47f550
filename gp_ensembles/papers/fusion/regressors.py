"""Regressors with scikit-learn's interface as experts, with scales learned from errors on other rows."""

import copy
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.papers.fusion.cross_validation import random_folds
from gp_ensembles.papers.fusion.experts import ExpertPredictions, PredictiveExpert, check_inputs
from gp_ensembles.papers.fusion.known_rows import Regressor, known_rows

# Fewest rows for a scale; folds in which scales are compared; Newton steps for one.
_FEWEST, _FOLDS, _STEPS = 10, 5, 50
# Nats that a step must gain; the least part of one.
_TOLERANCE = 1e-7
# Folds of regressors that are fitted again.
_FITS = 10
# A scale that depends on the input must gain this many standard errors.
_EVIDENCE = 2.0


class ErrorScale(NamedTuple):
    r"""The variance of a regressor's errors, :math:`\log v(x) = a + \log v_0(x) + b^\top (g(x) - c) / s`.

    Args:
        level: The constant a, a scalar.
        slope: Slopes b, shape (D + 1,); zeros where the scale does not depend on the input.
        center: Centers c, shape (D + 1,).
        spread: Standard deviations s, shape (D + 1,).
    """

    level: Tensor
    slope: Tensor
    center: Tensor
    spread: Tensor

    def variance(self, X: Tensor, mean: Tensor, own: Tensor) -> Tensor:
        """Variances at inputs X (N, D) with predictions and stated variances (N,), shape (N,)."""
        g = (torch.cat([X, mean.unsqueeze(-1)], -1) - self.center) / self.spread
        # No further from the center than the rows were, so that a line in the logarithm does not run away.
        return own * (self.level + g.clamp(-3.0, 3.0) @ self.slope).exp()


@final
class RegressorExpert(PredictiveExpert):
    """A fitted regressor with the scale of its errors; :func:`scale_regressors` and :func:`cross_fit` make it."""

    def __init__(self, regressor: Regressor, scale: ErrorScale) -> None:
        self.regressor = regressor
        self.scale = scale

    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions of the targets at inputs X (N, D), shapes (1, N), without separate noise.

        Raises:
            ValueError: If the regressor does not predict one finite number for each row.
        """
        mean, own = _predicted(self.regressor, X, f"a {type(self.regressor).__name__}")
        return _row(mean, self.scale.variance(X, mean, own))


class ScaledRegressors(NamedTuple):
    """Regressors as experts.

    Attributes:
        experts: The experts, for future rows.
        predictions: Their predictions of the rows given, shapes (K, N), for the weights: no mean has seen its own
            target.
    """

    experts: list[RegressorExpert]
    predictions: ExpertPredictions


def scale_regressors(regressors: Sequence[Regressor], X: Tensor, y: Tensor) -> ScaledRegressors:
    """Fitted regressors with scales learned from their errors on rows that they have not seen.

    The scale is a constant (times the regressor's own deviations where it states them) unless one that depends
    log-linearly on the inputs and the prediction has a better held-out log density by two standard errors. The scale of
    each row's prediction is learned from the other folds.

    Args:
        regressors: K fitted regressors.
        X: Inputs that none of them was fitted to, shape (N, D), at least ten.
        y: Targets, shape (N,).

    Returns:
        The experts, and their predictions of these rows.

    Raises:
        TypeError: If one is not a regressor.
        ValueError: If shapes do not fit, rows are too few or not finite, or a regressor has no errors.

    Example:
        >>> from sklearn.linear_model import LinearRegression
        >>> import torch
        >>> X = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(-1)
        >>> y = X.squeeze(-1).sin()
        >>> line = LinearRegression().fit(X[:20].numpy(), y[:20].numpy())
        >>> scaled = scale_regressors([line], X[20:], y[20:])
        >>> scaled.predictions.mean.shape, scaled.experts[0].predict(X[:3]).mean.shape
        (torch.Size([1, 20]), torch.Size([1, 3]))
    """
    found = scale_numbered(dict(enumerate(regressors)), X, y)
    for k, one in enumerate(regressors):
        if shared := known_rows(one, X, y):
            warnings.warn(
                f"{_name(one, k)} was fitted to {shared} of these {len(X)} rows, and its errors are smaller here than "
                "elsewhere: give other rows, or take cross_fit",
                stacklevel=2,
            )
    return found


def scale_numbered(regressors: Mapping[int, Regressor], X: Tensor, y: Tensor) -> ScaledRegressors:
    """As :func:`scale_regressors`, for regressors that have numbers among other experts, which errors name."""
    _checked_rows(X, y)
    predicted = [_predicted(_checked(one, k), X, _name(one, k)) for k, one in regressors.items()]
    return _scaled(regressors, X, y, predicted, torch.arange(len(y), device=y.device) % _FOLDS)


def cross_fit(
    regressors: Sequence[Regressor],
    X: Tensor,
    y: Tensor,
    folds: Tensor | None = None,
    *,
    generator: torch.Generator | None = None,
) -> ScaledRegressors:
    """Fit regressors to all rows, with scales and predictions from fits to the other folds.

    Every row serves both the regressors and the weights: the weights are learned from out-of-fold predictions.

    Args:
        regressors: K regressors; copies are fitted, these stay as they are.
        X: Inputs, shape (N, D), at least ten.
        y: Targets, shape (N,).
        folds: The fold of each row, integers of shape (N,), such as groups that belong together; ten random ones if
            ``None``.
        generator: Source of randomness of the folds; torch's global one if ``None``.

    Returns:
        The experts, fitted to all rows, and their out-of-fold predictions.

    Raises:
        TypeError: If one is not a regressor.
        ValueError: If shapes do not fit, rows are too few or not finite, all rows are in one fold, or a regressor has
            no errors.

    Example:
        >>> from sklearn.linear_model import LinearRegression
        >>> import torch
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> found = cross_fit([LinearRegression()], X, X.squeeze(-1).exp(), torch.arange(20) % 4)
        >>> found.predictions.log_prob(X.squeeze(-1).exp()).shape
        torch.Size([1, 20])
    """
    _checked_rows(X, y)
    if folds is None:
        folds = random_folds(X, _FITS, generator=generator)
    if folds.shape != y.shape or len(folds.unique()) < 2:
        raise ValueError(f"folds must have shape ({len(y)},) and at least two values, got {tuple(folds.shape)}")
    fitted, predicted = [], []
    for k, one in enumerate(regressors):
        mean, own = torch.empty_like(y), torch.empty_like(y)
        for label in folds.unique():
            held_out = folds == label
            fold = _fitted(_checked(one, k), X[~held_out], y[~held_out])
            mean[held_out], own[held_out] = _predicted(fold, X[held_out], _name(one, k))
        fitted.append(_fitted(one, X, y))
        predicted.append((mean, own))
    return _scaled(dict(enumerate(fitted)), X, y, predicted, folds)


def _name(regressor: object, number: int) -> str:
    return f"expert {number}, a {type(regressor).__name__},"


def _fitted(regressor: Regressor, X: Tensor, y: Tensor) -> Regressor:
    fresh = copy.deepcopy(regressor)
    fresh.fit(X.cpu().numpy(), y.cpu().numpy())
    return fresh


def _checked(regressor: object, number: int) -> Regressor:
    if not isinstance(regressor, Regressor):
        raise TypeError(f"{_name(regressor, number)} is no regressor: it needs fit and predict")
    return regressor


def _checked_rows(X: Tensor, y: Tensor) -> None:
    check_inputs(X)
    if y.shape != X.shape[:1] or not bool(y.isfinite().all()):
        raise ValueError(f"targets must be finite, of shape ({X.shape[0]},) as the inputs, got {tuple(y.shape)}")
    if len(y) < _FEWEST:
        raise ValueError(f"{len(y)} rows are too few to learn the scale of errors: give at least {_FEWEST}")


def _predicted(regressor: Regressor, X: Tensor, who: str) -> tuple[Tensor, Tensor]:
    """A regressor's predictions, and the variances that it states or ones, each (N,); errors say who it is."""
    rows = X.detach().cpu().numpy()
    states = "return_std" in inspect.signature(regressor.predict).parameters
    try:
        if states:
            mean, deviation = regressor.predict(rows, return_std=True)  # type: ignore[call-arg]
        else:
            mean, deviation = regressor.predict(rows), np.ones(len(rows))
    except ValueError as error:  # not fitted, or to rows of another width: scikit-learn's errors for both are these
        raise ValueError(f"{who} does not predict these rows of {X.shape[1]} column(s): {error}") from error
    found = (
        torch.as_tensor(np.asarray(mean)).to(X).reshape(-1),
        torch.as_tensor(np.asarray(deviation)).to(X).reshape(-1),
    )
    for part in found:
        if part.shape != X.shape[:1] or not bool(part.isfinite().all()):
            raise ValueError(
                f"{who} must predict one finite number for each of {len(X)} rows, got shape {tuple(part.shape)}"
            )
    if not bool((found[1] > 0).all()):
        raise ValueError(f"{who} states deviations that are not positive; wrap it in a custom PredictiveExpert")
    return found[0], found[1].square()


def _scaled(
    regressors: Mapping[int, Regressor], X: Tensor, y: Tensor, predicted: list[tuple[Tensor, Tensor]], folds: Tensor
) -> ScaledRegressors:
    experts, rows = [], []
    for (k, regressor), (mean, own) in zip(regressors.items(), predicted, strict=True):
        error = (y - mean) / own.sqrt()
        if not float(error.square().mean().sqrt()) > 1e-9 * max(float(y.std()), 1e-300) / float(own.sqrt().amax()):
            raise ValueError(
                f"{_name(regressor, k)} makes no errors on these rows, so it has seen them or "
                "copies the targets: give rows that it was not fitted to"
            )
        g = torch.cat([X, mean.unsqueeze(-1)], -1)
        center, spread = g.mean(0), g.std(0)
        spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        g = ((g - center) / spread).clamp(-3.0, 3.0)
        labels = folds.unique()
        held_out = torch.empty(2, len(y), dtype=y.dtype, device=y.device)
        for label in labels:
            inside = folds == label
            for kind, design in enumerate((g[:, :0], g)):
                level, slope = log_linear(design[~inside], error[~inside])
                held_out[kind, inside] = level + design[inside] @ slope
        constant, linear = (normal.log_prob(error, torch.zeros_like(error), some.exp()) for some in held_out)
        gain = linear - constant
        depends = bool(gain.mean() > _EVIDENCE * gain.std() / len(gain) ** 0.5)
        level, slope = log_linear(g if depends else g[:, :0], error)
        slope = slope if depends else torch.zeros_like(center)
        experts.append(RegressorExpert(regressor, ErrorScale(level, slope, center, spread)))
        rows.append(_row(mean, own * held_out[int(depends)].exp()))
    if not rows:
        raise ValueError("at least one regressor is needed, got none")
    predictions = ExpertPredictions(*(torch.cat(parts) for parts in zip(*rows, strict=True)))
    return ScaledRegressors(experts, predictions.check())


def log_linear(design: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    r"""Level and slopes of the log variance of errors, with standard normal priors of the slopes, by Newton's method.

    .. math:: \min_{a, b} \tfrac12 \sum_i \left(\eta_i + e_i^2 \exp(-\eta_i)\right) + \tfrac12 b^\top b, \quad
              \eta_i = a + b^\top g_i

    Shapes: ``design`` (N, P), ``error`` (N,). Returns: the level a, shape (), and the slopes b, shape (P,).
    """
    square = error.square()
    # Errors of zero in all of a fold would leave no logarithm.
    level = square.mean().clamp_min(torch.finfo(error.dtype).tiny).log()
    G = torch.cat([torch.ones_like(error).unsqueeze(-1), design], -1)
    b = torch.zeros_like(G[0])
    b[0] = level
    if not design.shape[1]:
        return level, b[1:]
    prior = torch.ones_like(b)
    prior[0] = 0.0

    def loss(b: Tensor) -> Tensor:
        eta = G @ b
        return 0.5 * (eta + square * (-eta).exp()).sum() + 0.5 * (prior * b.square()).sum()

    value = loss(b)
    for _ in range(_STEPS):
        ratio = square * (-(G @ b)).exp()
        gradient = 0.5 * G.mT @ (1.0 - ratio) + prior * b
        # The loss is convex; half of the information of rows whose errors are tiny keeps steps in bounds.
        weight = 0.5 * ratio.clamp_min(0.5)
        move = torch.linalg.solve(G.mT @ (weight.unsqueeze(-1) * G) + torch.diag(prior), gradient)
        gain = gradient @ move
        if float(gain) < _TOLERANCE:
            break
        step = 1.0
        while step > _TOLERANCE and bool(loss(b - step * move) > value - 0.1 * step * gain):
            step *= 0.5
        b = b - step * move
        value = loss(b)
    return b[0], b[1:]


def _row(mean: Tensor, variance: Tensor) -> ExpertPredictions:
    return ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), torch.zeros_like(mean).unsqueeze(0))
