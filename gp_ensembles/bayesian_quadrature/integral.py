"""Integrals of the surrogate over the prior: the evidence, and its share for each number of components."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import Hyperprior
from gp_ensembles.bayesian_quadrature.surrogate import WSABI_L, Surrogate, Warp


class Nodes(NamedTuple):
    r"""Points by which integrals over the prior are taken: the same ones for every integral.

    With shared points, :math:`\sum_s \omega_s L(\theta_s)` is an exact linear functional of the linearised likelihood:
    its variance is never negative, and no observation explains more than all of it.

    Args:
        cube: Rows of the prior's cube, shape (S, C).
        weights: Shares of the prior, shape (S,), their sum is one.
        components: Number of components n of each, shape (S,).
    """

    cube: Tensor
    weights: Tensor
    components: Tensor

    def first(self, count: int) -> "Nodes":
        """The first ``count`` nodes of every n, with the same share of the prior for each n."""
        parts = []
        for components in self.components.unique():
            rows = (self.components == components).nonzero().squeeze(-1)
            kept = rows[:count]
            scale = self.weights[rows].sum() / self.weights[kept].sum()
            parts.append(Nodes(self.cube[kept], self.weights[kept] * scale, self.components[kept]))
        return Nodes(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def draw_nodes(prior: Hyperprior, per_size: int, *, generator: torch.Generator | None = None) -> Nodes:
    """Scrambled Sobol points of the prior, ``per_size`` for each number of components.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=2)
        >>> nodes = draw_nodes(prior, 4, generator=torch.Generator().manual_seed(0))
        >>> nodes.cube.shape, float(nodes.weights.sum())
        (torch.Size([8, 6]), 1.0)
    """
    sizes = range(1, prior.max_components + 1)
    cube = torch.cat([prior.draw(per_size, n, generator=generator) for n in sizes])
    components = prior.num_components(cube)
    return Nodes(cube, prior.log_prob_components.exp()[components - 1] / per_size, components)


class Integral(NamedTuple):
    r"""Moments of the integrals :math:`\int L\, d\pi(\theta \mid n)\, p(n)` for n = 1..N, likelihoods over the largest.

    Args:
        mean: Shape (N,).
        covariance: Shape (N, N).
        log_scale: Logarithm of the largest likelihood, by which the others are divided.
    """

    mean: Tensor
    covariance: Tensor
    log_scale: Tensor

    @property
    def log_evidence(self) -> Tensor:
        """Log evidence of the data under all kernels, shape ()."""
        return self.log_scale + self.mean.sum().log()

    @property
    def log_evidence_sd(self) -> Tensor:
        """Its standard deviation, by linearising the logarithm."""
        return self.covariance.sum().clamp_min(0.0).sqrt() / self.mean.sum()

    @property
    def posterior(self) -> Tensor:
        """Posterior probabilities of n = 1..N."""
        return self.mean / self.mean.sum()

    @property
    def posterior_sd(self) -> Tensor:
        """Their standard deviations, by linearising the ratio."""
        total, size = self.mean.sum(), self.mean.shape[0]
        slope = (torch.diag_embed(self.mean.new_ones(size)) - self.posterior.unsqueeze(-1)) / total
        return (slope @ self.covariance @ slope.mT).diagonal().clamp_min(0.0).sqrt()


def integrate(surrogate: Surrogate, nodes: Nodes, covariance_nodes: Nodes, warp: Warp = WSABI_L) -> Integral:
    """Mean and covariance of the integrals for each number of components.

    Args:
        surrogate: The surrogate of the likelihood.
        nodes: Nodes of the means.
        covariance_nodes: Nodes of the covariances, whose number enters squared: fewer of them.
        warp: How the likelihood follows from the latent process.

    Returns:
        The integrals' moments.
    """
    sizes = surrogate.geometry.prior.max_components
    mean = nodes.weights * _means(surrogate, nodes, warp)
    shares = mean.new_zeros(sizes).index_add(0, nodes.components - 1, mean)
    few = covariance_nodes
    covariance = surrogate.likelihood(few.cube, warp).covariance
    covariance = few.weights.unsqueeze(-1) * covariance * few.weights
    index = few.components - 1
    blocks = covariance.new_zeros(sizes, covariance.shape[-1]).index_add(0, index, covariance)
    blocks = blocks.new_zeros(sizes, sizes).index_add(1, index, blocks)
    return Integral(shares, 0.5 * (blocks + blocks.mT), surrogate.log_scale)


def _means(surrogate: Surrogate, nodes: Nodes, warp: Warp) -> Tensor:
    """Means of the likelihood at the nodes, without their covariances among one another."""
    cross = surrogate.cross(nodes.cube)
    mean = surrogate.alpha + 0.5 * (cross @ surrogate.solved).square()
    if not warp.matches_moments:
        return mean
    white = torch.linalg.solve_triangular(surrogate.factor, cross.mT, upper=False)
    return mean + 0.5 * (surrogate.parameters.outputscale - white.square().sum(0))
