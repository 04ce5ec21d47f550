"""Modes of posterior densities under a standard normal prior, and Laplace's approximations at them."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.minimize import minimize
from gp_ensembles.papers.quadrature.student_mixture import StudentMixture, from_precisions, log_standard_normal

INFLATION = 1.2  # scale of a component over that of Laplace's approximation
FLOOR = 0.5  # smallest eigenvalue of a precision; that of the prior is one
_TEMPER = 0.5  # power of the Laplace masses that components are weighted by
_STEPS = (1e-3, 0.05)  # of differences of gradients: in units of the prior, then of the posterior
_SAME = 0.3  # squared distance per dimension below which two ends are one mode


class Integrand(NamedTuple):
    """A likelihood L(v) under the prior N(0, I) of d dimensions, evaluated in batches.

    Args:
        log_likelihood: Takes points (S, d) to log likelihoods (S,), differentiable; NaN where there is none.
        dimension: d.
        chunk: Points that are differentiated at a time.
    """

    log_likelihood: Callable[[Tensor], Tensor]
    dimension: int
    chunk: int = 64

    def evaluate(self, points: Tensor) -> Tensor:
        """Log likelihoods of points (S, d), shape (S,); NaN where there is none."""
        with torch.no_grad():
            return self.log_likelihood(points)

    def differentiate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Log posterior densities, unnormalized, (S,), and their gradients (S, d)."""
        values, gradients = [], []
        for part in points.split(self.chunk):
            leaf = part.detach().requires_grad_()
            value = self.log_likelihood(leaf) + log_standard_normal(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.cat(values), torch.cat(gradients)


class Ascents(NamedTuple):
    """Ends of ascents.

    Args:
        points: Shape (M, d).
        log_density: Their log posterior densities, unnormalized, shape (M,).
        num_evaluations: Likelihoods evaluated, with gradients.
    """

    points: Tensor
    log_density: Tensor
    num_evaluations: int


def ascend(integrand: Integrand, starts: Tensor, max_iterations: int) -> Ascents:
    """L-BFGS from points (M, d) to modes of the posterior, all at once; starts without a likelihood are left out."""
    calls = [len(starts)]

    def negative(points: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(points))
        value, gradient = integrand.differentiate(points)
        return -value, -gradient

    value, gradient = integrand.differentiate(starts)
    usable = value.isfinite() & gradient.isfinite().all(-1)
    if not bool(usable.any()):
        return Ascents(starts[usable], value[usable], sum(calls))
    found = minimize(
        negative, starts[usable], max_iterations=max_iterations, gradient_tolerance=1e-3, loss_tolerance=1e-8
    )
    return Ascents(found.point, -found.value, sum(calls))


EVALUATIONS_PER_AXIS = 4  # of :func:`precisions`


def precisions(integrand: Integrand, points: Tensor) -> Tensor:
    """Negative Hessians of the log posterior at points (M, d), by central differences of its gradients, (M, d, d)."""
    num, size = points.shape
    steps = points.new_full((num, size), _STEPS[0])
    hessians = _differences(integrand, points, steps)
    axes = hessians.diagonal(dim1=-2, dim2=-1).abs().nan_to_num(nan=1.0, posinf=1e12)
    return _differences(integrand, points, (_STEPS[1] * axes.clamp_min(FLOOR).rsqrt()).clamp(1e-7, 0.05))


def _differences(integrand: Integrand, points: Tensor, steps: Tensor) -> Tensor:
    shifts = torch.diag_embed(steps)  # (M, d, d)
    both = torch.stack([points.unsqueeze(-2) + shifts, points.unsqueeze(-2) - shifts])
    _, gradient = integrand.differentiate(both.flatten(0, -2))
    ahead, behind = gradient.reshape(both.shape)
    slope = (behind - ahead) / (2.0 * steps.unsqueeze(-1))
    slope = slope.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # next to points without a likelihood: the floor
    hessian: Tensor = 0.5 * (slope + slope.mT)
    return hessian


def laplace_mixture(integrand: Integrand, points: Tensor, log_density: Tensor) -> StudentMixture:
    """Components at the distinct ends of ascents, weighted by the roots of their Laplace masses.

    Shapes: ``points`` (M, d), ``log_density`` (M,).
    """
    mixture, mass = laplace_modes(integrand, points, log_density)
    return mixture._replace(log_weights=(_TEMPER * mass).log_softmax(-1))


def laplace_modes(integrand: Integrand, points: Tensor, log_density: Tensor) -> tuple[StudentMixture, Tensor]:
    """Components at the distinct ends of ascents, heights as their log weights, and log Laplace masses, highest first.

    Shapes: ``points`` (M, d), ``log_density`` (M,).
    """
    order = log_density.argsort(descending=True, stable=True)
    points, log_density = points[order], log_density[order]
    mixture = from_precisions(log_density, points, precisions(integrand, points), INFLATION, FLOOR)
    apart = mixture.squared_distances(points) / points.shape[-1]  # of row's point from column's component
    kept: list[int] = []
    for row in range(len(points)):
        if not kept or float(apart[row, kept].min()) > _SAME:
            kept.append(row)
    mixture = StudentMixture(*(part[kept] for part in mixture))
    log_volume = mixture.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    mass = mixture.log_weights + log_volume + 0.5 * points.shape[-1] * math.log(2.0 * math.pi)
    return mixture, mass
