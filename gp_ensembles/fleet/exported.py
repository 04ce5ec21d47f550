"""The ensemble of one series that has variances of its own: the experts of the fleet with other hyperparameters."""

import copy
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from gp_ensembles.ensembles.ensemble import Ensemble
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.fleet.variances import Variances


@final
class OwnPriorVariance(FeatureMap):
    r"""A feature map with another, fixed prior variance of the weights.

    Args:
        features: The map, shared with whoever else has it.
        prior_variance: Its prior variance, shape (\*batch).

    Example:
        >>> from gp_ensembles.features import LinearFeatures
        >>> features = LinearFeatures(1, torch.tensor(1.0, dtype=torch.float64))
        >>> OwnPriorVariance(features, torch.tensor(4.0, dtype=torch.float64)).prior_variance
        tensor(4., dtype=torch.float64)
    """

    own: Tensor

    def __init__(self, features: FeatureMap, prior_variance: Tensor) -> None:
        super().__init__(features.num_inputs, features.num_features, features.batch_shape, features.domain)
        self.features = features
        self.register_buffer("own", prior_variance.detach().clone())

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the weights, shape (\*batch)."""
        return self.own

    def bind(self) -> BoundFeatures:
        """The map as a plain function of tensors."""
        return self.features.bind()


@torch.no_grad()
def with_own_variances(ensemble: Ensemble, own: Sequence[Variances]) -> Ensemble:
    r"""The ensemble with other noise and prior variances, feature maps and rule shared with it.

    Args:
        ensemble: Its experts all have Gaussian noise.
        own: Variances of each expert object, shape (\*batch).
    """
    experts: list[Expert] = []
    for expert, variances in zip(ensemble.experts, own, strict=True):
        assert isinstance(expert, GaussianExpert)
        likelihood = copy.deepcopy(expert.likelihood)
        likelihood.noise = variances.noise.reshape(likelihood.noise.shape)
        features = OwnPriorVariance(expert.features, variances.prior)
        experts.append(GaussianExpert(features, likelihood, expert.transition, expert.initial_state))
    layers = ensemble.layers
    return Ensemble(
        experts,
        ensemble.meta_learner,
        ensemble.expert_names,
        innovations=() if layers.bank is None else layers.bank.models,
        memory=layers.memory,
        outlier_threshold=layers.outlier_threshold,
    )
