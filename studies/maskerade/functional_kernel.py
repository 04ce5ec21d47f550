r"""Functional kernel learning of Benton et al. (2019), the paper's main rival: a Gaussian process over log spectra.

The kernel of each input is :math:`k(\tau) = 2 \int_0^{\omega_{\max}} \cos(2 \pi \omega \tau)\, e^{g(\omega)}\, d\omega`
by the trapezoidal rule, and that of several inputs the product, with :math:`g = \mu + L z` and z standard normal: a
Gaussian process with a Matern-3/2 covariance around the log spectrum :math:`\mu` of a squared exponential kernel. The
hyperparameters of :math:`\mu`, L and the noise maximize the likelihood given z, by Adam; z is drawn given them by
elliptical slice sampling (Murray, Adams and MacKay, 2010), in turns. Predictions average over the last draws.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bo.posterior import MixturePosterior
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.numerics.exact_gp import Conditioned, condition
from studies.maskerade.predictions import Answer
from studies.maskerade.sets import Split

_TURNS, _STEPS, _RATE = 5, 20, 0.05  # of Adam and sampling, steps of Adam in each
_KEPT = 10  # draws that are averaged
_LEAST_GRID, _MOST_GRID = 100, 1000
_HIGHEST = 10.0  # cycles per range of a column, where there are several
_LENGTH_SCALE = 0.2  # of the columns' ranges, at the start
_JITTER = 1e-6
_LEAST_NOISE = 1e-6


class Grid(NamedTuple):
    """Frequencies and what depends on the rows alone."""

    frequencies: Tensor  # (K,), in cycles per unit range
    lags: Tensor  # of all pairs of rows, in unit ranges, (D, A, B)

    def kernel(self, log_spectra: Tensor) -> Tensor:
        """Covariances (A, B) under log spectra (D, K)."""
        step = self.frequencies[1] - self.frequencies[0]
        weights = torch.full_like(self.frequencies, 2.0) * step
        weights[[0, -1]] *= 0.5
        found = torch.ones_like(self.lags[0])
        for lags, spectrum in zip(self.lags, log_spectra, strict=True):
            values, places = lags.abs().flatten().unique(return_inverse=True)
            waves = (2 * math.pi * values.unsqueeze(-1) * self.frequencies).cos()
            found = found * (waves @ (weights * spectrum.exp()))[places].reshape(lags.shape)
        return found


class LogSpectra(NamedTuple):
    """Hyperparameters, as logarithms, and the white log spectra."""

    width: Tensor  # length scale of the kernel around which spectra vary, (D,)
    size: Tensor  # deviation of the log spectra, (D,)
    smooth: Tensor  # their length scale in frequencies, (D,)
    output: Tensor  # the function's variance, ()
    noise: Tensor  # ()

    def given(self, grid: Grid, white: Tensor) -> Tensor:
        r"""Values g of log spectra, (D, K), from z (D, K)."""
        width, omega = self.width.exp().unsqueeze(-1), grid.frequencies
        mean = (width * math.sqrt(2 * math.pi)).log() - 2 * (math.pi * width * omega).square()
        distance = (omega - omega.unsqueeze(-1)).abs() * math.sqrt(3.0) / self.smooth.exp()[:, None, None]
        covariance = self.size.exp().square()[:, None, None] * (1 + distance) * (-distance).exp()
        root = cholesky(covariance + _JITTER * torch.eye(len(omega), dtype=omega.dtype, device=omega.device), "spectra")
        first = torch.nn.functional.pad(self.output[None], (0, len(self.width) - 1))
        return mean + (root @ white.unsqueeze(-1)).squeeze(-1) + first.unsqueeze(-1)

    def conditioned(self, grid: Grid, white: Tensor, y: Tensor) -> Conditioned:
        """The process after the targets y (N,)."""
        matrix = grid.kernel(self.given(grid, white))
        noise = self.noise.exp() + _LEAST_NOISE * (1 + matrix[0, 0])
        eye = torch.eye(len(y), dtype=y.dtype, device=y.device)
        return condition(cholesky(matrix + noise * eye, "targets"), y)


def functional_kernel(split: Split, evaluations: int, generator: torch.Generator) -> Answer:
    """The average over draws of the log spectra; likelihoods of both kinds of steps count."""
    unit = split.X.amax(0) - split.X.amin(0)
    X, test_X = split.X / unit, split.test_X / unit
    num_rows, num_inputs = X.shape
    highest = num_rows / 2 if num_inputs == 1 else _HIGHEST
    number = min(max(_LEAST_GRID, math.ceil(3 * highest)), _MOST_GRID)
    omega = torch.linspace(0, highest, number, dtype=X.dtype, device=X.device)
    grid = Grid(omega, differences(X, X))
    like = torch.zeros(num_inputs, dtype=X.dtype, device=X.device)
    start = (like + math.log(_LENGTH_SCALE), like, like + math.log(highest / 5), like[0], like[0] - 2)
    state, white, spent, kept = (
        LogSpectra(*start),
        X.new_zeros(num_inputs, number),
        0,
        list[tuple[LogSpectra, Tensor]](),
    )
    while spent < evaluations:
        state = _ascended(state, grid, white, split.y)
        spent += _STEPS
        with torch.no_grad():
            share = max(_KEPT, (evaluations - _TURNS * _STEPS) // _TURNS)
            white, used, draws = sliced(state, grid, white, split.y, share, generator)
        spent, kept = spent + used, [*kept, *((state, draw) for draw in draws)][-2 * _KEPT :]
    with torch.no_grad():
        return _answer(kept[-_KEPT:], grid, differences(X, test_X), differences(test_X, test_X), split.y, spent)


def _ascended(state: LogSpectra, grid: Grid, white: Tensor, y: Tensor) -> LogSpectra:
    parameters = [value.detach().clone().requires_grad_() for value in state]
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        (-LogSpectra(*parameters).conditioned(grid, white, y).log_density).backward()
        optimizer.step()
    return LogSpectra(*(value.detach() for value in parameters))


def sliced(
    state: LogSpectra, grid: Grid, white: Tensor, y: Tensor, most: int, generator: torch.Generator
) -> tuple[Tensor, int, list[Tensor]]:
    """Draws by elliptical slice sampling until so many likelihoods are spent; the last, the number spent, all."""

    def draw() -> Tensor:
        return torch.rand((), dtype=y.dtype, device="cpu", generator=generator).to(y)

    value, spent, draws = state.conditioned(grid, white, y).log_density, 1, list[Tensor]()
    while spent < most:
        other = torch.randn(white.shape, dtype=y.dtype, device="cpu", generator=generator).to(y)
        least = value + draw().log()
        angle = 2 * math.pi * draw()
        lower, upper = angle - 2 * math.pi, angle
        while True:
            proposed = white * angle.cos() + other * angle.sin()
            value, spent = state.conditioned(grid, proposed, y).log_density, spent + 1
            if value > least or upper - lower < _JITTER:
                break
            lower, upper = (angle, upper) if angle < 0 else (lower, angle)
            angle = lower + (upper - lower) * draw()
        white = proposed
        draws.append(white)
    return white, spent, draws


def _answer(
    kept: list[tuple[LogSpectra, Tensor]], grid: Grid, cross: Tensor, own: Tensor, y: Tensor, spent: int
) -> Answer:
    means, covariances, values = [], [], []
    for state, white in kept:
        spectra, learned = state.given(grid, white), state.conditioned(grid, white, y)
        whitened = learned.whiten(grid._replace(lags=cross).kernel(spectra))
        covariance = grid._replace(lags=own).kernel(spectra) - whitened.mT @ whitened
        eye = torch.eye(len(covariance), dtype=y.dtype, device=y.device)
        means.append(learned.mean(whitened))
        covariances.append(covariance + state.noise.exp() * eye)
        values.append(learned.log_density)
    equal = y.new_full((len(kept),), -math.log(len(kept)))
    posterior = MixturePosterior(equal, torch.stack(means).unsqueeze(-1), torch.stack(covariances).unsqueeze(-3))
    found = {"best_log_likelihood": float(torch.stack(values).max()), "kernels": float(len(kept))}
    return Answer(posterior, spent, found, {})


def differences(rows: Tensor, others: Tensor) -> Tensor:
    """Differences of rows (A, D) and others (B, D), by column, shape (D, A, B)."""
    return (rows.unsqueeze(1) - others.unsqueeze(0)).movedim(-1, 0)
