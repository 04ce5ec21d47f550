"""A constant: the intercept of maps that have none, to be concatenated with them."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap, PriorVariance
from gp_ensembles.features.shapes import expand_batch, positive


@final
class ConstantFeatures(FeatureMap):
    r"""One feature that is always one, for an intercept with a prior variance of its own.

    .. math:: \phi(x) = 1

    Args:
        num_inputs: Number of input columns D (their values are ignored).
        prior_variance: Initial prior variance of the intercept, in squared units of the target, a number or
            a tensor, whose shape is the batch shape of the map and whose dtype and device are the map's.
        dtype: Dtype of the map where ``prior_variance`` is a number.

    Raises:
        ValueError: If an argument is not positive.
        TypeError: If ``prior_variance`` is a tensor that is not floating point or not of ``dtype``.

    Example:
        >>> import torch
        >>> features = ConstantFeatures(2, dtype=torch.float64)
        >>> features(torch.zeros(3, 2, dtype=torch.float64)).T
        tensor([[1., 1., 1.]], dtype=torch.float64)
    """

    def __init__(
        self, num_inputs: int, prior_variance: float | Tensor = 1.0, *, dtype: torch.dtype | None = None
    ) -> None:
        start = positive(prior_variance, dtype, "prior_variance")
        super().__init__(num_inputs, 1, start.shape)
        self.prior: PriorVariance = PriorVariance(self.batch_shape, start)

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the intercept, shape (\*batch), differentiable."""
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Return the map as a plain function of tensors."""
        batch_shape = self.batch_shape

        def features(X: Tensor) -> Tensor:
            return expand_batch(torch.ones_like(X[..., :1]), batch_shape)

        return features
