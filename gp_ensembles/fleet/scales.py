"""Units of many series: shifts and scales of each, and imputation of its missing inputs by its last ones."""

from typing import NamedTuple, Self

import torch
from torch import Tensor

from gp_ensembles.fleet.arrivals import Batch, batches


class SeriesScales(NamedTuple):
    """Shifts and scales of N rows, each from its own series.

    Attributes:
        X_mean: Means of the inputs, shape (N, D).
        X_scale: Their standard deviations, shape (N, D); one where a column is constant.
        y_mean: Means of the targets, shape (N,).
        y_scale: Their standard deviations, shape (N,); where targets are constant, their absolute value, or one.
    """

    X_mean: Tensor
    X_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor

    @classmethod
    def fit(cls, X: Tensor, y: Tensor) -> Self:
        """Those of one series from its first rows X (N, D) and y (N,), NaN where missing: N is one."""
        X_mean, X_scale = _moments(X)
        y_mean, y_scale = _moments(y.unsqueeze(-1))
        size = y_mean.abs()
        y_scale = torch.where(y_scale > 0, y_scale, torch.where(size > 0, size, 1.0))
        return cls(X_mean, torch.where(X_scale > 0, X_scale, 1.0), y_mean.squeeze(-1), y_scale.squeeze(-1))

    def inputs(self, X: Tensor) -> Tensor:
        """Inputs (N, D) in standardized units."""
        return (X - self.X_mean) / self.X_scale

    def targets(self, y: Tensor) -> Tensor:
        """Targets (N,) in standardized units."""
        return (y - self.y_mean) / self.y_scale


def _moments(X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and population standard deviations of the observed values of X (N, D), (1, D); zero within round-off."""
    seen = (~X.isnan()).sum(0, keepdim=True).clamp_min(1)
    mean = X.nansum(0, keepdim=True) / seen
    scale = ((X - mean).square().nansum(0, keepdim=True) / seen).sqrt()
    largest = X.nan_to_num(0.0).abs().amax(0, keepdim=True)
    return mean, torch.where(scale > 10 * torch.finfo(X.dtype).eps * largest, scale, 0.0)


def fill(X: Tensor, places: Tensor, last: Tensor) -> Tensor:
    """Inputs X (N, D) with missing values replaced by the last ones of their series, (N, D) before these rows."""
    gaps = X.isnan()
    if not bool(gaps.any()):
        return X
    filled, before = X.clone(), last
    for batch in batches(places, lengths=(1,)):
        rows = batch.rows.squeeze(-1)
        values = torch.where(gaps[rows], before[rows], X[rows])
        filled[rows] = values
        before = _carried(before, batch, values, places)
    return filled


def _carried(before: Tensor, batch: Batch, values: Tensor, places: Tensor) -> Tensor:
    """The last inputs of each row's series, after a batch of rows."""
    room = int(places.max()) + 1
    table = before.new_zeros(room, before.shape[-1])
    table[places] = before
    table[batch.places] = values
    return table[places]
