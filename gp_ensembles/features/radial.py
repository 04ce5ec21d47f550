"""Radial basis function network: Gaussian bumps at fixed or trained centers."""

from typing import final

import torch
from torch import Tensor, nn

from gp_ensembles.features.base import (
    BoundFeatures,
    FeatureMap,
    PriorVariance,
    check_matrix,
    insert_batch,
    log_scale,
    positive_like,
)


@final
class RadialBasisFeatures(FeatureMap):
    r"""Gaussian bumps around K centers, with a length scale for every input column.

    .. math:: \phi_k(x) = \exp\Big(-\tfrac12 \sum_{j=1}^D \Big(\frac{x_j - c_{kj}}{\ell_j}\Big)^2\Big)

    the RBF network of Waxman and Djuric (2024). The bumps vanish far from all centers, so there predictions
    return to the prior mean with a variance of the noise alone; concatenate the map with
    :class:`~gp_ensembles.features.linear.ConstantFeatures` or
    :class:`~gp_ensembles.features.linear.LinearFeatures` where that is not wanted.

    Centers given as a plain tensor stay fixed (a buffer); centers given as an ``nn.Parameter`` are trained,
    each expert its own copy. Prefer fixed ones: K D trained coordinates overfit the few rows they are
    trained on, and the predictions become overconfident.

    The squared distances are computed by a matrix product about the centers' mean. Their absolute error is
    the round-off of :math:`\sum_j ((x_j - \bar c_j)/\ell_j)^2`: use float64 with length scales that are
    small compared with the spread of the inputs.

    Args:
        centers: Centers, in units of the inputs, shape (K, D) or (\*batch, K, D), such as those of
            :func:`~gp_ensembles.numerics.kmeans.kmeans`; a tensor for fixed ones, an ``nn.Parameter`` for trained ones.
            The map has their dtype and device.
        lengthscale: Initial length scales, in units of the inputs, a number or a shape that broadcasts to
            (\*batch, D): shape (S, 1) gives S experts with one start each.
        prior_variance: Initial prior variance of every weight, in squared units of the target, a number or
            shape (\*batch). Its batch axes and those of ``lengthscale`` are broadcast and make the batch
            shape of the map.

    Raises:
        ValueError: If a shape does not fit, a center is not finite, or a length scale or prior variance is not
            positive.
        TypeError: If the centers are not a floating point tensor.

    Example:
        >>> centers = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> features = RadialBasisFeatures(centers, lengthscale=1.0)
        >>> features(torch.tensor([[0.0]], dtype=torch.float64)).detach()
        tensor([[1.0000, 0.1353]], dtype=torch.float64)
    """

    centers: Tensor
    raw_lengthscale: Tensor

    def __init__(self, centers: Tensor, lengthscale: float | Tensor, prior_variance: float | Tensor = 1.0) -> None:
        check_matrix(centers)
        num_centers, num_inputs = centers.shape[-2:]
        scales = positive_like(lengthscale, centers, "lengthscale")
        prior = positive_like(prior_variance, centers, "prior_variance")
        if scales.ndim > 0 and scales.shape[-1] not in (1, num_inputs):
            raise ValueError(
                f"lengthscale must have shape (*batch, {num_inputs}), one for every column of the centers, "
                f"got {tuple(scales.shape)}"
            )
        scales = scales.expand(*scales.shape[:-1], num_inputs)
        batch_shape = torch.broadcast_tensors(scales[..., 0], prior)[0].shape
        super().__init__(num_inputs, num_centers, batch_shape)
        start = centers.detach().expand(*batch_shape, num_centers, num_inputs).clone()
        if isinstance(centers, nn.Parameter):
            self.register_parameter("centers", nn.Parameter(start))
        else:
            self.register_buffer("centers", start)
        self.lengthscale_constraint = log_scale()
        raw = self.lengthscale_constraint.inverse_transform(scales)
        self.register_parameter("raw_lengthscale", nn.Parameter(raw.expand(*batch_shape, num_inputs).clone()))
        self.prior: PriorVariance = PriorVariance(batch_shape, prior)

    @property
    def lengthscale(self) -> Tensor:
        r"""Length scales in units of the inputs, shape (\*batch, D), differentiable."""
        value: Tensor = self.lengthscale_constraint.transform(self.raw_lengthscale)
        return value

    @property
    def prior_variance(self) -> Tensor:
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Read centers and length scales once and return the map as a plain function of tensors."""
        batch_shape = self.batch_shape
        inverse = self.lengthscale.reciprocal().unsqueeze(-2)  # (*batch, 1, D)
        origin = self.centers.detach().mean(dim=-2, keepdim=True)  # any origin gives the same distances
        scaled_centers = (self.centers - origin) * inverse
        right = scaled_centers.mT
        half_norm = 0.5 * scaled_centers.square().sum(-1).unsqueeze(-2)  # (*batch, 1, K)

        def features(X: Tensor) -> Tensor:
            scaled = (insert_batch(X, batch_shape) - origin) * inverse
            return (scaled @ right - half_norm - 0.5 * scaled.square().sum(-1, keepdim=True)).exp()

        return features
