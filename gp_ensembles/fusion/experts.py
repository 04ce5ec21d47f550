"""What experts predict at given inputs, for every kind of model that can serve as an expert."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from botorch.models.model import Model
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import Likelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.models import ApproximateGP, ExactGP
from torch import Tensor

from gp_ensembles.ensembles.mixture import Mixture
from gp_ensembles.ensembles.online import OnlineEnsemble
from gp_ensembles.fusion.moment_checks import check_moments, check_noise
from gp_ensembles.numerics import normal


class ExpertPredictions(NamedTuple):
    r"""Normal predictions of K experts at N inputs, the function and the noise apart.

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

    @property
    def target_variance(self) -> Tensor:
        """Variances of targets y, the observation noise included, shape (K, N)."""
        return self.variance + self.noise

    def log_prob(self, y: Tensor) -> Tensor:
        """Each expert's log densities of targets y (N,), shape (K, N), in nats; NaN where y is."""
        return normal.log_prob(y, self.mean, self.target_variance)

    def check(self) -> "ExpertPredictions":
        """These predictions, if they can be fused.

        Raises:
            ValueError: If shapes differ, a mean is not finite, or a variance is not positive, a noise negative.
        """
        check_moments(self.mean, self.variance)
        check_noise(self.noise, self.mean)
        return self


class PredictiveExpert(ABC):
    """A model of any kind as an expert: what :func:`predict_experts` needs of it."""

    @abstractmethod
    def predict(self, X: Tensor) -> ExpertPredictions:
        """Predictions at inputs X (N, D) as those of one expert, shapes (1, N)."""


@singledispatch
def predict_expert(expert: object, X: Tensor) -> ExpertPredictions:
    """Predictions of one expert; register a function for a class of your own.

    Args:
        expert: A BoTorch model of one output; a GPyTorch ``ExactGP``; a pair of a GPyTorch model and its likelihood; an
            ``OnlineEnsemble``, which predicts targets and so has no noise apart (an ``EnsembleModel`` has); or a
            :class:`PredictiveExpert`. Of a mixture the mean and variance count.
        X: Inputs, shape (N, D).

    Returns:
        Predictions, shapes (1, N).

    Raises:
        TypeError: If the class is not registered, or a likelihood is not Gaussian.
        ValueError: If the model has several outputs or a batch shape.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from botorch.models import SingleTaskGP
        >>> X = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
        >>> model = SingleTaskGP(X, X, covar_module=RBFKernel())
        >>> predict_expert(model, X).mean.shape
        torch.Size([1, 5])
    """
    raise TypeError(
        f"a {type(expert).__name__} cannot serve as an expert: give a BoTorch model, a GPyTorch ExactGP, a pair "
        "(model, likelihood), an OnlineEnsemble, a TabulatedExpert, or a PredictiveExpert of your own"
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
            f"an expert must predict one output, and its posterior has mean {tuple(mean.shape)} where "
            f"{shape} was due; give each output's model by itself"
        )
    return _predictions(mean.mT, variance.mT, target_variance.mT)


@predict_expert.register
def _(expert: ExactGP, X: Tensor) -> ExpertPredictions:
    return _gpytorch_predictions(expert, expert.likelihood, X)


@predict_expert.register
def _(expert: tuple, X: Tensor) -> ExpertPredictions:  # type: ignore[type-arg]
    if len(expert) != 2 or not isinstance(expert[0], ExactGP | ApproximateGP) or not isinstance(expert[1], Likelihood):
        found = ", ".join(type(part).__name__ for part in expert)
        raise TypeError(f"a pair (GPyTorch model, likelihood) was due, got ({found})")
    return _gpytorch_predictions(*expert, X)


def predict_experts(experts: Sequence[object], X: Tensor, *, batch_size: int = 1024) -> ExpertPredictions:
    """Predictions of all experts, computed once and without gradients.

    Modules predict in evaluation mode and are left in the mode they were in. GPyTorch's settings in force apply: an
    ``ExactGP`` of more than 800 rows solves iteratively, unless ``gpytorch.settings.max_cholesky_size`` says otherwise.
    Inputs that an expert was trained on tell nothing about how good it is; for them see :func:`leave_one_out` and
    :func:`k_fold`.

    Args:
        experts: K experts, each as :func:`predict_expert` has it.
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
        >>> from gp_ensembles.fusion.tabulated import TabulatedExpert
        >>> X = torch.tensor([[0.0], [1.0]])
        >>> table = TabulatedExpert(X, torch.tensor([3.0, 4.0]), torch.ones(2))
        >>> predict_experts([table, table], X[1:]).mean
        tensor([[4.],
                [4.]])
    """
    if not experts:
        raise ValueError("there must be an expert at least")
    if batch_size < 1:
        raise ValueError(f"the batch size must be at least one, got {batch_size}")
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
    """Inputs must be a finite matrix with a row.

    Raises:
        ValueError: If not; names the row.

    Example:
        >>> import torch
        >>> check_inputs(torch.zeros(3, 2))
    """
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"inputs must have shape (N, D) with a row at least, got {tuple(X.shape)}")
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
        raise ValueError(f"an expert must have no batch shape, and one has {tuple(latent.batch_shape)}; give it apart")
    target = likelihood(latent, [X])
    return _predictions(latent.mean.unsqueeze(0), latent.variance.unsqueeze(0), target.variance.unsqueeze(0))


def _moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance, which BoTorch's base class of posteriors does not declare."""
    return posterior.mean, posterior.variance


def _predictions(mean: Tensor, variance: Tensor, target_variance: Tensor) -> ExpertPredictions:
    # The noise is a difference, whose round-off may fall below zero where there is none.
    return ExpertPredictions(mean, variance, (target_variance - variance).clamp_min(0))
