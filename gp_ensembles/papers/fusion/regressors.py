"""Regressors with scikit-learn's interface as experts: scales of errors on other rows, and rows an expert knows."""

import copy
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
import torch
from gpytorch.models import ExactGP
from torch import Tensor

from gp_ensembles.numerics import normal
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.fusion.experts import ExpertPredictions, PredictiveExpert, check_inputs

# Fewest rows for a scale; folds in which scales are compared; Newton steps for one.
_FEWEST, _FOLDS, _STEPS = 10, 5, 50
# Nats that a step must gain; the least part of one.
_TOLERANCE = 1e-7
# Folds of regressors that are fitted again.
_FITS = 10
# A scale that depends on the input must gain this many standard errors.
_EVIDENCE = 2.0
# What scikit-learn's neighbors, Gaussian processes and kernel regressions call the inputs that they keep.
_KEPT = ("_fit_X", "X_train_", "X_fit_")
# Members of an ensemble that are looked at; fewest targets, and the least part of them, that cannot be chance.
_MEMBERS, _FEWEST_KNOWN, _LEAST = 3, 5, 0.2


@runtime_checkable
class Regressor(Protocol):
    """A regressor as in scikit-learn: it is fitted to arrays X (N, D) and y (N,), and predicts (N,)."""

    def fit(self, X: Any, y: Any) -> Any:
        """Learn from rows."""

    def predict(self, X: Any) -> Any:
        """Predict the targets of rows."""


@final
class RegressorExpert(PredictiveExpert):
    r"""A fitted regressor with the scale of its errors; :func:`scale_regressors` and :func:`cross_fit` make it.

    The variance is :math:`\log v(x) = a + \log v_0(x) + b^\top (g(x) - c) / s`, with inputs and prediction g. Shapes:
    level a (), slope b, zeros where it does not depend on the input, center c and spread s (D + 1,).
    """

    def __init__(self, regressor: Regressor, level: Tensor, slope: Tensor, center: Tensor, spread: Tensor) -> None:
        self.regressor = regressor
        self.level, self.slope, self.center, self.spread = level, slope, center, spread

    def predict(self, X: Tensor) -> ExpertPredictions:
        mean, own = _predicted(self.regressor, X, f"a {type(self.regressor).__name__}")
        g = (torch.cat([X, mean.unsqueeze(-1)], -1) - self.center) / self.spread
        # No further from the center than the rows were, so that a line in the logarithm does not run away.
        return ExpertPredictions.of_target(mean, own * (self.level + g.clamp(-3.0, 3.0) @ self.slope).exp())


class ScaledRegressors(NamedTuple):
    """Regressors as experts, and their predictions of the rows, of which no mean has seen its own target."""

    experts: list[RegressorExpert]  # for future rows
    predictions: ExpertPredictions  # shapes (K, N), for the weights


def scale_regressors(regressors: Sequence[Regressor], X: Tensor, y: Tensor) -> ScaledRegressors:
    """Fitted regressors with scales learned from their errors on rows that they have not seen.

    The scale is a constant (times the regressor's own standard deviations, if any) unless one that depends
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
            warn_caller(
                f"{_name(one, k)} was fitted to {shared} of these {len(X)} rows, and its errors are smaller here than "
                "elsewhere: give other rows, or use cross_fit"
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
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> found = cross_fit([LinearRegression()], X, X.squeeze(-1).exp(), torch.arange(20) % 4)
        >>> found.predictions.log_prob(X.squeeze(-1).exp()).shape
        torch.Size([1, 20])
    """
    _checked_rows(X, y)
    if folds is None:
        folds = permutation(len(X), generator, X.device) % _FITS
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
        raise TypeError(f"{_name(regressor, number)} is not a regressor: it needs fit and predict")
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
        raise ValueError(f"{who} returns nonpositive standard deviations; wrap it in a custom PredictiveExpert")
    return found[0], found[1].square()


def _scaled(
    regressors: Mapping[int, Regressor], X: Tensor, y: Tensor, predicted: list[tuple[Tensor, Tensor]], folds: Tensor
) -> ScaledRegressors:
    experts, rows = [], []
    for (k, regressor), (mean, own) in zip(regressors.items(), predicted, strict=True):
        error = (y - mean) / own.sqrt()
        if not float(error.square().mean().sqrt()) > 1e-9 * max(float(y.std()), 1e-300) / float(own.sqrt().amax()):
            raise ValueError(
                f"{_name(regressor, k)} has no errors on these rows, so it has seen them or "
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
        experts.append(RegressorExpert(regressor, level, slope, center, spread))
        rows.append(ExpertPredictions.of_target(mean, own * held_out[int(depends)].exp()))
    if not rows:
        raise ValueError("at least one regressor is needed, got none")
    return ScaledRegressors(experts, ExpertPredictions.joined(rows))


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


def known_rows(expert: object, X: Tensor, y: Tensor) -> int:
    """How many of the rows an expert was trained on, as far as can be detected: zero proves nothing.

    Shapes: ``X`` (N, D), ``y`` (N,).
    """
    model: Any = expert[0] if isinstance(expert, tuple) else expert
    kept = getattr(model, "train_inputs", None)
    while isinstance(kept, tuple | list) and kept:
        kept = kept[0]
    if isinstance(kept, Tensor):
        transform: Any = getattr(model, "input_transform", None)
        # BoTorch's exact processes keep transformed inputs in evaluation mode; those of this library never.
        changed = isinstance(model, ExactGP) and transform is not None and not model.training
        return _shared(kept, transform(X) if changed else X)
    if isinstance(model, torch.nn.Module | PredictiveExpert) or not isinstance(model, Regressor):
        return 0
    rows = X.detach().cpu().numpy()
    fitted: Any = getattr(model, "best_estimator_", model)
    steps = getattr(fitted, "steps", [])
    for _, transform in steps[:-1]:
        rows = rows if transform in (None, "passthrough") else transform.transform(rows)
    fitted = steps[-1][1] if steps else fitted
    for name in _KEPT:
        kept = getattr(fitted, name, None)
        if isinstance(kept, np.ndarray) and isinstance(rows, np.ndarray):
            return _shared(torch.as_tensor(kept), torch.as_tensor(rows))
    return _by_heart(fitted, rows, y.detach().cpu().numpy())


def _shared(kept: Tensor, X: Tensor) -> int:
    """How many of the rows (N, D) are among others; those that occur more than once in either may be replicates."""
    if kept.shape[-1:] != X.shape[-1:]:
        return 0
    known = Counter(tuple(row) for row in kept.to(X).reshape(-1, *kept.shape[-2:])[0].tolist())
    return sum(count == 1 and known[row] == 1 for row, count in Counter(tuple(row) for row in X.tolist()).items())


def _by_heart(regressor: Any, rows: Any, y: np.ndarray) -> int:
    """How many targets that occur once are predicted exactly; zero where that may be chance."""
    _, first, counts = np.unique(y, return_index=True, return_counts=True)
    once = first[counts == 1]
    members = list(np.ravel(getattr(regressor, "estimators_", [])))[:_MEMBERS]
    columns = getattr(regressor, "estimators_features_", [slice(None)] * len(members))
    if not len(once) or not isinstance(rows, np.ndarray):
        return 0
    exact = np.zeros(len(y), dtype=bool)
    for member, some in zip([regressor, *members], [slice(None), *columns], strict=False):
        try:
            found = np.asarray(member.predict(rows[:, some])).reshape(-1)
        except (AttributeError, ValueError):  # a member of another kind, or of other columns
            continue
        if found.shape == y.shape:
            exact |= np.abs(found - y) <= 1e-9 * y.std()
    number = int(exact[once].sum())
    return number if number >= max(_FEWEST_KNOWN, _LEAST * len(once)) else 0
