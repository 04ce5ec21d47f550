"""Checks of inputs and targets; messages name the argument and how to correct it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gp_ensembles.features.base import FeatureMap, check_matrix
from gp_ensembles.filters.rows import Rows


def check_rows(X: Tensor, num_inputs: int | None) -> None:
    """Raise unless X is a finite matrix (N, D); D is any number of columns if ``num_inputs`` is ``None``.

    Raises:
        TypeError: If X is not a floating point tensor.
        ValueError: If its shape is wrong or an entry is not finite.
    """
    if isinstance(X, Tensor) and X.ndim < 2:
        wanted = "D" if num_inputs is None else num_inputs
        if X.ndim == 0:
            hint = "use X.reshape(1, 1) for one row of one column"
        elif num_inputs is not None and num_inputs > 1 and X.shape[0] == num_inputs:
            hint = "use X.unsqueeze(0) for one row"
        else:
            hint = "use X.unsqueeze(-1) for N rows of one column"
        raise ValueError(f"X must have shape (N, {wanted}), got {tuple(X.shape)}; {hint}")
    check_matrix(X, num_inputs)


def check_inputs(
    X: Tensor, num_inputs: int, like: Tensor, bounded: Sequence[FeatureMap], forecasts: Sequence[int] = ()
) -> None:
    """Raise unless X is a finite (N, D) matrix with the dtype and device of ``like``, inside every domain."""
    if forecasts and isinstance(X, Tensor) and X.ndim == 2 and X.shape[1] == num_inputs:
        X, num_inputs = without_columns(X, forecasts), num_inputs - len(forecasts)
    check_rows(X, num_inputs)
    if X.ndim != 2 or X.shape[0] == 0:
        raise ValueError(f"X must have shape (N, {num_inputs}) with at least one row, got {tuple(X.shape)}")
    if X.dtype != like.dtype or X.device != like.device:
        raise TypeError(f"X is {X.dtype} on {X.device}, the ensemble {like.dtype} on {like.device}; use X.to(...)")
    for features in bounded:
        features.check_inputs(X)


def without_columns(X: Tensor, columns: Sequence[int]) -> Tensor:
    """The other columns of X (N, D)."""
    return X[:, [j for j in range(X.shape[1]) if j not in columns]] if columns else X


def check_real_numbers(X: Tensor, y: Tensor) -> None:
    """Raise unless targets are a tensor of the dtype and on the device of X.

    Raises:
        TypeError: Naming the conversion.
    """
    if not isinstance(y, Tensor):
        raise TypeError(f"y must be a tensor, got {type(y).__name__}; use torch.as_tensor(y, dtype=X.dtype)")
    if not y.is_floating_point():
        raise TypeError(f"y must have the floating point dtype of X, {X.dtype}, got {y.dtype}; use y.to(X.dtype)")
    if y.dtype != X.dtype or y.device != X.device:
        raise TypeError(f"y is {y.dtype} on {y.device}, X is {X.dtype} on {X.device}; give both one dtype and device")


def check_targets(X: Tensor, y: Tensor, num_outputs: int | None) -> bool:
    """Raise unless y (B,) or (B, O) fits the B >= 1 rows of X (B, D); return whether any target is missing (NaN).

    Raises:
        ValueError: If the shape is wrong.
        TypeError: If y is not a tensor, or has another dtype or device.
    """
    check_real_numbers(X, y)
    num_rows = X.shape[0]
    if y.shape[:1] != X.shape[:1] or y.ndim != (1 if num_outputs is None else 2):
        wanted = f"({num_rows},)" if num_outputs is None else f"({num_rows}, {num_outputs})"
        raise ValueError(f"y must have shape {wanted}, a target for each row of X, got {tuple(y.shape)}{_hint(y, X)}")
    return y.device.type != "meta" and bool(torch.isnan(y).any())


def checked_rows(X: Tensor, y: Tensor, steps: Tensor | None, extra: Tensor | None, is_real: bool) -> Rows:
    """Targets y with the steps and the further noise of the rows X (N, D), in the precision of X.

    Raises:
        ValueError: If a shape is wrong, a number is negative or not finite, or targets that are not single real
            numbers have further noise.
    """
    rows = Rows(y, None, _checked(extra, "extra", X), _checked(steps, "steps", X)).simplified()
    if rows.extra is None:
        return rows
    if not is_real:
        raise ValueError("only single real targets can have extra noise; omit extra")
    return rows._replace(extra=rows.extra.to(X.dtype))


def checked_steps(X: Tensor, steps: Tensor | None) -> Tensor | None:
    """Steps (N,) before the rows X (N, D), checked as by :func:`checked_rows`; ``None`` for one each."""
    return checked_rows(X, X[:, 0], steps, None, is_real=True).steps


def _checked(value: Tensor | None, name: str, X: Tensor) -> Tensor | None:
    if value is None:
        return None
    if not isinstance(value, Tensor) or value.shape != X.shape[:1]:
        found = tuple(value.shape) if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{name} must have shape ({X.shape[0]},), a number for each row of X, got {found}")
    wrong = ~((value >= 0) & torch.isfinite(value))
    if bool(wrong.any()):
        row = int(wrong.int().argmax())
        raise ValueError(f"{name} must be finite and at least zero, got {float(value[row]):g} in row {row}")
    return value.detach().to(X.device)


def missing_rows(y: Tensor) -> Tensor:
    """Mask (B,) of rows without any observed target, for targets (B,) or (B, O)."""
    missing = torch.isnan(y)
    return missing if y.ndim == 1 else missing.all(-1)


def _hint(y: Tensor, X: Tensor) -> str:
    if y.shape == (X.shape[0], 1):
        return "; use y.squeeze(-1)"
    if y.shape == (X.shape[0],):
        return "; use y.unsqueeze(-1) if there is one output"
    if y.ndim == 2 and y.shape[0] == X.shape[0]:
        return "; for several outputs use MultiOutputExpert"
    return ""


def check_made(argument: str, value: object, kind: type, example: str) -> None:
    """Raise unless an argument is an instance of a class, with a hint if it is the class itself.

    Raises:
        TypeError: Naming the argument and how to correct it.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{argument} must be an object such as {example}, got {describe_argument(value)}")


def describe_argument(value: object) -> str:
    """Text of an argument for messages, with a hint if it is a class instead of an object."""
    return f"the class {value.__name__}: call it" if isinstance(value, type) else repr(value)
