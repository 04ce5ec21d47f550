"""The surrogate of the likelihood: a Gaussian process on its square root (WSABI-L), and the fit of its parameters."""

import math
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.papers.quadrature.hyperkernel import (
    Distances,
    KernelDistance,
    PreparedKernels,
    SurrogateParameters,
    correlations,
)
from gp_ensembles.papers.quadrature.problem import Evaluations

ALPHA = 0.8  # offset alpha as a share of the smallest likelihood (Gunter et al., 2014)
_JITTER = 1e-6  # noise of the roots as a share of the output scale
_PRIOR_SD = 1.5  # of the log length scales around their starts
_BOUND = 5.0  # log length scales stay within e^5 of their starts
_NO_LIKELIHOOD = (
    "none of {count} kernels has a likelihood: no covariance could be factorized; use float64, merge duplicate inputs, "
    "or give the noise a prior of larger values"
)


class ProcessMoments(NamedTuple):
    """Moments of a process at A kernels: mean (A,), covariance (A, A)."""

    mean: Tensor
    covariance: Tensor


class Surrogate:
    r"""Gaussian process on :math:`g = \sqrt{2 (L - \alpha)}`, where L is the likelihood over its largest value so far.

    Args:
        evaluations: Evaluated kernels; those without a likelihood are left out.
        kernel_distance: Distances between kernels.
        parameters: Parameters of the hyper-kernel, and the noise.
        distances: Distances of the usable kernels from one another, if they are known already.

    Raises:
        ValueError: If no kernel has a likelihood.
        NotPSDError: If the matrix of hyper-kernel values cannot be factorized even with jitter.
    """

    roots: Tensor
    alpha: Tensor

    def __init__(
        self,
        evaluations: Evaluations,
        kernel_distance: KernelDistance,
        parameters: SurrogateParameters,
        distances: Distances | None = None,
    ) -> None:
        usable = evaluations.usable()
        if not usable.log_likelihood.numel():
            raise ValueError(_NO_LIKELIHOOD.format(count=evaluations.log_likelihood.numel()))
        self.evaluations = usable
        self.kernel_distance = kernel_distance
        self.parameters = parameters
        self.log_scale: Tensor = usable.log_likelihood.max()
        self.roots, self.alpha = square_root_transform(usable.log_likelihood)
        self.prepared: PreparedKernels = kernel_distance.prepare(usable.cube)
        self.distances: Distances = (
            kernel_distance.between(self.prepared, self.prepared) if distances is None else distances
        )
        gram = parameters.outputscale * correlations(self.distances, parameters)
        self.gram: Tensor = gram + torch.diag_embed(parameters.noise.expand(gram.shape[-1]))
        self.factor: Tensor = psd_safe_cholesky(self.gram)
        self.solved: Tensor = self.solve(self.roots)

    def only(self, rows: Tensor) -> "Surrogate":
        """The surrogate of some of the evaluated kernels, with the same parameters."""
        kept = Evaluations(self.evaluations.cube[rows], self.evaluations.log_likelihood[rows])
        among = Distances(*(part[rows][:, rows] for part in self.distances))
        return Surrogate(kept, self.kernel_distance, self.parameters, among)

    def solve(self, right: Tensor) -> Tensor:
        r"""K^{-1} times vectors (h,) or columns (h, A)."""
        columns = right.unsqueeze(-1) if right.ndim == 1 else right
        return torch.cholesky_solve(columns, self.factor).reshape(right.shape)

    def kernel(self, first: PreparedKernels, second: PreparedKernels) -> Tensor:
        r"""Prior covariances of prepared kernels (\*batch, A) and (\*batch, B), shape (\*batch, A, B)."""
        return self.parameters.outputscale * correlations(self.kernel_distance.between(first, second), self.parameters)

    def cross(self, kernels: PreparedKernels) -> Tensor:
        """Prior covariances of A prepared kernels with the evaluated ones, (A, h)."""
        return self.kernel(kernels, self.prepared)

    def latent(self, cube: Tensor) -> ProcessMoments:
        """Posterior of the latent process at rows (A, C) of the cube, differentiable."""
        prepared = self.kernel_distance.prepare(cube)
        cross = self.cross(prepared)
        white = torch.linalg.solve_triangular(self.factor, cross.mT, upper=False)
        return ProcessMoments(cross @ self.solved, self.kernel(prepared, prepared) - white.mT @ white)

    def likelihood(self, cube: Tensor) -> ProcessMoments:
        """Moments of the likelihood, over the largest one so far, at rows (A, C) of the cube."""
        mean, covariance = self.latent(cube)
        return ProcessMoments(self.alpha + 0.5 * mean.square(), mean.unsqueeze(-1) * covariance * mean.unsqueeze(-2))


def square_root_transform(log_likelihood: Tensor, alpha_share: float = ALPHA) -> tuple[Tensor, Tensor]:
    r"""Roots :math:`\sqrt{2 (L_i - \alpha)}` of likelihoods over their largest, and alpha."""
    likelihood = (log_likelihood - log_likelihood.max()).exp()
    alpha = alpha_share * likelihood.min()
    return (2.0 * (likelihood - alpha)).sqrt(), alpha


def fit_surrogate(evaluations: Evaluations, kernel_distance: KernelDistance) -> Surrogate:
    """The surrogate of the likelihood, its parameters fitted by marginal likelihood on distances computed once.

    Raises:
        ValueError: If no kernel has a likelihood.
    """
    usable = evaluations.usable()
    if not usable.log_likelihood.numel():
        raise ValueError(_NO_LIKELIHOOD.format(count=evaluations.log_likelihood.numel()))
    prepared = kernel_distance.prepare(usable.cube)
    distances = kernel_distance.between(prepared, prepared)
    roots, _ = square_root_transform(usable.log_likelihood)
    return Surrogate(usable, kernel_distance, fit_parameters(roots, distances), distances)


def fit_parameters(roots: Tensor, distances: Distances) -> SurrogateParameters:
    """Length scales and output scale that make the observed roots (h,) most likely."""
    has_scalars = bool((distances.scalars > 0).any())
    center = [_typical(distances.mixtures)] + ([_typical(distances.scalars) ** 0.5] if has_scalars else [])
    center = [math.log(value) for value in center]

    def objective(logs: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.as_tensor(logs).to(roots).requires_grad_()
        value = _profile(roots, distances, point)
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
    gram = correlations(distances, parameters)
    factor, info = torch.linalg.cholesky_ex(gram + torch.diag_embed(parameters.noise.expand(gram.shape[-1])))
    return torch.where(info == 0, factor, torch.nan)  # the objective is then not finite


def _outputscale(roots: Tensor, factor: Tensor) -> Tensor:
    white = torch.linalg.solve_triangular(factor, roots.unsqueeze(-1), upper=False)
    scale: Tensor = white.square().mean().clamp_min(torch.finfo(roots.dtype).tiny)
    return scale


def _profile(roots: Tensor, distances: Distances, logs: Tensor) -> Tensor:
    """Log marginal likelihood with the best output scale, up to a constant."""
    factor = _factor(distances, _parameters(logs))
    log_determinant = factor.diagonal().log().sum()
    return -0.5 * roots.numel() * _outputscale(roots, factor).log() - log_determinant
