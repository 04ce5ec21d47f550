"""Proposals for importance sampling: mixtures of Student-t distributions at posterior modes.

A posterior is a likelihood L(v) times the standard normal prior of d dimensions.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.draws import generator_device
from gp_ensembles.numerics.minimize import minimize

INFLATION = 1.2  # scale of a component relative to Laplace's approximation
FLOOR = 0.5  # smallest eigenvalue of a precision; that of the prior is one
_TEMPER = 0.5  # power of the Laplace masses used as component weights
_STEPS = (1e-3, 0.05)  # for differences of gradients: in units of the prior, then of the posterior
_SAME = 0.3  # squared distance per dimension below which two ends are the same mode
EVALUATIONS_PER_AXIS = 4  # in :func:`precisions`
DEGREES_OF_FREEDOM = 5.0
PRIOR_SHARE = 0.1  # of the prior in every proposal: no weight exceeds ten times the likelihood
_LEAST_WEIGHT = 1e-3  # minimum for a component to survive a refit
_PRIOR_COUNT = 2.0  # weight of the old scale matrix in a refit, in draws per dimension
_LEAST_EIGENVALUE = 1e-10  # of a scale matrix, relative to its largest


class StudentMixture(NamedTuple):
    r"""Proposal :math:`0.9 \sum_k \pi_k\, t_5(v; \mu_k, L_k L_k^\top) + 0.1\, N(v; 0, I)` in d dimensions."""

    log_weights: Tensor  # (K,)
    means: Tensor  # locations, (K, d)
    factors: Tensor  # Cholesky factors of the scale matrices, (K, d, d)

    @property
    def num_components(self) -> int:
        """Number of components K, without the prior."""
        return self.log_weights.shape[0]

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Draws (count, d), with numbers per component as proportional to the weights as possible."""
        size = self.means.shape[-1]
        shares = torch.cat(
            [
                (1.0 - PRIOR_SHARE) * self.log_weights.softmax(-1).cpu().double(),
                torch.full((1,), PRIOR_SHARE, dtype=torch.float64, device="cpu"),
            ]
        )
        start = torch.rand((), generator=generator, dtype=torch.float64, device=generator_device(generator)).cpu()
        levels = (torch.arange(count, dtype=torch.float64, device="cpu") + start) / count
        pick = torch.searchsorted(shares.cumsum(0), levels).clamp_max(self.num_components)
        normal = torch.randn(count, size, generator=generator, dtype=torch.float64, device=generator_device(generator))
        squares = torch.randn(
            count, int(DEGREES_OF_FREEDOM), generator=generator, dtype=torch.float64, device=generator_device(generator)
        ).square()
        heavy = normal / squares.mean(-1, keepdim=True).sqrt()
        component = pick.clamp_max(self.num_components - 1).to(self.means.device)
        moved = (self.factors[component] @ heavy.to(self.means).unsqueeze(-1)).squeeze(-1) + self.means[component]
        return torch.where((pick == self.num_components).unsqueeze(-1).to(moved.device), normal.to(moved), moved)

    def log_density(self, points: Tensor) -> Tensor:
        """Log densities of points (S, d), including the prior's share, shape (S,)."""
        parts = self.log_components(points) + (self.log_weights.log_softmax(-1) + math.log(1.0 - PRIOR_SHARE))
        prior = log_standard_normal(points) + math.log(PRIOR_SHARE)
        return torch.logaddexp(parts.logsumexp(-1), prior)

    def log_components(self, points: Tensor) -> Tensor:
        """Log densities of points (S, d) under each component, shape (S, K)."""
        size, half = points.shape[-1], 0.5 * (DEGREES_OF_FREEDOM + points.shape[-1])
        constant = math.lgamma(half) - math.lgamma(0.5 * DEGREES_OF_FREEDOM)
        constant -= 0.5 * size * math.log(DEGREES_OF_FREEDOM * math.pi)
        log_volume = self.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        heavy = torch.log1p(self.squared_distances(points) / DEGREES_OF_FREEDOM)
        value: Tensor = constant - log_volume - half * heavy
        return value

    def squared_distances(self, points: Tensor) -> Tensor:
        """Squared Mahalanobis distances of points (S, d) from the components, shape (S, K)."""
        apart = (points - self.means.unsqueeze(-2)).mT  # (K, d, S)
        white: Tensor = torch.linalg.solve_triangular(self.factors, apart, upper=False)
        return white.square().sum(-2).mT

    def join(self, other: "StudentMixture", share: float) -> "StudentMixture":
        """The components of both, with the given share of the weight for the other."""
        log_weights = [
            self.log_weights.log_softmax(-1) + math.log1p(-share),
            other.log_weights.log_softmax(-1) + math.log(share),
        ]
        return StudentMixture(
            torch.cat(log_weights), *(torch.cat(parts) for parts in zip(self[1:], other[1:], strict=True))
        )

    def refit(self, points: Tensor, log_weights: Tensor) -> "StudentMixture":
        r"""One step of expectation-maximization on weighted draws (Cappe et al., 2008, section 4).

        .. math:: \pi_k \propto \sum_s w_s \rho_{sk}, \quad
                  \mu_k = \frac{\sum_s w_s \rho_{sk} u_{sk} v_s}{\sum_s w_s \rho_{sk} u_{sk}}, \quad
                  \Sigma_k = \frac{\sum_s w_s \rho_{sk} u_{sk} (v_s - \mu_k)(v_s - \mu_k)^\top}{\sum_s w_s \rho_{sk}}

        Shapes: ``points`` (S, d), ``log_weights`` (S,).
        """
        size = points.shape[-1]
        each = self.log_components(points) + self.log_weights.log_softmax(-1)
        weighted = (each - each.logsumexp(-1, keepdim=True)).exp() * log_weights.exp().unsqueeze(-1)  # (S, K)
        mass = weighted.sum(0)
        effective = mass.square() / weighted.square().sum(0).clamp_min(torch.finfo(points.dtype).tiny)
        scaled = weighted * (DEGREES_OF_FREEDOM + size) / (DEGREES_OF_FREEDOM + self.squared_distances(points))
        total = scaled.sum(0).clamp_min(torch.finfo(points.dtype).tiny)
        trust = (effective / (effective + _PRIOR_COUNT * size)).unsqueeze(-1)
        found = (scaled / total).mT @ points
        means = self.means + (effective / (effective + _PRIOR_COUNT)).unsqueeze(-1) * (found - self.means)
        apart = points - means.unsqueeze(-2)  # (K, S, d)
        share = (scaled / mass.clamp_min(torch.finfo(points.dtype).tiny)).mT.unsqueeze(-1)
        own = (share * apart).mT @ apart
        old = self.factors @ self.factors.mT
        scales = trust.unsqueeze(-1) * own + (1.0 - trust).unsqueeze(-1) * old
        factors, info = torch.linalg.cholesky_ex(scales)
        usable = ((info == 0) & factors.isfinite().all(-1).all(-1))[:, None, None]
        kept = mass >= _LEAST_WEIGHT * mass.max()
        factors = torch.where(usable, factors, self.factors)
        return StudentMixture(mass[kept].log().log_softmax(-1), means[kept], factors[kept])


def from_precisions(
    log_weights: Tensor, means: Tensor, precisions: Tensor, inflation: float, floor: float
) -> StudentMixture:
    """Components at points with given precisions: absolute values of eigenvalues, with a floor.

    Shapes: ``log_weights`` (K,), ``means`` (K, d), ``precisions`` (K, d, d).
    """
    values, vectors = torch.linalg.eigh(precisions)
    values = values.abs()
    values = torch.maximum(values, floor + _LEAST_EIGENVALUE * values.amax(-1, keepdim=True))
    roots = inflation * vectors * values.rsqrt().unsqueeze(-2)
    triangle = torch.linalg.qr(roots.mT).R.mT  # R R^T = Sigma without squaring its condition number
    signs = triangle.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return StudentMixture(log_weights, means, triangle * signs)


def log_standard_normal(points: Tensor) -> Tensor:
    r"""Log density of N(0, I) at points (\*batch, d), shape (\*batch)."""
    return -0.5 * points.square().sum(-1) - 0.5 * points.shape[-1] * math.log(2.0 * math.pi)


def no_share(points: Tensor, mixture: StudentMixture) -> Tensor:
    """A share of one, in logs, for integrands without known symmetries."""
    return points.new_zeros(len(points))


class Integrand(NamedTuple):
    """A likelihood L(v) under the prior N(0, I) of d dimensions, evaluated in batches."""

    log_likelihood: Callable[[Tensor], Tensor]  # of points (S, d), (S,), differentiable; NaN if undefined
    dimension: int  # d
    chunk: int = 64  # points differentiated at once
    # log a(v) at points (S, d) drawn from a proposal, (S,), which accounts for symmetries of the likelihood: a L has
    # the integral of L, but only one copy of each mode
    log_share: Callable[[Tensor, StudentMixture], Tensor] = no_share
    num_copies: int = 1  # of a mode

    def evaluate(self, points: Tensor) -> Tensor:
        """Log likelihoods of points (S, d), shape (S,); NaN if undefined."""
        with torch.no_grad():
            return self.log_likelihood(points)

    def differentiate(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Unnormalized log posterior densities (S,), and their gradients (S, d)."""
        values, gradients = [], []
        for part in points.split(self.chunk):
            leaf = part.detach().requires_grad_()
            value = self.log_likelihood(leaf) + log_standard_normal(leaf)
            (gradient,) = torch.autograd.grad(value.sum(), leaf)
            values.append(value.detach())
            gradients.append(gradient)
        return torch.cat(values), torch.cat(gradients)


def ascend(integrand: Integrand, starts: Tensor, max_iterations: int) -> tuple[Tensor, Tensor, int]:
    """L-BFGS from points (M, d) to posterior modes, all at once; points without a likelihood are dropped.

    Returns the ends, (M, d), their unnormalized log posterior densities, (M,), and the number of likelihoods
    evaluated, with gradients.
    """
    calls = [len(starts)]

    def negative(points: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(points))
        value, gradient = integrand.differentiate(points)
        return -value, -gradient

    value, gradient = integrand.differentiate(starts)
    usable = value.isfinite() & gradient.isfinite().all(-1)
    if not bool(usable.any()):
        return starts[usable], value[usable], sum(calls)
    found = minimize(
        negative, starts[usable], max_iterations=max_iterations, gradient_tolerance=1e-3, loss_tolerance=1e-8
    )
    return found.point, -found.value, sum(calls)


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
    slope = slope.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # near points without a likelihood: use the floor
    hessian: Tensor = 0.5 * (slope + slope.mT)
    return hessian


def laplace_mixture(integrand: Integrand, points: Tensor, log_density: Tensor) -> StudentMixture:
    """Components at the distinct ends of ascents, weighted by the roots of their Laplace masses.

    Shapes: ``points`` (M, d), ``log_density`` (M,).
    """
    mixture, mass = laplace_modes(integrand, points, log_density)
    return mixture._replace(log_weights=(_TEMPER * mass).log_softmax(-1))


def laplace_modes(integrand: Integrand, points: Tensor, log_density: Tensor) -> tuple[StudentMixture, Tensor]:
    """Components at the distinct ends of ascents, with heights as log weights, and log Laplace masses, highest first.

    Shapes: ``points`` (M, d), ``log_density`` (M,).
    """
    order = log_density.argsort(descending=True, stable=True)
    points, log_density = points[order], log_density[order]
    mixture = from_precisions(log_density, points, precisions(integrand, points), INFLATION, FLOOR)
    apart = mixture.squared_distances(points) / points.shape[-1]  # of the row's point from the column's component
    kept: list[int] = []
    for row in range(len(points)):
        if not kept or float(apart[row, kept].min()) > _SAME:
            kept.append(row)
    mixture = StudentMixture(*(part[kept] for part in mixture))
    log_volume = mixture.factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    mass = mixture.log_weights + log_volume + 0.5 * points.shape[-1] * math.log(2.0 * math.pi)
    return mixture, mass
