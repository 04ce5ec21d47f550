"""A Gaussian process on the square root of the likelihood (warped sequential active Bayesian integration)."""

import math
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gp_ensembles.bayesian_quadrature.geometry import (
    Distances,
    HyperGeometry,
    Placed,
    SurrogateParameters,
    correlations,
)
from gp_ensembles.bayesian_quadrature.store import Evaluations

NO_LIKELIHOOD = (
    "none of {count} kernels has a likelihood: no covariance could be factorized; use float64, merge duplicate inputs, "
    "or give the noise a prior of larger values"
)
ALPHA = 0.8  # share of the smallest likelihood that is certain (Gunter et al., 2014)


class Latent(NamedTuple):
    """Moments of the latent process: mean (A,), covariance (A, A)."""

    mean: Tensor
    covariance: Tensor


class Warp(NamedTuple):
    r"""How the likelihood's moments follow from the latent process, :math:`L = \alpha + g^2 / 2`.

    Args:
        matches_moments: ``False`` linearizes at the mean (WSABI-L), ``True`` takes the exact moments (WSABI-M).

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1)
        >>> WSABI_L.moments(torch.tensor(0.5), Latent(one[0], one)).mean
        tensor([1.])
    """

    matches_moments: bool = False

    def moments(self, alpha: Tensor, latent: Latent) -> Latent:
        r"""Mean and covariance of the likelihood at A kernels.

        Linearized, :math:`\alpha + m^2/2` and :math:`m\,C\,m'`; with matched moments :math:`\alpha + (m^2 + C)/2` and
        :math:`m\,C\,m' + C^2/2` (Gunter et al., 2014, section 3).

        Example:
            >>> import torch
            >>> one = torch.ones(1, 1)
            >>> WSABI_M.moments(torch.tensor(0.5), Latent(one[0], one)).mean
            tensor([1.5000])
        """
        mean, covariance = latent
        linear = Latent(alpha + 0.5 * mean.square(), mean.unsqueeze(-1) * covariance * mean.unsqueeze(-2))
        if not self.matches_moments:
            return linear
        own = covariance.diagonal(dim1=-2, dim2=-1)
        return Latent(linear.mean + 0.5 * own, linear.covariance + 0.5 * covariance.square())


WSABI_L = Warp()
WSABI_M = Warp(matches_moments=True)


class Surrogate:
    r"""Gaussian process on :math:`g = \sqrt{2 (L - \alpha)}`, where L is the likelihood over its largest value so far.

    Args:
        evaluations: Evaluated kernels; those without a likelihood are left out.
        geometry: Distances between kernels.
        parameters: Hyper-parameters of the process.
        distances: Distances of the usable kernels from one another, if they are known already.
        alpha_share: Offset alpha as a share of the smallest likelihood.

    Raises:
        ValueError: If no kernel has a likelihood.
        NotPSDError: If the kernels' correlations cannot be factorized even with jitter.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=2)
        >>> cube = prior.draw(4, components=2, generator=torch.Generator().manual_seed(0))
        >>> parameters = SurrogateParameters(one[0], one[0], one[0], 1e-6 * one[0])
        >>> surrogate = Surrogate(Evaluations(cube, -cube[:, 1]), HyperGeometry(prior), parameters)
        >>> bool((surrogate.latent(cube).mean - surrogate.roots).abs().max() < 1e-3)
        True
    """

    def __init__(
        self,
        evaluations: Evaluations,
        geometry: HyperGeometry,
        parameters: SurrogateParameters,
        distances: Distances | None = None,
        alpha_share: float = ALPHA,
    ) -> None:
        usable = evaluations.usable()
        if not usable.log_likelihood.numel():
            raise ValueError(NO_LIKELIHOOD.format(count=evaluations.log_likelihood.numel()))
        self.evaluations = usable
        self.geometry = geometry
        self.parameters = parameters
        self.log_scale = usable.log_likelihood.max()
        self.roots, self.alpha = warped(usable.log_likelihood, alpha_share)
        self.placed = geometry.measure(usable.cube)
        self.distances = geometry.of(self.placed, self.placed) if distances is None else distances
        gram = parameters.outputscale * correlations(self.distances, parameters)
        self.gram = gram + torch.diag_embed(parameters.noise.expand(gram.shape[-1]))
        self.factor = psd_safe_cholesky(self.gram)
        self.solved = self.solve(self.roots)

    def only(self, rows: Tensor) -> "Surrogate":
        """The surrogate of some of the evaluated kernels, with the hyper-parameters of all."""
        kept = Evaluations(self.evaluations.cube[rows], self.evaluations.log_likelihood[rows])
        among = Distances(*(part[rows][:, rows] for part in self.distances))
        return Surrogate(kept, self.geometry, self.parameters, among)

    def solve(self, right: Tensor) -> Tensor:
        r"""K^{-1} times vectors (h,) or columns (h, A)."""
        columns = right.unsqueeze(-1) if right.ndim == 1 else right
        return torch.cholesky_solve(columns, self.factor).reshape(right.shape)

    def kernel(self, first: Placed, second: Placed) -> Tensor:
        r"""Prior covariances of kernels (\*batch, A) and (\*batch, B) that the geometry has measured."""
        return self.parameters.outputscale * correlations(self.geometry.of(first, second), self.parameters)

    def cross(self, kernels: Placed) -> Tensor:
        """Prior covariances of A measured kernels with the evaluated ones, (A, h)."""
        return self.kernel(kernels, self.placed)

    def latent(self, cube: Tensor) -> Latent:
        """Posterior of the latent process at rows (A, C) of the cube, differentiable."""
        placed = self.geometry.measure(cube)
        cross = self.cross(placed)
        white = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        return Latent(cross @ self.solved, self.kernel(placed, placed) - white.mT @ white)

    def likelihood(self, cube: Tensor, warp: Warp = WSABI_L) -> Latent:
        """Moments of the likelihood, over the largest one so far, at rows (A, C) of the cube."""
        return warp.moments(self.alpha, self.latent(cube))


def warped(log_likelihood: Tensor, alpha_share: float = ALPHA) -> tuple[Tensor, Tensor]:
    r"""Roots :math:`\sqrt{2 (L_i - \alpha)}` of likelihoods over their largest, and alpha.

    Example:
        >>> import torch
        >>> warped(torch.tensor([0.0, -2000.0]))
        (tensor([1.4142, 0.0000]), tensor(0.))
    """
    likelihood = (log_likelihood - log_likelihood.max()).exp()
    alpha = alpha_share * likelihood.min()
    return (2.0 * (likelihood - alpha)).sqrt(), alpha


def log_marginal_of_roots(roots: Tensor, distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """Log marginal likelihood of the surrogate's hyper-parameters; what a fit maximizes.

    Example:
        >>> import torch
        >>> one = torch.ones((), dtype=torch.float64)
        >>> value = log_marginal_of_roots(0.0 * one[None], Distances(0.0 * one[None, None], 0.0 * one[None, None]),
        ...                               SurrogateParameters(one, one, one, 0.0 * one))
        >>> round(float(value), 4)
        -0.9189
    """
    gram = parameters.outputscale * correlations(distances, parameters)
    factor = psd_safe_cholesky(gram + torch.diag_embed(parameters.noise.expand(gram.shape[-1])))
    white = torch.linalg.solve_triangular(factor, roots.unsqueeze(-1), upper=False)
    log_determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    value: Tensor = -0.5 * white.square().sum() - log_determinant - 0.5 * roots.numel() * math.log(2.0 * math.pi)
    return value
