"""The regression problem of a split, by a likelihood that its rows can bear."""

import torch

from gp_ensembles.numerics.kmeans import kmeans
from gp_ensembles.papers.quadrature import Hyperprior, RegressionProblem, paper_prior
from gp_ensembles.papers.quadrature.likelihoods import DenseLikelihood, Likelihood
from gp_ensembles.papers.quadrature.low_rank import SparseLikelihood
from gp_ensembles.papers.quadrature.surrogate import KernelDistance, energy_distance
from gp_ensembles.papers.quadrature.toeplitz import ToeplitzLikelihood, grid_of
from studies.maskerade.sets import Split

_DENSE_UP_TO = 2_000
_KNOTS = 300


def problem_of(split: Split, prior: Hyperprior | None = None) -> RegressionProblem:
    """The library's problem with a likelihood that the rows can bear.

    Args:
        split: The rows.
        prior: The prior; the default one of the rows if ``None``.
    """
    return RegressionProblem(split.X, split.y, prior, likelihood=likelihood_of(split))


class PublishedProblem(RegressionProblem):
    """A problem whose surrogate rests on the paper's energy distance between mixtures."""

    @property
    def kernel_distance(self) -> KernelDistance:
        """The paper's distances, between atoms standardized by the prior."""
        return KernelDistance(self.prior, energy_distance)


def published_problem_of(split: Split, max_components: int = 5) -> RegressionProblem:
    """The problem with the paper's prior and noise and its distance between kernels."""
    prior = paper_prior(split.X, split.y, max_components)
    return PublishedProblem(split.X, split.y, prior, likelihood=likelihood_of(split))


def likelihood_of(split: Split) -> Likelihood:
    """Dense up to 2 000 rows; beyond, Toeplitz for rows on a grid, and elsewhere a bound by 300 knots."""
    if len(split.y) <= _DENSE_UP_TO:
        return DenseLikelihood
    try:
        grid_of(split.X)
    except ValueError:  # rows are on no grid
        return SparseLikelihood(kmeans(split.X, _KNOTS, generator=torch.Generator().manual_seed(0)).to(split.X))
    return ToeplitzLikelihood
