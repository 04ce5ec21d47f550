r"""Likelihoods of series on an equally spaced grid, gaps allowed: Toeplitz matrices by Durbin's recursion.

The covariance T of the n cells of a grid has n parameters. Durbin's recursion (Golub and Van Loan, 2013, section 4.7)
computes the error variances of the best linear predictions of a stationary process, e_1, e_2, ..., whose logs sum to
the log determinant, and ends with the first column x of the inverse, which determines the full inverse (Gohberg and
Semencul, 1972):

.. math:: x_0\, T^{-1} = L(x) L(x)^\top - L(z) L(z)^\top, \quad z = (0, x_{n-1}, \dots, x_1)

with lower triangular Toeplitz matrices L, applied by Fourier transforms. Cells without a row are integrated out:
with P the inverse and m those cells,

.. math:: K^{-1} = P - P_{\cdot m} P_{mm}^{-1} P_{m \cdot}, \quad \log|K| = \log|T| + \log|P_{mm}|.
"""

import functools
import math
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError
from gp_ensembles.papers.quadrature.likelihoods import CHUNK_BYTES, Known, LogMarginalLikelihoods, Processes
from gp_ensembles.papers.quadrature.prior import KernelHyperparameters
from gp_ensembles.papers.quadrature.spectral_mixture import covariance, covariance_at_lags

_OFF_GRID = 1e-4  # tolerance for off-grid rows, in steps: dates in tables are rounded
RECURSION_BYTES = 2**20  # of predictors processed at once: they pass through the CPU cache n times
COLUMNS = 64  # right-hand sides processed at once


class Grid(NamedTuple):
    """An equally spaced grid of n cells and the rows on it."""

    step: Tensor  # distance of neighboring cells, ()
    size: int  # n
    cells: Tensor  # cell of each row, (N,)
    empty: Tensor  # cells without a row, (m,)


def grid_of(X: Tensor) -> Grid:
    """The grid of inputs (N, 1), in any order; at most half of its cells may be empty."""
    if X.shape[-1] != 1:
        raise ValueError(
            f"a Toeplitz likelihood needs one input on an equally spaced grid, but there are {X.shape[-1]} inputs"
        )
    places, order = X.squeeze(-1).sort()
    gaps = places.diff()
    smallest = int(gaps.argmin())
    if not bool(gaps[smallest] > 0):
        first, second = sorted(order[smallest : smallest + 2].tolist())
        raise ValueError(
            f"a Toeplitz likelihood needs at most one row per grid cell, but rows {first} and {second} are both at "
            f"{float(places[smallest]):.6g}"
        )
    counts = (gaps / gaps[smallest]).round()
    step = (places[-1] - places[0]) / counts.sum()
    off = places - places[0] - torch.cat([counts.new_zeros(1), counts.cumsum(0)]) * step
    if bool((off.abs() > _OFF_GRID * step).any()):
        worst = int((gaps / gaps[smallest] - counts).abs().argmax())
        first, second = order[worst : worst + 2].tolist()
        raise ValueError(
            f"a Toeplitz likelihood needs rows on an equally spaced grid: the smallest spacing is "
            f"{float(gaps[smallest]):.6g}, but rows {first} and {second} are {float(gaps[worst]):.6g} apart, which is "
            f"not a multiple of it"
        )
    size = int(counts.sum()) + 1
    if size > 2 * len(places):
        raise ValueError(
            f"a Toeplitz likelihood needs a grid that is at most half empty: with the smallest spacing of "
            f"{float(step):.6g} there are {size} cells but {len(places)} rows"
        )
    cells = torch.empty_like(order)
    cells[order] = torch.cat([order.new_zeros(1), counts.long().cumsum(0)])
    taken = torch.zeros(size, dtype=torch.bool, device=X.device)
    taken[cells] = True
    return Grid(step, size, cells, (~taken).nonzero().squeeze(-1))


def durbin(column: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Durbin's recursion for symmetric Toeplitz matrices: O(n^2) operations and O(n) memory per matrix.

    Returns first columns x of the inverses, (B, n), log determinants, (B,), NaN if a matrix is not positive
    definite, and quadratic forms of the inverses in the right-hand side, (B,). Shapes: ``column`` (B, n), ``y`` (n,).
    """
    size = column.shape[-1]
    predictor = torch.zeros_like(column)
    predictor[:, 0] = 1.0
    lags, backwards = column.flip(-1), y.flip(-1)
    error = column[:, 0].clone()
    log_determinant, square = error.log(), y[0].square() / error
    for k in range(1, size):
        used = predictor[:, :k]
        reflection = -torch.linalg.vecdot(used, lags[:, size - 1 - k : size - 1]) / error
        predictor[:, 1 : k + 1] += reflection.unsqueeze(-1) * used.flip(-1)
        error = error * (1.0 - reflection.square())
        innovation = predictor[:, : k + 1] @ backwards[size - 1 - k :]
        log_determinant = log_determinant + error.log()  # NaN after the first negative error
        square = square + innovation.square() / error
    return predictor / error.unsqueeze(-1), log_determinant, square


def _spectrum(v: Tensor) -> Tensor:
    """Fourier transforms of rows (..., n), zero-padded to 2 n."""
    spectrum: Tensor = torch.fft.rfft(v, 2 * v.shape[-1])
    return spectrum


def _signal(spectrum: Tensor, size: int) -> Tensor:
    signal: Tensor = torch.fft.irfft(spectrum, 2 * size)[..., :size]
    return signal


def _shifted(first: Tensor) -> Tensor:
    """The second generator z of the inverse."""
    return torch.cat([torch.zeros_like(first[..., :1]), first[..., 1:].flip(-1)], -1)


def _times(column: Tensor, v: Tensor) -> Tensor:
    """Symmetric Toeplitz matrices with first columns (..., n) times vectors (..., n)."""
    circulant = torch.cat([column, torch.zeros_like(column[..., :1]), column[..., 1:].flip(-1)], -1)
    return _signal(torch.fft.rfft(circulant) * _spectrum(v), v.shape[-1])


class Inverse(NamedTuple):
    """The inverses of the covariances of the rows of a grid with m empty cells, under B kernels."""

    column: Tensor  # first columns of the covariances of all cells, noise included, (B, n)
    first: Tensor  # first columns of their inverses P, (B, n)
    rows: Tensor  # rows of P at the empty cells, (B, m, n)
    factor: Tensor  # Cholesky factors of P's blocks of the empty cells, (B, m, m)
    log_determinant: Tensor  # of the covariances of the rows, (B,); NaN if not positive definite

    def solve(self, grid: Grid, right: Tensor) -> Tensor:
        """The inverses times vectors (B, k, N) on the rows of the grid, with one refinement step, (B, k, N)."""
        given = right.new_zeros(*right.shape[:-1], grid.size)
        given[..., grid.cells] = right
        value = self._apply(grid, given)
        rest = given - _times(self.column.unsqueeze(-2), value)
        rest[..., grid.empty] = 0.0
        refined: Tensor = (value + self._apply(grid, rest))[..., grid.cells]
        return refined

    def diagonal_sums(self) -> Tensor:
        """Sums of the k-th diagonals of the inverses, on one side, for k = 0..n-1: (B, n)."""
        size = self.first.shape[-1]
        left = torch.arange(size, 0, -1, device=self.first.device, dtype=self.first.dtype)
        other = _shifted(self.first)
        power = _spectrum(left * self.first) * _spectrum(self.first).conj()
        power = power - _spectrum(left * other) * _spectrum(other).conj()
        total = _signal(power, size) / self.first[:, :1]
        if not self.rows.shape[-2]:
            return total
        white = torch.linalg.solve_triangular(self.factor, self.rows, upper=False)
        lost = [_spectrum(part).abs().square().sum(-2) for part in white.split(COLUMNS, -2)]
        return total - _signal(torch.stack(lost).sum(0) + 0j, size)

    def _apply(self, grid: Grid, v: Tensor) -> Tensor:
        """The inverses of the rows' covariances, zero elsewhere, times vectors (B, k, n) that are zero there."""
        value = _inverse_times(self.first.unsqueeze(-2), v)
        if not len(grid.empty):
            return value
        weights = torch.cholesky_solve(value[..., grid.empty].mT, self.factor).mT
        value = value - weights @ self.rows
        value[..., grid.empty] = 0.0
        return value


def _inverse_times(first: Tensor, v: Tensor) -> Tensor:
    """Inverses of Toeplitz matrices times vectors (..., n), by the Gohberg-Semencul formula."""
    size, total = v.shape[-1], torch.zeros_like(v)
    for column, sign in ((first, 1.0), (_shifted(first), -1.0)):
        spectrum = _spectrum(column)
        above = _signal(_spectrum(v) * spectrum.conj(), size)  # L^T v
        total = total + sign * _signal(_spectrum(above) * spectrum, size)
    return total / first[..., :1]


def invert(grid: Grid, column: Tensor, y: Tensor) -> tuple[Inverse, Tensor]:
    """Inverses of covariances of the grid's rows, and their quadratic forms in the targets.

    Shapes: ``column`` (B, n), ``y`` (N,); returns (B,).
    """
    given = y.new_zeros(grid.size)
    given[grid.cells] = y
    first, log_determinant, square = durbin(column, given)
    count = len(grid.empty)
    if not count:
        none = first.new_zeros(len(first), 0, grid.size)
        return Inverse(column, first, none, none[..., :0], log_determinant), square
    first = torch.where(log_determinant.isfinite().unsqueeze(-1), first, first.new_zeros(()))
    units = first.new_zeros(count, grid.size)
    units[torch.arange(count, device=y.device), grid.empty] = 1.0
    safe = torch.where(first[:, :1] != 0, first, torch.ones_like(first).cumsum(-1) == 1)  # of the identity
    rows = torch.cat([_inverse_times(safe.unsqueeze(-2), part) for part in units.split(COLUMNS)], -2)
    factor, info = torch.linalg.cholesky_ex(rows[..., grid.empty])
    seen = _inverse_times(safe, given)[..., grid.empty]
    white = torch.linalg.solve_triangular(factor, seen.unsqueeze(-1), upper=False).squeeze(-1)
    block = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_determinant = torch.where(info == 0, log_determinant + block, torch.nan)
    return Inverse(column, safe, rows, factor, log_determinant), square - white.square().sum(-1)


class _LogMarginal(torch.autograd.Function):
    r"""Gaussian log density as a function of the covariances at the lags of the grid."""

    @staticmethod
    def forward(ctx: Any, column: Tensor, y: Tensor, grid: Grid) -> Tensor:
        inverse, square = invert(grid, column, y)
        value = -0.5 * (square + inverse.log_determinant + len(y) * math.log(2.0 * math.pi))
        ctx.save_for_backward(*inverse, y)
        ctx.grid = grid
        return torch.where(value.isfinite(), value, torch.nan)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        *parts, y = ctx.saved_tensors
        inverse, grid = Inverse(*parts), ctx.grid
        solved = torch.zeros_like(inverse.first)
        solved[:, grid.cells] = inverse.solve(grid, y.expand(len(solved), 1, -1)).squeeze(-2)
        slope = _signal(_spectrum(solved).abs().square() + 0j, grid.size) - inverse.diagonal_sums()
        slope[:, 0] *= 0.5  # all other lags are on both sides of the diagonal
        good = inverse.log_determinant.isfinite() & gradient.isfinite()
        return torch.where(good.unsqueeze(-1), gradient.unsqueeze(-1) * slope, 0.0), None, None


@final
class ToeplitzLikelihood(LogMarginalLikelihoods):
    """Exact likelihoods of series on an equally spaced grid: O(n^2) operations and O(n) memory for n cells.

    Shapes: ``X`` (N, 1), ``y`` (N,).

    Raises:
        ValueError: If the rows are not on an equally spaced grid; the message gives the spacing found.
    """

    def __init__(self, X: Tensor, y: Tensor) -> None:
        super().__init__(X, y)
        self.grid: Grid = grid_of(X)
        self.bytes_each = y.element_size() * self.grid.size * (4 + len(self.grid.empty))  # mostly rows of the inverse
        self._lags = self.grid.step * torch.arange(self.grid.size, device=X.device, dtype=X.dtype)

    def condition(self, hyperparameters: KernelHyperparameters) -> Processes:
        kernels = hyperparameters._replace(mixtures=hyperparameters.mixtures.trim())
        inverse, _ = invert(self.grid, self._columns(kernels), self.y)
        bad = (~inverse.log_determinant.isfinite()).nonzero()
        if bad.numel():
            raise NumericalError(
                f"the covariance of the training rows under kernel {int(bad[0])} is not positive definite; give it "
                f"more noise, or use the dense likelihood"
            )
        weights = inverse.solve(self.grid, self.y.expand(len(inverse.first), 1, -1)).mT
        return Processes(kernels, self.X, functools.partial(self._known, kernels, inverse, weights))

    def _known(self, kernels: KernelHyperparameters, inverse: Inverse, weights: Tensor, points: Tensor) -> Known:
        cross = kernels.outputscale[:, None, None] * covariance(kernels.mixtures, points, self.X)
        solved = torch.cat([inverse.solve(self.grid, part) for part in cross.split(COLUMNS, -2)], -2)
        return (cross @ weights).squeeze(-1), ((cross, solved),)

    def _at_once(self, components: int) -> int:
        return min(RECURSION_BYTES // (self.y.element_size() * self.grid.size), CHUNK_BYTES // self.bytes_each)

    def _values(self, kernels: KernelHyperparameters) -> Tensor:
        value: Tensor = _LogMarginal.apply(self._columns(kernels), self.y, self.grid)  # type: ignore[no-untyped-call]
        return value

    def _columns(self, kernels: KernelHyperparameters) -> Tensor:
        """First columns of the covariances of all cells, noise included, (B, n)."""
        column = kernels.outputscale.unsqueeze(-1) * covariance_at_lags(kernels.mixtures, self._lags)
        return torch.cat([column[:, :1] + kernels.noise.unsqueeze(-1), column[:, 1:]], -1)
