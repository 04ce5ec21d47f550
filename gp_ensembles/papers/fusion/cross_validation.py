"""Predictions of training rows without their own targets: K-fold, and leave-one-out of exact processes."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.models import ExactGP
from linear_operator import to_linear_operator
from torch import Tensor

from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.draws import permutation
from gp_ensembles.papers.fusion.experts import ExpertPredictions, check_inputs, predict_experts


def random_folds(like: Tensor, num_folds: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Random folds whose sizes differ by one at most. Shapes: ``like`` (N, ...); returns (N,).

    Raises:
        ValueError: If there are fewer than two folds, or more than rows.
    """
    num_rows = like.shape[0]
    if not 2 <= num_folds <= num_rows:
        raise ValueError(f"the number of folds must be from 2 to the number of rows, {num_rows}; got {num_folds}")
    return permutation(num_rows, generator, like.device) % num_folds


def k_fold(
    fits: Sequence[Callable[[Tensor, Tensor], object]], X: Tensor, y: Tensor, folds: Tensor, *, batch_size: int = 1024
) -> ExpertPredictions:
    """Predictions of every row by experts that were fitted to the other folds.

    Shapes: ``X`` (N, D), ``y`` (N,), ``folds`` (N,). Returns: predictions, shapes (K, N); their ``log_prob(y)`` is
    what stacking needs.

    Raises:
        ValueError: If shapes do not fit, all rows are in one fold, or an expert's predictions cannot be fused.
    """
    check_inputs(X)
    if y.shape != X.shape[:1] or folds.shape != X.shape[:1]:
        raise ValueError(
            f"targets and folds must have shape ({X.shape[0]},), got {tuple(y.shape)} and {tuple(folds.shape)}"
        )
    labels = folds.unique()
    if len(labels) < 2:
        raise ValueError("all rows are in one fold, so that none is left for training; give at least two folds")
    result = ExpertPredictions(*(X.new_empty(len(fits), X.shape[0], dtype=y.dtype) for _ in range(3)))
    for label in labels:
        held_out = folds == label
        experts = [fit(X[~held_out], y[~held_out]) for fit in fits]
        found = predict_experts(experts, X[held_out], batch_size=batch_size)
        for whole, part in zip(result, found, strict=True):
            whole[:, held_out] = part
    return result


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
        TypeError: If the model is no ``ExactGP`` or its likelihood is not Gaussian.
        ValueError: If the model has no data, several outputs or a batch shape, or its outcome transform does not keep
            predictions normal.
        NumericalError: If the covariance of the targets is not positive definite.

    Example:
        >>> import torch
        >>> from botorch.models import SingleTaskGP
        >>> X = torch.linspace(0, 1, 6, dtype=torch.float64).unsqueeze(-1)
        >>> leave_one_out(SingleTaskGP(X, X.sin())).mean.shape
        torch.Size([1, 6])
    """
    if not isinstance(model, ExactGP):
        raise TypeError(f"leave-one-out in closed form needs an ExactGP, got a {type(model).__name__}; see k_fold")
    likelihood = model.likelihood
    if not isinstance(likelihood, _GaussianLikelihoodBase):
        raise TypeError(f"leave-one-out in closed form needs a Gaussian likelihood, got a {type(likelihood).__name__}")
    if model.train_inputs is None or model.train_targets is None:
        raise ValueError("the model has no training data; call set_train_data first")
    y = model.train_targets
    # In training as in evaluation mode forward takes the inputs as the model keeps them, and gives the prior.
    latent = model.forward(*model.train_inputs)
    if y.ndim != 1 or not isinstance(latent, MultivariateNormal) or isinstance(latent, MultitaskMultivariateNormal):
        raise ValueError(f"the model must have one output and no batch shape, and its targets have {tuple(y.shape)}")
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
    return ExpertPredictions(mean.unsqueeze(0), variance.unsqueeze(0), torch.zeros_like(mean).unsqueeze(0))


def _untransform(transform: Any, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    posterior = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(torch.diag_embed(variance))))
    original = transform.untransform_posterior(posterior)
    if not isinstance(original, GPyTorchPosterior):
        raise ValueError(
            f"the outcome transform {type(transform).__name__} does not keep predictions normal; leave it out, or use "
            "k_fold"
        )
    return original.mean.squeeze(-1), original.variance.squeeze(-1)
