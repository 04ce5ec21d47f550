"""Additive polynomials: powers of every input column and one constant."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap, PriorVariance, check_matrix
from gp_ensembles.features.shapes import expand_batch, positive, positive_like


@final
class AdditivePolynomialFeatures(FeatureMap):
    r"""Powers 1 to p of every input column, without products of columns, and one constant.

    .. math::
        \phi(x) = \Big[\frac{x_1}{s_{1}}, \dots, \frac{x_1^p}{s_{p}}, \frac{x_2}{s_{p+1}}, \dots,
                  \frac{x_D^p}{s_{Dp}}, \frac{1}{s_{Dp+1}}\Big]

    the additive polynomial basis of Waxman and Djuric (2024), with one constant where the published code has
    one for every column (D constants of prior variance v are one constant of prior variance D v). The scales
    s are fixed. They matter to experts whose weights walk at random: the walk has one variance for all
    weights, and a fourth power is easily a hundred times as large as a first one. :meth:`from_data` takes
    them from the first rows, so that every feature has unit mean square there.

    Args:
        num_inputs: Number of input columns D.
        order: Largest power p, at least 1.
        prior_variance: Initial prior variance of every weight, in squared units of the target, a number or
            a tensor, whose shape is the batch shape of the map and whose dtype and device are the map's.
        scales: Divisors of the features, shape (F,) with F = D p + 1 in the order above, the constant last;
            ``None`` for ones.
        dtype: Dtype of the map where ``prior_variance`` is a number.

    Raises:
        ValueError: If ``order``, ``prior_variance`` or ``scales`` is not positive, or ``scales`` has the wrong
            shape.
        TypeError: If ``prior_variance`` is a tensor that is not floating point or not of ``dtype``.

    Example:
        >>> import torch
        >>> features = AdditivePolynomialFeatures(2, order=3, dtype=torch.float64)
        >>> features(torch.tensor([[2.0, -1.0]], dtype=torch.float64))
        tensor([[ 2.,  4.,  8., -1.,  1., -1.,  1.]], dtype=torch.float64)
    """

    scales: Tensor
    shared_tensors: frozenset[str] = frozenset({"domain", "scales"})

    def __init__(
        self,
        num_inputs: int,
        order: int,
        prior_variance: float | Tensor = 1.0,
        scales: Tensor | None = None,
        *,
        dtype: torch.dtype | None = None,
    ) -> None:
        if order < 1:
            raise ValueError(f"the order of a polynomial must be at least 1, got {order}")
        start = positive(prior_variance, dtype, "prior_variance")
        num_features = num_inputs * order + 1
        if scales is None:
            scales = start.new_ones(num_features)
        if scales.shape != (num_features,):
            raise ValueError(f"scales must have shape ({num_features},), got {tuple(scales.shape)}")
        super().__init__(num_inputs, num_features, start.shape)
        self.order = order
        self.prior: PriorVariance = PriorVariance(self.batch_shape, start)
        self.register_buffer("scales", positive_like(scales, start, "scales").clone())

    @classmethod
    def from_data(cls, X: Tensor, order: int, prior_variance: float | Tensor = 1.0) -> "AdditivePolynomialFeatures":
        r"""Build the map with scales that give every feature unit mean square over the given rows.

        Args:
            X: The first rows, shape (N, D).
            order: Largest power p.
            prior_variance: Initial prior variance of the scaled features' weights, a number or shape (\*batch).

        Raises:
            ValueError: If X is not a finite matrix, or a column's power has no finite, positive mean square
                (the column is named).
            TypeError: If X is not a floating point tensor.
        """
        check_matrix(X)
        powers = _powers(X.reshape(-1, X.shape[-1]), order)
        root_mean_square = powers.square().mean(0).sqrt()
        wrong = ~((root_mean_square > 0) & torch.isfinite(root_mean_square))
        if bool(wrong.any()):
            feature = int(wrong.int().argmax())
            raise ValueError(
                f"power {feature % order + 1} of column {feature // order} of X has root mean square "
                f"{float(root_mean_square[feature])}: drop the column, or standardize it first"
            )
        scales = torch.cat([root_mean_square, X.new_ones(1)])
        return cls(X.shape[-1], order, positive_like(prior_variance, X, "prior_variance"), scales)

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of each weight, shape (\*batch), differentiable."""
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Return the map as a plain function of tensors."""
        batch_shape, order, factors = self.batch_shape, self.order, self.scales.reciprocal()

        def features(X: Tensor) -> Tensor:
            Phi = torch.cat([_powers(X, order), torch.ones_like(X[..., :1])], dim=-1) * factors
            return expand_batch(Phi, batch_shape)

        return features


def _powers(X: Tensor, order: int) -> Tensor:
    """Powers 1..order of each column of X (..., N, D), column by column, shape (..., N, D * order)."""
    powers = [X]
    for _ in range(order - 1):
        powers.append(powers[-1] * X)
    return torch.stack(powers, dim=-1).flatten(-2)
