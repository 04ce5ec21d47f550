"""Mixtures of Student-t distributions: predictions of an ensemble with experts of unknown noise, one for each row."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.distributions.table import distribution_text
from gp_ensembles.numerics import mixtures, student_t
from gp_ensembles.numerics.display import counted
from gp_ensembles.numerics.draws import categorical_draws, uniform_draws
from gp_ensembles.numerics.reductions import logsumexp_over_experts, sum_over_experts

_MOST_STEPS = 1100  # halvings between any two float64 numbers, should Newton never help
_LAST_DIGITS = 4  # of a quantile: no step is smaller far from zero
_ROUND_OFF = 256  # of the distribution functions of dozens of components: with less, steps go on in the last digits
_ROWS = 4096  # quantiles solved for at once


class StudentTMixture(NamedTuple):
    """Mixture of the experts' Student-t predictions, for each of N rows by itself.

    Attributes:
        log_weights: Log weights, summing to one over the experts, shape (M,), or (M, N).
        component_mean: The experts' means, shape (M, N).
        component_variance: The experts' variances, shape (M, N).
        degrees_of_freedom: Above two; infinity for a normal component. Shape (M, N).

    Example:
        >>> half = torch.tensor([0.5, 0.5], dtype=torch.float64)
        >>> mean = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        >>> one = torch.ones_like(mean)
        >>> mixture = StudentTMixture(half.log(), mean, one, 5 * one)
        >>> mixture.mean, mixture.variance
        (tensor([0.], dtype=torch.float64), tensor([2.], dtype=torch.float64))
        >>> mixture.cdf(mixture.quantile(0.9))
        tensor([0.9000], dtype=torch.float64)
    """

    log_weights: Tensor
    component_mean: Tensor
    component_variance: Tensor
    degrees_of_freedom: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean of each row, shape (N,)."""
        return self.moments()[0]

    @property
    def variance(self) -> Tensor:
        """Variance of each row, the experts' disagreement included, shape (N,)."""
        return self.moments()[1]

    @property
    def stddev(self) -> Tensor:
        """Standard deviation of each row, shape (N,)."""
        return self.variance.sqrt()

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each row, each (N,)."""
        return mixtures.moments(self._column_weights(), self.component_mean, self.component_variance)

    def typical_width(self) -> Tensor:
        r"""A width of each row, (N,), that is robust to a few far components.

        With the components' moments it is :math:`(\sum_m w_m (v_m + (\mu_m - \mu)^2)^{1/4})^2`.
        """
        return mixtures.typical_width(self._column_weights(), self.component_mean, self.component_variance)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density of targets (..., N), shape (..., N); NaN where y is."""
        df = self.degrees_of_freedom
        component = student_t.log_prob(y.unsqueeze(-2), self.component_mean, self._squared_scale(), df)
        return logsumexp_over_experts(self._column_weights() + component)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y (..., N), shape (..., N)."""
        if y.shape == self.component_mean.shape[-1:]:
            return _below(self, y)
        scale = self._squared_scale().sqrt()
        z = (y.unsqueeze(-2) - self.component_mean) / scale
        return sum_over_experts(self._column_weights().exp() * student_t.cdf(z, self.degrees_of_freedom))

    def quantile(self, p: float | Tensor) -> Tensor:
        """Quantiles at p, one probability or a tensor that broadcasts with (..., N).

        Newton's method on the distribution function, kept inside a bracket that bisection shrinks, until the
        probability or the bracket is met to round-off.

        Raises:
            ValueError: If a probability is not in [0, 1].
        """
        level = p if isinstance(p, Tensor) else self.component_mean.new_tensor(p)
        if not bool(((level >= 0) & (level <= 1)).all()):
            raise ValueError("p must be probabilities between 0 and 1")
        level = level.expand(torch.broadcast_shapes(level.shape, self.component_mean.shape[-1:]))
        rows = torch.arange(self.component_mean.shape[-1], device=level.device).expand(level.shape).flatten()
        flat = level.flatten()
        root = torch.where(flat > 0.5, torch.inf, -torch.inf).to(flat)
        inner = ((flat > 0) & (flat < 1)).nonzero().flatten()
        for some in inner.split(_ROWS):
            root[some] = _solve(self.take(rows[some]), flat[some])
        return root.reshape(level.shape)

    def take(self, rows: Tensor) -> "StudentTMixture":
        """The mixtures of some rows, in the order given."""
        log_weights = self.log_weights if self.log_weights.ndim == 1 else self.log_weights[:, rows]
        return StudentTMixture(log_weights, *(part[:, rows] for part in self[1:]))

    def sample(self, num: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Independent draws for each row, shape (S, N)."""
        if num < 1:
            raise ValueError(f"the number of draws must be at least one, got {num}")
        mean = self.component_mean
        weights = self._column_weights().exp().expand(mean.shape)
        component = categorical_draws(weights.mT, num, generator).mT
        uniform = uniform_draws(component.shape, mean, generator)
        standard = student_t.icdf(uniform, self.degrees_of_freedom.gather(0, component))
        return mean.gather(0, component) + self._squared_scale().sqrt().gather(0, component) * standard

    def __repr__(self) -> str:
        num, rows = self.component_mean.shape[:2]
        return distribution_text(f"StudentTMixture of {counted((num, 'component'), (rows, 'row'))}", self)

    def rescale(self, shift: Tensor, scale: Tensor) -> "StudentTMixture":
        """The distribution of ``scale`` times the target plus ``shift``, both scalars."""
        return self._replace(
            component_mean=self.component_mean * scale + shift, component_variance=self.component_variance * scale**2
        )

    def _column_weights(self) -> Tensor:
        return self.log_weights.unsqueeze(-1) if self.log_weights.ndim == 1 else self.log_weights

    def _squared_scale(self) -> Tensor:
        return self.component_variance * _squared_scale(self.degrees_of_freedom)


def _squared_scale(df: Tensor) -> Tensor:
    """Squared scale of a distribution of variance one."""
    return torch.where(torch.isinf(df), 1.0, (df - 2) / df)


def _solve(mixture: StudentTMixture, target: Tensor) -> Tensor:
    """The quantiles of K mixtures at probabilities (K,) inside (0, 1); each is what it would be alone."""
    scale = mixture._squared_scale().sqrt()
    ends = mixture.component_mean + _standard_quantiles(target, mixture.degrees_of_freedom) * scale
    dead = torch.isneginf(mixture._column_weights()).expand(ends.shape)
    lower = ends.masked_fill(dead, torch.inf).amin(0)
    upper = ends.masked_fill(dead, -torch.inf).amax(0)
    mean, variance = mixture.moments()
    root: Tensor = (mean + torch.special.ndtri(target) * variance.sqrt()).clamp(lower, upper)
    rows = _Rows.of(mixture)
    waiting = torch.arange(target.shape[0], device=target.device)
    for _ in range(_MOST_STEPS):
        at = root[waiting]
        probability, density = rows.at(at)
        excess = probability - target[waiting]
        lower[waiting] = torch.where(excess < 0, at, lower[waiting])
        upper[waiting] = torch.where(excess < 0, upper[waiting], at)
        low, high = lower[waiting], upper[waiting]
        newton = at - excess / density
        new = torch.where((newton > low) & (newton < high), newton, 0.5 * (low + high))
        exact = excess.abs() <= _ROUND_OFF * torch.finfo(target.dtype).eps * target[waiting]
        settled = (newton - at).abs() <= _LAST_DIGITS * torch.finfo(target.dtype).eps * at.abs()
        done = exact | settled | (0.5 * (low + high) <= low) | (0.5 * (low + high) >= high)
        root[waiting] = torch.where(exact | settled, at, new)
        if bool(done.any()):
            going = (~done).nonzero().flatten()
            if going.numel() == 0:
                break
            waiting, rows = waiting[going], rows.take(going)
    return root


def _standard_quantiles(p: Tensor, df: Tensor) -> Tensor:
    """Quantiles (M, K) at p (K,) of standard distributions with df (M, K), once for each number among them."""
    if df.shape[1] == 0 or not bool((df == df[:, :1]).all()):
        return student_t.icdf(p.unsqueeze(0), df)
    numbers, places = df[:, 0].unique(return_inverse=True)
    found: list[Tensor] = [student_t.icdf(p, number) for number in numbers]
    return torch.stack(found)[places]


def _below(mixture: StudentTMixture, y: Tensor) -> Tensor:
    """Probability up to y (N,) of each row by itself."""
    mean, variance, df = mixture[1:]
    weights = mixture._column_weights().exp().expand(mean.shape)
    terms = torch.empty_like(mean.mT, memory_format=torch.contiguous_format)
    for kind, is_one in _kinds(df):
        own = df[kind[:1] if is_one else kind]
        location, spread, weight = (part.index_select(0, kind) for part in (mean, variance, weights))
        z = (y - location).div_(spread.mul_(_squared_scale(own)).sqrt_())
        part = student_t.cdf(z.mT.contiguous(), own.mT)
        terms[:, kind] = part.mul_(weight.mT)
    return terms.sum(-1)  # in the components' own order, so that a row's bits do not depend on the others


class _Rows(NamedTuple):
    """Mixtures as rows of components (K, M), those of one number of degrees of freedom apart; of these df is (K, 1)."""

    weights: tuple[Tensor, ...]
    location: tuple[Tensor, ...]
    scale: tuple[Tensor, ...]
    df: tuple[Tensor, ...]
    places: Tensor

    @classmethod
    def of(cls, mixture: StudentTMixture) -> "_Rows":
        mean, variance, df = mixture[1:]
        weights = mixture._column_weights().exp().expand(mean.shape)
        kinds = _kinds(df)
        of_each: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for kind, is_one in kinds:
            own = df[kind[:1] if is_one else kind].mT.contiguous()
            weight, location, spread = (part[kind].mT.contiguous() for part in (weights, mean, variance))
            of_each.append((weight, location, (spread * _squared_scale(own)).sqrt(), own))
        order = torch.cat([kind for kind, _ in kinds])
        columns = [tuple(each[field] for each in of_each) for field in range(4)]
        return cls(columns[0], columns[1], columns[2], columns[3], order.argsort())

    def take(self, rows: Tensor) -> "_Rows":
        weights, location, scale, df = (tuple(part[rows] for part in field) for field in self[:4])
        return _Rows(weights, location, scale, df, self.places)

    def at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probability up to x (K,), and density there."""
        probabilities, densities = [], []
        for weights, location, scale, df in zip(self.weights, self.location, self.scale, self.df, strict=True):
            z = (x.unsqueeze(-1) - location) / scale
            part, slope = student_t.cdf_and_density(z, df)
            probabilities.append(weights * part)
            densities.append(weights * slope / scale)
        # Summed in the components' own order, so that a row's bits do not depend on the others.
        total = [torch.cat(parts, dim=-1)[..., self.places].sum(-1) for parts in (probabilities, densities)]
        return total[0], total[1]


def _kinds(df: Tensor) -> list[tuple[Tensor, bool]]:
    """Components (M, N) whose degrees of freedom are one number, for each number, and those of which they are not."""
    is_one = (df == df[:, :1]).all(1)
    numbers = torch.where(is_one, df[:, 0], torch.nan) if df.shape[1] else df.new_zeros(df.shape[0])
    kinds = [((numbers == number).nonzero().flatten(), True) for number in numbers[is_one].unique()]
    rest = (~is_one).nonzero().flatten()
    return [*kinds, (rest, False)] if rest.numel() else kinds
