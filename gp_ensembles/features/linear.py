"""Linear and constant features, and the inputs as they are."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.features.base import (
    BoundFeatures,
    FeatureMap,
    PriorVariance,
    check_matrix,
    expand_batch,
    positive,
    positive_like,
)


@final
class LinearFeatures(FeatureMap):
    r"""The inputs, and one column of ones, as features: Bayesian linear regression.

    .. math:: \phi(x) = [x_1, \dots, x_D, 1]

    Args:
        num_inputs: Number of input columns D.
        prior_variance: Initial prior variance of every coefficient, in squared units of the target per
            squared unit of the inputs, a number or a tensor, whose shape is the batch shape of the map and
            whose dtype and device are the map's.
        bias: Whether the last feature is the constant one (F = D + 1) or not (F = D).
        dtype: Dtype of the map where ``prior_variance`` is a number.

    Raises:
        ValueError: If ``num_inputs`` or ``prior_variance`` is not positive.
        TypeError: If ``prior_variance`` is a tensor that is not floating point or not of ``dtype``.

    Example:
        >>> features = LinearFeatures(2, dtype=torch.float64)
        >>> features(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
        tensor([[3., 4., 1.]], dtype=torch.float64)
    """

    def __init__(
        self,
        num_inputs: int,
        prior_variance: float | Tensor = 1.0,
        bias: bool = True,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        start = positive(prior_variance, dtype, "prior_variance")
        super().__init__(num_inputs, num_inputs + int(bias), start.shape)
        self.prior: PriorVariance = PriorVariance(self.batch_shape, start)

    @classmethod
    def from_data(cls, X: Tensor, prior_variance: float | Tensor = 1.0, bias: bool = True) -> "LinearFeatures":
        r"""Build the map for inputs like X: their width, dtype and device (no value of X is used).

        Args:
            X: Inputs, shape (N, D).
            prior_variance: Initial prior variance, a number or shape (\*batch).
            bias: Whether the last feature is the constant one.

        Raises:
            ValueError: If X is not a finite matrix, or ``prior_variance`` is not positive.
            TypeError: If X is not a floating point tensor.
        """
        check_matrix(X)
        return cls(X.shape[-1], positive_like(prior_variance, X, "prior_variance"), bias)

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of each coefficient, shape (\*batch), differentiable."""
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        batch_shape, bias = self.batch_shape, self.num_features > self.num_inputs

        def features(X: Tensor) -> Tensor:
            Phi = torch.cat([X, torch.ones_like(X[..., :1])], dim=-1) if bias else X
            return expand_batch(Phi, batch_shape)

        return features


@final
class ConstantFeatures(FeatureMap):
    r"""One feature that is always one, for an intercept with its own prior variance.

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
        batch_shape = self.batch_shape

        def features(X: Tensor) -> Tensor:
            return expand_batch(torch.ones_like(X[..., :1]), batch_shape)

        return features


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
        batch_shape = self.batch_shape

        def features(X: Tensor) -> Tensor:
            return expand_batch(torch.cat([X, torch.ones_like(X[..., :1])], dim=-1), batch_shape)

        return features
