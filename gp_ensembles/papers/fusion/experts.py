"""Predictions of experts: of BoTorch and GPyTorch models, online ensembles, or custom classes; leave-one-out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.models import ApproximateGP, ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from gp_ensembles.distributions.mixture import Mixture
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.numerics import normal
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.numerics.gpytorch_types import Likelihood
from gp_ensembles.papers.rows import check_finite


@prints_fields
class ExpertPredictions(NamedTuple):
    r"""Normal predictions of K experts at N inputs, the function and the noise separately.

    Attributes:
        mean: Means, shape (K, N).
        variance: Variances of the function f, or of the target y where the noise is zero, shape (K, N).
        noise: Variances of the observation noise, shape (K, N) or (K, 1).

    Example:
        >>> one = torch.ones(2, 3)
        >>> ExpertPredictions(0 * one, one, 0.5 * one).target_variance
        tensor([[1.5000, 1.5000, 1.5000],
                [1.5000, 1.5000, 1.5000]])
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor

    @classmethod
    def of_target(cls, mean: Tensor, variance: Tensor) -> "ExpertPredictions":
        """Those of one expert from means and variances (N,) of targets, shapes (1, N), without separate noise."""
        return cls(mean.unsqueeze(0), variance.unsqueeze(0), torch.zeros_like(mean).unsqueeze(0))

    @classmethod
    def joined(cls, parts: Sequence["ExpertPredictions"]) -> "ExpertPredictions":
        """Those of all experts of several tables."""
        return cls(*(torch.cat(columns) for columns in zip(*parts, strict=True))).check()

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
        "(model, likelihood), an OnlineEnsemble, or a custom PredictiveExpert"
    )


@predict_expert.register
def _(expert: PredictiveExpert, X: Tensor) -> ExpertPredictions:
    return expert.predict(X)


@predict_expert.register
def _(expert: OnlineEnsemble, X: Tensor) -> ExpertPredictions:
    mixture = expert.predict(X)
    if not isinstance(mixture, Mixture) or mixture.component_mean.ndim != 2:
        raise TypeError(
            "an online ensemble serves as an expert if its experts are Gaussian with one output; wrap any other in a "
            "PredictiveExpert that predicts means and variances"
        )
    mean, variance = mixture.moments()
    return ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), variance.new_zeros(1, 1))


@predict_expert.register
def _(expert: Model, X: Tensor) -> ExpertPredictions:
    of_function: Any = expert.posterior(X)  # BoTorch's base class of posteriors declares no moments
    of_target: Any = expert.posterior(X, observation_noise=True)
    mean, shape = of_function.mean, (X.shape[0], 1)
    if mean.shape != shape:
        raise ValueError(
            f"an expert must predict one output, but its posterior has mean {tuple(mean.shape)}, not {shape}; give "
            "a separate model for each output"
        )
    return _predictions(mean.mT, of_function.variance.mT, of_target.variance.mT)


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
    For inputs that a process was trained on use :func:`leave_one_out`.

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
        >>> from botorch.models import SingleTaskGP
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> predict_experts([SingleTaskGP(X, X.sin()), SingleTaskGP(X, X.cos())], X[1:]).mean.shape
        torch.Size([2, 5])
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
    return ExpertPredictions.joined(every)


def check_inputs(X: Tensor) -> None:
    """Refuse inputs that are not a finite matrix with at least one row."""
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"inputs must have shape (N, D) with at least one row, got {tuple(X.shape)}")
    check_finite("inputs", X)


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
    full = [part._replace(noise=part.noise.expand_as(part.mean)) for part in parts]
    mean, variance, noise = (torch.cat(tensors, -1) for tensors in zip(*full, strict=True))
    return ExpertPredictions(mean, variance, noise)


def _gpytorch_predictions(model: ExactGP | ApproximateGP, likelihood: Likelihood, X: Tensor) -> ExpertPredictions:
    if not isinstance(likelihood, _GaussianLikelihoodBase):
        raise TypeError(
            f"experts are normal, but the likelihood of one is a {type(likelihood).__name__}; wrap it in a "
            "PredictiveExpert that predicts means and variances"
        )
    latent = model(X)
    if not isinstance(latent, MultivariateNormal) or isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError(f"an expert must predict one normal output, but one predicts a {type(latent).__name__}")
    if latent.batch_shape:
        raise ValueError(
            f"an expert must have no batch shape, but one has {tuple(latent.batch_shape)}; give each model separately"
        )
    target = likelihood(latent, [X])
    return _predictions(latent.mean.unsqueeze(0), latent.variance.unsqueeze(0), target.variance.unsqueeze(0))


def _predictions(mean: Tensor, variance: Tensor, target_variance: Tensor) -> ExpertPredictions:
    # The noise is a difference: below zero by round-off where there is none.
    return ExpertPredictions(mean, variance, (target_variance - variance).clamp_min(0))


@torch.no_grad()
def leave_one_out(model: ExactGP) -> ExpertPredictions:
    r"""Leave-one-out predictions at fixed hyperparameters (Rasmussen and Williams 2006, Eqs. 5.10 to 5.12).

    With K the covariance of the training targets, noise included, and m their prior mean,

    .. math:: \mu_i = y_i - [K^{-1} (y - m)]_i / [K^{-1}]_{ii}, \quad \sigma_i^2 = 1 / [K^{-1}]_{ii}.

    One Cholesky factorization, :math:`O(N^3)`. Hyperparameters are not fitted again without the target: an expert
    with many of them is scored too well.

    Args:
        model: A GPyTorch ``ExactGP`` with a Gaussian likelihood, BoTorch's of one output included; its outcome
            transform, if it has one, is undone and must keep predictions normal.

    Returns:
        Predictions in the units of the targets that the model was given, shapes (1, N), the noise in the variance.

    Raises:
        TypeError: If the model is not an ``ExactGP`` or its likelihood is not Gaussian.
        ValueError: If the model has no data, several outputs or a batch shape, or its outcome transform does not keep
            predictions normal.
        NumericalError: If the covariance of the targets is not positive definite.

    Example:
        >>> from botorch.models import SingleTaskGP
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> leave_one_out(SingleTaskGP(X, X.sin())).mean.shape
        torch.Size([1, 6])
    """
    if not isinstance(model, ExactGP):
        raise TypeError(f"leave-one-out in closed form needs an ExactGP, got a {type(model).__name__}")
    likelihood = model.likelihood
    if not isinstance(likelihood, _GaussianLikelihoodBase):
        raise TypeError(f"leave-one-out in closed form needs a Gaussian likelihood, got a {type(likelihood).__name__}")
    if model.train_inputs is None or model.train_targets is None:
        raise ValueError("the model has no training data; call set_train_data first")
    y = model.train_targets
    # In training as in evaluation mode forward takes the inputs as the model keeps them, and gives the prior.
    latent = model.forward(*model.train_inputs)
    if y.ndim != 1 or not isinstance(latent, MultivariateNormal) or isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError(f"the model must have one output and no batch shape, but its targets have {tuple(y.shape)}")
    prior = likelihood(latent, list(model.train_inputs))
    factor = cholesky(prior.covariance_matrix, "the covariance of the training targets")
    # The diagonal of the inverse from the factor's: squares only, so that it is positive.
    identity = torch.diag_embed(torch.ones_like(y))
    half = torch.linalg.solve_triangular(factor, identity, upper=False)
    diagonal = half.square().sum(0)
    mean = y - (half.mT @ (half @ (y - prior.mean))) / diagonal
    variance = 1 / diagonal
    transform: Any = getattr(model, "outcome_transform", None)
    if transform is not None:
        mean, variance = _untransform(transform, mean, variance)
    return ExpertPredictions.of_target(mean, variance)


def _untransform(transform: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(torch.diag_embed(variance))))
    original = transform.untransform_posterior(posterior)
    if not isinstance(original, GPyTorchPosterior):
        raise ValueError(
            f"the outcome transform {type(transform).__name__} does not keep predictions normal; leave it out"
        )
    return original.mean.squeeze(-1), original.variance.squeeze(-1)


def check_moments(mean: Tensor, variance: Tensor) -> None:
    """Refuse means and variances that are not finite, of one shape (K, N), with positive variances."""
    if mean.shape != variance.shape or mean.ndim != 2 or not len(mean):
        raise ValueError(
            f"means and variances of at least one expert must have the same shape (K, N): got "
            f"{tuple(mean.shape)} and {tuple(variance.shape)}"
        )
    _require(torch.isfinite(mean), mean, "means must be finite", "leave the expert out where it does not predict")
    fine = (variance > 0) & torch.isfinite(variance)
    advice = "give variances, not logarithms, including the noise if the pool is of targets"
    _require(fine, variance, "variances must be positive and finite", advice)


def check_noise(noise: Tensor, mean: Tensor) -> None:
    """Refuse noise variances that are not finite, negative, or do not fit the means."""
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
    """Log weights (K,) or (K, N) as (K, 1) or (K, N), for means (K, N), with an expert left in each row."""
    if log_weights.shape not in (mean.shape, mean.shape[:1]):
        raise ValueError(
            f"log weights must have shape (K,) or (K, N), as the means {tuple(mean.shape)}; got "
            f"{tuple(log_weights.shape)}"
        )
    log_weights = log_weights.reshape(len(mean), -1)
    if bool((torch.isnan(log_weights) | torch.isposinf(log_weights)).any()):
        raise ValueError("log weights must be numbers or minus infinity, but one is NaN or plus infinity")
    if bool(torch.isneginf(log_weights).all(0).any()):
        raise ValueError(
            "a row has no expert left: all its log weights are minus infinity; give at least one a finite log weight"
        )
    return log_weights


def _require(fine: Tensor, values: Tensor, what: str, advice: str) -> None:
    if not bool(fine.all()):
        expert, row = (~fine).nonzero()[0].tolist()
        raise ValueError(f"{what}: expert {expert} has {float(values[expert, row]):g} at row {row}; {advice}")
