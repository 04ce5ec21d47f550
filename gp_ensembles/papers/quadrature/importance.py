"""Integrals by importance sampling from mixtures of Student-t distributions that are refitted to what was drawn."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.numerics.pareto import smooth_weights
from gp_ensembles.papers.quadrature.modes import (
    EVALUATIONS_PER_AXIS,
    Integrand,
    ascend,
    laplace_mixture,
)
from gp_ensembles.papers.quadrature.student_mixture import StudentMixture, log_standard_normal

TRUSTED_K = 0.7  # Pareto k above which importance weights are not trusted (Vehtari et al., 2024)
_FEWEST = 500  # draws of a round
_PER_DIMENSION = 30  # draws of a round for each dimension
_DOMINANT = 0.05  # share of the weight of one draw that calls for a component there
_NEAR = 1.0  # squared distance per dimension within which a component is near enough
_NEW_SHARE = 0.3  # of the weight for components that are added
_MAX_NEW = 2  # components added after a round
_EFFECTIVE, _EFFECTIVE_PER_DIMENSION = 100.0, 5.0  # effective draws after which a proposal is kept
_CHECKED = 2  # rounds of fresh draws before their weights are judged
_MOST = 24  # components of a proposal
_POLISH = 25  # iterations of an ascent from a draw
_FEWEST_REFITS = 2  # after which a proposal may be given up
_SUSPECT_K = 0.9
_HOPELESS_K, _HOPELESS_SHARE = 1.0, 0.25  # where k is larger, and effective draws per dimension are fewer and falling
_DRAWS_TO_REFIT = 5.0  # effective draws per dimension that a refit is made with, by tempering

LogShare = Callable[[Tensor, StudentMixture], Tensor]


class ImportanceDraws(NamedTuple):
    """Draws of several rounds: those that proposals were refitted to, and fresh ones of a proposal that is kept.

    Args:
        points: Shape (S, d), fresh ones last.
        log_likelihood: Shape (S,); NaN where there is none.
        counts: Draws of each round that a refit followed.
        proposals: Their proposals, and that of the fresh draws and of those to come.
        is_kept: Whether the last proposal is kept.
        num_evaluations: Likelihoods evaluated, those of ascents and Hessians included.
        effective: Effective draws that each refit was made with.
        pareto_k: Shape of the tail of the weights that the last refit was made with.
    """

    points: Tensor
    log_likelihood: Tensor
    counts: tuple[int, ...]
    proposals: tuple[StudentMixture, ...]
    is_kept: bool
    num_evaluations: int
    effective: tuple[float, ...] = ()
    pareto_k: float = math.inf

    @property
    def is_suspect(self) -> bool:
        """Whether refits have fewer effective draws than dimensions to go by, and k is near where means end."""
        dimension = self.points.shape[-1]
        return bool(self.effective) and self.effective[-1] < dimension and self.pareto_k > _SUSPECT_K

    @property
    def is_hopeless(self) -> bool:
        """Whether further refits are not expected to help."""
        few = _HOPELESS_SHARE * self.points.shape[-1]
        if self.is_kept or len(self.effective) < _FEWEST_REFITS or self.pareto_k <= _HOPELESS_K:
            return False
        return self.effective[-1] < min(few, self.effective[-2])

    @property
    def num_fresh(self) -> int:
        """Fresh draws."""
        return len(self.points) - sum(self.counts)


class ImportanceEstimate(NamedTuple):
    """An integral by importance sampling.

    Args:
        log_weights: Log weights of the draws, their mean the integral, shape (S,).
        log_integral: Logarithm of the integral.
        log_sd: Standard deviation of that, from the effective number of draws; not to be trusted where k is above 0.7.
        effective_draws: Square of the weights' sum over the sum of their squares.
        pareto_k: Shape of the tail of the weights.
    """

    log_weights: Tensor
    log_integral: float
    log_sd: float
    effective_draws: float
    pareto_k: float

    @property
    def is_trusted(self) -> bool:
        """Whether k is at most 0.7."""
        return self.pareto_k <= TRUSTED_K


def no_share(points: Tensor, mixture: StudentMixture) -> Tensor:
    """The logarithm of one: no symmetries are known."""
    return points.new_zeros(len(points))


def start_draws(integrand: Integrand, starts: Tensor, max_iterations: int = 60) -> ImportanceDraws | None:
    """No draws yet, and a proposal made of Laplace's approximations where ascents from starts (M, d) end."""
    ascents = ascend(integrand, starts, max_iterations)
    if not len(ascents.points):
        return None
    mixture = laplace_mixture(integrand, ascents.points, ascents.log_density)
    used = ascents.num_evaluations + EVALUATIONS_PER_AXIS * integrand.dimension * len(ascents.points)
    return ImportanceDraws(starts[:0], starts[:0, 0], (), (mixture,), False, used)


def round_size(dimension: int) -> int:
    """Draws of one round in d dimensions."""
    return max(_FEWEST, _PER_DIMENSION * dimension)


def draw_round(
    integrand: Integrand,
    draws: ImportanceDraws,
    count: int,
    log_share: LogShare = no_share,
    *,
    generator: torch.Generator | None = None,
) -> ImportanceDraws:
    """A further round of draws."""
    points = draws.proposals[-1].draw(count, generator=generator)
    draws = draws._replace(
        points=torch.cat([draws.points, points]),
        log_likelihood=torch.cat([draws.log_likelihood, integrand.evaluate(points)]),
        num_evaluations=draws.num_evaluations + count,
    )
    if draws.is_kept and (draws.num_fresh < _CHECKED * count or estimate(draws, log_share).is_trusted):
        return draws
    used = draws._replace(counts=(*draws.counts, draws.num_fresh))
    weighed = _training_estimate(used, log_share)
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


def estimate(draws: ImportanceDraws, log_share: LogShare = no_share) -> ImportanceEstimate:
    r"""The integral of a L under the prior from the fresh draws.

    .. math:: w_s = \frac{a(v_s)\, L(v_s)\, N(v_s; 0, I)}{q(v_s)}, \quad \hat Z = \frac1S \sum_s w_s
    """
    if not draws.num_fresh:
        return _training_estimate(draws, log_share)._replace(pareto_k=math.inf)
    points, values = draws.points[-draws.num_fresh :], draws.log_likelihood[-draws.num_fresh :]
    proposal = draws.proposals[-1]
    return _estimate(points, values + log_share(points, proposal), proposal.log_density(points))


def _training_estimate(draws: ImportanceDraws, log_share: LogShare) -> ImportanceEstimate:
    """From all draws, weighed as draws of the mixture of their proposals (Owen and Zhou, 2000): biased downwards."""
    if not draws.counts:
        return _estimate(draws.points, draws.log_likelihood, draws.log_likelihood)
    counts = draws.points.new_tensor(draws.counts)
    each = torch.stack([one.log_density(draws.points) for one in draws.proposals[: len(draws.counts)]], -1)
    share = log_share(draws.points, draws.proposals[-1])
    return _estimate(draws.points, draws.log_likelihood + share, (each + (counts / counts.sum()).log()).logsumexp(-1))


def _estimate(points: Tensor, log_integrand: Tensor, log_proposal: Tensor) -> ImportanceEstimate:
    size = len(points)
    log_weights = log_integrand + log_standard_normal(points) - log_proposal
    log_weights = log_weights.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
    if not bool((log_weights > -torch.inf).any()):
        return ImportanceEstimate(log_weights, -math.inf, math.inf, 0.0, math.inf)
    effective = float((2.0 * log_weights.logsumexp(0) - (2.0 * log_weights).logsumexp(0)).exp())
    pareto_k = float(smooth_weights(log_weights.unsqueeze(-1)).pareto_k)
    log_integral = float(log_weights.logsumexp(0)) - math.log(size)
    log_sd = math.sqrt(max(1.0 / effective - 1.0 / size, 0.0))
    return ImportanceEstimate(log_weights, log_integral, log_sd, effective, pareto_k)


def _improved(integrand: Integrand, draws: ImportanceDraws, weighed: ImportanceEstimate) -> tuple[StudentMixture, int]:
    """The last proposal refitted, with components where single draws have much of the weight; likelihoods spent."""
    mixture, dimension = draws.proposals[-1], integrand.dimension
    normalized = weighed.log_weights.log_softmax(0)
    refitted = mixture.refit(draws.points, _tempered(normalized, _DRAWS_TO_REFIT * dimension))
    heavy = normalized.argsort(descending=True, stable=True)[:_MAX_NEW]
    heavy = heavy[normalized[heavy] > math.log(_DOMINANT)]
    if not len(heavy) or refitted.num_components >= _MOST:
        return refitted, 0
    ascents = ascend(integrand, draws.points[heavy], _POLISH)
    used = ascents.num_evaluations
    places, log_density = ascents.points, ascents.log_density
    if len(places) == len(heavy):
        # where an ascent ends in a mode that is known, the draw itself is on a ridge or a bend of it
        near = refitted.squared_distances(places).amin(-1) < _NEAR * dimension
        itself = draws.log_likelihood[heavy] + log_standard_normal(draws.points[heavy])
        places = torch.where(near.unsqueeze(-1), draws.points[heavy], places)
        log_density = torch.where(near, itself, log_density)
    if len(places):
        refitted = refitted.join(laplace_mixture(integrand, places, log_density), _NEW_SHARE)
        used += EVALUATIONS_PER_AXIS * dimension * len(places)
    return refitted, used


def _tempered(normalized: Tensor, wanted: float) -> Tensor:
    """Normalized log weights to the largest power of at most one that leaves so many effective draws."""
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
