"""The regression problem of a split, by a likelihood that its rows can bear."""

import torch

from gp_ensembles.bayesian_quadrature import Hyperprior, RegressionProblem
from gp_ensembles.bayesian_quadrature.likelihoods import DenseLikelihood, Likelihood
from gp_ensembles.bayesian_quadrature.low_rank import SparseLikelihood
from gp_ensembles.bayesian_quadrature.toeplitz import ToeplitzLikelihood, grid_of
from gp_ensembles.numerics.kmeans import kmeans
from studies.maskerade.sets import Split

_DENSE_UP_TO = 2_000
_KNOTS = 300


def problem_of(split: Split, prior: Hyperprior | None = None) -> RegressionProblem:
    """Dense up to 2 000 rows; beyond, Toeplitz for rows on a grid, and elsewhere a bound by 300 knots.

    Args:
        split: The rows.
        prior: The prior; the default one of the rows if ``None``.
    """
    return RegressionProblem(split.X, split.y, prior, likelihood=likelihood_of(split))


def likelihood_of(split: Split) -> Likelihood:
    """The likelihood of a split."""
    if len(split.y) <= _DENSE_UP_TO:
        return DenseLikelihood()
    try:
        grid_of(split.X)
    except ValueError:  # rows are on no grid
        return SparseLikelihood(kmeans(split.X, _KNOTS, generator=torch.Generator().manual_seed(0)).to(split.X))
    return ToeplitzLikelihood()
