"""A prior mean that is linear in the inputs, in the data's own units."""

from typing import final

import torch
from gpytorch.means import Mean
from torch import Tensor, nn


@final
class LinearTrend(Mean):  # type: ignore[misc]  # GPyTorch is untyped
    r"""A linear prior mean whose coefficients are of the order of one whatever the units of rows and targets.

    .. math:: m(x) = s_y \Big(b + \sum_d w_d (x_d - c_d) / s_d\Big)

    Shapes: ``X`` (N, D), ``y`` (N,).
    """

    def __init__(self, X: Tensor, y: Tensor) -> None:
        super().__init__()
        spread, unit = X.std(0, unbiased=False), y.std(unbiased=False)
        self.register_buffer("center", X.mean(0))
        self.register_buffer("spread", torch.where(spread > 0, spread, 1.0))
        self.register_buffer("unit", torch.where(unit > 0, unit, 1.0))
        self.weights: nn.Parameter = nn.Parameter(torch.zeros_like(X[0]))
        self.bias: nn.Parameter = nn.Parameter(y.mean() / self.unit)

    def forward(self, X: Tensor) -> Tensor:
        r"""The mean at points (\*batch, N, D), shape (\*batch, N)."""
        values: Tensor = self.unit * (self.bias + ((X - self.center) / self.spread) @ self.weights)
        return values
