"""Points by which integrals over the prior are taken."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.hyperprior import EDGE, Hyperprior, draw_seed, sobol_points

_WIDTHS = (0.1, 0.3, 1.0)  # standard deviations of draws around a kernel, in normal quantiles of the cube
_EVERY = 3  # one node in three stands around a center


class Nodes(NamedTuple):
    r"""Points by which integrals over the prior are taken: the same ones for every integral.

    With shared points, :math:`\sum_s \omega_s L(\theta_s)` is an exact linear functional of the linearized likelihood:
    its variance is never negative, and no observation explains more than all of it.

    Args:
        cube: Rows of the prior's cube, shape (S, C).
        weights: Shares of the prior, shape (S,), their sum is one.
        components: Number of components n of each, shape (S,).

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature import *
        >>> X = torch.linspace(0, 3, 12, dtype=torch.float64).unsqueeze(-1)
        >>> nodes = draw_nodes(default_prior(X, X.squeeze(-1).sin(), max_components=2), 16)
        >>> nodes.first(4).components.tolist()
        [1, 1, 1, 1, 2, 2, 2, 2]
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


def draw_nodes(
    prior: Hyperprior, per_size: int, *, around: Tensor | None = None, generator: torch.Generator | None = None
) -> Nodes:
    r"""Scrambled Sobol points of the prior, ``per_size`` for each number of components; a third of them around centers.

    With enough data the likelihood is a spike that no draw of the prior comes near, and integrals by such draws alone
    are zero. So for each n that has centers a third of the nodes are draws from normal distributions around them (in
    the normal quantiles of the cube's coordinates, widths 0.1, 0.3 and 1), all weighted as draws from the mixture of
    prior and normals (the balance heuristic of Veach and Guibas, 1995): no weight is more than 3/2 of a plain draw's.

    Args:
        prior: The prior.
        per_size: Nodes for each number of components.
        around: Rows of the cube to stand around, shape (K, C).
        generator: Source of randomness.

    Example:
        >>> import torch
        >>> from gp_ensembles.bayesian_quadrature.marginals import HalfNormal, LogNormal
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = Hyperprior(HalfNormal(one), LogNormal(0.0 * one, 0.35 * one), max_components=2)
        >>> nodes = draw_nodes(prior, 4, generator=torch.Generator().manual_seed(0))
        >>> nodes.cube.shape, float(nodes.weights.sum())
        (torch.Size([8, 6]), 1.0)
    """
    parts = []
    for size in range(1, prior.max_components + 1):
        mine = None if around is None else around[prior.num_components(around) == size]
        if mine is None or not mine.shape[0] or per_size < _EVERY:
            cube = prior.draw(per_size, size, generator=generator)
            shares = cube.new_full((per_size,), 1.0 / per_size)
        else:
            cube, shares = _with_centers(prior, size, per_size, mine, generator)
        probability = prior.log_prob_components[size - 1].exp()
        parts.append(Nodes(cube, probability * shares, prior.num_components(cube)))
    return Nodes(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _with_centers(
    prior: Hyperprior, size: int, count: int, centers: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    columns = prior.used(size)
    num_local = count // _EVERY
    local = torch.special.ndtri(centers[:, columns])  # (K, d)
    drawn = torch.special.ndtri(prior.draw(count - num_local, size, generator=generator)[:, columns])
    widths = local.new_tensor(_WIDTHS)
    points = sobol_points(len(columns) + 1, num_local, draw_seed(generator)).to(local)
    pick = (points[:, 0] * (len(widths) * local.shape[0])).long().clamp_max(len(widths) * local.shape[0] - 1)
    normal = torch.special.ndtri(points[:, 1:].clamp(EDGE, 1.0 - EDGE))
    moved = local[pick // len(widths)] + widths[pick % len(widths)].unsqueeze(-1) * normal
    limit = float(torch.special.ndtri(local.new_tensor(1.0 - EDGE)))
    # one of a center after every two of the prior, so that the first few nodes are a fair sample of all
    everything = torch.cat([drawn, moved.clamp(-limit, limit)])
    places = [(torch.ones_like(part[:, 0]).cumsum(0) - 0.5) / len(part) for part in (drawn, moved) if len(part)]
    everything = everything[torch.cat(places).argsort(stable=True)]
    log_prior = _log_normal(everything, local.new_zeros(1, len(columns)), local.new_ones(1)).squeeze(-1)
    around = _log_normal(everything, local, widths).logsumexp(-1) - math.log(len(widths) * local.shape[0])
    mixture = torch.logaddexp(log_prior + math.log(count - num_local), around + math.log(max(num_local, 1)))
    shares = (log_prior - mixture).exp()
    cube = torch.special.ndtr(everything).clamp(EDGE, 1.0 - EDGE)
    return prior.embed(cube, size), shares / shares.sum()


def _log_normal(points: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
    """Log densities of points (S, d) under N(center, width^2 I) for all centers and widths, (S, K W)."""
    squares = torch.cdist(points, centers).square().unsqueeze(-1) / widths.square()
    return (-0.5 * squares - points.shape[-1] * widths.log()).flatten(-2)
