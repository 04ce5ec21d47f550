"""Surrogate of the likelihood: a Gaussian process on its square root (WSABI-L) with the paper's hyper-kernel."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.papers.quadrature.prior import Hyperprior
from gp_ensembles.papers.quadrature.spectral_mixture import SpectralMixtures

_ALPHA = 0.8  # offset alpha as a share of the smallest likelihood (Gunter et al., 2014)
CHUNK = 2**21  # pairs of atoms per chunk
_JITTER = 1e-6  # noise of the roots, as a share of the output scale
_PRIOR_SD = 1.5  # of the log length scales around their starting points
_BOUND = 5.0  # length scales stay within e^5 of their starting points

# A conditionally negative definite function of the Euclidean distance between two atoms.
Dissimilarity = Callable[[Tensor], Tensor]


class Evaluations(NamedTuple):
    """Kernels and their log marginal likelihoods."""

    cube: Tensor  # rows of the prior's cube, (h, C)
    log_likelihood: Tensor  # (h,); NaN where a covariance could not be factorized

    def append(self, cube: Tensor, log_likelihood: Tensor) -> "Evaluations":
        """These evaluations followed by others."""
        return Evaluations(torch.cat([self.cube, cube]), torch.cat([self.log_likelihood, log_likelihood]))

    @property
    def num_failed(self) -> int:
        """Number of kernels whose covariance could not be factorized."""
        return int(self.log_likelihood.isnan().sum())

    def usable(self) -> "Evaluations":
        """The evaluations with a finite log likelihood."""
        good = self.log_likelihood.isfinite()
        return Evaluations(self.cube[good], self.log_likelihood[good])

    def best(self, count: int) -> "Evaluations":
        """The ``count`` most likely kernels, best first."""
        usable = self.usable()
        order = usable.log_likelihood.argsort(descending=True, stable=True)[:count]
        return Evaluations(usable.cube[order], usable.log_likelihood[order])


def energy_distance(distance: Tensor) -> Tensor:
    """The distance itself, for which the discrepancy is the energy distance (Hamid et al., 2022, equation 7)."""
    return distance


def matern_distance(distance: Tensor, bandwidth: float = 1.0) -> Tensor:
    """Negative Matern-5/2 kernel of atoms, for which the discrepancy is its maximum mean discrepancy."""
    r = 5.0**0.5 * distance / bandwidth
    value: Tensor = -(1.0 + r + r.square() / 3.0) * (-r).exp()
    return value


class PreparedKernels(NamedTuple):
    r"""Kernels as weighted atoms, with precomputed terms of their distances."""

    weights: Tensor  # of their components, (*batch, A, Q)
    atoms: Tensor  # coordinates of the components, (*batch, A, Q, 2 D), zero for absent ones
    self_term: Tensor  # mean dissimilarity of a kernel's components, E(p, p), (*batch, A)
    scalars: Tensor  # standardized output scale and noise, if inferred, (*batch, A, E)


class Distances(NamedTuple):
    """Distances of A kernels from B kernels."""

    mixtures: Tensor  # discrepancies of their mixtures, (*batch, A, B)
    scalars: Tensor  # half squared distances of standardized output scales and noises; zero if both are fixed


class SurrogateParameters(NamedTuple):
    r"""Hyper-parameters of the surrogate, tensors of shape ().

    .. math:: \kappa = \lambda^2 \exp(-d / \ell - |e - e'|^2 / (2 \ell_e^2))
    """

    outputscale: Tensor  # lambda^2
    lengthscale: Tensor  # l, of the discrepancy
    scalars_lengthscale: Tensor  # l_e, of the standardized output scale and noise, e
    noise: Tensor  # variance at the observed roots, a small share of the output scale, for near-duplicates


class KernelDistance:
    r"""Distances between kernels given as rows of the prior's cube.

    Those of their mixtures are half the squared maximum mean discrepancy (Hamid et al., 2022, equation 7),

    .. math:: d(p, p') = E(p, p') - E(p, p) / 2 - E(p', p') / 2, \qquad
              E(p, p') = \sum_{ij} w_i w'_j\, e(\|a_i - a'_j\|),

    with atoms a = (m, s) standardized by their priors. If means are signed, a component and its mirror image are the
    same: mixtures are then reflected at the origin.
    """

    def __init__(self, prior: Hyperprior, dissimilarity: Dissimilarity) -> None:
        self.prior = prior
        self.dissimilarity = dissimilarity

    def prepare(self, cube: Tensor) -> PreparedKernels:
        r"""Precompute kernels given as rows (\*batch, A, C) of the cube, for many distances, differentiably."""
        mixtures = self.prior.mixtures(cube).trim()
        atoms = self.atoms(mixtures)
        self_term = mixtures.weights.unsqueeze(-2) @ self._table(atoms, atoms) @ mixtures.weights.unsqueeze(-1)
        return PreparedKernels(mixtures.weights, atoms, self_term.squeeze(-1).squeeze(-1), self.prior.scalars(cube))

    def atoms(self, mixtures: SpectralMixtures) -> Tensor:
        r"""Coordinates of the components, shape (\*batch, Q, 2 D), zero for absent ones."""
        present, prior = (mixtures.weights != 0).unsqueeze(-1), self.prior
        means, scales = mixtures.means, mixtures.scales.where(present, mixtures.scales.new_ones(()))
        return torch.cat([prior.means.standardize(means), prior.scales.standardize(scales)], -1).where(
            present, means.new_zeros(())
        )

    def between(self, first: PreparedKernels, second: PreparedKernels) -> Distances:
        r"""Distances of A kernels from B kernels, each (\*batch, A, B), differentiable."""
        value = self._cross(first, second) - 0.5 * (first.self_term.unsqueeze(-1) + second.self_term.unsqueeze(-2))
        mixtures = value.clamp_min(0.0)  # equal mixtures round to either side of zero
        if not self.prior.num_scalars:
            return Distances(mixtures, torch.zeros_like(mixtures))
        squares = (first.scalars.unsqueeze(-2) - second.scalars.unsqueeze(-3)).square().sum(-1)
        return Distances(mixtures, 0.5 * squares)

    def _cross(self, first: PreparedKernels, second: PreparedKernels) -> Tensor:
        """E of all pairs, in chunks of the first, to limit the table of pairs of atoms."""
        *batch, count, size, _ = second.atoms.shape
        flat = second.atoms.flatten(-3, -2)
        length, components = first.weights.shape[-2:]
        rows = length if batch else max(1, CHUNK // max(components * count * size, 1))
        parts = []
        for start in range(0, length, rows):
            weights = first.weights.narrow(-2, start, min(rows, length - start))
            atoms = first.atoms.narrow(-3, start, min(rows, length - start))
            table = self._table(atoms.flatten(-3, -2), flat).unflatten(-1, (count, size))
            table = table.unflatten(-3, atoms.shape[-3:-1])
            parts.append(torch.einsum("...aq,...aqbr,...br->...ab", weights, table, second.weights))
        return torch.cat(parts, -2)

    def _table(self, a: Tensor, b: Tensor) -> Tensor:
        """Dissimilarities of atoms (..., A, 2 D) and (..., B, 2 D)."""
        value = self.dissimilarity(_distance(a, b))
        if not self.prior.has_signed_means:
            return value
        num_inputs = b.shape[-1] // 2  # reflecting one side is the same as reflecting both
        mirrored = torch.cat([-b[..., :num_inputs], b[..., num_inputs:]], -1)
        return 0.5 * (value + self.dissimilarity(_distance(a, mirrored)))


# exact differences: the expansion into products gives 1e-8 for equal atoms; the gradient there is zero
_distance = functools.partial(torch.cdist, compute_mode="donot_use_mm_for_euclid_dist")


def log_correlations(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    """Logarithm of the hyper-kernel without its output scale, in the shape of the distances."""
    return -distances.mixtures / parameters.lengthscale - distances.scalars / parameters.scalars_lengthscale**2


class Surrogate:
    r"""Gaussian process on :math:`g = \sqrt{2 (L - \alpha)}`, where L is the likelihood over its largest value so far.

    Kernels without a likelihood are ignored; parameters that are not given are fitted by marginal likelihood.

    Raises:
        ValueError: If no kernel has a likelihood.
        NotPSDError: If the matrix of hyper-kernel values cannot be factorized even with jitter.
    """

    def __init__(
        self,
        evaluations: Evaluations,
        kernel_distance: KernelDistance,
        parameters: SurrogateParameters | None = None,
        distances: Distances | None = None,
    ) -> None:
        usable = evaluations.usable()
        if not usable.log_likelihood.numel():
            raise ValueError(
                f"none of {evaluations.log_likelihood.numel()} kernels has a likelihood: no covariance could be "
                f"factorized; use float64, merge duplicate inputs, or use a prior with larger noise"
            )
        self.evaluations = usable
        self.kernel_distance = kernel_distance
        self.log_scale: Tensor = usable.log_likelihood.max()
        likelihood = (usable.log_likelihood - self.log_scale).exp()
        self.alpha: Tensor = _ALPHA * likelihood.min()
        self.roots: Tensor = (2.0 * (likelihood - self.alpha)).sqrt()
        self.prepared: PreparedKernels = kernel_distance.prepare(usable.cube)
        self.distances: Distances = (
            kernel_distance.between(self.prepared, self.prepared) if distances is None else distances
        )
        self.parameters: SurrogateParameters = (
            fit_parameters(self.roots, self.distances) if parameters is None else parameters
        )
        gram = self.covariance(self.distances)
        self.gram: Tensor = gram + torch.diag_embed(self.parameters.noise.expand(gram.shape[-1]))
        self.factor: Tensor = psd_safe_cholesky(self.gram)
        self.solved: Tensor = self.solve(self.roots)

    def only(self, rows: Tensor) -> "Surrogate":
        """The surrogate for a subset of the evaluated kernels, with the same parameters."""
        kept = Evaluations(self.evaluations.cube[rows], self.evaluations.log_likelihood[rows])
        among = Distances(*(part[rows][:, rows] for part in self.distances))
        return Surrogate(kept, self.kernel_distance, self.parameters, among)

    def solve(self, right: Tensor) -> Tensor:
        r"""K^{-1} times vectors (h,) or columns (h, A)."""
        columns = right.unsqueeze(-1) if right.ndim == 1 else right
        return torch.cholesky_solve(columns, self.factor).reshape(right.shape)

    def covariance(self, distances: Distances) -> Tensor:
        """Prior covariances of roots at these distances, in the same shape."""
        return self.parameters.outputscale * log_correlations(distances, self.parameters).exp()

    def kernel(self, first: PreparedKernels, second: PreparedKernels) -> Tensor:
        r"""Prior covariances of prepared kernels (\*batch, A) and (\*batch, B), shape (\*batch, A, B)."""
        return self.covariance(self.kernel_distance.between(first, second))

    def cross(self, kernels: PreparedKernels) -> Tensor:
        """Prior covariances of A prepared kernels with the evaluated ones, (A, h)."""
        return self.kernel(kernels, self.prepared)

    def latent(self, cube: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (A,) and covariance (A, A) of the latent process at rows (A, C) of the cube, differentiable."""
        prepared = self.kernel_distance.prepare(cube)
        cross = self.cross(prepared)
        white = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        return cross @ self.solved, self.kernel(prepared, prepared) - white.mT @ white

    def likelihood(self, cube: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (A,) and covariance (A, A) of the likelihood, relative to the largest so far, at rows (A, C)."""
        mean, covariance = self.latent(cube)
        return self.alpha + 0.5 * mean.square(), mean.unsqueeze(-1) * covariance * mean.unsqueeze(-2)


def fit_parameters(roots: Tensor, distances: Distances) -> SurrogateParameters:
    """Maximum likelihood length scales and output scale for the observed roots (h,)."""
    has_scalars = bool((distances.scalars > 0).any())
    center = [_typical(distances.mixtures)] + ([_typical(distances.scalars) ** 0.5] if has_scalars else [])
    center = [math.log(value) for value in center]

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.as_tensor(logs).to(roots).requires_grad_()
        factor = _factor(distances, _parameters(point))
        # log marginal likelihood with the best output scale, up to a constant
        value = -0.5 * roots.numel() * _outputscale(roots, factor).log() - factor.diagonal().log().sum()
        value = value - 0.5 * ((point - point.new_tensor(center)) / _PRIOR_SD).square().sum()
        if not bool(value.isfinite()):
            return math.inf, np.zeros_like(logs)
        (gradient,) = torch.autograd.grad(-value, point)
        return -float(value.detach()), gradient.detach().cpu().double().numpy()

    bounds = [(value - _BOUND, value + _BOUND) for value in center]
    results = [
        minimize(
            objective, np.array(center) + shift, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 30}
        )
        for shift in (-1.5, 0.0, 1.5)
    ]
    best = torch.as_tensor(min(results, key=lambda result: result.fun).x).to(roots)
    shape = _parameters(best)
    outputscale = _outputscale(roots, _factor(distances, shape))
    return shape._replace(outputscale=outputscale, noise=_JITTER * outputscale)


def _typical(distance: Tensor) -> float:
    size = distance.shape[-1]
    rows, columns = torch.triu_indices(size, size, 1, device=distance.device)
    between = distance[rows, columns]
    positive = between[between > 0]
    return 2.0 * float(positive.median()) if positive.numel() else 1.0


def _parameters(logs: Tensor) -> SurrogateParameters:
    one = logs.new_ones(())
    return SurrogateParameters(one, logs[0].exp(), logs[1].exp() if logs.numel() > 1 else one, _JITTER * one)


def _factor(distances: Distances, parameters: SurrogateParameters) -> Tensor:
    gram = log_correlations(distances, parameters).exp()
    factor, info = torch.linalg.cholesky_ex(gram + torch.diag_embed(parameters.noise.expand(gram.shape[-1])))
    return torch.where(info == 0, factor, torch.nan)  # the objective is then not finite


def _outputscale(roots: Tensor, factor: Tensor) -> Tensor:
    white = torch.linalg.solve_triangular(factor, roots.unsqueeze(-1), upper=False)
    scale: Tensor = white.square().mean().clamp_min(torch.finfo(roots.dtype).tiny)
    return scale
