"""Streams made from a known truth."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data.table import Table


class Synthetic(NamedTuple):
    """A table and what it was made from.

    Attributes:
        table: The table.
        truth: The target without noise, shape (N,).
        noise: Standard deviation of the noise.
        segment: Which regime made each row, integers, shape (N,).
    """

    table: Table
    truth: Tensor
    noise: float
    segment: Tensor


def friedman1(num_rows: int, noise: float = 1.0, *, generator: torch.Generator | None = None) -> Synthetic:
    r"""Friedman's first test function, of five of ten uniform inputs.

    .. math:: y = 10 \sin(\pi x_1 x_2) + 20 (x_3 - 0.5)^2 + 10 x_4 + 5 x_5 + \varepsilon

    (Friedman 1991.)

    Args:
        num_rows: Rows N.
        noise: Standard deviation of the noise.
        generator: Source of randomness.

    Example:
        >>> import torch
        >>> made = friedman1(4, generator=torch.Generator().manual_seed(0))
        >>> made.table.X.shape, made.truth.shape
        (torch.Size([4, 10]), torch.Size([4]))
    """
    X = _uniform(num_rows, 10, generator)
    truth = 10 * torch.sin(torch.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5).square() + 10 * X[:, 3] + 5 * X[:, 4]
    return _make(X, truth, noise, "friedman1", generator)


def friedman2(num_rows: int, noise: float = 125.0, *, generator: torch.Generator | None = None) -> Synthetic:
    r"""Friedman's second test function, the impedance of a circuit.

    .. math:: y = \sqrt{x_1^2 + (x_2 x_3 - 1 / (x_2 x_4))^2} + \varepsilon

    with inputs uniform on [0, 100], [40π, 560π], [0, 1] and [1, 11] (Friedman 1991).

    Args:
        num_rows: Rows N.
        noise: Standard deviation of the noise; 125 gives three parts of signal to one of noise.
        generator: Source of randomness.

    Example:
        >>> import torch
        >>> friedman2(4, generator=torch.Generator().manual_seed(0)).table.X.shape
        torch.Size([4, 4])
    """
    lower = torch.tensor([0.0, 40 * math.pi, 0.0, 1.0], dtype=torch.float64, device="cpu")
    upper = torch.tensor([100.0, 560 * math.pi, 1.0, 11.0], dtype=torch.float64, device="cpu")
    X = lower + (upper - lower) * _uniform(num_rows, 4, generator)
    truth = (X[:, 0].square() + (X[:, 1] * X[:, 2] - 1 / (X[:, 1] * X[:, 3])).square()).sqrt()
    return _make(X, truth, noise, "friedman2", generator)


def gp_draw(
    X: Tensor, lengthscale: float = 1.0, noise: float = 0.1, *, generator: torch.Generator | None = None
) -> Synthetic:
    """An exact draw of a unit-variance RBF Gaussian process at given inputs.

    Args:
        X: Inputs, shape (N, D).
        lengthscale: Length scale, in units of the inputs.
        noise: Standard deviation of the noise.
        generator: Source of randomness.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 1, 5, dtype=torch.float64).unsqueeze(-1)
        >>> gp_draw(X, generator=torch.Generator().manual_seed(0)).truth.shape
        torch.Size([5])
    """
    return _make(X, _draw(X, lengthscale, generator), noise, "gp_draw", generator)


def switching_gps(
    num_rows: int,
    lengthscales: tuple[float, ...] = (0.1, 1.0, 10.0),
    noise: float = 0.1,
    *,
    num_segments: int = 3,
    generator: torch.Generator | None = None,
) -> Synthetic:
    """A stream whose function comes from a Gaussian process with another length scale in each segment.

    The setting of the switching test in Lu et al. (2022), appendix: segment s uses length scale s modulo their
    number; inputs are standard normal scalars.

    Args:
        num_rows: Rows N, divided into segments as even as can be.
        lengthscales: Length scales of the RBF kernels.
        noise: Standard deviation of the noise.
        num_segments: Number of segments.
        generator: Source of randomness.

    Raises:
        ValueError: If there are fewer rows than segments.

    Example:
        >>> import torch
        >>> switching_gps(6, generator=torch.Generator().manual_seed(0)).segment
        tensor([0, 0, 1, 1, 2, 2])
    """
    if not 1 <= num_segments <= num_rows:
        raise ValueError(f"{num_rows} rows cannot make {num_segments} segments")
    X = torch.randn(num_rows, 1, generator=generator, dtype=torch.float64, device="cpu")
    segment = torch.arange(num_rows, device="cpu") * num_segments // num_rows
    truth = X.new_zeros(num_rows)
    for s in range(num_segments):
        rows = segment == s
        truth[rows] = _draw(X[rows], lengthscales[s % len(lengthscales)], generator)
    return _make(X, truth, noise, "switching_gps", generator)._replace(segment=segment)


def drifting_sensor(
    num_rows: int = 2000,
    noise: float = 0.1,
    *,
    jump_at: float = 0.6,
    gap_at: float = 0.8,
    generator: torch.Generator | None = None,
) -> Synthetic:
    """A sensor whose gain drifts, whose offset jumps once, and whose reference is missing for a while.

    The target is sin(2 x₁) + gain · x₂ + offset: the gain moves along half a cosine from 1 to -1, the offset jumps
    from 0 to 2, and for one row in twenty after ``gap_at`` no target is recorded.

    Args:
        num_rows: Rows N.
        noise: Standard deviation of the noise.
        jump_at: Share of the rows after which the offset jumps.
        gap_at: Share of the rows after which the targets are missing.
        generator: Source of randomness.

    Example:
        >>> import torch
        >>> made = drifting_sensor(100, generator=torch.Generator().manual_seed(0))
        >>> int(made.table.y.isnan().sum()), int(made.segment.sum())
        (5, 40)
    """
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64, device="cpu")
    time = torch.arange(num_rows, dtype=torch.float64, device="cpu") / num_rows
    segment = (time >= jump_at).long()
    truth = torch.sin(2 * X[:, 0]) + torch.cos(torch.pi * time) * X[:, 1] + 2 * segment
    made = _make(X, truth, noise, "drifting_sensor", generator)
    y = made.table.y.clone()
    first = int(gap_at * num_rows)
    y[first : first + num_rows // 20] = torch.nan
    return made._replace(table=made.table._replace(y=y), segment=segment)


def _uniform(num_rows: int, num_columns: int, generator: torch.Generator | None) -> Tensor:
    return torch.rand(num_rows, num_columns, generator=generator, dtype=torch.float64, device="cpu")


def _draw(X: Tensor, lengthscale: float, generator: torch.Generator | None) -> Tensor:
    """A draw by the eigenvectors of the covariance: exact where it is singular to working precision."""
    covariance = torch.exp(-0.5 * torch.cdist(X, X).square() / lengthscale**2)
    eigenvalues, axes = torch.linalg.eigh(covariance)
    normals = torch.randn(X.shape[0], generator=generator, dtype=X.dtype, device=X.device)
    return axes @ (eigenvalues.clamp_min(0.0).sqrt() * normals)


def _make(X: Tensor, truth: Tensor, noise: float, name: str, generator: torch.Generator | None) -> Synthetic:
    y = truth + noise * torch.randn(truth.shape, generator=generator, dtype=truth.dtype, device=truth.device)
    names = tuple(f"x{j + 1}" for j in range(X.shape[1]))
    return Synthetic(Table(X, y, names, "y", name), truth, noise, torch.zeros_like(truth, dtype=torch.int64))
