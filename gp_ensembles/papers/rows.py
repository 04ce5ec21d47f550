"""Checks of training rows, shared by all offline tools."""

import torch
from torch import Tensor


def check_rows(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Targets (N,) and which of them were observed (N,), after checks of rows X (N, D) and targets (N,) or (N, 1)."""
    for name, values in (("inputs", X), ("targets", Y)):
        if not isinstance(values, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor, not {type(values).__name__}; see torch.as_tensor")
    y = Y.squeeze(-1) if Y.ndim == 2 and Y.shape[-1] == 1 else Y
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0] or not X.shape[0]:
        shapes = f"{tuple(X.shape)} and {tuple(Y.shape)}"
        raise ValueError(f"inputs (N, D) and targets (N,) or (N, 1) of at least one row do not fit: {shapes}")
    if not X.is_floating_point() or X.dtype != y.dtype or X.device != y.device:
        raise ValueError(f"inputs and targets must share a real dtype and a device, got {X.dtype} and {y.dtype}")
    seen = ~y.isnan()
    if not bool(seen.any()):
        raise ValueError(f"all {len(y)} targets are missing (NaN); there is nothing to learn from")
    for name, values in (("inputs", X), ("targets", y.unsqueeze(-1))):
        check_finite(name, values.where(seen.unsqueeze(-1), 0.0))
    return y, seen


def check_finite(name: str, values: Tensor) -> None:
    """Refuse a table (N, D) with a value that is not finite, and name the first."""
    bad = (~values.isfinite()).nonzero()
    if bad.numel():
        row, column = bad[0].tolist()
        raise ValueError(
            f"{name} must be finite, but {name}[{row}, {column}] is {float(values[row, column])}; leave the row out"
        )
