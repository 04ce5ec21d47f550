"""A sparse model as an online expert: features of its knots, and the posterior of their weights to continue from."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood, Likelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import Concatenate
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.sparse.base import SparseModel
from gp_ensembles.sparse.regression import SparseGP


class WeightsPosterior(NamedTuple):
    r"""The normal posterior of the weights of a feature map, in the forms that states of experts have.

    ``SquareRootState(*posterior)`` and ``GaussianState(posterior.moments)`` (``gp_ensembles.filters``) are states of an
    expert.

    Args:
        mean: Means, shape (\*batch, F).
        factor: A square root A of the covariance :math:`A A^\top`, shape (\*batch, F, F).
    """

    mean: Tensor
    factor: Tensor

    @property
    def covariance(self) -> Tensor:
        r"""Covariance, shape (\*batch, F, F)."""
        return self.factor @ self.factor.mT

    @property
    def moments(self) -> Tensor:
        r"""[covariance | mean], shape (\*batch, F, F + 1)."""
        return torch.cat([self.covariance, self.mean.unsqueeze(-1)], dim=-1)


class OnlineStart(NamedTuple):
    """Features, likelihood and weights of an online expert that continues from a sparse model.

    Args:
        features: The expert's feature map: the knots', and a constant for the prior mean.
        likelihood: The model's likelihood, copied.
        weights: The posterior of the weights given the model's rows.
        inducing: The knots' features alone, a part of the map, whose ``unexplained`` is the variance they leave out.
    """

    features: FeatureMap
    likelihood: Likelihood
    weights: WeightsPosterior
    inducing: InducingPointFeatures


def inducing_features(models: SparseModel | Sequence[SparseModel]) -> InducingPointFeatures:
    r"""The knots of a model, or of several, as a feature map; knots and hyperparameters are copied.

    A ``GaussianExpert`` on it, started from its prior, has the posterior of a :class:`SparseGP` with the approximation
    ``DIC``, for targets less the model's prior mean.

    Args:
        models: A model, or M models with as many knots each, whose kernels differ in hyperparameters only.

    Returns:
        A map with batch shape () for a model, (M,) for a sequence. The knots stay fixed.

    Raises:
        ValueError: If there is no model, they differ in the number of knots, or their kernels in structure.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> inducing_features([model, model])(X).shape
        torch.Size([2, 50, 5])
    """
    if isinstance(models, SparseModel):
        return InducingPointFeatures(deepcopy(models.covar_module), models.knots.detach(), _nugget(models))
    _check_equal_size(models)
    knots = torch.stack([model.knots.detach() for model in models])
    nuggets = knots.new_tensor([_nugget(model) for model in models])
    return InducingPointFeatures.from_kernels([model.covar_module for model in models], knots, nuggets)


def weights_posterior(models: SparseModel | Sequence[SparseModel]) -> WeightsPosterior:
    r"""The posterior of the weights of :func:`inducing_features` given the models' rows.

    .. math:: \theta \sim N\big(\sqrt{v}\, L_B^{-\top} c,\; v\, (L_B L_B^\top)^{-1}\big)

    with :math:`L_B L_B^\top = I + V D^{-1} V^\top` and c of the model's own approximation (D is the noise for ``VFE``,
    ``DTC`` and ``DIC``, and more for ``FITC``), and v the features' prior variance.

    Args:
        models: As in :func:`inducing_features`.

    Returns:
        The posterior, for targets less each model's prior mean.

    Raises:
        ValueError: As :func:`inducing_features`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> features, posterior = inducing_features(model), weights_posterior(model)
        >>> mean = (features(X) @ posterior.mean + model.mean_module(X)).detach()
        >>> torch.allclose(mean, model.posterior(X).mean.squeeze(-1).detach())
        True
    """
    if isinstance(models, SparseModel):
        return _weights_posterior(models)
    _check_equal_size(models)
    posteriors = [_weights_posterior(model) for model in models]
    return WeightsPosterior(*(torch.stack(parts) for parts in zip(*posteriors, strict=True)))


def start_online(models: SparseModel | Sequence[SparseModel]) -> OnlineStart:
    r"""An online expert's features, likelihood and weights, to continue from a sparse model.

    The prior mean becomes a feature of its own, a constant, whose weight has no variance, so that models with different
    means can learn the same targets in one ensemble. A random walk of the weights moves it, too.

    A :class:`SparseGP` continues as a ``GaussianExpert``, other models as a ``LaplaceExpert`` of their likelihood, in
    which the latent noise that ``SparseLaplaceGP`` has is left out.

    Args:
        models: A model, or M models with as many knots each, whose kernels differ in hyperparameters only, all with
            Gaussian likelihoods. Models of different kinds, or with different numbers of knots, make an expert each.

    Returns:
        Features, likelihood and weights, with batch shape () for a model, (M,) for a sequence.

    Raises:
        ValueError: As :func:`inducing_features`, or if a prior mean is not constant, or one of several likelihoods not
            Gaussian.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> start = start_online(model)
        >>> mean = (start.features(X) @ start.weights.mean).detach()
        >>> torch.allclose(mean, model.posterior(X).mean.squeeze(-1).detach())
        True
    """
    inducing, learned = inducing_features(models), weights_posterior(models)
    offset = torch.stack([_constant_mean(model) for model in _listed(models)]).reshape(inducing.batch_shape)
    constant = ConstantFeatures(inducing.num_inputs, inducing.prior_variance.detach())
    features = Concatenate([inducing, constant])
    # Concatenate gives all weights one prior variance, and scales the features.
    ratios = [(features.prior_variance / part.prior_variance).detach().sqrt() for part in (inducing, constant)]
    mean = torch.cat([ratios[0].unsqueeze(-1) * learned.mean, (ratios[1] * offset).unsqueeze(-1)], dim=-1)
    factor = pad(ratios[0][..., None, None] * learned.factor, (0, 1, 0, 1))
    return OnlineStart(features, _likelihood(models), WeightsPosterior(mean, factor), inducing)


def _listed(models: SparseModel | Sequence[SparseModel]) -> list[SparseModel]:
    return [models] if isinstance(models, SparseModel) else list(models)


def _likelihood(models: SparseModel | Sequence[SparseModel]) -> Likelihood:
    """A copy of a model's likelihood, or a Gaussian one with the noise of each of several."""
    if isinstance(models, SparseModel):
        return deepcopy(models.likelihood)
    for number, model in enumerate(models):
        if not isinstance(model.likelihood, GaussianLikelihood):
            raise ValueError(
                f"model {number} has a {type(model.likelihood).__name__}, and only Gaussian likelihoods are put "
                f"together; make an expert of each model"
            )
    noise = torch.stack([model.likelihood.noise.detach() for model in models])
    likelihood = GaussianLikelihood(noise_constraint=Positive(), batch_shape=noise.shape[:-1]).to(noise)
    likelihood.noise = noise
    return likelihood


def _nugget(model: SparseModel) -> float:
    """What is added to the diagonal of the kernel's covariance of the knots, as a share of its average there."""
    if isinstance(model, SparseGP):
        return model.nugget
    with torch.no_grad():  # a jitter, or a latent noise: each model has its own
        seen, factor = model.kernel_diagonal(model.knots), model.knots_posterior().lower
        return max(0.0, float((factor.square().sum(-1) - seen).mean() / seen.mean()))


def _weights_posterior(model: SparseModel) -> WeightsPosterior:
    with torch.no_grad():
        knots, seen = model.knots_posterior(), model.kernel_diagonal(model.knots)
        identity = torch.diag_embed(torch.ones_like(seen))
        factor = torch.linalg.solve_triangular(knots.factor, identity, upper=False).mT
        scale = seen.mean(-1).sqrt()
        return WeightsPosterior(scale * (factor @ knots.mean), scale * factor)


def _constant_mean(model: SparseModel) -> Tensor:
    mean = model.mean_module
    if isinstance(mean, ZeroMean):
        return model.train_y.new_zeros(())
    if not isinstance(mean, ConstantMean):
        raise ValueError(
            f"the prior mean is a {type(mean).__name__}; online experts start from a constant: fit the model with a "
            f"ConstantMean, or subtract the mean from the targets and use inducing_features and weights_posterior"
        )
    constant: Tensor = mean.constant.detach().reshape(())
    return constant


def _check_equal_size(models: Sequence[SparseModel]) -> None:
    if not models:
        raise ValueError("there is no model; give at least one")
    shapes = [tuple(model.knots.shape) for model in models]
    if len(set(shapes)) > 1:
        raise ValueError(
            f"the models' knots have shapes {shapes}; experts of one batch need the same inputs and as many features "
            f"each: make a feature map and an expert of each model"
        )
