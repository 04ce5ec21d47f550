"""What a further knot would add when each row has a noise of its own: targets that are normal only locally."""

from typing import NamedTuple, final

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


@final
class LocalCandidates:
    r"""M candidates given the knots so far, where rows have noise variances :math:`1 / W_i`.

    Rows whose columns are scaled by :math:`\sqrt{W_i}` have unit noise, so that the gains are those of
    :class:`~gp_ensembles.sparse.gains.Candidates`, exactly. The two tables of candidates and rows are changed in place:
    to make new ones takes several times as long as the arithmetic.

    Args:
        scaled: The candidates with scaled rows, whose tensors become this object's own.
        root: :math:`\sqrt{W}`, positive, shape (N,).

    Example:
        >>> import torch
        >>> from gp_ensembles.sparse.collapsed import project
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> projection = project(one, 0.5 * one, one[0], one[0], one[0, 0])
        >>> candidates = measure_locally(projection, Sites(4 * one[0], 4 * one[0]), 0.0 * one, one, one[0])
        >>> candidates.take(0, torch.tensor([0]))
        >>> candidates.gains()  # it is a knot now
        tensor([0.], dtype=torch.float64)
    """

    def __init__(self, scaled: Candidates, root: Tensor) -> None:
        self._scaled = scaled
        self._root = root

    def gains(self) -> Tensor:
        """What each candidate adds to the bound, shape (M,); zero for one that is a knot already."""
        now = self._scaled
        variance = now.variance.clamp_min(now.floor)
        length = torch.linalg.vector_norm(now.covariance, dim=-1).square() / variance
        product = torch.einsum("mn,mn->m", now.covariance, now.weighted)
        stretch = 1.0 + (product / variance).clamp_min(0.0)
        fit = (now.weighted @ now.residual).square() / variance
        gain = 0.5 * (length / now.noise - stretch.log() + fit / stretch)
        return torch.where(now.variance > now.floor, gain, 0.0)

    def take(self, index: int, places: Tensor) -> None:
        """Make candidate ``index`` a knot, where candidate i stands at row ``places[i]`` of the data, in O(M N)."""
        now = self._scaled
        deviation = now.variance[index].sqrt()
        v = now.covariance[index] / deviation
        g = now.weighted[index] / deviation
        # Covariances with the knot itself do not know of its row's noise.
        with_knot = now.covariance[:, places[index]] / (self._root[places[index]] * deviation)
        now.weighted.addr_(now.weighted @ v + with_knot, g / (1.0 + v @ g), alpha=-1.0)
        now.covariance.addr_(with_knot, v, alpha=-1.0)
        now.variance.sub_(with_knot.square()).clamp_min_(0.0)[index] = 0.0


def measure_locally(
    projection: Projection, sites: Sites, knots_with_candidates: Tensor, candidates_with_data: Tensor, prior: Tensor
) -> LocalCandidates:
    r"""M candidates given the knots of a projection and the sites of the rows, in O(M N K).

    A candidate adds to :math:`\log N(z;\, 0,\, Q + W^{-1}) - \frac12 \sum_i W_i (k_{ii} - q_{ii})`. Where the sites
    are those of the best posterior of the knots so far, that is what it adds to the bound of the likelihood itself,
    to second order in the means and to first order in the variances that it changes.

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
    return LocalCandidates(measure_candidates(scaled, knots_with_candidates, candidates_with_data * root, prior), root)
