"""Predictions of experts: of BoTorch and GPyTorch models, online ensembles, tables, or custom classes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple, final

import torch
from botorch.models.model import Model
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.models import ApproximateGP, ExactGP
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.numerics import normal
from gp_ensembles.numerics.display import record_text
from gp_ensembles.numerics.gpytorch_types import Likelihood


class ExpertPredictions(NamedTuple):
    r"""Normal predictions of K experts at N inputs, the function and the noise separately.

    Attributes:
        mean: Means, shape (K, N).
        variance: Variances of the function f, or of the target y where the noise is zero, shape (K, N).
        noise: Variances of the observation noise, shape (K, N) or (K, 1).

    Example:
        >>> import torch
        >>> one = torch.ones(2, 3)
        >>> ExpertPredictions(0 * one, one, 0.5 * one).target_variance
        tensor([[1.5000, 1.5000, 1.5000],
                [1.5000, 1.5000, 1.5000]])
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor

    def __repr__(self) -> str:
        return record_text(self)

    @property
    def target_variance(self) -> Tensor:
        """Variances of targets y, the observation noise included, shape (K, N)."""
        return self.variance + self.noise

    def log_prob(self, y: Tensor) -> Tensor:
        """Each expert's log densities of targets y (N,), shape (K, N), in nats; NaN where y is."""
        return normal.log_prob(y, self.mean, self.target_variance)

    def check(self) -> "ExpertPredictions":
        """Validate, and return, these predictions.

        Raises:
            ValueError: If shapes differ, a mean is not finite, or a variance is not positive, a noise negative.
        """
        check_moments(self.mean, self.variance)
        check_noise(self.noise, self.mean)
        return self


class PredictiveExpert(ABC):
    """Base class for custom experts, as :func:`predict_experts` takes them."""

    @abstractmethod
    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions at inputs X (N, D) as those of one expert, shapes (1, N)."""


@singledispatch
def predict_expert(expert: object, X: Tensor) -> ExpertPredictions:
    """Predictions of one expert; register a function for a custom class. Shapes: ``X`` (N, D); returns (1, N).

    Raises:
        TypeError: If the class is not registered, or a likelihood is not Gaussian.
        ValueError: If the model has several outputs or a batch shape.
    """
    raise TypeError(
        f"a {type(expert).__name__} cannot serve as an expert: give a BoTorch model, a GPyTorch ExactGP, a pair "
        "(model, likelihood), an OnlineEnsemble, a TabulatedExpert, or a custom PredictiveExpert"
    )


@predict_expert.register
def _(expert: PredictiveExpert, X: Tensor) -> ExpertPredictions:
    return expert.predict(X)


@predict_expert.register
def _(expert: OnlineEnsemble, X: Tensor) -> ExpertPredictions:
    mixture = expert.predict(X)
    if not isinstance(mixture, Mixture) or mixture.component_mean.ndim != 2:
        raise TypeError(
            "an online ensemble serves as an expert if its experts are Gaussian with one output; wrap another in a "
            "PredictiveExpert that predicts means and variances"
        )
    mean, variance = mixture.moments()
    return ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), variance.new_zeros(1, 1))


@predict_expert.register
def _(expert: Model, X: Tensor) -> ExpertPredictions:
    mean, variance = _moments(expert.posterior(X))
    _, target_variance = _moments(expert.posterior(X, observation_noise=True))
    shape = (X.shape[0], 1)
    if mean.shape != shape:
        raise ValueError(
            f"an expert must predict one output, and its posterior has mean {tuple(mean.shape)}, not {shape}; give "
            "each output's model by itself"
        )
    return _predictions(mean.mT, variance.mT, target_variance.mT)


@predict_expert.register
def _(expert: ExactGP, X: Tensor) -> ExpertPredictions:
    return _gpytorch_predictions(expert, expert.likelihood, X)


@predict_expert.register
def _(expert: tuple, X: Tensor) -> ExpertPredictions:  # type: ignore[type-arg]
    if len(expert) != 2 or not isinstance(expert[0], ExactGP | ApproximateGP) or not isinstance(expert[1], Likelihood):
        found = ", ".join(type(part).__name__ for part in expert)
        raise TypeError(f"a tuple as expert must be a pair (GPyTorch model, likelihood), got ({found})")
    return _gpytorch_predictions(*expert, X)


def predict_experts(experts: Sequence[object], X: Tensor, *, batch_size: int = 1024) -> ExpertPredictions:
    """Predictions of all experts, computed once and without gradients.

    Modules predict in evaluation mode and keep the mode they were in. GPyTorch's settings apply: an
    ``ExactGP`` of more than 800 rows solves iteratively, unless ``gpytorch.settings.max_cholesky_size`` is larger.
    For inputs that the experts were trained on use :func:`leave_one_out` or :func:`k_fold`.

    Args:
        experts: K experts, each as :func:`predict_expert` takes them.
        X: Inputs, shape (N, D).
        batch_size: Rows predicted at once; a Gaussian process needs memory for its square.

    Returns:
        Predictions, shapes (K, N).

    Raises:
        TypeError: If one of the models cannot serve as an expert.
        ValueError: If there is no expert, inputs are not a finite (N, D), the batch size is not positive, or an
            expert's predictions cannot be fused.

    Example:
        >>> import torch
        >>> from gp_ensembles.papers.fusion.experts import TabulatedExpert
        >>> X = torch.tensor([[0.0], [1.0]])
        >>> table = TabulatedExpert(X, torch.tensor([3.0, 4.0]), torch.ones(2))
        >>> predict_experts([table, table], X[1:]).mean
        tensor([[4.],
                [4.]])
    """
    if not experts:
        raise ValueError("at least one expert is needed, got none")
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    check_inputs(X)
    every = [_predict_rows(expert, X, batch_size) for expert in experts]
    for number, predictions in enumerate(every):
        if predictions.mean.shape != (1, X.shape[0]):
            raise ValueError(
                f"expert {number} must predict shapes (1, {X.shape[0]}), got {tuple(predictions.mean.shape)}"
            )
    mean, variance, noise = (torch.cat(parts) for parts in zip(*every, strict=True))
    return ExpertPredictions(mean, variance, noise).check()


def check_inputs(X: Tensor) -> None:
    """Refuse inputs that are not a finite matrix with at least one row.

    Raises:
        ValueError: If not; names the row.
    """
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"inputs must have shape (N, D) with at least one row, got {tuple(X.shape)}")
    bad = (~torch.isfinite(X)).any(-1)
    if bool(bad.any()):
        raise ValueError(f"inputs must be finite; row {int(bad.int().argmax())} is not")


@torch.no_grad()
def _predict_rows(expert: object, X: Tensor, batch_size: int) -> ExpertPredictions:
    modules = [
        part for part in (expert if isinstance(expert, tuple) else (expert,)) if isinstance(part, torch.nn.Module)
    ]
    modes = [(module, module.training) for root in modules for module in root.modules()]
    # One call to the root, and only where there is something to change: GPyTorch drops its caches when modes change.
    switched = [root for root in modules if root.training]
    for root in switched:
        root.eval()
    try:
        parts = [predict_expert(expert, rows) for rows in X.split(batch_size)]
    finally:
        for root in switched:
            root.train()
        for module, mode in modes:
            module.training = mode
    mean, variance, noise = (torch.cat(tensors, -1) for tensors in zip(*map(_full, parts), strict=True))
    return ExpertPredictions(mean, variance, noise)


def _full(predictions: ExpertPredictions) -> ExpertPredictions:
    return predictions._replace(noise=predictions.noise.expand_as(predictions.mean))


def _gpytorch_predictions(model: ExactGP | ApproximateGP, likelihood: Likelihood, X: Tensor) -> ExpertPredictions:
    if not isinstance(likelihood, _GaussianLikelihoodBase):
        raise TypeError(
            f"experts are normal, and the likelihood of one is a {type(likelihood).__name__}; wrap it in a "
            "PredictiveExpert that predicts means and variances"
        )
    latent = model(X)
    if not isinstance(latent, MultivariateNormal) or isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError(f"an expert must predict one normal output, and one predicts a {type(latent).__name__}")
    if latent.batch_shape:
        raise ValueError(
            f"an expert must have no batch shape, and one has {tuple(latent.batch_shape)}; give each as an expert"
        )
    target = likelihood(latent, [X])
    return _predictions(latent.mean.unsqueeze(0), latent.variance.unsqueeze(0), target.variance.unsqueeze(0))


def _moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance, which BoTorch's base class of posteriors does not declare."""
    return posterior.mean, posterior.variance


def _predictions(mean: Tensor, variance: Tensor, target_variance: Tensor) -> ExpertPredictions:
    # The noise is a difference: below zero by round-off where there is none.
    return ExpertPredictions(mean, variance, (target_variance - variance).clamp_min(0))


@final
class TabulatedExpert(PredictiveExpert):
    """An expert that is known by its means and variances at some inputs only.

    Args:
        X: The inputs, shape (N, D).
        mean: Means there, shape (N,).
        variance: Variances there, shape (N,): of the function if the noise is given, else of the target.
        noise: Noise variances, shape (N,) or (); none if not given.

    Raises:
        ValueError: If shapes do not fit, values cannot be fused, or an input occurs twice with different predictions.

    Example:
        >>> import torch
        >>> expert = TabulatedExpert(torch.tensor([[0.0], [1.0]]), torch.tensor([3.0, 4.0]), torch.ones(2))
        >>> expert.predict(torch.tensor([[1.0], [0.0]])).mean
        tensor([[4., 3.]])
    """

    def __init__(self, X: Tensor, mean: Tensor, variance: Tensor, noise: Tensor | None = None) -> None:
        check_inputs(X)
        if mean.shape != X.shape[:1]:
            raise ValueError(f"{X.shape[0]} inputs need means of shape ({X.shape[0]},), got {tuple(mean.shape)}")
        noise = torch.zeros_like(mean) if noise is None else noise
        rows = ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), noise.unsqueeze(0)).check()
        self.predictions: ExpertPredictions = rows._replace(noise=rows.noise.expand_as(rows.mean))
        self._num_inputs = X.shape[1]
        self._row_of: dict[tuple[float, ...], int] = {}
        first = [self._row_of.setdefault(tuple(row), number) for number, row in enumerate(X.tolist())]
        for part in self.predictions:
            differs = part[0] != part[0, first]
            if bool(differs.any()):
                row = int(differs.int().argmax())
                raise ValueError(
                    f"rows {first[row]} and {row} of the table have the same inputs and different predictions; keep one"
                )

    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions at inputs of the table, shapes (1, N).

        Raises:
            ValueError: If an input is not in the table; names its row.
        """
        check_inputs(X)
        if X.shape[1] != self._num_inputs:
            raise ValueError(f"inputs must have {self._num_inputs} columns, got {X.shape[1]}")
        rows = [self._row_of.get(tuple(row)) for row in X.tolist()]
        if None in rows:
            raise ValueError(
                f"the expert is a table, and the input of row {rows.index(None)} is not in it; give predictions at all "
                "inputs that are fused, or the model itself"
            )
        index = torch.tensor(rows, dtype=torch.long, device=self.predictions.mean.device)
        mean, variance, noise = (part[:, index] for part in self.predictions)
        return ExpertPredictions(mean, variance, noise)


def check_moments(mean: Tensor, variance: Tensor) -> None:
    """Refuse means and variances that are not finite, of one shape (..., K, N), with positive variances.

    Raises:
        ValueError: If shapes differ, there is no expert, or a value is out of range; names the expert and the row.
    """
    if mean.shape != variance.shape or mean.ndim < 2 or mean.shape[-2] == 0:
        raise ValueError(
            f"means and variances of at least one expert must have the same shape (..., K, N): got "
            f"{tuple(mean.shape)} and {tuple(variance.shape)}"
        )
    _require(torch.isfinite(mean), mean, "means must be finite", "leave the expert out where it does not predict")
    fine = (variance > 0) & torch.isfinite(variance)
    advice = "give variances, not logarithms, and with the noise where the pool is of targets"
    _require(fine, variance, "variances must be positive and finite", advice)


def check_noise(noise: Tensor, mean: Tensor) -> None:
    """Refuse noise variances that are not finite, negative, or do not fit the means.

    Raises:
        ValueError: If they are not, or do not broadcast to the means' shape.
    """
    try:
        noise = noise.expand_as(mean)
    except RuntimeError:
        raise ValueError(
            f"noise variances must fit the means' shape {tuple(mean.shape)}, got {tuple(noise.shape)}; "
            "one per expert has shape (K, 1)"
        ) from None
    fine = (noise >= 0) & torch.isfinite(noise)
    _require(fine, noise, "noise variances must be finite and not negative", "zero means none")


def check_log_weights(log_weights: Tensor, mean: Tensor) -> Tensor:
    """Log weights (K,) or (..., K, N or 1), with the axes of the means (..., K, N).

    Raises:
        ValueError: If they do not fit the means, one is NaN or plus infinity, or all of a row are minus infinity.
    """
    if log_weights.ndim == 1:
        log_weights = log_weights.unsqueeze(-1)
    try:
        fits = torch.broadcast_shapes(log_weights.shape, mean.shape) == mean.shape
    except RuntimeError:
        fits = False
    if not fits or log_weights.shape[-2:-1] != mean.shape[-2:-1]:
        raise ValueError(
            f"log weights must have shape (K,), or (..., K, N) with the experts' axis before the rows', for means "
            f"{tuple(mean.shape)}; got {tuple(log_weights.shape)}"
        )
    if bool((torch.isnan(log_weights) | torch.isposinf(log_weights)).any()):
        raise ValueError("log weights must be numbers or minus infinity, and one is NaN or plus infinity")
    if bool(torch.isneginf(log_weights).all(-2).any()):
        raise ValueError(
            "a row has no expert left: all its log weights are minus infinity; give at least one a finite log weight"
        )
    return log_weights


def _require(fine: Tensor, values: Tensor, what: str, advice: str) -> None:
    if bool(fine.all()):
        return
    *batch, expert, row = (~fine).nonzero()[0].tolist()
    value = float(values[(*batch, expert, row)])
    place = f" of batch entry {tuple(batch)}" if batch else ""
    raise ValueError(f"{what}: expert {expert}{place} has {value:g} at row {row}; {advice}")
