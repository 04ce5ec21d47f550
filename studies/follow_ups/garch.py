"""Experts of daily returns: constant variance, ARCH(1) and GARCH(1, 1), with normal and Student-t errors."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, signal, stats

from gp_ensembles.numerics.cholesky import NumericalError

Array = NDArray[np.float64]

_LEAST_TAILS, _MOST_TAILS = -4.0, 6.0  # logarithms of the degrees of freedom above two


class Kind(NamedTuple):
    """What of a model is free.

    Attributes:
        arch: Whether the last squared error moves the variance.
        garch: Whether the last variance does.
        student: Whether errors are Student's rather than normal.
    """

    arch: bool
    garch: bool
    student: bool


EXPERTS = {
    f"{name}, {errors}": Kind(arch, garch, student)
    for name, arch, garch in (("constant", False, False), ("ARCH(1)", True, False), ("GARCH(1,1)", True, True))
    for errors, student in (("normal", False), ("t", True))
}


class Garch(NamedTuple):
    r"""A model: :math:`r_t = \mu + \sqrt{h_t}\, z_t`, :math:`h_t = \omega + \alpha (r_{t-1} - \mu)^2 + \beta h_{t-1}`.

    Errors z have mean zero and variance one (Bollerslev 1986, 1987).

    Attributes:
        mean: μ.
        omega: ω.
        alpha: α, of the last squared error.
        beta: β, of the last variance.
        degrees_of_freedom: Of the errors; infinite for normal ones.
        start: Squared error and variance before the first row.
    """

    mean: float
    omega: float
    alpha: float
    beta: float
    degrees_of_freedom: float
    start: float

    def variances(self, returns: Array) -> Array:
        """Variance of each row given those before it, shape (T,)."""
        before = np.concatenate([[self.start], np.square(returns - self.mean)[:-1]])
        moved = self.omega + self.alpha * before
        return np.asarray(signal.lfilter([1.0], [1.0, -self.beta], moved, zi=[self.beta * self.start])[0])

    def log_prob(self, returns: Array) -> Array:
        """Log density of each row given those before it, shape (T,).

        Example:
            >>> model = Garch(0.0, 0.5, 0.5, 0.0, math.inf, 1.0)
            >>> model.log_prob(np.array([1.0, 0.0])) + 0.5 * math.log(2 * math.pi)
            array([-0.5,  0. ])
        """
        scale = np.sqrt(self.variances(returns))
        if math.isinf(self.degrees_of_freedom):
            return np.asarray(stats.norm.logpdf(returns, self.mean, scale))
        # A Student-t of scale one has variance ν / (ν - 2).
        scale = scale * math.sqrt((self.degrees_of_freedom - 2) / self.degrees_of_freedom)
        return np.asarray(stats.t.logpdf(returns, self.degrees_of_freedom, self.mean, scale))


def fit(returns: Array, kind: Kind) -> Garch:
    r"""The model of greatest likelihood.

    Searched by Nelder and Mead's simplex in coordinates in which all is allowed: log ω, log(ν - 2), and α, β as shares
    of one with a remainder, so that α + β < 1. The variance before the first row is that of all rows.

    Args:
        returns: Returns, shape (T,).
        kind: What is free.

    Raises:
        ValueError: If there are fewer than ten rows, they are all equal, or one is not a number.
        NumericalError: If the search does not end.

    Example:
        >>> rows = np.random.default_rng(0).normal(1.0, 2.0, 500)
        >>> model = fit(rows, EXPERTS["constant, normal"])
        >>> bool(abs(model.mean - rows.mean()) < 1e-3), bool(abs(model.omega - rows.var()) < 1e-2)
        (True, True)
    """
    if len(returns) < 10 or not np.isfinite(returns).all() or np.ptp(returns) == 0:
        raise ValueError(f"a model of returns is fitted to ten rows or more that differ, got {len(returns)} rows")
    start = float(np.var(returns))
    shares = [0.1, 0.8][: kind.arch + kind.garch]
    remainder = 1 - sum(shares)
    first = [float(returns.mean()), math.log(start * remainder), *(math.log(share / remainder) for share in shares)]
    bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(first)
    if kind.student:
        first.append(math.log(6.0))
        bounds.append((_LEAST_TAILS, _MOST_TAILS))

    def loss(point: Array) -> float:
        return -float(_model(point, kind, start).log_prob(returns).mean())

    limits = {"maxiter": 5000, "maxfev": 5000, "xatol": 1e-5, "fatol": 1e-9}
    found = optimize.minimize(loss, np.asarray(first), method="Nelder-Mead", bounds=bounds, options=limits)
    if not found.success:
        raise NumericalError(f"the search for a model of returns did not end: {found.message}")
    return _model(found.x, kind, start)


def _model(point: Array, kind: Kind, start: float) -> Garch:
    free = kind.arch + kind.garch
    odds = np.exp(np.clip(point[2 : 2 + free], -30.0, 30.0))
    shares = [*(odds / (1 + odds.sum())), 0.0, 0.0]
    tails = 2 + math.exp(point[-1]) if kind.student else math.inf
    return Garch(float(point[0]), math.exp(point[1]), float(shares[0]), float(shares[1]), tails, start)
