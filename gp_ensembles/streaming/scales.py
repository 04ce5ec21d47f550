"""Shifts and scales of a table, taken from its warm-up rows only."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.display import prints_fields


@prints_fields
class Standardizer(NamedTuple):
    """Shifts and scales taken from the warm-up rows, for inputs and target; of many series with an axis in front.

    Attributes:
        X_mean: Means of the inputs, shape (D,).
        X_scale: Population standard deviations of the inputs, shape (D,).
        y_mean: Mean of the observed targets, a scalar; of several outputs (O,).
        y_scale: Population standard deviation of the observed targets, of the same shape.

    Example:
        >>> import torch
        >>> X = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> standardizer = Standardizer.fit(X, torch.tensor([1.0, 5.0], dtype=torch.float64))
        >>> standardizer.inverse_mean(torch.tensor(1.0, dtype=torch.float64))
        tensor(5., dtype=torch.float64)
    """

    X_mean: Tensor
    X_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    @classmethod
    def fit(
        cls,
        X: Tensor,
        y: Tensor,
        feature_names: Sequence[str] | None = None,
        *,
        inactive: Sequence[int] = (),
        may_be_constant: bool = False,
    ) -> "Standardizer":
        """Take means and population standard deviations of warm-up rows; missing values are left out.

        Args:
            X: Warm-up inputs, shape (N, D); NaN where missing.
            y: Warm-up targets, shape (N,), or (N, O) for several outputs; NaN where missing.
            feature_names: Names for messages; column numbers by default.
            inactive: Columns that may be constant; their scale is one.
            may_be_constant: Whether the targets may be; their scale is then their absolute value, or one.

        Raises:
            ValueError: If another column or a target is constant or too large to square, or no target is observed.
        """
        scales = cls.fit_inputs(X, y, feature_names, inactive=inactive)
        columns = (y.unsqueeze(-1) if y.ndim == 1 else y).unbind(-1)
        outputs = [_moments_of_target(column, may_be_constant) for column in columns]
        y_mean, y_scale = (torch.stack(part) for part in zip(*outputs, strict=True))
        return scales._replace(y_mean=y_mean.reshape(y.shape[1:]), y_scale=y_scale.reshape(y.shape[1:]))

    @classmethod
    def fit_inputs(
        cls, X: Tensor, y: Tensor, feature_names: Sequence[str] | None = None, *, inactive: Sequence[int] = ()
    ) -> "Standardizer":
        """As :meth:`fit` for the inputs; targets, such as classes and counts, stay as they are."""
        constant = [j for j in constant_columns(X) if j not in inactive]
        if constant:
            names = [feature_names[j] if feature_names else f"column {j}" for j in constant]
            raise ValueError(
                f"constant in the {X.shape[0]} warm-up rows: {', '.join(names)}; leave them out, "
                f"or use a longer warm-up"
            )
        mean, scale = column_moments(X)
        if inactive:
            seen = X[:, list(inactive)].isnan().logical_not().int().argmax(0)
            mean[list(inactive)] = X[seen, list(inactive)].nan_to_num(0.0)  # the value itself, no mean of it
            scale[list(inactive)] = 1.0
        zero = y.new_zeros(())
        _check_finite(mean, scale)
        return cls(mean, scale, zero, zero + 1)

    def transform(self, X: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (..., D) and targets in standardized units."""
        return self.transform_inputs(X), (y - self.y_mean) / self.y_scale

    def transform_inputs(self, X: Tensor) -> Tensor:
        """Inputs (..., D) in standardized units."""
        return (X - self.X_mean) / self.X_scale

    def inverse_mean(self, mean: Tensor) -> Tensor:
        """Means, quantiles or targets back in the target's units."""
        return mean * self.y_scale + self.y_mean

    def inverse_std(self, std: Tensor) -> Tensor:
        """Standard deviations back in the target's units."""
        return std * self.y_scale

    def log_scale(self, targets: Tensor) -> Tensor:
        """What log densities of targets (N,) lose in their units; of several outputs (N, O), of those observed."""
        log_scale = self.y_scale.log()
        return log_scale if targets.ndim == 1 else torch.where(targets.isnan(), 0.0, log_scale).sum(-1)


def column_moments(X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and population standard deviations of the observed values of X (N, D), (D,) each."""
    if not bool(X.isnan().any()):
        return X.mean(0), X.std(0, correction=0)
    seen = (~X.isnan()).sum(0).clamp_min(1)
    mean = X.nansum(0) / seen
    return mean, ((X - mean).square().nansum(0) / seen).sqrt()


def constant_columns(X: Tensor) -> list[int]:
    """Columns of X (N, D) that do not vary beyond round-off, or have no observed value.

    Example:
        >>> import torch
        >>> constant_columns(torch.tensor([[1.0, 2.0], [1.0, 3.0]]))
        [0]
    """
    spread = column_moments(X)[1]
    round_off = 10 * torch.finfo(X.dtype).eps * X.nan_to_num(0.0).abs().amax(0)
    return [int(j) for j in (spread <= round_off).nonzero().flatten()]


def _moments_of_target(y: Tensor, may_be_constant: bool) -> tuple[Tensor, Tensor]:
    seen = y[~torch.isnan(y)]
    if seen.numel() == 0:
        raise ValueError("no target is observed in the warm-up rows")
    mean, scale = seen.mean(), seen.std(correction=0)
    _check_finite(mean, scale)
    if may_be_constant and constant_columns(seen.unsqueeze(-1)):
        return mean, torch.where(mean == 0, 1.0, mean.abs())
    if not bool(scale > 0) or bool((seen == seen[0]).all()):
        raise ValueError(f"the target is constant ({float(seen[0]):g}) in the warm-up rows; use a longer warm-up")
    return mean, scale


def _check_finite(*moments: Tensor) -> None:
    if not all(bool(moment.isfinite().all()) for moment in moments):
        raise ValueError("a column's or the target's spread overflows; rescale the values of the warm-up rows")
