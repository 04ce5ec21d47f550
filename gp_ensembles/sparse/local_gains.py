"""What a further knot would add when each row has a noise of its own: targets that are normal only locally."""

from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.sparse.collapsed import Projection
from gp_ensembles.sparse.gains import Candidates, measure_candidates


class Sites(NamedTuple):
    r"""Normal stand-ins of a likelihood: row i says :math:`z_i \sim N(f_i - m_i,\, 1 / W_i)`, m the prior mean.

    Args:
        precision: W, shape (N,). It may be zero (the row says nothing), and negative in a tail that is not log-concave.
        shift: :math:`W z`, shape (N,), so that nothing is divided by W.
    """

    precision: Tensor
    shift: Tensor


def measure_locally(
    projection: Projection, sites: Sites, knots_with_candidates: Tensor, candidates_with_data: Tensor, prior: Tensor
) -> Candidates:
    r"""M candidates given the knots of a projection and the sites of the rows, in O(M N K).

    A candidate adds to :math:`\log N(z;\, 0,\, Q + W^{-1}) - \frac12 \sum_i W_i (k_{ii} - q_{ii})`. Where the sites
    are those of the best posterior of the knots so far, that is what it adds to the bound of the likelihood itself,
    to second order in the means and to first order in the variances that it changes. Rows whose covariances are scaled
    by :math:`\sqrt{W_i}` have unit noise.

    Args:
        projection: The data seen through the knots so far; its residual and noise do not matter.
        sites: The rows' stand-ins; precisions that are not positive count as next to nothing.
        knots_with_candidates: Covariances, shape (K, M).
        candidates_with_data: Covariances, shape (M, N).
        prior: Prior variances of the candidates, any nugget included, shape (M,).

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> sites = Sites(4 * one[0], 4 * one[0])
        >>> bool(measure_locally(projection, sites, 0.0 * one, one, one[0]).gains() > 1.0)
        True
    """
    least = torch.finfo(prior.dtype).eps * sites.precision.max().clamp_min(torch.finfo(prior.dtype).tiny ** 0.5)
    root = sites.precision.clamp_min(least).sqrt()
    scaled = Projection(
        projection.lower,
        projection.projected * root,
        projection.explained * root.square(),
        projection.prior * root.square(),
        sites.shift / root,
        torch.ones_like(projection.noise),
    )
    candidates = measure_candidates(scaled, knots_with_candidates, candidates_with_data * root, prior)
    return candidates._replace(scale=root)
