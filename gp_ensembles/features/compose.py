"""Feature maps made of feature maps: several side by side, or one of some columns, or of clamped inputs."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from gp_ensembles.features.base import BoundFeatures, FeatureMap, check_columns


@final
class Concatenate(FeatureMap):
    r"""Several maps side by side: the sum of their models.

    .. math::
        \phi(x) = \Big[\sqrt{\tfrac{v_1}{v}}\,\phi_1(x), \dots, \sqrt{\tfrac{v_P}{v}}\,\phi_P(x)\Big],
        \qquad v = v_1 + \dots + v_P

    where :math:`v_p` is the prior variance of part p and v the :attr:`prior_variance` of the whole, so that
    :math:`v\,\phi(x)^\top\phi(x') = \sum_p v_p\,\phi_p(x)^\top\phi_p(x')`: each part keeps its own prior, and
    all hyperparameters stay trainable. A random walk added to the weights acts on the scaled features.

    Args:
        parts: The maps, with the same number of inputs and the same batch shape.

    Raises:
        ValueError: If there is no part, or parts differ in inputs or batch shape, or their domains do not
            overlap in some column.

    Example:
        >>> from gp_ensembles.features.linear import ConstantFeatures, LinearFeatures
        >>> slope = LinearFeatures(1, bias=False, dtype=torch.float64)
        >>> constant = ConstantFeatures(1, prior_variance=3.0, dtype=torch.float64)
        >>> features = Concatenate([slope, constant])
        >>> features(torch.tensor([[2.0]], dtype=torch.float64)).detach()
        tensor([[1.0000, 0.8660]], dtype=torch.float64)
    """

    def __init__(self, parts: Sequence[FeatureMap]) -> None:
        if not parts:
            raise ValueError("Concatenate needs at least one feature map, got none")
        first = parts[0]
        for index, part in enumerate(parts):
            if part.num_inputs != first.num_inputs or part.batch_shape != first.batch_shape:
                raise ValueError(
                    f"part {index} has {part.num_inputs} inputs and batch shape {tuple(part.batch_shape)}, "
                    f"part 0 has {first.num_inputs} and {tuple(first.batch_shape)}; they must agree"
                )
        num_features = sum(part.num_features for part in parts)
        super().__init__(first.num_inputs, num_features, first.batch_shape, _intersection(parts))
        self.parts: nn.ModuleList = nn.ModuleList(parts)

    @property
    def prior_variance(self) -> Tensor:
        r"""Sum of the parts' prior variances, shape (\*batch), differentiable."""
        return self._variances().sum(0)

    def bind(self) -> BoundFeatures:
        """Read the hyperparameters of all parts once and return the map as a plain function of tensors."""
        variances = self._variances()
        scales = (variances / variances.sum(0)).sqrt()[..., None, None]
        bound = [(part.bind(), scale) for part, scale in zip(self._maps(), scales, strict=True)]

        def features(X: Tensor) -> Tensor:
            return torch.cat([function(X) * scale for function, scale in bound], dim=-1)

        return features

    def _maps(self) -> list[FeatureMap]:
        return [part for part in self.parts if isinstance(part, FeatureMap)]

    def _variances(self) -> Tensor:
        return torch.stack([part.prior_variance for part in self._maps()])


@final
class SelectColumns(FeatureMap):
    r"""A map that sees some of the input columns only.

    .. math:: \phi(x) = \phi_0(x_{c_1}, \dots, x_{c_d})

    Args:
        features: The map, of d inputs.
        columns: Indices of its d inputs among the columns of X, each at most once, in the map's order.
        num_inputs: Number of columns D of X.

    Raises:
        ValueError: If the number of columns is not d, or an index is out of range or given twice.

    Example:
        >>> from gp_ensembles.features.linear import LinearFeatures
        >>> one = LinearFeatures(1, bias=False, dtype=torch.float64)
        >>> X = torch.tensor([[7.0, 8.0, 9.0]], dtype=torch.float64)
        >>> SelectColumns(one, columns=[2], num_inputs=3)(X)
        tensor([[9.]], dtype=torch.float64)
    """

    columns: Tensor
    shared_tensors: frozenset[str] = frozenset({"domain", "columns"})

    def __init__(self, features: FeatureMap, columns: Sequence[int], num_inputs: int) -> None:
        wrong = [column for column in columns if not 0 <= column < num_inputs]
        if wrong:
            raise ValueError(f"column(s) {wrong} are not among the columns 0..{num_inputs - 1} of X")
        twice = sorted({column for column in columns if list(columns).count(column) > 1})
        if twice:
            raise ValueError(f"column(s) {twice} are selected twice")
        if len(columns) != features.num_inputs:
            raise ValueError(f"the map takes {features.num_inputs} inputs, but {len(columns)} columns are selected")
        like = features.prior_variance.detach()
        index = torch.tensor(list(columns), dtype=torch.long, device=like.device)
        domain = None
        if features.domain is not None:
            domain = features.domain.new_full((2, num_inputs), torch.inf)
            domain[0] = -torch.inf
            domain[:, index] = features.domain
        super().__init__(num_inputs, features.num_features, features.batch_shape, domain)
        self.features = features
        self.register_buffer("columns", index)

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the map's weights, shape (\*batch), differentiable."""
        return self.features.prior_variance

    def bind(self) -> BoundFeatures:
        inner, columns = self.features.bind(), self.columns

        def features(X: Tensor) -> Tensor:
            return inner(X.index_select(-1, columns))

        return features


def _intersection(parts: Sequence[FeatureMap]) -> Tensor | None:
    domains = [part.domain for part in parts if part.domain is not None]
    if not domains:
        return None
    stacked = torch.stack(domains)
    domain = torch.stack([stacked[:, 0].amax(0), stacked[:, 1].amin(0)])
    check_columns(domain[0] > domain[1], "have no value that lies in the domains of all parts")
    return domain


@final
class Clamp(FeatureMap):
    r"""A map that holds inputs beyond a box at the box's edge: constant extrapolation, by explicit choice.

    .. math:: \phi(x) = \phi_0\big(\min(\max(x_1, l_1), u_1), \dots, \min(\max(x_D, l_D), u_D)\big)

    Use it around a map with a :attr:`domain` when a stream may leave it: predictions out there are those at
    the edge, and so is their uncertainty, which is then too small.

    Args:
        features: The map.
        lower: Lower ends l of the box, in units of the inputs, shape (D,); minus infinity for none.
        upper: Upper ends u, shape (D,); infinity for none.

    Raises:
        ValueError: If a shape does not fit, a lower end is not below the upper one, or the box leaves the map's
            domain (the columns are named).

    Example:
        >>> from gp_ensembles.features.linear import LinearFeatures
        >>> X = torch.tensor([[0.5], [7.0]], dtype=torch.float64)
        >>> slope, one = LinearFeatures.from_data(X, bias=False), X.new_ones(1)
        >>> features = Clamp(slope, -one, one)
        >>> features(X).T
        tensor([[0.5000, 1.0000]], dtype=torch.float64)
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
            >>> from gp_ensembles.features.additive import AdditiveSplineFeatures
            >>> X = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).unsqueeze(-1)
            >>> features = Clamp.to_domain(AdditiveSplineFeatures.from_data(X, 4, margin=0.0))
            >>> bool((features(2 * X[-1:]) == features(X[-1:])).all())
            True
        """
        if features.domain is None:
            raise ValueError(f"{type(features).__name__} is valid everywhere: it has no domain to clamp to")
        return cls(features, features.domain[0], features.domain[1])

    @property
    def prior_variance(self) -> Tensor:
        r"""Prior variance of the map's weights, shape (\*batch), differentiable."""
        return self.features.prior_variance

    def bind(self) -> BoundFeatures:
        inner, lower, upper = self.features.bind(), self.lower, self.upper

        def features(X: Tensor) -> Tensor:
            return inner(torch.minimum(torch.maximum(X, lower), upper))

        return features
