"""Rows and knots that a sparse Gaussian process can use, or a clear error."""

import torch
from torch import Tensor


def check_rows(X: Tensor, Y: Tensor) -> Tensor:
    """Targets as (N,), after checking rows X (N, D) and targets (N,) or (N, 1).

    Raises:
        TypeError: If something else than tensors is given.
        ValueError: If shapes or dtypes do not fit, there is no row, or a value is not finite (the first is named).

    Example:
        >>> import torch
        >>> check_rows(torch.zeros(3, 1), torch.zeros(3, 1)).shape
        torch.Size([3])
    """
    for name, values in (("inputs", X), ("targets", Y)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a torch tensor, not {type(values).__name__}; see torch.as_tensor")
    y = Y.squeeze(-1) if Y.ndim == 2 and Y.shape[-1] == 1 else Y
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0] or not X.shape[0]:
        raise ValueError(f"inputs (N, D) and targets (N,) or (N, 1) do not fit: {tuple(X.shape)} and {tuple(Y.shape)}")
    if not X.is_floating_point() or X.dtype != y.dtype or X.device != y.device:
        raise ValueError(f"inputs and targets must share a real dtype and a device, got {X.dtype} and {y.dtype}")
    for name, values in (("inputs", X), ("targets", y.unsqueeze(-1))):
        bad = (~values.isfinite()).nonzero()
        if bad.numel():
            row, column = bad[0].tolist()
            raise ValueError(f"{name} must be finite, but row {row}, column {column} is {float(values[row, column])}")
    return y


def check_knots(X: Tensor, knots: Tensor) -> None:
    """Refuse knots that do not fit the rows.

    Raises:
        ValueError: If shapes or dtypes do not fit, a knot is not finite, or there are more knots than distinct rows.

    Example:
        >>> import torch
        >>> check_knots(torch.zeros(3, 1), torch.zeros(2, 1))
        Traceback (most recent call last):
        ...
        ValueError: 2 knots are more than the 1 distinct row(s); further knots cannot add anything
    """
    check_shape(X, knots)
    distinct = torch.unique(X, dim=0).shape[0]
    if knots.shape[0] > distinct:
        raise ValueError(
            f"{knots.shape[0]} knots are more than the {distinct} distinct row(s); further knots cannot add anything"
        )


def check_shape(X: Tensor, knots: Tensor) -> None:
    """Refuse knots of another width or dtype than the rows, none at all, and ones that are not finite.

    Example:
        >>> import torch
        >>> check_shape(torch.zeros(3, 1), torch.zeros(0, 1))
        Traceback (most recent call last):
        ...
        ValueError: knots must be (K, 1) of torch.float32, K at least 1, got (0, 1) of torch.float32
    """
    if knots.ndim != 2 or knots.shape[-1] != X.shape[-1] or not knots.shape[0] or knots.dtype != X.dtype:
        raise ValueError(
            f"knots must be (K, {X.shape[-1]}) of {X.dtype}, K at least 1, got {tuple(knots.shape)} of {knots.dtype}"
        )
    if not bool(knots.isfinite().all()):
        raise ValueError("knots must be finite")


def check_positive(**counts: int) -> None:
    """Refuse counts below one, by name.

    Example:
        >>> check_positive(rounds=0)
        Traceback (most recent call last):
        ...
        ValueError: rounds must be at least 1, got 0
    """
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
