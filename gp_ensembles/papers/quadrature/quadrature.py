"""Quadrature over the prior: nodes, estimates of the evidence, posterior weights of kernels, and the jackknife."""

import math
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from gp_ensembles.numerics.display import prints_fields
from gp_ensembles.papers.quadrature.prior import EDGE, Hyperprior, draw_seed, sobol_points
from gp_ensembles.papers.quadrature.surrogate import Distances, Surrogate, log_correlations

_WIDTHS = (0.1, 0.3, 1.0)  # standard deviations of draws around a kernel, in normal quantiles of the cube
_EVERY = 3  # one node in three is drawn around a center
_NEXT_TO_NOTHING = 1e-30  # smallest replicate of the evidence, as a share of the evidence
_SHARPNESS = 10.0  # power of the correlations in the assignment of nodes to kernels
_MAX_GROUPS = 10  # of the jackknife
NO_DRAWS = "prior draws do not cover the likelihood, and the budget has no draws for importance sampling"


class QuadratureNodes(NamedTuple):
    """Nodes and weights of a quadrature rule for the prior, the same for every integral."""

    cube: Tensor  # rows of the prior's cube, (S, C)
    weights: Tensor  # shares of the prior, (S,), which sum to one
    components: Tensor  # number of components n per node, (S,)

    def first(self, count: int) -> "QuadratureNodes":
        """The first ``count`` nodes for every n, with the same share of the prior per n."""
        parts = []
        for components in self.components.unique():
            rows = (self.components == components).nonzero().squeeze(-1)
            kept = rows[:count]
            scale = self.weights[rows].sum() / self.weights[kept].sum()
            parts.append(QuadratureNodes(self.cube[kept], self.weights[kept] * scale, self.components[kept]))
        return QuadratureNodes(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def draw_nodes(
    prior: Hyperprior, per_size: int, *, around: Tensor | None = None, generator: torch.Generator | None = None
) -> QuadratureNodes:
    """Sobol points of the prior, ``per_size`` per number of components, one third of them around centers (K, C)."""
    parts = []
    for size in range(1, prior.max_components + 1):
        mine = None if around is None else around[prior.num_components(around) == size]
        if mine is None or not mine.shape[0] or per_size < _EVERY:
            cube = prior.draw(per_size, size, generator=generator)
            shares = cube.new_full((per_size,), 1.0 / per_size)
        else:
            cube, shares = _with_centers(prior, size, per_size, mine, generator)
        probability = prior.log_prob_components[size - 1].exp()
        parts.append(QuadratureNodes(cube, probability * shares, prior.num_components(cube)))
    return QuadratureNodes(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def _with_centers(
    prior: Hyperprior, size: int, count: int, centers: Tensor, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    columns = prior.active_columns(size)
    num_local = count // _EVERY
    local = prior.normal_quantiles(centers, size)  # (K, d)
    drawn = prior.normal_quantiles(prior.draw(count - num_local, size, generator=generator), size)
    widths = local.new_tensor(_WIDTHS)
    points = sobol_points(len(columns) + 1, num_local, draw_seed(generator)).to(local)
    pick = (points[:, 0] * (len(widths) * local.shape[0])).long().clamp_max(len(widths) * local.shape[0] - 1)
    normal = torch.special.ndtri(points[:, 1:].clamp(EDGE, 1.0 - EDGE))
    moved = local[pick // len(widths)] + widths[pick % len(widths)].unsqueeze(-1) * normal
    limit = float(torch.special.ndtri(local.new_tensor(1.0 - EDGE)))
    # one around a center after every two of the prior, so that the first nodes are representative
    everything = torch.cat([drawn, moved.clamp(-limit, limit)])
    places = [(torch.ones_like(part[:, 0]).cumsum(0) - 0.5) / len(part) for part in (drawn, moved) if len(part)]
    everything = everything[torch.cat(places).argsort(stable=True)]
    log_prior = _log_normal(everything, local.new_zeros(1, len(columns)), local.new_ones(1)).squeeze(-1)
    around = _log_normal(everything, local, widths).logsumexp(-1) - math.log(len(widths) * local.shape[0])
    mixture = torch.logaddexp(log_prior + math.log(count - num_local), around + math.log(max(num_local, 1)))
    shares = (log_prior - mixture).exp()
    return prior.embed_normal(everything, size), shares / shares.sum()


def _log_normal(points: Tensor, centers: Tensor, widths: Tensor) -> Tensor:
    """Log densities of points (S, d) under N(center, width^2 I) for all centers and widths, (S, K W)."""
    squares = torch.cdist(points, centers).square().unsqueeze(-1) / widths.square()
    return (-0.5 * squares - points.shape[-1] * widths.log()).flatten(-2)


def rows_without_each_group(values: Tensor) -> list[Tensor]:
    """Rows without one group of h values, shape (h,), for each of at most ten groups."""
    index = torch.arange(values.shape[0], device=values.device)
    groups = min(_MAX_GROUPS, len(index))
    return [index[index % groups != group] for group in range(groups)] if groups > 1 else [index]


def jackknife_sd(replicates: Tensor) -> Tensor:
    r"""Standard errors from estimates (G, ...) that each leave out one of G groups (Tukey, 1958).

    .. math:: \sqrt{\frac{G - 1}{G} \sum_g (t_g - \bar t)^2}
    """
    return (replicates.var(0, unbiased=False) * (len(replicates) - 1)).sqrt()


@prints_fields
class Evidence(NamedTuple):
    r"""Evidence of the data, in parts for n = 1..N components."""

    log_parts: Tensor  # \log p(n) Z_n, (N,)
    log_parts_sd: Tensor  # their standard deviations, (N,), infinite if a part is unreliable
    log_evidence: float  # log evidence, in nats
    log_evidence_sd: float  # its standard deviation; infinite if it is unreliable
    posterior_sd: Tensor  # standard deviations of the posterior probabilities, (N,); infinite if unreliable
    doubt: str = ""  # why it is unreliable; empty if it is reliable
    log_rest: float = -math.inf  # bound on the contribution of omitted numbers of components

    @property
    def posterior(self) -> Tensor:
        """Posterior probabilities of n = 1..N, shape (N,)."""
        return self.log_parts.softmax(-1)


def estimate_evidence(surrogate: Surrogate, nodes: QuadratureNodes, covariance_nodes: QuadratureNodes) -> Evidence:
    """The evidence for each number of components under a reliable surrogate."""
    covariance = integral_covariance(surrogate, covariance_nodes)
    return evidence_of(surrogate.log_scale, *integrals(surrogate, nodes), covariance)


def evidence_of(log_scale: Tensor, mean: Tensor, replicates: Tensor, covariance: Tensor) -> Evidence:
    """The evidence from moments of its integrals, see :func:`integrals`, relative to the largest likelihood."""
    total, posterior = mean.sum(), mean / mean.sum()
    replicates = replicates.clamp_min(_NEXT_TO_NOTHING * float(total))  # a replicate may omit all of the likelihood
    own = torch.log1p(covariance.sum().clamp_min(0.0) / total.square())
    log_evidence_sd = (own + jackknife_sd(replicates.sum(-1).log()).square()).sqrt()
    slope = (torch.diag_embed(torch.ones_like(mean)) - posterior.unsqueeze(-1)) / total
    own = (slope @ covariance @ slope.mT).diagonal().clamp_min(0.0)
    posterior_sd = (own + jackknife_sd(replicates / replicates.sum(-1, keepdim=True)).square()).sqrt()
    parts_sd = covariance.diagonal().clamp_min(0.0).sqrt() / mean
    log_evidence = float(log_scale + total.log())
    return Evidence(log_scale + mean.log(), parts_sd, log_evidence, float(log_evidence_sd), posterior_sd)


def nearest_evidence(surrogate: Surrogate, nodes: QuadratureNodes) -> Evidence:
    """An unreliable integral by the nearest evaluated kernel, never above the largest likelihood."""
    masses, prior = log_masses(surrogate, nodes), surrogate.kernel_distance.prior
    components = prior.num_components(surrogate.evaluations.cube)
    sizes = range(1, prior.max_components + 1)
    parts = torch.stack([torch.where(components == n, masses, -torch.inf).logsumexp(-1) for n in sizes])
    unknown = torch.full_like(parts, torch.inf)
    return Evidence(parts, unknown, float(parts.logsumexp(-1)), math.inf, unknown, NO_DRAWS)


def integrals(surrogate: Surrogate, nodes: QuadratureNodes) -> tuple[Tensor, Tensor]:
    r"""Means of :math:`\int L\, d\pi(\theta \mid n)\, p(n)` for n = 1..N, likelihoods over the largest, (N,).

    Also returns those without one group of evaluations, for every group, (G, N), for a jackknife.
    """
    cross = surrogate.cross(surrogate.kernel_distance.prepare(nodes.cube))

    def integrate(cross: Tensor, solved: Tensor) -> Tensor:
        mean = nodes.weights * (surrogate.alpha + 0.5 * (cross @ solved).square())
        return mean.new_zeros(_sizes(surrogate)).index_add(0, nodes.components - 1, mean)

    replicates = []
    for rows in rows_without_each_group(surrogate.roots):
        factor = psd_safe_cholesky(surrogate.gram[rows][:, rows])
        solved = torch.cholesky_solve(surrogate.roots[rows].unsqueeze(-1), factor).squeeze(-1)
        replicates.append(integrate(cross[:, rows], solved))
    return integrate(cross, surrogate.solved), torch.stack(replicates)


def integral_covariance(surrogate: Surrogate, nodes: QuadratureNodes) -> Tensor:
    """Covariance of these integrals under the surrogate, shape (N, N)."""
    _, covariance = surrogate.likelihood(nodes.cube)
    covariance = nodes.weights.unsqueeze(-1) * covariance * nodes.weights
    index, sizes = nodes.components - 1, _sizes(surrogate)
    blocks = covariance.new_zeros(sizes, covariance.shape[-1]).index_add(0, index, covariance)
    blocks = blocks.new_zeros(sizes, sizes).index_add(1, index, blocks)
    return 0.5 * (blocks + blocks.mT)


def _sizes(surrogate: Surrogate) -> int:
    return surrogate.kernel_distance.prior.max_components


def root_weights(surrogate: Surrogate, nodes: QuadratureNodes, distances: Distances | None = None) -> Tensor:
    r"""Weights of products of roots, :math:`p(y \mid D) = \sum_{ij} W_{ij} \sqrt{N_i(y) N_j(y)}` (Hamid et al., 2022).

    .. math:: W_{ij} = 2 Q_{ij} \sqrt{L_i L_j} / E[I], \qquad Q = K^{-1} A K^{-1} / 2, \qquad
              A = \sum_s \omega_s k(s) k(s)^\top

    Returns shape (h, h).
    """
    distances = node_distances(surrogate, nodes) if distances is None else distances
    solved = surrogate.solve(surrogate.covariance(distances).mT)  # (h, S)
    quadratic = 0.5 * (solved * nodes.weights) @ solved.mT
    roots = (0.5 * surrogate.evaluations.log_likelihood - 0.5 * surrogate.log_scale).exp()
    mean = surrogate.roots @ quadratic @ surrogate.roots  # of roots with alpha, as in the paper
    return 2.0 * quadratic * roots.unsqueeze(-1) * roots / mean


def positive_weights(surrogate: Surrogate, nodes: QuadratureNodes, distances: Distances | None = None) -> Tensor:
    r"""Log weights of a proper mixture of the evaluated kernels, shape (h,).

    .. math:: w_i \propto L_i \sum_s \omega_s \frac{r(s, \theta_i)^{10}}{\sum_j r(s, \theta_j)^{10}}
    """
    return log_masses(surrogate, nodes, distances).log_softmax(-1)


def log_masses(surrogate: Surrogate, nodes: QuadratureNodes, distances: Distances | None = None) -> Tensor:
    """Log of the likelihood of every evaluated kernel times its share of the prior, shape (h,)."""
    distances = node_distances(surrogate, nodes) if distances is None else distances
    shares = (_SHARPNESS * log_correlations(distances, surrogate.parameters)).log_softmax(-1)
    log_volume = (nodes.weights.log().unsqueeze(-1) + shares).logsumexp(0)
    return surrogate.evaluations.log_likelihood + log_volume


def node_distances(surrogate: Surrogate, nodes: QuadratureNodes) -> Distances:
    """Distances of S nodes from the h evaluated kernels, each (S, h)."""
    return surrogate.kernel_distance.between(surrogate.kernel_distance.prepare(nodes.cube), surrogate.prepared)
