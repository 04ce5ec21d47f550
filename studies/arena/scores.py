"""Predictive distributions of rivals, and their scores row by row: log density, CRPS, squared error, intervals."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, gammaln, ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]
LEVEL = 0.9  # of the intervals
WINDOW = 500  # rows over which coverage is looked at
_CALIBRATED = (0.85, 0.95)  # coverage of a window that counts as kept
SCORES = ("log_score", "crps", "nmse", "coverage", "windows", "width")
_REPEATS = 10  # rows for each value of a lattice, at least
_OFF_LATTICE, _ROUND_OFF = 1e-3, 1e-12
CLASS_SCORES = ("log_score", "error_rate")


class Predictive(Protocol):
    """Predictive distributions of N rows, each by itself, in standardized units of the target."""

    @property
    def mean(self) -> Array:
        """What squared errors are taken from, shape (N,)."""

    def log_prob(self, y: Array) -> Array:
        """Log densities at targets (N,), in nats."""

    def cdf(self, y: Array) -> Array:
        """Probabilities of a target up to y (N,)."""

    def interval(self) -> tuple[Array, Array]:
        """Lower and upper ends of the 90 % interval, each (N,)."""

    def crps(self, y: Array) -> Array:
        """Continuous ranked probability scores at targets (N,), in units of the target."""


class LocationScale(NamedTuple):
    r"""Student's t distributions with a location and a scale; normal ones where the degrees of freedom are infinite.

    The CRPS is that of Jordan, Krueger and Lerch (2019, appendix A), for z = (y - location) / scale:

    .. math:: z (2 F(z) - 1) + 2 f(z) \frac{\nu + z^2}{\nu - 1}
              - \frac{2 \sqrt\nu}{\nu - 1} \frac{B(\frac12, \nu - \frac12)}{B(\frac12, \frac\nu2)^2}

    Attributes:
        location: Shape (N,).
        scale: Positive, shape (N,).
        df: Degrees of freedom above 1, shape (N,); infinite for normal distributions.
        lower: Lower ends of intervals that come from elsewhere, shape (N,); the distribution's by default.
        upper: Upper ends, likewise.

    Example:
        >>> one = np.ones(1)
        >>> normal = LocationScale(0 * one, one, np.inf * one)
        >>> normal.log_prob(0 * one).round(4), normal.crps(0 * one).round(4), normal.interval()[1].round(4)
        (array([-0.9189]), array([0.2337]), array([1.6449]))
    """

    location: Array
    scale: Array
    df: Array
    lower: Array | None = None
    upper: Array | None = None

    @property
    def mean(self) -> Array:
        """Means, shape (N,)."""
        return self.location

    def log_prob(self, y: Array) -> Array:
        """See :meth:`Predictive.log_prob`."""
        return student_log_density((y - self.location) / self.scale, self.df) - np.log(self.scale)

    def cdf(self, y: Array) -> Array:
        """See :meth:`Predictive.cdf`."""
        return _probability((y - self.location) / self.scale, self.df)

    def interval(self) -> tuple[Array, Array]:
        """See :meth:`Predictive.interval`."""
        p = np.full_like(self.df, (1 + LEVEL) / 2)
        half = self.scale * np.where(np.isinf(self.df), ndtri(p), stdtrit(_finite(self.df), p))
        lower = self.location - half if self.lower is None else self.lower
        upper = self.location + half if self.upper is None else self.upper
        return lower, upper

    def crps(self, y: Array) -> Array:
        """See :meth:`Predictive.crps`."""
        z, df = (y - self.location) / self.scale, _finite(self.df)
        spread = 2 * np.sqrt(df) / (df - 1) * np.exp(betaln(0.5, df - 0.5) - 2 * betaln(0.5, df / 2))
        growth = (df + z**2) / (df - 1)
        normal = np.isinf(self.df)
        spread, growth = np.where(normal, 1 / np.sqrt(np.pi), spread), np.where(normal, 1.0, growth)
        density = np.exp(student_log_density(z, self.df))
        value: Array = self.scale * (z * (2 * _probability(z, self.df) - 1) + 2 * density * growth - spread)
        return value


class Rows(NamedTuple):
    """What a method said about each scored row, and how good it was; NaN where the target is missing.

    Attributes:
        y: Targets, standardized, shape (N,).
        mean: Predicted means.
        log_prob: Log densities of the targets in nats.
        crps: Continuous ranked probability scores.
        u: Distribution functions at the targets.
        q05: Lower ends of the 90 % intervals.
        q95: Upper ends.
    """

    y: Array
    mean: Array
    log_prob: Array
    crps: Array
    u: Array
    q05: Array
    q95: Array


class ClassRows(NamedTuple):
    """The same for classes.

    Attributes:
        y: Labels, shape (N,).
        log_prob: Log probabilities of the labels in nats.
        wrong: One where the likeliest class was not the label, else zero.
    """

    y: Array
    log_prob: Array
    wrong: Array


def student_log_density(z: Array, df: Array) -> Array:
    """Log density of Student's t distribution at z, of the normal one where the degrees of freedom are infinite.

    Example:
        >>> student_log_density(np.zeros(2), np.array([1.0, np.inf])).round(4)
        array([-1.1447, -0.9189])
    """
    nu = _finite(df)
    student = gammaln((nu + 1) / 2) - gammaln(nu / 2) - np.log(nu * np.pi) / 2 - (nu + 1) / 2 * np.log1p(z**2 / nu)
    value: Array = np.where(np.isinf(df), -(z**2) / 2 - np.log(2 * np.pi) / 2, student)
    return value


def _probability(z: Array, df: Array) -> Array:
    value: Array = np.where(np.isinf(df), ndtr(z), stdtr(_finite(df), z))
    return value


def _finite(df: Array) -> Array:
    return np.where(np.isinf(df), 2.0, df)


def lattice_unit(y: Array) -> float | None:
    """The unit of targets (N,) that are whole multiples of one and repeat often; ``None`` for all others.

    Often is ten times each in the mean. Densities of such targets reward spikes at the few values that occur.

    Example:
        >>> lattice_unit(np.tile([0.0, 0.5, 2.0], 10)), lattice_unit(np.linspace(0, 1, 30))
        (0.5, None)
    """
    seen = y[~np.isnan(y)]
    values = np.unique(seen)
    if len(values) < 2 or len(values) > len(seen) / _REPEATS:
        return None
    unit = float(np.diff(values).min())
    steps = (values - values[0]) / unit
    return unit if np.abs(steps - steps.round()).max() < _OFF_LATTICE * max(1.0, steps[-1]) else None


def cell_log_prob(predictive: Predictive, y: Array, unit: float) -> Array:
    """Log probabilities of the cells of one unit around targets (N,), per unit, so that they compare with densities."""
    cell = predictive.cdf(y + unit / 2) - predictive.cdf(y - unit / 2)
    with np.errstate(divide="ignore"):
        inside: Array = np.log(cell / unit)
    return np.where(cell > _ROUND_OFF, inside, np.minimum(predictive.log_prob(y), np.log(_ROUND_OFF / unit)))


def with_repeats(log_prob: Array, y: Array, previous: Array, unit: float) -> Array:
    """Log scores of cells (N,) with a probability of its own for the previous value (N,), the share of repeats so far.

    Shares are counted before each row, from one half of a repeat in one row.
    """
    repeats = np.abs(y - previous) < unit / 2
    before = np.concatenate([[0.0], np.cumsum(repeats)[:-1]])
    share = (before + 0.5) / (np.arange(len(y)) + 1.0)
    return np.logaddexp(np.where(repeats, np.log(share / unit), -np.inf), np.log1p(-share) + log_prob)


def score_rows(predictive: Predictive, y: Array, unit: float | None = None) -> Rows:
    """Score predictions (N,) by targets (N,); missing ones are NaN. With a unit, the log score is that of its cells.

    Example:
        >>> one = np.ones(2)
        >>> rows = score_rows(LocationScale(0 * one, one, np.inf * one), np.array([0.0, np.nan]))
        >>> rows.log_prob.round(4), rows.u
        (array([-0.9189,     nan]), array([0.5, nan]))
    """
    seen = ~np.isnan(y)
    at = np.where(seen, y, predictive.mean)
    log_prob = predictive.log_prob(at) if unit is None else cell_log_prob(predictive, at, unit)
    found = (log_prob, predictive.crps(at), predictive.cdf(at))
    log_prob, crps, u = (np.where(seen, score, np.nan) for score in found)
    return Rows(y, predictive.mean, log_prob, crps, u, *predictive.interval())


def score_classes(probabilities: Array, y: Array) -> ClassRows:
    """Score probabilities (N, C) by labels (N,).

    Example:
        >>> score_classes(np.array([[0.5, 0.5], [0.9, 0.1]]), np.array([0.0, 1.0])).wrong
        array([0., 1.])
    """
    predicted = probabilities[np.arange(len(y)), y.astype(int)]
    with np.errstate(divide="ignore"):
        return ClassRows(y, np.log(predicted), (probabilities.argmax(1) != y).astype(np.float64))


def joined(parts: Sequence[Rows]) -> Rows:
    """Rows one after the other."""
    return Rows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def summarize(rows: Rows | ClassRows) -> dict[str, float]:
    """The scores of a stream: averages over the rows with a target, and the share of windows whose coverage is right.

    ``nmse`` is the mean squared error over the variance of these targets; ``coverage`` is that of the 90 % interval;
    ``windows`` the share of windows of 500 rows in which it is from 85 to 95 % (a rest is no window, unless it is all
    there is); ``width`` the mean width of the interval.

    Example:
        >>> one = np.ones(4)
        >>> found = summarize(score_rows(LocationScale(0 * one, one, np.inf * one), np.array([-2.0, -1, 1, 2])))
        >>> found["coverage"], found["nmse"], found["windows"]
        (0.5, 1.0, 0.0)
    """
    if isinstance(rows, ClassRows):
        return {"log_score": float(rows.log_prob.mean()), "error_rate": float(rows.wrong.mean())}
    seen = ~np.isnan(rows.y)
    y, inside = rows.y[seen], ((rows.q05 <= rows.y) & (rows.y <= rows.q95)).astype(np.float64)
    windows = [
        float(inside[start : start + WINDOW][seen[start : start + WINDOW]].mean())
        for start in range(0, max(len(seen) - WINDOW, 0) + 1, WINDOW)
        if seen[start : start + WINDOW].any()
    ]
    lowest, highest = _CALIBRATED
    with np.errstate(divide="ignore", invalid="ignore"):
        nmse = ((y - rows.mean[seen]) ** 2).mean() / y.var()
    return {
        "log_score": float(rows.log_prob[seen].mean()),
        "crps": float(rows.crps[seen].mean()),
        "nmse": float(nmse),
        "coverage": float(inside[seen].mean()),
        "windows": sum(lowest <= share <= highest for share in windows) / len(windows),
        "width": float((rows.q95 - rows.q05)[seen].mean()),
    }
