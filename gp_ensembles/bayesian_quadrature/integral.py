"""Integrals of the surrogate over the prior: the evidence, and its share for each number of components."""

from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gp_ensembles.bayesian_quadrature.jackknife import jackknife_sd, rows_without_each_group
from gp_ensembles.bayesian_quadrature.nodes import Nodes
from gp_ensembles.bayesian_quadrature.surrogate import WSABI_L, Surrogate, Warp

_NEXT_TO_NOTHING = 1e-30


class Integral(NamedTuple):
    r"""Moments of the integrals :math:`\int L\, d\pi(\theta \mid n)\, p(n)` for n = 1..N, likelihoods over the largest.

    Args:
        mean: Shape (N,).
        covariance: Shape (N, N).
        log_scale: Logarithm of the largest likelihood, by which the others are divided.
        replicates: Means of the surrogates that each lack a tenth of the evaluations, shape (G, N), for a jackknife:
            its own covariance takes the surrogate's smoothness for granted, and knows nothing of an unseen spike.
    """

    mean: Tensor
    covariance: Tensor
    log_scale: Tensor
    replicates: Tensor

    @property
    def _without(self) -> Tensor:
        """The replicates; one that lacks the only kernel of any likelihood is next to nothing, but not nothing."""
        return self.replicates.clamp_min(_NEXT_TO_NOTHING * float(self.mean.sum()))

    @property
    def log_evidence(self) -> Tensor:
        """Log evidence of the data under all kernels, shape ()."""
        return self.log_scale + self.mean.sum().log()

    @property
    def log_evidence_sd(self) -> Tensor:
        """Its standard deviation: of a log-normal evidence with these moments, and the jackknife's, as independent."""
        own = torch.log1p(self.covariance.sum().clamp_min(0.0) / self.mean.sum().square())
        return (own + jackknife_sd(list(self._without.sum(-1).log())).square()).sqrt()

    @property
    def posterior(self) -> Tensor:
        """Posterior probabilities of n = 1..N."""
        return self.mean / self.mean.sum()

    @property
    def posterior_sd(self) -> Tensor:
        """Their standard deviations: by linearizing the ratio, and the jackknife's, as independent."""
        total, size = self.mean.sum(), self.mean.shape[0]
        slope = (torch.diag_embed(self.mean.new_ones(size)) - self.posterior.unsqueeze(-1)) / total
        own = (slope @ self.covariance @ slope.mT).diagonal().clamp_min(0.0)
        again = jackknife_sd(list(self._without / self._without.sum(-1, keepdim=True)))
        return (own + again.square()).sqrt()


def integrate(surrogate: Surrogate, nodes: Nodes, covariance_nodes: Nodes, warp: Warp = WSABI_L) -> Integral:
    """Mean and covariance of the integrals for each number of components.

    Args:
        surrogate: The surrogate of the likelihood.
        nodes: Nodes of the means.
        covariance_nodes: Nodes of the covariances, whose number enters squared: fewer of them.
        warp: How the likelihood follows from the latent process.

    Returns:
        The integrals' moments.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, X.squeeze(-1).sin())
        >>> generator = torch.Generator().manual_seed(0)
        >>> cube = problem.prior.draw(8, 1, generator=generator)
        >>> surrogate = fitted_surrogate(Evaluations(cube, problem.evaluate(cube)), problem.geometry)
        >>> nodes = draw_nodes(problem.prior, 16, generator=generator)
        >>> integral = integrate(surrogate, nodes, nodes.first(8))
        >>> integral.mean.shape, bool((integral.covariance.diagonal() >= 0).all())
        (torch.Size([5]), True)
    """
    sizes = surrogate.geometry.prior.max_components
    cross = surrogate.cross(surrogate.geometry.measure(nodes.cube))
    mean = nodes.weights * _means(surrogate, cross, warp)
    shares = mean.new_zeros(sizes).index_add(0, nodes.components - 1, mean)
    few = covariance_nodes
    covariance = surrogate.likelihood(few.cube, warp).covariance
    covariance = few.weights.unsqueeze(-1) * covariance * few.weights
    index = few.components - 1
    blocks = covariance.new_zeros(sizes, covariance.shape[-1]).index_add(0, index, covariance)
    blocks = blocks.new_zeros(sizes, sizes).index_add(1, index, blocks)
    return Integral(shares, 0.5 * (blocks + blocks.mT), surrogate.log_scale, _replicates(surrogate, nodes, cross))


def _replicates(surrogate: Surrogate, nodes: Nodes, cross: Tensor) -> Tensor:
    """Integrals from all but one group of the evaluations, linearized, for every group: (G, N)."""
    sizes = surrogate.geometry.prior.max_components
    replicates = []
    for rows in rows_without_each_group(surrogate.roots):
        factor = psd_safe_cholesky(surrogate.gram[rows][:, rows])
        solved = torch.cholesky_solve(surrogate.roots[rows].unsqueeze(-1), factor).squeeze(-1)
        value = nodes.weights * (surrogate.alpha + 0.5 * (cross[:, rows] @ solved).square())
        replicates.append(value.new_zeros(sizes).index_add(0, nodes.components - 1, value))
    return torch.stack(replicates)


def _means(surrogate: Surrogate, cross: Tensor, warp: Warp) -> Tensor:
    """Means of the likelihood at nodes of known cross-covariances, without covariances among one another."""
    mean = surrogate.alpha + 0.5 * (cross @ surrogate.solved).square()
    if not warp.matches_moments:
        return mean
    white = torch.linalg.solve_triangular(surrogate.factor, cross.mT, upper=False)
    value: Tensor = mean + 0.5 * (surrogate.parameters.outputscale - white.square().sum(0))
    return value
