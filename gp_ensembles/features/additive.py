"""Additive bases: powers or B-splines of every input column, without products of columns, and one constant."""

from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from gp_ensembles.features.base import (
    BoundFeatures,
    FeatureMap,
    PriorVariance,
    check_columns,
    check_matrix,
    expand_batch,
    positive,
    positive_like,
)


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
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
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


@final
class AdditiveSplineFeatures(FeatureMap):
    r"""B-splines of every input column, without products of columns, and one constant.

    .. math:: \phi(x) = [B_1(x_1), \dots, B_{I+p}(x_1), B_1(x_2), \dots, B_{I+p}(x_D), 1]

    with the B-splines of degree p on I intervals of each column, ends repeated, evaluated by the Cox-de Boor
    recursion (de Boor, A Practical Guide to Splines, 1978). Within a column they are non-negative and sum to
    one. The map is valid between the first and the last breakpoint only, so these must leave room for what
    the stream has yet to bring; to hold later inputs at the edge use
    :class:`~gp_ensembles.features.compose.Clamp`.

    Args:
        breakpoints: Ends of the intervals of each column, in units of the inputs, shape (D, I + 1), strictly
            increasing along a row. See :func:`uniform_breakpoints`.
        prior_variance: Initial prior variance of every weight, in squared units of the target, a number or
            a tensor, whose shape is the batch shape of the map.
        degree: Degree p of the pieces: 3 for cubic (twice differentiable), 1 for broken lines, 0 for steps.

    Raises:
        ValueError: If breakpoints are not finite and increasing (the column is named), ``degree`` is negative,
            or ``prior_variance`` is not positive.
        TypeError: If ``breakpoints`` is not a floating point tensor; the map has its dtype and device.

    Example:
        >>> breakpoints = torch.tensor([[0.0, 1.0, 2.0]], dtype=torch.float64)
        >>> features = AdditiveSplineFeatures(breakpoints, degree=1)
        >>> features(torch.tensor([[0.25]], dtype=torch.float64))
        tensor([[0.7500, 0.2500, 0.0000, 1.0000]], dtype=torch.float64)
    """

    breakpoints: Tensor
    shared_tensors: frozenset[str] = frozenset({"domain", "breakpoints"})

    def __init__(self, breakpoints: Tensor, prior_variance: float | Tensor = 1.0, degree: int = 3) -> None:
        _check_breakpoints(breakpoints)
        start = positive_like(prior_variance, breakpoints, "prior_variance")
        if degree < 0:
            raise ValueError(f"the degree of a spline must not be negative, got {degree}")
        num_inputs, num_intervals = breakpoints.shape[0], breakpoints.shape[1] - 1
        knots = breakpoints.detach().clone()
        domain = torch.stack([knots[:, 0], knots[:, -1]])
        num_features = num_inputs * (num_intervals + degree) + 1
        super().__init__(num_inputs, num_features, start.shape, domain)
        self.degree = degree
        self.register_buffer("breakpoints", knots)
        self.prior: PriorVariance = PriorVariance(self.batch_shape, start)

    @classmethod
    def from_data(
        cls, X: Tensor, num_intervals: int, margin: float = 0.5, prior_variance: float | Tensor = 1.0, degree: int = 3
    ) -> "AdditiveSplineFeatures":
        r"""Build the map with equally spaced breakpoints from the given rows.

        Args:
            X: The first rows, shape (N, D).
            num_intervals: Number of intervals I of each column.
            margin: Room left on each side of the rows' range, as a share of it.
            prior_variance: Initial prior variance, a number or shape (\*batch).
            degree: Degree p of the pieces.

        Raises:
            ValueError: If X is not a finite matrix, has a constant column (it is named), or an argument is out
                of range.
            TypeError: If X is not a floating point tensor.

        Example:
            >>> X = torch.linspace(0.0, 1.0, 11, dtype=torch.float64).unsqueeze(-1)
            >>> AdditiveSplineFeatures.from_data(X, num_intervals=4).domain.T
            tensor([[-0.5000,  1.5000]], dtype=torch.float64)
        """
        return cls(uniform_breakpoints(X, num_intervals, margin), prior_variance, degree)

    @property
    def prior_variance(self) -> Tensor:
        value: Tensor = self.prior()
        return value

    def bind(self) -> BoundFeatures:
        """Return the map as a plain function of tensors.

        The function goes on with the end pieces beyond the domain; ``forward`` raises there.
        """
        batch_shape, degree = self.batch_shape, self.degree
        first, last = self.breakpoints[:, :1], self.breakpoints[:, -1:]
        knots = torch.cat([first.expand(-1, degree), self.breakpoints, last.expand(-1, degree)], dim=-1)
        interior = self.breakpoints[:, 1:-1]
        lower = torch.cat([torch.full_like(first, -torch.inf), interior], dim=-1)
        upper = torch.cat([interior, torch.full_like(last, torch.inf)], dim=-1)
        steps = []
        for k in range(1, degree + 1):
            width = knots[:, k:] - knots[:, :-k]
            inverse = torch.where(width > 0, width, torch.ones_like(width)).reciprocal() * (width > 0)
            steps.append((knots[:, :-k], inverse))

        def features(X: Tensor) -> Tensor:
            x = X.unsqueeze(-1)  # (..., N, D, 1)
            spline = ((x >= lower) & (x < upper)).to(X.dtype)
            spline = pad(spline, (degree, degree))
            for left, inverse in steps:
                rise = (x - left) * inverse
                spline = rise[..., :-1] * spline[..., :-1] + (1 - rise[..., 1:]) * spline[..., 1:]
            Phi = torch.cat([spline.flatten(-2), torch.ones_like(X[..., :1])], dim=-1)
            return expand_batch(Phi, batch_shape)

        return features


def uniform_breakpoints(X: Tensor, num_intervals: int, margin: float) -> Tensor:
    """Equally spaced breakpoints over the range of each column, widened on both sides.

    Shapes: ``X`` (N, D); returns (D, I + 1).
    """
    check_matrix(X)
    if X.ndim != 2 or X.shape[0] < 2:
        raise ValueError(f"X must have shape (N, D) with at least two rows, got {tuple(X.shape)}")
    if num_intervals < 1:
        raise ValueError(f"a spline needs at least one interval, got {num_intervals}")
    if margin < 0:
        raise ValueError(f"the margin must not be negative, got {margin}")
    lower, upper = X.amin(0), X.amax(0)
    check_columns(lower == upper, "of X are constant; drop them, or place the breakpoints manually")
    room = margin * (upper - lower)
    shares = torch.linspace(0, 1, num_intervals + 1, dtype=X.dtype, device=X.device)
    return torch.lerp((lower - room).unsqueeze(-1), (upper + room).unsqueeze(-1), shares)


def _check_breakpoints(breakpoints: Tensor) -> None:
    if not isinstance(breakpoints, Tensor) or not breakpoints.is_floating_point():
        kind = breakpoints.dtype if isinstance(breakpoints, Tensor) else type(breakpoints).__name__
        raise TypeError(f"breakpoints must be a floating point tensor, got {kind}")
    if breakpoints.ndim != 2 or breakpoints.shape[1] < 2:
        raise ValueError(f"breakpoints must have shape (D, I + 1), got {tuple(breakpoints.shape)}")
    if breakpoints.device.type == "meta":
        return
    wrong = ~((breakpoints.diff(dim=-1) > 0).all(-1) & torch.isfinite(breakpoints).all(-1))
    if bool(wrong.any()):
        raise ValueError(
            f"breakpoints of column(s) {wrong.nonzero().flatten().tolist()} are not finite and strictly increasing"
        )
