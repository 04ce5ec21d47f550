"""Refuse experts' predictions that cannot be fused, naming the expert and the row."""

import torch
from torch import Tensor


def check_moments(mean: Tensor, variance: Tensor) -> None:
    r"""Means and variances must have one shape, (..., K, N), be finite, and the variances positive.

    Args:
        mean: The experts' means, shape (..., K, N).
        variance: Their variances.

    Raises:
        ValueError: If shapes differ, there is no expert, or a value is out of range; names the expert and the row.

    Example:
        >>> import torch
        >>> check_moments(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0]]))
        Traceback (most recent call last):
        ...
        ValueError: variances must be positive and finite: expert 1 has 0 at row 1; give variances, not logarithms...
    """
    if mean.shape != variance.shape or mean.ndim < 2 or mean.shape[-2] == 0:
        raise ValueError(
            f"means and variances of at least one expert must have the same shape (..., K, N): got "
            f"{tuple(mean.shape)} and {tuple(variance.shape)}"
        )
    _require(torch.isfinite(mean), mean, "means must be finite", "leave the expert out where it does not predict")
    fine = (variance > 0) & torch.isfinite(variance)
    advice = "give variances, not logarithms, and with the noise where the pool is of targets"
    _require(fine, variance, "variances must be positive and finite", advice)


def check_noise(noise: Tensor, mean: Tensor) -> None:
    """Noise variances must be finite, not negative, and fit the means.

    Raises:
        ValueError: If they are not, or do not broadcast to the means' shape.

    Example:
        >>> import torch
        >>> check_noise(torch.tensor([[0.1], [0.2]]), torch.zeros(2, 3))
    """
    try:
        noise = noise.expand_as(mean)
    except RuntimeError:
        raise ValueError(
            f"noise variances must fit the means' shape {tuple(mean.shape)}, got {tuple(noise.shape)}; "
            "one per expert has shape (K, 1)"
        ) from None
    fine = (noise >= 0) & torch.isfinite(noise)
    _require(fine, noise, "noise variances must be finite and not negative", "zero stands for none")


def check_log_weights(log_weights: Tensor, mean: Tensor) -> Tensor:
    """Log weights (K,) or (..., K, N or 1) with the axes of the means, (..., K, N).

    Raises:
        ValueError: If they do not fit the means, one is NaN or plus infinity, or all of a row are minus infinity.

    Example:
        >>> import torch
        >>> check_log_weights(torch.zeros(2), torch.zeros(2, 3)).shape
        torch.Size([2, 1])
    """
    if log_weights.ndim == 1:
        log_weights = log_weights.unsqueeze(-1)
    try:
        fits = torch.broadcast_shapes(log_weights.shape, mean.shape) == mean.shape
    except RuntimeError:
        fits = False
    if not fits or log_weights.shape[-2:-1] != mean.shape[-2:-1]:
        raise ValueError(
            f"log weights must have shape (K,), or (..., K, N) with the experts' axis before the rows', for means "
            f"{tuple(mean.shape)}; got {tuple(log_weights.shape)}"
        )
    if bool((torch.isnan(log_weights) | torch.isposinf(log_weights)).any()):
        raise ValueError("log weights must be numbers or minus infinity, and one is NaN or plus infinity")
    if bool(torch.isneginf(log_weights).all(-2).any()):
        raise ValueError("a row has no expert left: all its log weights are minus infinity; give one of them weight")
    return log_weights


def _require(fine: Tensor, values: Tensor, what: str, advice: str) -> None:
    if bool(fine.all()):
        return
    *batch, expert, row = (~fine).nonzero()[0].tolist()
    value = float(values[(*batch, expert, row)])
    place = f" of batch entry {tuple(batch)}" if batch else ""
    raise ValueError(f"{what}: expert {expert}{place} has {value:g} at row {row}; {advice}")
