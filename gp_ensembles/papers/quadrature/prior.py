"""Prior over spectral mixtures, their number of components, output scale and noise, as a map from the unit cube."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures

_LEAST = 1e-6  # smallest share of the remaining stick on either side of a break
EDGE = 1e-6  # distance of cube coordinates from the faces, where quantiles are infinite
_SHARE = 5.0  # Nyquist frequency in standard deviations of the prior of the means
_UNIT_LOG_SD = 0.35
_NOISE_SHARE, _NOISE_LOG_SD = 1e-2, 1.5
_OUTPUT_LOG_SD = 0.5
_ON_GRID = 1e-3  # relative tolerance for gaps to be integer multiples of the smallest one


class HalfNormal(NamedTuple):
    """Absolute value of N(0, scale^2), one scale per input, shape (D,)."""

    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = self.scale * math.sqrt(2.0) * torch.special.erfinv(probability)
        return value

    def standardize(self, value: Tensor) -> Tensor:
        """Values in units of the scale."""
        return value / self.scale


class Normal(NamedTuple):
    """N(0, scale^2), one scale per input, shape (D,); for signed mean frequencies."""

    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = self.scale * torch.special.ndtri(probability)
        return value

    def standardize(self, value: Tensor) -> Tensor:
        """Values in units of the scale."""
        return value / self.scale


class LogNormal(NamedTuple):
    """Exponential of N(location, scale^2), one per input, shapes (D,)."""

    location: Tensor
    scale: Tensor

    def icdf(self, probability: Tensor) -> Tensor:
        """Quantiles."""
        value: Tensor = (self.location + self.scale * torch.special.ndtri(probability)).exp()
        return value

    def standardize(self, value: Tensor) -> Tensor:
        """Standardized logarithms."""
        return (value.log() - self.location) / self.scale


Marginal = HalfNormal | Normal | LogNormal


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed drawn from a generator (or torch's global one), for code that accepts no generator."""
    return int(torch.randint(2**31, (), generator=generator, device=generator_device(generator)))


def sobol_points(dimension: int, count: int, seed: int) -> Tensor:
    """Scrambled Sobol points in double precision, shape (count, dimension), independent of torch's default dtype."""
    engine = SobolEngine(dimension, scramble=True, seed=seed)
    first = engine.quasi.double() / 2**engine.MAXBIT  # the engine stores it in the default dtype
    points: Tensor = engine.draw(count, dtype=torch.float64)
    points[0] = first
    return points


class KernelHyperparameters(NamedTuple):
    """Hyperparameters of spectral mixture kernels with an output scale and noise, of shape (*batch)."""

    mixtures: SpectralMixtures
    outputscale: Tensor  # prior variance of the function
    noise: Tensor  # variance of the observation noise


class ScalarPrior(NamedTuple):
    """Prior of a positive number, either fixed or log-normal."""

    location: float  # logarithm of the median, or of the fixed value
    scale: float  # standard deviation of the logarithm; 0 fixes the value

    @property
    def is_inferred(self) -> bool:
        """Whether the number has a prior."""
        return self.scale > 0


def fixed(value: float) -> ScalarPrior:
    """A number that is fixed at a known value.

    Args:
        value: The value, positive, in the units of the number.

    Raises:
        ValueError: If it is not positive and finite.

    Example:
        >>> fixed(1.0)
        ScalarPrior(location=0.0, scale=0.0)
    """
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"a fixed noise variance or output scale must be positive and finite, got {value}")
    return ScalarPrior(math.log(value), 0.0)


def inferred(median: float, log_sd: float) -> ScalarPrior:
    """A number with a log-normal prior.

    Args:
        median: Median of the number, positive, in its units.
        log_sd: Standard deviation of its logarithm, positive.

    Raises:
        ValueError: If one of them is not positive and finite.

    Example:
        >>> inferred(1.0, 0.5).is_inferred
        True
    """
    if not (median > 0 and log_sd > 0 and math.isfinite(median) and math.isfinite(log_sd)):
        raise ValueError(f"an inferred number needs a positive finite median and log_sd, got {median} and {log_sd}")
    return ScalarPrior(math.log(median), log_sd)


_UNIT, _SMALL = fixed(1.0), fixed(1e-3)


class Hyperprior:
    r"""Prior over n, the weights, means and scales of n components, the output scale and the noise.

    .. math::
        n \sim p(n), \quad w \mid n \sim \mathrm{Dirichlet}(1), \quad
        m_{qd} \sim \mathrm{HalfNormal}, \quad s_{qd} \sim \mathrm{LogNormal}

    (Hamid et al., 2022, section 3.1.1). A kernel is a point of a cube: column 0 is n itself, followed by N - 1 broken
    sticks, N D means, N D scales, and one column each for an inferred output scale and noise; columns that n components
    do not use are ignored. Given n, the prior is uniform on the cube, so that densities of different n can be compared.

    Args:
        means: Prior of the mean frequencies, in cycles per unit of the inputs.
        scales: Prior of the components' standard deviations, likewise.
        max_components: Largest number of components N.
        outputscale: Prior variance of the function: fixed or inferred.
        noise: Variance of the noise: fixed or inferred.
        log_prob_components: Log p(n) for n = 1..N, shape (N,), up to a constant; uniform if ``None``.

    Raises:
        ValueError: If N is not positive, the two priors are for different inputs, or p(n) is not a distribution over N
            values.

    Example:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(
        ...     HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=3
        ... )
        >>> cube = prior.draw(8, components=2, generator=torch.Generator().manual_seed(0))
        >>> (
        ...     cube.shape,
        ...     prior.mixtures(cube).means.shape,
        ...     prior.hyperparameters(cube).noise.shape,
        ... )
        (torch.Size([8, 9]), torch.Size([8, 3, 1]), torch.Size([8]))
    """

    def __init__(
        self,
        means: Marginal,
        scales: Marginal,
        max_components: int,
        *,
        outputscale: ScalarPrior = _UNIT,
        noise: ScalarPrior = _SMALL,
        log_prob_components: Tensor | None = None,
    ) -> None:
        if max_components < 1:
            raise ValueError(f"max_components must be at least 1, got {max_components}")
        if means.scale.shape != scales.scale.shape or means.scale.ndim != 1:
            raise ValueError(
                f"the priors of means and scales must have one number per input, got shapes "
                f"{tuple(means.scale.shape)} and {tuple(scales.scale.shape)}"
            )
        self.means = means
        self.scales = scales
        self.num_inputs: int = means.scale.shape[0]
        self.max_components = max_components
        self.outputscale = outputscale
        self.noise = noise
        given = means.scale.new_zeros(max_components) if log_prob_components is None else log_prob_components
        self.log_prob_components: Tensor = given.to(means.scale).log_softmax(-1)
        if self.log_prob_components.shape != (max_components,) or not bool(self.log_prob_components.isfinite().all()):
            raise ValueError(f"p(n) must have a positive finite probability for each n = 1..{max_components}")

    @property
    def has_signed_means(self) -> bool:
        """Whether mean frequencies may be negative, so that a component and its mirror image are the same."""
        return isinstance(self.means, Normal)

    @property
    def num_scalars(self) -> int:
        """Number of columns for the output scale and the noise, if inferred."""
        return int(self.outputscale.is_inferred) + int(self.noise.is_inferred)

    @property
    def num_columns(self) -> int:
        """Number of columns: n, N - 1 sticks, 2 N D means and scales, and those of output scale and noise."""
        return self.max_components * (1 + 2 * self.num_inputs) + self.num_scalars

    @property
    def bounds(self) -> Tensor:
        """Bounds of the columns, shape (2, C): n in [1, N], the rest just inside the cube."""
        lower = self.means.scale.new_full((self.num_columns,), EDGE)
        upper = 1.0 - lower
        lower[0], upper[0] = 1.0, float(self.max_components)
        return torch.stack([lower, upper])

    def active_columns(self, components: int) -> Tensor:
        """Columns that n components use, without the first; shape (n (1 + 2 D) - 1 + E,)."""
        size, num_inputs = self.max_components, self.num_inputs
        sticks = torch.arange(1, components, device=self.means.scale.device)
        means = size + torch.arange(components * num_inputs, device=self.means.scale.device)
        scalars = torch.arange(size * (1 + 2 * num_inputs), self.num_columns, device=self.means.scale.device)
        return torch.cat([sticks, means, means + size * num_inputs, scalars])

    def fixed_features(self, components: int) -> dict[int, float]:
        """Columns that are fixed while n components are optimized, for BoTorch's optimizers."""
        used = set(self.active_columns(components).tolist())
        rest = {column: 0.5 for column in range(1, self.num_columns) if column not in used}
        return {0: float(components), **rest}

    def draw(self, count: int, components: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Low-discrepancy draws of kernels with n components: scrambled Sobol points, shape (count, C)."""
        if not 1 <= components <= self.max_components:
            raise ValueError(f"the prior has 1 to {self.max_components} components, not {components}")
        if count < 1:
            raise ValueError(f"the number of draws must be at least 1, got {count}")
        columns = self.active_columns(components)
        points = sobol_points(len(columns), count, draw_seed(generator))
        return self.embed(points.to(self.means.scale).clamp(EDGE, 1.0 - EDGE), components)

    def embed(self, points: Tensor, components: int) -> Tensor:
        r"""Rows (\*batch, C) from points of the cube of n components, in the order of :meth:`active_columns`."""
        rows = points.new_full((*points.shape[:-1], self.num_columns), 0.5)
        rows[..., 0] = components
        return rows.index_copy(-1, self.active_columns(components), points)

    def embed_normal(self, points: Tensor, components: int) -> Tensor:
        r"""Rows (\*batch, C) from normal quantiles (\*batch, d) of the columns that n components use."""
        return self.embed(torch.special.ndtr(points).clamp(EDGE, 1.0 - EDGE), components)

    def normal_quantiles(self, cube: Tensor, components: int) -> Tensor:
        r"""The inverse of :meth:`embed_normal`: (\*batch, d) from rows (\*batch, C)."""
        value: Tensor = torch.special.ndtri(cube[..., self.active_columns(components)].clamp(EDGE, 1.0 - EDGE))
        return value

    def num_components(self, cube: Tensor) -> Tensor:
        r"""Numbers of components n of rows, shape (\*batch)."""
        return cube[..., 0].round().long()

    def mixtures(self, cube: Tensor) -> SpectralMixtures:
        r"""Mixtures from rows of a cube, batch shape (\*batch), zero where a component is absent."""
        size, num_inputs = self.max_components, self.num_inputs
        _, sticks, means, scales, _ = cube.split(
            [1, size - 1, size * num_inputs, size * num_inputs, self.num_scalars], dim=-1
        )
        present = torch.arange(size, device=cube.device) < self.num_components(cube).unsqueeze(-1)
        shape = (*cube.shape[:-1], size, num_inputs)
        return SpectralMixtures(
            self._weights(sticks, self.num_components(cube)),
            self.means.icdf(means.reshape(shape)).where(present.unsqueeze(-1), cube.new_zeros(())),
            self.scales.icdf(scales.reshape(shape)).where(present.unsqueeze(-1), cube.new_zeros(())),
        )

    def scalars(self, cube: Tensor) -> Tensor:
        r"""Standardized logarithms of output scale and noise, if inferred, shape (\*batch, E)."""
        value: Tensor = torch.special.ndtri(cube[..., self.num_columns - self.num_scalars :])
        return value

    def hyperparameters(self, cube: Tensor) -> KernelHyperparameters:
        r"""Mixtures, output scales and noise variances from rows, with batch shape (\*batch), differentiable."""
        scalars = list(self.scalars(cube).unbind(-1))
        values = []
        for scalar in (self.outputscale, self.noise):
            z = scalars.pop(0) if scalar.is_inferred else cube.new_zeros(cube.shape[:-1])
            values.append((scalar.location + scalar.scale * z).exp())
        return KernelHyperparameters(self.mixtures(cube), *values)

    def _weights(self, sticks: Tensor, components: Tensor) -> Tensor:
        """Stick-breaking: the stick remaining after k pieces is shared by n - k components."""
        index = torch.arange(1, self.max_components, device=self.means.scale.device)
        rest = (components.unsqueeze(-1) - index).to(sticks)
        share = -torch.expm1(torch.log1p(-sticks) / rest.clamp_min(1.0))
        share = share.clamp(_LEAST, 1.0 - _LEAST)  # a piece that rounds to zero or one would make later ones zero
        share = torch.where(rest > 0, share, (rest == 0).to(sticks))
        share = torch.cat([share, (components == self.max_components).to(sticks).unsqueeze(-1)], -1)
        left = torch.cat([torch.ones_like(share[..., :1]), (1.0 - share[..., :-1]).cumprod(-1)], -1)
        return share * left


def draw_stratified(prior: Hyperprior, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Sobol draws of the prior, (count, C), with numbers of components as proportional to p(n) as possible."""
    expected = prior.log_prob_components.exp() * count
    counts = expected.floor().long()
    rest = (expected - counts).argsort(descending=True, stable=True)[: count - int(counts.sum())]
    counts[rest] += 1
    parts = [prior.draw(int(k), n, generator=generator) for n, k in enumerate(counts.tolist(), 1) if k]
    return torch.cat(parts) if parts else prior.bounds.new_zeros(0, prior.num_columns)


def stick_levels(weights: Tensor) -> Tensor:
    """Stick columns (n - 1,) that give weights (n,) under a Dirichlet prior of concentration one."""
    left = torch.cat([weights.new_ones(1), 1.0 - weights.cumsum(0)[:-1]])
    rest = torch.arange(len(weights) - 1, -1, -1, device=weights.device, dtype=weights.dtype)
    return (1.0 - (1.0 - (weights / left).clamp(EDGE, 1.0 - EDGE)) ** rest)[:-1]


def paper_prior(X: Tensor, y: Tensor, max_components: int = 5, noise: float = 1e-3) -> Hyperprior:
    r"""The prior of Hamid et al. (2022): section 3.1.1 for one input; for more, scales as in the authors' code.

    Means are half-normal with a fifth of the Nyquist frequency. Scales are log-normal: for one input, one over the
    range and the Nyquist frequency are five deviations from the median; for several, the median is one cycle over each
    input's range and the deviation 0.35. The output scale is fixed at the targets' variance, the noise at a share of it
    (0.001 in their code; not specified in the paper).

    Args:
        X: Inputs, shape (N, D).
        y: Targets, shape (N,).
        max_components: Largest number of components.
        noise: Noise variance as a share of the targets' variance.

    Raises:
        ValueError: If an input or the targets are constant.

    Example:
        >>> X = torch.arange(50.0, dtype=torch.float64).unsqueeze(-1) / 49.0
        >>> paper_prior(X, X.squeeze(-1).sin()).means.scale
        tensor([4.9000], dtype=torch.float64)
    """
    variance = _variance(y)
    if X.shape[1] == 1:
        nyquist = mean_spacing_nyquist(X)
        scales = nyquist_scales(X, nyquist)
    else:
        nyquist, extent = smallest_gap_nyquist(X), input_range(X)
        scales = LogNormal(-extent.log(), torch.full_like(extent, _UNIT_LOG_SD))
    means = HalfNormal(nyquist / _SHARE)
    return Hyperprior(means, scales, max_components, outputscale=fixed(variance), noise=fixed(noise * variance))


def default_prior(X: Tensor, y: Tensor, max_components: int = 5) -> Hyperprior:
    """A broader prior than the paper's, with inferred output scale and noise.

    Shapes: ``X`` (N, D), ``y`` (N,).

    Raises:
        ValueError: If an input or the targets are constant.
    """
    variance = _variance(y)
    means: Marginal
    if X.shape[1] == 1:
        nyquist = grid_nyquist(X)
        narrow = nyquist_scales(X, nyquist)
        means, scales = HalfNormal(nyquist / _SHARE), LogNormal(narrow.location - 1.0, 3.0 * narrow.scale)
    else:
        extent = input_range(X)
        width = torch.minimum(smallest_gap_nyquist(X) / _SHARE, 0.25 / extent)
        means = Normal(width)
        scales = LogNormal(-extent.log() - 1.0, torch.ones_like(extent))
    return Hyperprior(
        means,
        scales,
        max_components,
        outputscale=inferred(variance, _OUTPUT_LOG_SD),
        noise=inferred(_NOISE_SHARE * variance, _NOISE_LOG_SD),
    )


def _variance(y: Tensor) -> float:
    variance = float(y.var(unbiased=False))
    if not variance > 0:
        raise ValueError("the targets are constant, so that their variance cannot scale a prior")
    return variance


def mean_spacing_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency of each input from its mean spacing, (N - 1) / (2 range), shape (D,)."""
    return 0.5 * (X.shape[0] - 1) / input_range(X)


def grid_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency (1,) of the grid of one input, gaps allowed; from the mean spacing if there is no grid."""
    mean, gaps = mean_spacing_nyquist(X), X.unique().diff()
    step = gaps.min()
    multiples = gaps / step
    on_grid = bool(((multiples - multiples.round()).abs() < _ON_GRID * multiples).all())
    fine_enough = bool(0.5 / step < 10.0 * mean)  # a step far below the mean spacing is a coincidence, not a grid
    return (0.5 / step).reshape(1) if on_grid and fine_enough else mean


def smallest_gap_nyquist(X: Tensor) -> Tensor:
    """Nyquist frequency of each input from its smallest gap, at least 1/N of its range, shape (D,)."""
    extent = input_range(X)
    gaps = torch.stack([X[:, d].unique().diff().min() for d in range(X.shape[1])])
    return 0.5 / torch.maximum(gaps, extent / X.shape[0])


def nyquist_scales(X: Tensor, nyquist: Tensor) -> LogNormal:
    """Prior of scales with one over the range and the Nyquist frequency at five deviations from the median."""
    lower, upper = -input_range(X).log(), nyquist.log()
    return LogNormal(0.5 * (lower + upper), (upper - lower).abs().clamp_min(1e-3) / (2.0 * _SHARE))


def input_range(X: Tensor) -> Tensor:
    """Range of each input, shape (D,)."""
    extent = X.amax(0) - X.amin(0)
    constant = (extent <= 0).nonzero()
    if constant.numel():
        raise ValueError(f"input {int(constant[0])} is constant and has no frequencies; remove it")
    return extent
