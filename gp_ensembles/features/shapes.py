"""Batch axes of features, and checks of positive start values and of columns."""

import torch
from torch import Tensor


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
        raise TypeError(f"{name} is {tensor.dtype}, but the dtype asked for is {dtype}; give one of the two only")
    check_positive(tensor, name)
    return tensor


def positive_like(value: float | Tensor, like: Tensor, name: str) -> Tensor:
    """A positive start value as a detached tensor with the dtype and device of ``like``.

    Raises:
        ValueError: If an entry is not positive and finite.
    """
    tensor = torch.as_tensor(value, dtype=like.dtype, device=like.device).detach()
    check_positive(tensor, name)
    return tensor


def check_positive(value: Tensor, name: str) -> None:
    """Raise unless every entry of a floating point tensor is positive and finite.

    Raises:
        TypeError: If the value is not a floating point tensor.
        ValueError: If an entry is zero, negative, NaN or infinite.
    """
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
    """Raise if any column is marked as wrong, shape (D,); on the meta device nothing can be read.

    Raises:
        ValueError: "column(s) [..] " followed by ``what``.
    """
    if wrong.device.type != "meta" and bool(wrong.any()):
        raise ValueError(f"column(s) {wrong.nonzero().flatten().tolist()} {what}")
