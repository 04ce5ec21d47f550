"""Hyper-parameters of the surrogate by marginal likelihood, on distances computed once."""

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.bayesian_quadrature.geometry import Distances, HyperGeometry, SurrogateParameters, correlations
from gp_ensembles.bayesian_quadrature.store import Evaluations
from gp_ensembles.bayesian_quadrature.surrogate import NO_LIKELIHOOD, Surrogate, warped

_JITTER = 1e-6  # noise of the roots as a share of the output scale
_PRIOR_SD = 1.5  # of the log length scales around their starts
_BOUND = 5.0  # log length scales stay within e^5 of their starts


def fitted_surrogate(evaluations: Evaluations, geometry: HyperGeometry) -> Surrogate:
    """The surrogate of the likelihood with hyper-parameters of the largest marginal likelihood.

    Raises:
        ValueError: If no kernel has a likelihood.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> bool(surrogate.parameters.lengthscale > 0)
        True
    """
    usable = evaluations.usable()
    if not usable.log_likelihood.numel():
        raise ValueError(NO_LIKELIHOOD.format(count=evaluations.log_likelihood.numel()))
    placed = geometry.measure(usable.cube)
    distances = geometry.of(placed, placed)
    roots, _ = warped(usable.log_likelihood)
    return Surrogate(usable, geometry, fit_surrogate(roots, distances), distances)


def fit_surrogate(roots: Tensor, distances: Distances) -> SurrogateParameters:
    r"""Length scales and output scale that make the observed roots most likely.

    The output scale has a closed form, :math:`\lambda^2 = z^\top R^{-1} z / h` for correlations R. The length scales
    are found by L-BFGS from three starts under a weak log-normal prior around twice the median distance: roots that are
    zero but for a spike say little about them.

    Args:
        roots: Observed roots z, shape (h,).
        distances: Distances of the h kernels from one another.

    Returns:
        Hyper-parameters, tensors of shape ().

    Example:
        >>> import torch
        >>> x = torch.linspace(0, 6, 12, dtype=torch.float64).unsqueeze(-1)
        >>> squares = (x - x.mT).square()
        >>> fitted = fit_surrogate(x.sin().squeeze(-1), Distances(squares, torch.zeros_like(squares)))
        >>> 1.0 < float(fitted.lengthscale) < 20.0
        True
    """
    has_extras = bool((distances.extras > 0).any())
    center = [_typical(distances.mixtures)] + ([_typical(distances.extras) ** 0.5] if has_extras else [])
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
    return torch.where(info == 0, factor, torch.nan)  # a length scale that cannot be is worth nothing


def _outputscale(roots: Tensor, factor: Tensor) -> Tensor:
    white = torch.linalg.solve_triangular(factor, roots.unsqueeze(-1), upper=False)
    scale: Tensor = white.square().mean().clamp_min(torch.finfo(roots.dtype).tiny)
    return scale


def _profile(roots: Tensor, distances: Distances, logs: Tensor) -> Tensor:
    """Log marginal likelihood with the best output scale, up to a constant."""
    factor = _factor(distances, _parameters(logs))
    log_determinant = factor.diagonal().log().sum()
    return -0.5 * roots.numel() * _outputscale(roots, factor).log() - log_determinant
