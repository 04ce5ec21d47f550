"""The inputs as they are, for experts that take covariances of rows instead of features."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.shapes import expand_batch


@final
class InputFeatures(FeatureMap):
    r"""The D inputs and a one: a row's coordinates and its weight.

    .. math:: \phi(x) = (x_1, \dots, x_D, 1)

    Args:
        num_inputs: Number of input columns D.
        like: A tensor whose shape is the batch shape of the map, and whose dtype and device are the map's.
    """

    scale: Tensor

    def __init__(self, num_inputs: int, like: Tensor) -> None:
        super().__init__(num_inputs, num_inputs + 1, like.shape)
        self.register_buffer("scale", torch.ones_like(like.detach()))

    @property
    def prior_variance(self) -> Tensor:
        r"""One, shape (\*batch): there are no weights."""
        return self.scale

    def bind(self) -> BoundFeatures:
        """Return the map as a plain function of tensors."""
        batch_shape = self.batch_shape

        def features(X: Tensor) -> Tensor:
            return expand_batch(torch.cat([X, torch.ones_like(X[..., :1])], dim=-1), batch_shape)

        return features
