r"""Laplace approximation of the evidence of non-Gaussian targets, over all weights, for a batch of experts.

.. math:: \log p(y) \approx \sum_n \ell_n(\hat z_n) - \frac{\|\hat\theta\|^2}{2 \sigma_\theta^2}
          - \tfrac12 \log \Big| I + \sigma_\theta^2 \sum_n H_n \otimes \phi_n \phi_n^\top \Big|

(Rasmussen and Williams 2006, section 3.4, in weight space). The mode is found without gradients; two more Newton steps
with gradients then make value, gradient and Hessian in the hyperparameters exact, since each squares the error.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.cholesky import NumericalError, cholesky
from gp_ensembles.numerics.derivatives import Derivatives, LogDensity, scalar_derivatives, vector_derivatives

_STEPS = 60
_HALVINGS = 30
_WHAT = "the curvature of the posterior of the weights"


class _Problem(NamedTuple):
    r"""Features (\*batch, N, F), targets (N,), a log density, prior variance (\*batch), latent dimension L."""

    Phi: Tensor
    y: Tensor
    log_density: LogDensity
    prior_variance: Tensor
    num_latent: int

    def latent(self, weights: Tensor) -> Tensor:
        r"""Latent values (\*batch, N, L) of weights (\*batch, L, F)."""
        return self.Phi @ weights.mT

    def densities(self, latent: Tensor) -> Tensor:
        r"""Log densities (\*batch, N)."""
        value: Tensor = self.log_density(latent if self.num_latent > 1 else latent.squeeze(-1), self.y)
        return value

    def derivatives(self, latent: Tensor) -> Derivatives:
        r"""Gradient (\*batch, N, L) and Hessian (\*batch, N, L, L) of each log density."""
        if self.num_latent > 1:
            return vector_derivatives(self.log_density, latent, self.y.expand(latent.shape[:-1]))
        first, second = scalar_derivatives(self.log_density, latent.squeeze(-1), self.y)
        return Derivatives(first.unsqueeze(-1), second[..., None, None])

    def height(self, weights: Tensor) -> Tensor:
        r"""Log posterior of the weights up to a constant, (\*batch)."""
        penalty = 0.5 * weights.square().sum((-2, -1)) / self.prior_variance
        return self.densities(self.latent(weights)).sum(-1) - penalty

    def system(self, curvature: Tensor) -> Tensor:
        r"""I + σ² Σ H ⊗ φφᵀ, shape (\*batch, L F, L F), from H (\*batch, N, L, L)."""
        num_features = self.Phi.shape[-1]
        size = self.num_latent * num_features
        rows = []
        for c in range(self.num_latent):
            blocks = [(self.Phi * curvature[..., c, d].unsqueeze(-1)).mT @ self.Phi for d in range(self.num_latent)]
            rows.append(torch.cat(blocks, dim=-1))
        total = self.prior_variance[..., None, None] * torch.cat(rows, dim=-2)
        return total + torch.diag_embed(total.new_ones(*total.shape[:-2], size))

    def step(self, weights: Tensor, *, convex: bool) -> Tensor:
        """Where a Newton step leads; with ``convex`` negative curvature is left out, so that it always climbs."""
        latent = self.latent(weights)
        first, second = self.derivatives(latent)
        curvature = -second
        if convex:
            curvature = curvature.clamp_min(0.0) if self.num_latent == 1 else curvature
        right = first + (curvature @ latent.unsqueeze(-1)).squeeze(-1)
        target = self.prior_variance[..., None, None] * (right.mT @ self.Phi)
        factor = cholesky(self.system(curvature), _WHAT)
        solved: Tensor = torch.cholesky_solve(target.flatten(-2).unsqueeze(-1), factor).squeeze(-1)
        step: Tensor = solved.unflatten(-1, (self.num_latent, -1))
        return step


def laplace_log_evidence(
    Phi: Tensor, y: Tensor, log_density: LogDensity, prior_variance: Tensor, num_latent: int = 1
) -> Tensor:
    r"""Laplace's approximation of the log evidence.

    Shapes: ``Phi`` (\*batch, N, F), ``y`` (N,), ``prior_variance`` (\*batch); returns (\*batch).

    Raises:
        NumericalError: If the posterior has no proper mode.
    """
    problem = _Problem(Phi, y, log_density, prior_variance, num_latent)
    weights = _mode(_Problem(Phi.detach(), y, log_density, prior_variance.detach(), num_latent))
    if torch.is_grad_enabled():
        weights = problem.step(problem.step(weights, convex=False), convex=False)
    curvature = -problem.derivatives(problem.latent(weights)).second
    factor = cholesky(problem.system(curvature), _WHAT)
    return problem.height(weights) - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


@torch.no_grad()
def _mode(problem: _Problem) -> Tensor:
    """Weights at the mode, by damped Newton from zero, for every expert by itself."""
    tolerance = float(torch.finfo(problem.Phi.dtype).eps ** 0.6)
    weights = problem.Phi.new_zeros(*problem.Phi.shape[:-2], problem.num_latent, problem.Phi.shape[-1])
    height = problem.height(weights)
    for _ in range(_STEPS):
        proposal = problem.step(weights, convex=True)
        share = torch.ones_like(height)
        for _ in range(_HALVINGS):
            candidate = weights + share[..., None, None] * (proposal - weights)
            reached = problem.height(candidate)
            low = ~(reached >= height - 1e-10 * (1 + height.abs()))
            if not bool(low.any()):
                break
            share = torch.where(low, 0.5 * share, share)
        moved = (candidate - weights).abs().amax()
        weights = torch.where(low[..., None, None], weights, candidate)
        height = torch.where(low, height, reached)
        if bool(moved <= tolerance * (1 + weights.abs().amax())):
            break
    if not bool(torch.isfinite(height).all()):
        raise NumericalError("the posterior of the weights has no proper mode; start with a smaller prior variance")
    return weights
