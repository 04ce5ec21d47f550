"""Base class of feature maps: a finite basis with a Gaussian prior on its weights; its batch axes and checks."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from gpytorch.constraints import Positive
from torch import Tensor, nn

BoundFeatures = Callable[[Tensor], Tensor]


class FeatureMap(nn.Module, ABC):
    r"""Maps inputs to features of a Bayesian linear model, for one expert or a batch of experts.

    Scale convention, for every map: the weights have prior :math:`\theta \sim N(0, \sigma_\theta^2 I)` with
    :math:`\sigma_\theta^2` = :attr:`prior_variance`, and :math:`\phi(x)^\top \phi(x')` approximates the
    kernel of **unit** output scale. The output scale of a GPyTorch ``ScaleKernel`` is :attr:`prior_variance`.

    Args:
        num_inputs: Number of input columns D.
        num_features: Number of features F.
        batch_shape: Shape of the batch of experts; ``torch.Size()`` for a single one.
        domain: Lower and upper ends per column, shape (2, D), outside which the map is not valid; ``None`` if
            it is valid everywhere.
    """

    domain: Tensor | None
    # Names of the map's own tensors that have no batch axis; every other one starts with ``batch_shape``.
    shared_tensors: frozenset[str] = frozenset({"domain"})

    def __init__(
        self, num_inputs: int, num_features: int, batch_shape: torch.Size, domain: Tensor | None = None
    ) -> None:
        super().__init__()
        if num_inputs < 1 or num_features < 1:
            raise ValueError(
                f"a feature map needs at least one input and one feature, got {num_inputs} and {num_features}"
            )
        self.num_inputs = num_inputs
        self.num_features = num_features
        self.batch_shape = batch_shape
        self.register_buffer("domain", domain)

    @property
    @abstractmethod
    def prior_variance(self) -> Tensor:
        r"""Prior variance :math:`\sigma_\theta^2` of each weight, shape (\*batch), differentiable."""

    @abstractmethod
    def bind(self) -> BoundFeatures:
        r"""Read the hyperparameters once and return the map as a plain function of tensors.

        The function takes X (..., N, D) to Phi (..., \*batch, N, F) and stays differentiable in the
        hyperparameters it was bound to. Loops call this once and the function many times.
        """

    def forward(self, X: Tensor) -> Tensor:
        r"""Evaluate the features.

        Args:
            X: Inputs, shape (..., N, D).

        Returns:
            Features, shape (..., \*batch, N, F).

        Raises:
            ValueError: If X has the wrong number of columns, is not finite, or leaves :attr:`domain`.
            TypeError: If X is not a floating point tensor of the map's dtype.
        """
        self.check_inputs(X)
        return self.bind()(X)

    def check_inputs(self, X: Tensor) -> None:
        """Raise a clear error if X (..., N, D) is not a legal input of this map."""
        check_matrix(X, self.num_inputs)
        like = self.prior_variance
        if X.dtype != like.dtype:
            raise TypeError(f"X is {X.dtype} and {type(self).__name__} is {like.dtype}; convert one with .to(...)")
        if self.domain is None or X.device.type == "meta":
            return
        beyond = torch.maximum(self.domain[0] - X, X - self.domain[1])
        if not bool((beyond > 0).any()):
            return
        flat = beyond.reshape(-1, self.num_inputs)
        row, column = divmod(int(flat.argmax()), self.num_inputs)
        lower, upper = float(self.domain[0, column]), float(self.domain[1, column])
        raise ValueError(
            f"column {column} of X leaves the domain [{lower:.6g}, {upper:.6g}] of {type(self).__name__} by "
            f"{float(flat[row, column]):.3g} in row {row}; build the map with a larger boundary factor, or "
            f"clamp the inputs with features.Clamp"
        )


def check_matrix(X: Tensor, num_columns: int | None = None) -> None:
    """Raise unless X (..., N, D) is a finite floating point tensor, with as many columns as are given, if any."""
    if not isinstance(X, Tensor):
        raise TypeError(
            f"X must be a floating point tensor, got {type(X).__name__}; convert it with "
            f"torch.as_tensor(X, dtype=torch.float64)"
        )
    if not X.is_floating_point():
        raise TypeError(f"X must be a floating point tensor, got {X.dtype}; convert it with X.double()")
    if X.ndim < 2 or num_columns not in (None, X.shape[-1]):
        wanted = "D" if num_columns is None else num_columns
        raise ValueError(f"X must have shape (..., N, {wanted}), got {tuple(X.shape)}")
    finite = torch.isfinite(X)
    if X.device.type != "meta" and not bool(finite.all()):
        row, column = divmod(int((~finite).reshape(-1).int().argmax()), X.shape[-1])
        raise ValueError(
            f"X is {float(X.reshape(-1, X.shape[-1])[row, column])} in row {row}, column {column}; "
            f"inputs must be finite: drop the row or fill the value in"
        )


def log_scale() -> Positive:
    """Positivity by the exponential: the unconstrained number is the logarithm."""
    return Positive(transform=torch.exp, inv_transform=torch.log)


class PriorVariance(nn.Module):
    r"""Trainable prior variance of the weights, for maps that have no kernel to take it from.

    Args:
        batch_shape: Shape of the batch of experts.
        value: Initial prior variance, in squared units of the target; broadcast to ``batch_shape``. Its dtype
            and device become the parameter's.
    """

    raw_value: Tensor

    def __init__(self, batch_shape: torch.Size, value: Tensor) -> None:
        super().__init__()
        self.constraint = log_scale()
        start = value.detach().expand(batch_shape).clone()
        self.register_parameter("raw_value", nn.Parameter(self.constraint.inverse_transform(start)))

    def forward(self) -> Tensor:
        r"""The prior variance, shape (\*batch)."""
        value: Tensor = self.constraint.transform(self.raw_value)
        return value


def insert_batch(X: Tensor, batch_shape: torch.Size) -> Tensor:
    r"""View X (..., N, D) with an axis of length one for every batch axis: (..., \*ones, N, D)."""
    return X[(..., *([None] * len(batch_shape)), slice(None), slice(None))]


def expand_batch(Phi: Tensor, batch_shape: torch.Size) -> Tensor:
    r"""Repeat features (..., N, F) for every expert, without copying: (..., \*batch, N, F)."""
    if not batch_shape:
        return Phi
    return insert_batch(Phi, batch_shape).expand(*Phi.shape[:-2], *batch_shape, *Phi.shape[-2:])


def positive(value: float | Tensor, dtype: torch.dtype | None, name: str) -> Tensor:
    """A positive start value as a detached tensor: a tensor keeps its dtype, a number takes ``dtype``.

    Raises:
        TypeError: If a tensor is not floating point, or of another dtype than the one asked for.
        ValueError: If an entry is not positive and finite.
    """
    tensor = value.detach() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
    if dtype is not None and tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}, but the requested dtype is {dtype}; give only one of the two")
    check_positive(tensor, name)
    return tensor


def positive_like(value: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A positive start value as a detached tensor with the dtype and device of ``like``."""
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
    check_positive(tensor, name)
    return tensor


def check_positive(value: Tensor, name: str) -> None:
    """Raise unless every entry of a floating point tensor is positive and finite."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"{name} must be a floating point tensor, got {kind}; its dtype and device are those of the map"
        )
    if value.device.type == "meta":
        return
    wrong = ~((value > 0) & torch.isfinite(value))
    if bool(wrong.any()):
        raise ValueError(f"{name} must be positive and finite, got {float(value[wrong].reshape(-1)[0])}")


def check_columns(wrong: Tensor, what: str) -> None:
    """Raise "column(s) [...] {what}" if any is marked as wrong, shape (D,); on the meta device nothing can be read."""
    if wrong.device.type != "meta" and bool(wrong.any()):
        raise ValueError(f"column(s) {wrong.nonzero().flatten().tolist()} {what}")
