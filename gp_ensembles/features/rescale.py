"""Feature maps of transformed inputs: standardized, or clamped to a box."""

from typing import final

import torch
from torch import Tensor

from gp_ensembles.features.base import BoundFeatures, FeatureMap, check_matrix
from gp_ensembles.features.shapes import check_columns


@final
class Standardize(FeatureMap):
    r"""A map of standardized inputs, with a mean and a standard deviation that stay fixed.

    .. math:: \phi(x) = \phi_0\Big(\frac{x_1 - m_1}{s_1}, \dots, \frac{x_D - m_D}{s_D}\Big)

    Args:
        features: The map, of inputs in standardized units.
        mean: Means m, in units of the inputs, shape (D,).
        std: Standard deviations s, in units of the inputs, shape (D,), positive.

    Raises:
        ValueError: If a shape does not fit, an entry is not finite, or a standard deviation is not positive
            (the columns are named).

    Example:
        >>> import torch
        >>> from gp_ensembles.features.linear import LinearFeatures
        >>> X = torch.tensor([[1.0], [3.0]], dtype=torch.float64)
        >>> slope = LinearFeatures.from_data(X, bias=False)
        >>> Standardize.from_data(slope, X)(X).T
        tensor([[-1.,  1.]], dtype=torch.float64)
    """

    mean: Tensor
    std: Tensor
    shared_tensors: frozenset[str] = frozenset({"domain", "mean", "std"})

    def __init__(self, features: FeatureMap, mean: Tensor, std: Tensor) -> None:
        shape = (features.num_inputs,)
        if mean.shape != shape or std.shape != shape:
            raise ValueError(f"mean and std must have shape {shape}, got {tuple(mean.shape)} and {tuple(std.shape)}")
        wrong = ~((std > 0) & torch.isfinite(std) & torch.isfinite(mean))
        check_columns(wrong, "cannot be standardized: their standard deviation is zero or not finite; drop them")
        domain = None if features.domain is None else features.domain * std + mean
        super().__init__(features.num_inputs, features.num_features, features.batch_shape, domain)
        self.features = features
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())

    @classmethod
    def from_data(cls, features: FeatureMap, X: Tensor) -> "Standardize":
        """Standardize by the mean and the population standard deviation of the given rows.

        Args:
            features: The map, of inputs in standardized units.
            X: The first rows, shape (N, D).

        Raises:
            ValueError: If X is not a finite matrix of the map's width, or has constant columns (they are named).
            TypeError: If X is not a floating point tensor.
        """
        check_matrix(X, features.num_inputs)
        rows = X.reshape(-1, X.shape[-1])
        constant = rows.amin(0) == rows.amax(0)
        check_columns(constant, "are constant and cannot be standardized; drop them")
        return cls(features, rows.mean(0), rows.std(0, correction=0))

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the map's weights, shape (\*batch), differentiable."""
        return self.features.prior_variance

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        inner, mean, std = self.features.bind(), self.mean, self.std

        def features(X: Tensor) -> Tensor:
            return inner((X - mean) / std)

        return features


@final
class Clamp(FeatureMap):
    r"""A map that holds inputs beyond a box at the box's edge: constant extrapolation, by explicit choice.

    .. math:: \phi(x) = \phi_0\big(\min(\max(x_1, l_1), u_1), \dots, \min(\max(x_D, l_D), u_D)\big)

    Use it around a map with a :attr:`domain` when a stream may leave it: predictions out there are those at
    the edge, and so is their uncertainty, which is then too small. :meth:`num_clamped` counts how often it happens.

    Args:
        features: The map.
        lower: Lower ends l of the box, in units of the inputs, shape (D,); minus infinity for none.
        upper: Upper ends u, shape (D,); infinity for none.

    Raises:
        ValueError: If a shape does not fit, a lower end is not below the upper one, or the box leaves the map's
            domain (the columns are named).

    Example:
        >>> import torch
        >>> from gp_ensembles.features.linear import LinearFeatures
        >>> X = torch.tensor([[0.5], [7.0]], dtype=torch.float64)
        >>> slope, one = LinearFeatures.from_data(X, bias=False), X.new_ones(1)
        >>> features = Clamp(slope, -one, one)
        >>> features(X).T, features.num_clamped(X)
        (tensor([[0.5000, 1.0000]], dtype=torch.float64), 1)
    """

    lower: Tensor
    upper: Tensor
    shared_tensors: frozenset[str] = frozenset({"domain", "lower", "upper"})

    def __init__(self, features: FeatureMap, lower: Tensor, upper: Tensor) -> None:
        shape = (features.num_inputs,)
        if lower.shape != shape or upper.shape != shape:
            raise ValueError(
                f"lower and upper must have shape {shape}, got {tuple(lower.shape)} and {tuple(upper.shape)}"
            )
        check_columns(~(lower < upper), "have a lower end that is not below the upper one")
        if features.domain is not None:
            outside = (lower < features.domain[0]) | (upper > features.domain[1])
            check_columns(outside, "have a box that leaves the domain of the map; make the box smaller")
        super().__init__(features.num_inputs, features.num_features, features.batch_shape)
        self.features = features
        self.register_buffer("lower", lower.detach().clone())
        self.register_buffer("upper", upper.detach().clone())

    @classmethod
    def to_domain(cls, features: FeatureMap) -> "Clamp":
        """Clamp the inputs of a map to its own domain.

        Raises:
            ValueError: If the map has no domain.

        Example:
            >>> import torch
            >>> from gp_ensembles.features.spline import AdditiveSplineFeatures
            >>> X = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).unsqueeze(-1)
            >>> features = Clamp.to_domain(AdditiveSplineFeatures.from_data(X, 4, margin=0.0))
            >>> features.num_clamped(2 * X)
            4
        """
        if features.domain is None:
            raise ValueError(f"{type(features).__name__} is valid everywhere: it has no domain to clamp to")
        return cls(features, features.domain[0], features.domain[1])

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the map's weights, shape (\*batch), differentiable."""
        return self.features.prior_variance

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters once and return the map as a plain function of tensors."""
        inner, lower, upper = self.features.bind(), self.lower, self.upper

        def features(X: Tensor) -> Tensor:
            return inner(torch.minimum(torch.maximum(X, lower), upper))

        return features

    def num_clamped(self, X: Tensor) -> int:
        """Number of rows of X (..., N, D) that the map moves to the edge of the box."""
        beyond = torch.maximum(self.lower - X, X - self.upper)
        return int((beyond > 0).any(-1).sum())
