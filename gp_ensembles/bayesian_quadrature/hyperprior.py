"""The prior over spectral mixtures, their number of components and the noise, as a map from the unit cube."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from gp_ensembles.bayesian_quadrature.marginals import Marginal, Normal, beta_quantile
from gp_ensembles.bayesian_quadrature.spectral_mixture import SpectralMixtures

_LEAST = 1e-6  # of a stick goes to either side
EDGE = 1e-6  # cube coordinates stay this far from the faces, where quantiles are infinite


def draw_seed(generator: torch.Generator | None) -> int:
    """A seed for what takes no generator, from one (or from torch's global one).

    Example:
        >>> draw_seed(torch.Generator().manual_seed(0)) == draw_seed(torch.Generator().manual_seed(0))
        True
    """
    return int(torch.randint(2**31, (), generator=generator, device="cpu"))


def sobol_points(dimension: int, count: int, seed: int) -> Tensor:
    """Scrambled Sobol points in double precision, shape (count, dimension), whatever torch's default dtype.

    Example:
        >>> sobol_points(2, 4, seed=0).shape
        torch.Size([4, 2])
    """
    engine = SobolEngine(dimension, scramble=True, seed=seed)
    first = engine.quasi.double() / 2**engine.MAXBIT  # the engine keeps it in the default dtype
    points: Tensor = engine.draw(count, dtype=torch.float64)
    points[0] = first
    return points


class Hyperparameters(NamedTuple):
    r"""What a kernel is made of.

    Args:
        mixtures: Spectral mixtures of batch shape (\*batch).
        outputscale: Prior variance of the function, shape (\*batch).
        noise: Variance of the observations' noise, shape (\*batch).
    """

    mixtures: SpectralMixtures
    outputscale: Tensor
    noise: Tensor


class Scalar(NamedTuple):
    """A positive number that is either fixed or has a log-normal prior.

    Args:
        location: Logarithm of the median, or of the fixed value.
        scale: Standard deviation of the logarithm; 0 fixes the value.
    """

    location: float
    scale: float

    @property
    def is_inferred(self) -> bool:
        """Whether the number has a prior."""
        return self.scale > 0


def fixed(value: float) -> Scalar:
    """A number that is known.

    Example:
        >>> fixed(1.0)
        Scalar(location=0.0, scale=0.0)
    """
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"a fixed noise variance or output scale must be positive and finite, got {value}")
    return Scalar(math.log(value), 0.0)


def inferred(median: float, log_sd: float) -> Scalar:
    """A number with a log-normal prior.

    Example:
        >>> inferred(1.0, 0.5).is_inferred
        True
    """
    if not (median > 0 and log_sd > 0 and math.isfinite(median) and math.isfinite(log_sd)):
        raise ValueError(f"an inferred number needs a positive finite median and log_sd, got {median} and {log_sd}")
    return Scalar(math.log(median), log_sd)


UNIT = fixed(1.0)
SMALL = fixed(1e-3)


class Hyperprior:
    r"""Prior over n, the weights, means and scales of n components, the output scale and the noise.

    .. math::
        n \sim p(n), \quad w \mid n \sim \mathrm{Dirichlet}(\alpha), \quad
        m_{qd} \sim \mathrm{HalfNormal}, \quad s_{qd} \sim \mathrm{LogNormal}

    (Hamid et al., 2022, section 3.1.1). A kernel is a point of a cube: column 0 holds n itself, then come N - 1 broken
    sticks, N D means, N D scales, and one column each for an inferred output scale and noise; columns that n components
    do not use are ignored. Given n, the prior is uniform on the cube, so that densities of different n can be compared.

    Args:
        means: Prior of the mean frequencies, in cycles per unit of the inputs.
        scales: Prior of the components' standard deviations, likewise.
        max_components: Largest number of components N.
        outputscale: Prior variance of the function: fixed or inferred.
        noise: Variance of the noise: fixed or inferred.
        concentration: Parameter of the symmetric Dirichlet distribution of the weights.
        log_prob_components: Log p(n) for n = 1..N, shape (N,), up to a constant; uniform if ``None``.

    Raises:
        ValueError: If N or the concentration is not positive, the two priors are over different inputs, or p(n) is no
            distribution over N values.

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=3)
        >>> cube = prior.draw(8, components=2, generator=torch.Generator().manual_seed(0))
        >>> cube.shape, prior.theta(cube).shape, prior.hyperparameters(cube).noise.shape
        (torch.Size([8, 9]), torch.Size([8, 9]), torch.Size([8]))
    """

    def __init__(
        self,
        means: Marginal,
        scales: Marginal,
        max_components: int,
        *,
        outputscale: Scalar = UNIT,
        noise: Scalar = SMALL,
        concentration: float = 1.0,
        log_prob_components: Tensor | None = None,
    ) -> None:
        if max_components < 1:
            raise ValueError(f"at least one component is needed, got {max_components}")
        if means.scale.shape != scales.scale.shape or means.scale.ndim != 1:
            raise ValueError(
                f"the priors of means and scales must have one number for each input, got shapes "
                f"{tuple(means.scale.shape)} and {tuple(scales.scale.shape)}"
            )
        if not concentration > 0:
            raise ValueError(f"the concentration of the weights must be positive, got {concentration}")
        self.means = means
        self.scales = scales
        self.num_inputs = means.scale.shape[0]
        self.max_components = max_components
        self.outputscale = outputscale
        self.noise = noise
        self.concentration = concentration
        given = means.scale.new_zeros(max_components) if log_prob_components is None else log_prob_components
        self.log_prob_components = given.to(means.scale).log_softmax(-1)
        if self.log_prob_components.shape != (max_components,) or not bool(self.log_prob_components.isfinite().all()):
            raise ValueError(f"p(n) needs a positive finite probability for each n = 1..{max_components}")

    @property
    def has_signed_means(self) -> bool:
        """Whether mean frequencies may be negative, so that a component and its mirror image are the same."""
        return isinstance(self.means, Normal)

    @property
    def num_extras(self) -> int:
        """Columns for the output scale and the noise, those of them that are inferred."""
        return int(self.outputscale.is_inferred) + int(self.noise.is_inferred)

    @property
    def num_columns(self) -> int:
        """Columns of a point: n, N - 1 sticks, 2 N D means and scales, and those of output scale and noise."""
        return self.max_components * (1 + 2 * self.num_inputs) + self.num_extras

    @property
    def bounds(self) -> Tensor:
        """Bounds of the columns, shape (2, C): n in [1, N], the rest just inside the cube."""
        lower = self.means.scale.new_full((self.num_columns,), EDGE)
        upper = 1.0 - lower
        lower[0], upper[0] = 1.0, float(self.max_components)
        return torch.stack([lower, upper])

    def used(self, components: int) -> Tensor:
        """The columns, without the first, that n components use; shape (n (1 + 2 D) - 1 + E,)."""
        size, num_inputs = self.max_components, self.num_inputs
        sticks = torch.arange(1, components, device=self.means.scale.device)
        means = size + torch.arange(components * num_inputs, device=self.means.scale.device)
        extras = torch.arange(size * (1 + 2 * num_inputs), self.num_columns, device=self.means.scale.device)
        return torch.cat([sticks, means, means + size * num_inputs, extras])

    def fixed_features(self, components: int) -> dict[int, float]:
        """Columns that stay what they are while n components are optimized, for BoTorch's optimizers."""
        used = set(self.used(components).tolist())
        rest = {column: 0.5 for column in range(1, self.num_columns) if column not in used}
        return {0: float(components), **rest}

    def draw(self, count: int, components: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Low-discrepancy draws of kernels with n components: scrambled Sobol points, shape (count, C).

        Raises:
            ValueError: If n is not in 1..N, or nothing is to be drawn.
        """
        if not 1 <= components <= self.max_components:
            raise ValueError(f"the prior knows 1 to {self.max_components} components, not {components}")
        if count < 1:
            raise ValueError(f"at least one kernel is drawn, asked for {count}")
        columns = self.used(components)
        points = sobol_points(len(columns), count, draw_seed(generator))
        return self.embed(points.to(self.means.scale).clamp(EDGE, 1.0 - EDGE), components)

    def embed(self, points: Tensor, components: int) -> Tensor:
        r"""Points of the cube of n components, in the order of :meth:`used`, as rows: (\*batch, C)."""
        rows = points.new_full((*points.shape[:-1], self.num_columns), 0.5)
        rows[..., 0] = components
        return rows.index_copy(-1, self.used(components), points)

    def num_components(self, cube: Tensor) -> Tensor:
        r"""The numbers of components n of rows, shape (\*batch)."""
        return cube[..., 0].round().long()

    def theta(self, cube: Tensor) -> Tensor:
        r"""Padded mixtures (w, m, s) of rows, shape (\*batch, N (1 + 2 D)), differentiable."""
        return self.mixtures(cube).flatten()

    def mixtures(self, cube: Tensor) -> SpectralMixtures:
        r"""Mixtures of rows of a cube, batch shape (\*batch), zero where a component is absent."""
        size, num_inputs = self.max_components, self.num_inputs
        _, sticks, means, scales, _ = cube.split(
            [1, size - 1, size * num_inputs, size * num_inputs, self.num_extras], dim=-1
        )
        present = torch.arange(size, device=cube.device) < self.num_components(cube).unsqueeze(-1)
        shape = (*cube.shape[:-1], size, num_inputs)
        return SpectralMixtures(
            self._weights(sticks, self.num_components(cube)),
            self.means.icdf(means.reshape(shape)).where(present.unsqueeze(-1), cube.new_zeros(())),
            self.scales.icdf(scales.reshape(shape)).where(present.unsqueeze(-1), cube.new_zeros(())),
        )

    def extras(self, cube: Tensor) -> Tensor:
        r"""Standardized logarithms of what is inferred beside the mixture (output scale, noise), (\*batch, E)."""
        value: Tensor = torch.special.ndtri(cube[..., self.num_columns - self.num_extras :])
        return value

    def hyperparameters(self, cube: Tensor) -> Hyperparameters:
        r"""Mixtures, output scales and noise variances of rows, of batch shape (\*batch), differentiable."""
        extras = list(self.extras(cube).unbind(-1))
        values = []
        for scalar in (self.outputscale, self.noise):
            z = extras.pop(0) if scalar.is_inferred else cube.new_zeros(cube.shape[:-1])
            values.append((scalar.location + scalar.scale * z).exp())
        return Hyperparameters(self.mixtures(cube), *values)

    def log_prob(self, mixtures: SpectralMixtures) -> Tensor:
        r"""Log density of mixtures given their number of components (p(n) is left out), shape (\*batch)."""
        present = mixtures.weights != 0
        count = present.sum(-1).to(mixtures.weights)
        alpha = torch.as_tensor(self.concentration).to(mixtures.weights)
        dirichlet = (alpha * count).lgamma() - count * alpha.lgamma()
        dirichlet = dirichlet + (alpha - 1.0) * mixtures.weights.where(present, 1.0).log().sum(-1)
        each = self.means.log_prob(mixtures.means) + self.scales.log_prob(
            mixtures.scales.where(present.unsqueeze(-1), mixtures.scales.new_ones(()))
        )
        return dirichlet + each.where(present.unsqueeze(-1), each.new_zeros(())).sum((-2, -1))

    def _weights(self, sticks: Tensor, components: Tensor) -> Tensor:
        """Breaks a stick of length one: what is left after k pieces is shared by n - k components."""
        index = torch.arange(1, self.max_components, device=self.means.scale.device)
        rest = (components.unsqueeze(-1) - index).to(sticks)
        if self.concentration == 1.0:
            share = -torch.expm1(torch.log1p(-sticks) / rest.clamp_min(1.0))
        else:
            alpha = torch.full_like(rest, self.concentration)
            share = beta_quantile(sticks, alpha, alpha * rest.clamp_min(1.0))
        share = share.clamp(_LEAST, 1.0 - _LEAST)  # a piece that rounds to nothing would lose the others behind it
        share = torch.where(rest > 0, share, (rest == 0).to(sticks))
        share = torch.cat([share, (components == self.max_components).to(sticks).unsqueeze(-1)], -1)
        left = torch.cat([torch.ones_like(share[..., :1]), (1.0 - share[..., :-1]).cumprod(-1)], -1)
        return share * left
