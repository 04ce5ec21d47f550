"""From chosen knots to online experts: features, and the belief with which to go on."""

from collections.abc import Sequence
from copy import deepcopy
from typing import NamedTuple

import torch
from gpytorch.constraints import Positive
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.features.base import FeatureMap
from gp_ensembles.features.compose import Concatenate
from gp_ensembles.features.constant import ConstantFeatures
from gp_ensembles.features.inducing import InducingPointFeatures
from gp_ensembles.sparse.base import KnotModel
from gp_ensembles.sparse.model import SparseGP


class WeightsPosterior(NamedTuple):
    r"""A normal belief about the weights of a feature map, in the forms in which experts carry it.

    ``SquareRootState(*belief)`` and ``GaussianState(belief.moments)`` (``gp_ensembles.filters``) are states of an
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
    """What an online expert needs to go on where a sparse model stopped.

    Args:
        features: The expert's feature map: the knots', and a constant for the prior mean.
        likelihood: A Gaussian likelihood with the model's noise.
        weights: The belief about the weights after the model's rows.
        inducing: The knots' features alone, a part of the map, whose ``unexplained`` is the variance that they miss.
    """

    features: FeatureMap
    likelihood: GaussianLikelihood
    weights: WeightsPosterior
    inducing: InducingPointFeatures


def inducing_features(models: KnotModel | Sequence[KnotModel]) -> InducingPointFeatures:
    r"""The knots of a model, or of several, as a feature map; knots and hyperparameters are copied.

    With it an expert that starts from its prior learns targets less the model's prior mean as the model with the
    approximation ``DIC`` does.

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
    if isinstance(models, KnotModel):
        return InducingPointFeatures(deepcopy(models.covar_module), models.knots.detach(), models.nugget)
    _check_equal_size(models)
    knots = torch.stack([model.knots.detach() for model in models])
    shares = knots.new_tensor([model.nugget for model in models])
    return InducingPointFeatures.from_kernels([model.covar_module for model in models], knots, shares)


def weights_posterior(models: KnotModel | Sequence[KnotModel]) -> WeightsPosterior:
    r"""What models have learned about the weights of :func:`inducing_features` from their rows.

    .. math:: \theta \sim N\big(\sqrt{v}\, L_B^{-\top} c,\; v\, (L_B L_B^\top)^{-1}\big)

    with :math:`L_B L_B^\top = I + V D^{-1} V^\top` and c of the model's own approximation (D is the noise for ``VFE``,
    ``DTC`` and ``DIC``, and more for ``FITC``), and v the features' prior variance.

    Args:
        models: As in :func:`inducing_features`.

    Returns:
        The belief, for targets less each model's prior mean.

    Raises:
        ValueError: As :func:`inducing_features`.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> X = torch.linspace(0, 1, 50, dtype=torch.float64).unsqueeze(-1)
        >>> model = SparseGP(X, torch.sin(6.0 * X.squeeze(-1)), X[::10], ScaleKernel(RBFKernel()))
        >>> features, belief = inducing_features(model), weights_posterior(model)
        >>> mean = (features(X) @ belief.mean + model.mean_module(X)).detach()
        >>> torch.allclose(mean, model.posterior(X).mean.squeeze(-1).detach())
        True
    """
    if isinstance(models, KnotModel):
        return _belief(models)
    _check_equal_size(models)
    beliefs = [_belief(model) for model in models]
    return WeightsPosterior(*(torch.stack(parts) for parts in zip(*beliefs, strict=True)))


def start_online(models: SparseGP | Sequence[SparseGP]) -> OnlineStart:
    r"""All that an online expert needs to go on where a sparse model stopped.

    The prior mean becomes a feature of its own, a constant, whose weight is known without doubt, so that models with
    different means can learn the same targets in one ensemble. A random walk of the weights moves it, too.

    Args:
        models: A model, or M models with as many knots each, whose kernels differ in hyperparameters only. Models
            of different kinds, or with different numbers of knots, make an expert each.

    Returns:
        Features, likelihood and belief, with batch shape () for a model, (M,) for a sequence.

    Raises:
        ValueError: As :func:`inducing_features`, or if a prior mean is not constant.

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
    several = [models] if isinstance(models, SparseGP) else list(models)
    offset = torch.stack([_constant_mean(model) for model in several]).reshape(inducing.batch_shape)
    noise = torch.stack([model.likelihood.noise.detach() for model in several]).reshape(*inducing.batch_shape, 1)
    likelihood = GaussianLikelihood(noise_constraint=Positive(), batch_shape=inducing.batch_shape).to(noise)
    likelihood.noise = noise
    constant = ConstantFeatures(inducing.num_inputs, inducing.prior_variance.detach())
    features = Concatenate([inducing, constant])
    # Concatenate gives all weights one prior variance, and scales the features.
    ratios = [(features.prior_variance / part.prior_variance).detach().sqrt() for part in (inducing, constant)]
    mean = torch.cat([ratios[0].unsqueeze(-1) * learned.mean, (ratios[1] * offset).unsqueeze(-1)], dim=-1)
    factor = pad(ratios[0][..., None, None] * learned.factor, (0, 1, 0, 1))
    return OnlineStart(features, likelihood, WeightsPosterior(mean, factor), inducing)


def _belief(model: KnotModel) -> WeightsPosterior:
    with torch.no_grad():
        knots, seen = model.knots_posterior(), model.kernel_diagonal(model.knots)
        identity = torch.diag_embed(torch.ones_like(seen))
        factor = torch.linalg.solve_triangular(knots.factor, identity, upper=False).mT
        scale = seen.mean(-1).sqrt()
        return WeightsPosterior(scale * (factor @ knots.mean), scale * factor)


def _constant_mean(model: SparseGP) -> Tensor:
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


def _check_equal_size(models: Sequence[KnotModel]) -> None:
    if not models:
        raise ValueError("there is no model; give at least one")
    counts = [model.num_knots for model in models]
    if len(set(counts)) > 1:
        raise ValueError(
            f"the models have {counts} knots; experts of one batch need as many features each: make a feature map and "
            f"an expert of each model"
        )
