"""Rows and experts' predictions that a model of fusion can use, or a clear error."""

import warnings

import torch
from torch import Tensor

from gp_ensembles.fusion.experts import ExpertPredictions
from gp_ensembles.fusion.roles import Role

_FAR = 10.0  # prior standard deviations


def checked_predictions(
    predictions: ExpertPredictions | None, X: Tensor, num_experts: int | None = None
) -> tuple[Tensor, Tensor]:
    """Means and variances of y, noise included, by K experts at inputs X (N, D), each (K, N).

    Raises:
        ValueError: If there are no predictions, or their shapes, dtype or values do not fit.
    """
    if predictions is None:
        raise ValueError("this model stacks fixed experts: give their predictions at these inputs (predict_experts)")
    mean, variance, _ = predictions.check()
    experts = "K" if num_experts is None else str(num_experts)
    fits = mean.ndim == 2 and mean.shape[1:] == X.shape[:1]
    if not fits or (num_experts is not None and mean.shape[0] != num_experts):
        raise ValueError(
            f"predictions must be ({experts}, {X.shape[0]}), experts first, one column for each input, got "
            f"{tuple(mean.shape)}"
        )
    if any(part.dtype != X.dtype or part.device != X.device for part in predictions):
        raise ValueError(
            f"predictions must be {X.dtype} on {X.device} as the inputs, got {mean.dtype} on {mean.device}"
        )
    return mean, predictions.target_variance.expand_as(variance)


def no_predictions(predictions: ExpertPredictions | None) -> None:
    """Refuse predictions of experts where the model learns its own.

    Raises:
        ValueError: If there are some.
    """
    if predictions is not None:
        raise ValueError("this model learns its experts; predictions of fixed ones are for stacking (BHS, PBHS)")


def checked_rows(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (N, D) and targets (N,) or (N, 1), the targets as (N,), detached.

    Raises:
        ValueError: If shapes or dtypes do not fit, there is no row, or a value is not finite (the first row is named).
    """
    y = Y.squeeze(-1) if Y.ndim == 2 and Y.shape[-1] == 1 else Y
    if X.ndim != 2 or y.ndim != 1 or X.shape[0] != y.shape[0] or not X.shape[0]:
        raise ValueError(f"inputs (N, D) and targets (N,) or (N, 1) do not fit: {tuple(X.shape)} and {tuple(Y.shape)}")
    if not X.is_floating_point() or X.dtype != y.dtype or X.device != y.device:
        raise ValueError(f"inputs and targets must share a real dtype and a device, got {X.dtype} and {y.dtype}")
    for name, values in (("inputs", X), ("targets", y.unsqueeze(-1))):
        bad = (~values.isfinite()).any(-1).nonzero()
        if bad.numel():
            raise ValueError(f"{name} must be finite, but row {int(bad[0])} is not; leave such rows out")
    return X.detach(), y.detach()


def check_inputs(X: Tensor, like: Tensor) -> None:
    """Refuse new inputs that do not fit the training inputs.

    Raises:
        ValueError: If the shape, dtype or device does not fit, or a value is not finite.
    """
    if X.ndim != 2 or X.shape[-1] != like.shape[-1] or X.dtype != like.dtype or X.device != like.device:
        raise ValueError(
            f"inputs must be (N, {like.shape[-1]}) of {like.dtype} on {like.device} as in training, got "
            f"{tuple(X.shape)} of {X.dtype} on {X.device}"
        )
    bad = (~X.isfinite()).any(-1).nonzero()
    if bad.numel():
        raise ValueError(f"inputs must be finite, but row {int(bad[0])} is not")


@torch.no_grad()
def warn_of_scale(y: Tensor, X: Tensor, role: Role) -> None:
    """Warn of targets far outside what the prior of a mean function reaches: nothing could be learned from them.

    Args:
        y: Targets, shape (N,).
        X: Inputs, shape (N, D).
        role: The prior of the mean.

    Example:
        >>> from gp_ensembles.fusion.roles import FourierRole
        >>> X = torch.zeros(2, 1, device="cpu")
        >>> warn_of_scale(X[:, 0], X, FourierRole(torch.ones_like(X)))
    """
    prior = float(role.basis(X).square().sum(0).mean().sqrt())
    size = float(y.square().mean().sqrt())
    if size > _FAR * prior:
        warnings.warn(
            f"targets of size {size:.2g} lie far outside a prior of standard deviation {prior:.2g}: standardize them, "
            "or give the role of the mean a larger amplitude",
            stacklevel=4,
        )
