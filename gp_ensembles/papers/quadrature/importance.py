"""Integrals by importance sampling from proposals refitted to their draws, with the symmetries of kernels."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.pareto import smooth_weights
from gp_ensembles.papers.quadrature.prior import Hyperprior
from gp_ensembles.papers.quadrature.proposals import (
    DEGREES_OF_FREEDOM,
    EVALUATIONS_PER_AXIS,
    Integrand,
    StudentMixture,
    ascend,
    laplace_mixture,
    log_standard_normal,
)

TRUSTED_K = 0.7  # Pareto k above which importance weights are not trusted (Vehtari et al., 2024)
_FEWEST = 500  # draws of a round
_PER_DIMENSION = 30  # draws of a round per dimension
_DOMINANT = 0.05  # share of the weight of a single draw that triggers a new component
_NEAR = 1.0  # squared distance per dimension within which a component is close enough
_NEW_SHARE = 0.3  # weight of added components
_MAX_NEW = 2  # components added after a round
_EFFECTIVE, _EFFECTIVE_PER_DIMENSION = 100.0, 5.0  # effective draws after which a proposal is kept
_CHECKED = 2  # rounds of fresh draws before their weights are assessed
_MOST = 24  # maximum number of components of a proposal
_POLISH = 25  # iterations of an ascent from a draw
_FEWEST_REFITS = 2  # refits before a proposal may be given up
_HOPELESS_K, _HOPELESS_SHARE = 1.0, 0.25  # if k is larger, and effective draws per dimension are fewer and decreasing
_DRAWS_TO_REFIT = 5.0  # effective draws per dimension for a refit, by tempering
_LEAST_SD = 1e-6  # of the features of a component
_CHUNK = 2**22  # entries of a table of subsets in memory


class ImportanceDraws(NamedTuple):
    """Draws of several rounds: those used to refit proposals, and fresh ones from the final proposal."""

    points: Tensor  # (S, d), fresh ones last
    log_likelihood: Tensor  # (S,); NaN where there is none
    counts: tuple[int, ...]  # draws of each round that was followed by a refit
    proposals: tuple[StudentMixture, ...]  # proposals of these rounds, and the current one
    is_kept: bool  # whether the last proposal is final
    num_evaluations: int  # likelihoods, including those of ascents and Hessians
    effective: tuple[float, ...] = ()  # effective draws of each refit
    pareto_k: float = math.inf  # tail shape of the weights of the last refit

    @property
    def is_hopeless(self) -> bool:
        """Whether further refits are not expected to help."""
        few = _HOPELESS_SHARE * self.points.shape[-1]
        if self.is_kept or len(self.effective) < _FEWEST_REFITS or self.pareto_k <= _HOPELESS_K:
            return False
        return self.effective[-1] < min(few, self.effective[-2])

    @property
    def num_fresh(self) -> int:
        """Number of fresh draws."""
        return len(self.points) - sum(self.counts)


class ImportanceEstimate(NamedTuple):
    """An integral by importance sampling."""

    log_weights: Tensor  # of the draws, (S,); their mean weight is the integral
    log_integral: float
    log_sd: float  # from the effective number of draws; unreliable if k is above 0.7
    effective_draws: float  # squared sum of the weights over the sum of their squares
    pareto_k: float  # shape of the tail of the weights

    @property
    def is_trusted(self) -> bool:
        """Whether k is at most 0.7."""
        return self.pareto_k <= TRUSTED_K


def start_draws(integrand: Integrand, starts: Tensor, max_iterations: int = 60) -> ImportanceDraws | None:
    """Empty draws with a proposal of Laplace approximations at the ends of ascents from points (M, d)."""
    points, log_density, used = ascend(integrand, starts, max_iterations)
    if not len(points):
        return None
    mixture = laplace_mixture(integrand, points, log_density)
    used += EVALUATIONS_PER_AXIS * integrand.dimension * len(points)
    return ImportanceDraws(starts[:0], starts[:0, 0], (), (mixture,), False, used)


def round_size(dimension: int) -> int:
    """Number of draws per round in d dimensions."""
    return max(_FEWEST, _PER_DIMENSION * dimension)


def draw_round(
    integrand: Integrand, draws: ImportanceDraws, count: int, *, generator: torch.Generator | None = None
) -> ImportanceDraws:
    """One more round of draws."""
    points = draws.proposals[-1].draw(count, generator=generator)
    draws = draws._replace(
        points=torch.cat([draws.points, points]),
        log_likelihood=torch.cat([draws.log_likelihood, integrand.evaluate(points)]),
        num_evaluations=draws.num_evaluations + count,
    )
    if draws.is_kept and (draws.num_fresh < _CHECKED * count or estimate(integrand, draws).is_trusted):
        return draws
    used = draws._replace(counts=(*draws.counts, draws.num_fresh))
    weighed = _training_estimate(integrand, used)
    used = used._replace(effective=(*used.effective, weighed.effective_draws), pareto_k=weighed.pareto_k)
    if not math.isfinite(weighed.log_integral):
        return used._replace(proposals=(*draws.proposals, draws.proposals[-1]), is_kept=False)
    mixture, spent = _improved(integrand, used, weighed)
    enough = weighed.effective_draws >= max(_EFFECTIVE, _EFFECTIVE_PER_DIMENSION * integrand.dimension)
    return used._replace(
        proposals=(*draws.proposals, mixture),
        is_kept=weighed.is_trusted and enough,
        num_evaluations=used.num_evaluations + spent,
    )


def estimate(integrand: Integrand, draws: ImportanceDraws) -> ImportanceEstimate:
    r"""The integral of a L under the prior from the fresh draws.

    .. math:: w_s = \frac{a(v_s)\, L(v_s)\, N(v_s; 0, I)}{q(v_s)}, \quad \hat Z = \frac1S \sum_s w_s
    """
    if not draws.num_fresh:
        return _training_estimate(integrand, draws)._replace(pareto_k=math.inf)
    points, values = draws.points[-draws.num_fresh :], draws.log_likelihood[-draws.num_fresh :]
    proposal = draws.proposals[-1]
    return _estimate(points, values + integrand.log_share(points, proposal), proposal.log_density(points))


def _training_estimate(integrand: Integrand, draws: ImportanceDraws) -> ImportanceEstimate:
    """Estimate from all draws, weighted by the mixture of their proposals (Owen and Zhou, 2000): biased downward."""
    if not draws.counts:
        return _estimate(draws.points, draws.log_likelihood, draws.log_likelihood)
    counts = draws.points.new_tensor(draws.counts)
    each = torch.stack([one.log_density(draws.points) for one in draws.proposals[: len(draws.counts)]], -1)
    share = integrand.log_share(draws.points, draws.proposals[-1])
    return _estimate(draws.points, draws.log_likelihood + share, (each + (counts / counts.sum()).log()).logsumexp(-1))


def _estimate(points: Tensor, log_integrand: Tensor, log_proposal: Tensor) -> ImportanceEstimate:
    size = len(points)
    log_weights = log_integrand + log_standard_normal(points) - log_proposal
    log_weights = log_weights.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    if not bool((log_weights > -torch.inf).any()):
        return ImportanceEstimate(log_weights, -math.inf, math.inf, 0.0, math.inf)
    effective = float((2.0 * log_weights.logsumexp(0) - (2.0 * log_weights).logsumexp(0)).exp())
    pareto_k = float(smooth_weights(log_weights.unsqueeze(-1))[1])
    log_integral = float(log_weights.logsumexp(0)) - math.log(size)
    log_sd = math.sqrt(max(1.0 / effective - 1.0 / size, 0.0))
    return ImportanceEstimate(log_weights, log_integral, log_sd, effective, pareto_k)


def _improved(integrand: Integrand, draws: ImportanceDraws, weighed: ImportanceEstimate) -> tuple[StudentMixture, int]:
    """Refit the last proposal, with new components at dominant draws; also returns the likelihoods evaluated."""
    mixture, dimension = draws.proposals[-1], integrand.dimension
    normalized = weighed.log_weights.log_softmax(0)
    refitted = mixture.refit(draws.points, _tempered(normalized, _DRAWS_TO_REFIT * dimension))
    heavy = normalized.argsort(descending=True, stable=True)[:_MAX_NEW]
    heavy = heavy[normalized[heavy] > math.log(_DOMINANT)]
    if not len(heavy) or refitted.num_components >= _MOST:
        return refitted, 0
    places, log_density, used = ascend(integrand, draws.points[heavy], _POLISH)
    if len(places) == len(heavy):
        # if an ascent ends in a known mode, the draw itself is on a ridge or a bend of it
        near = refitted.squared_distances(places).amin(-1) < _NEAR * dimension
        itself = draws.log_likelihood[heavy] + log_standard_normal(draws.points[heavy])
        places = torch.where(near.unsqueeze(-1), draws.points[heavy], places)
        log_density = torch.where(near, itself, log_density)
    if len(places):
        refitted = refitted.join(laplace_mixture(integrand, places, log_density), _NEW_SHARE)
        used += EVALUATIONS_PER_AXIS * dimension * len(places)
    return refitted, used


def _tempered(normalized: Tensor, wanted: float) -> Tensor:
    """Normalized log weights, tempered by the largest power (at most one) that leaves this many effective draws."""
    wanted = min(wanted, 0.5 * float((normalized > -torch.inf).sum()))
    low, high = 0.0, 1.0
    power = 1.0
    for _ in range(20):
        tempered = torch.where(normalized > -torch.inf, power * normalized, -torch.inf).log_softmax(0)
        enough = float((-(2.0 * tempered).logsumexp(0)).exp()) >= wanted
        if enough and power == 1.0:
            return tempered
        low, high = (power, high) if enough else (low, power)
        power = 0.5 * (low + high)
    return torch.where(normalized > -torch.inf, low * normalized, -torch.inf).log_softmax(0)


class Relabeling:
    r"""The group G of permutations and reflections under which kernels of n components and their prior are invariant.

    For any positive function h the share :math:`a(v) = |G|\, h(v) / \sum_{g \in G} h(g v)` has mean one over the
    copies of a point, so that

    .. math:: \int L(v)\, \pi(v)\, dv = \int a(v)\, L(v)\, \pi(v)\, dv,

    and the integrand on the right is close to zero except at one copy of each mode. Here h is a mixture, over the
    proposal's components, of products of Student-t densities of one kernel component each.
    """

    def __init__(self, prior: Hyperprior, components: int) -> None:
        self.prior = prior
        self.components = components
        self.signed: bool = prior.has_signed_means

    @property
    def num_copies(self) -> int:
        """The order of the group."""
        return math.factorial(self.components) * (1 << self.components * self.signed)

    def features(self, points: Tensor) -> Tensor:
        r"""Means and scales of every component as normal quantiles, and its log weight: (S, n, 2 D + 1)."""
        n, num_inputs = self.components, self.prior.num_inputs
        cube = self.prior.embed_normal(points, n)
        weights = self.prior.mixtures(cube).weights[..., :n]
        means, scales = points[..., n - 1 :].split([n * num_inputs, points.shape[-1] - n + 1 - n * num_inputs], -1)
        parts = [means.unflatten(-1, (n, num_inputs)), scales[..., : n * num_inputs].unflatten(-1, (n, num_inputs))]
        return torch.cat([*parts, weights.log().unsqueeze(-1)], -1)

    def slots(self, mixture: StudentMixture) -> tuple[Tensor, Tensor, Tensor]:
        """Log weights (K,) of a proposal's components, their features, and the first-order spread of these."""
        shifts = mixture.factors.mT  # (K, d, d): axes of the scale matrix in rows
        center = mixture.means.unsqueeze(-2)
        ahead, behind = self.features(center + shifts), self.features(center - shifts)
        scale = (0.5 * (ahead - behind)).square().sum(-3).sqrt().clamp_min(_LEAST_SD)
        return mixture.log_weights.log_softmax(-1), self.features(mixture.means), scale

    def log_share(self, points: Tensor, mixture: StudentMixture) -> Tensor:
        """Log a(v) of points (S, d), shape (S,): at most the logarithm of the number of copies."""
        if self.num_copies == 1:
            return points.new_zeros(len(points))
        log_weights, location, scale = self.slots(mixture)
        widest = math.comb(self.components, self.components // 2) * self.components
        parts = []
        for part in points.split(max(1, _CHUNK // (widest * len(log_weights)))):
            own, copies = self._log_tables(self.features(part), location, scale)  # (S, K, n, n)
            identity = own.diagonal(dim1=-2, dim2=-1).sum(-1) + log_weights
            every = log_permanent(copies) + log_weights
            parts.append(identity.logsumexp(-1) - every.logsumexp(-1) + math.log(self.num_copies))
        return torch.cat(parts)

    def _log_tables(self, features: Tensor, location: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Log densities of every component in every slot, as such and summed with its mirror image."""
        x = features[:, None, :, None, :]
        location, scale = location[:, None], scale[:, None]
        squares = ((x - location) / scale).square()
        log_volume = scale.log().sum(-1)
        half = 0.5 * (DEGREES_OF_FREEDOM + features.shape[-1])

        def log_density(distance: Tensor) -> Tensor:
            return -half * torch.log1p(distance / DEGREES_OF_FREEDOM) - log_volume

        own = log_density(squares.sum(-1))
        if not self.signed:
            return own, own
        num_inputs = self.prior.num_inputs
        mirrored = ((x + location) / scale).square()[..., :num_inputs]
        rest = squares[..., num_inputs:].sum(-1)
        return own, torch.logaddexp(own, log_density(mirrored.sum(-1) + rest))


def log_permanent(logs: Tensor) -> Tensor:
    r"""Logarithm of the permanent, :math:`\log \sum_\pi \prod_i e^{a_{i \pi(i)}}`, of matrices (\*batch, n, n)."""
    size = logs.shape[-1]
    before: dict[tuple[int, ...], int] = {(): 0}
    total = logs.new_zeros(*logs.shape[:-2], 1)
    for row in range(size):
        subsets = list(itertools.combinations(range(size), row + 1))
        rest = [[before[tuple(c for c in subset if c != column)] for column in subset] for subset in subsets]
        total = (total[..., rest] + logs[..., row, :][..., [list(subset) for subset in subsets]]).logsumexp(-1)
        before = {subset: place for place, subset in enumerate(subsets)}
    value: Tensor = total.squeeze(-1)
    return value
