"""The evidence for each number of components by importance sampling, and what can be said of their sum."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from gp_ensembles.papers.quadrature.importance import (
    TRUSTED_K,
    ImportanceDraws,
    ImportanceEstimate,
    Relabeling,
    draw_round,
    estimate,
    round_size,
    start_draws,
)
from gp_ensembles.papers.quadrature.likelihoods import CHUNK_BYTES
from gp_ensembles.papers.quadrature.prior import EDGE, Hyperprior, stick_levels
from gp_ensembles.papers.quadrature.problem import RegressionProblem, WeightedKernels
from gp_ensembles.papers.quadrature.proposals import (
    EVALUATIONS_PER_AXIS,
    Integrand,
    StudentMixture,
    ascend,
    laplace_modes,
)
from gp_ensembles.papers.quadrature.quadrature import Evidence
from gp_ensembles.papers.quadrature.surrogate import Evaluations

TARGET_SD = 0.2  # of the log evidence, unless a budget asks for less
_NEGLIGIBLE = 1e-3  # share of the evidence that a part cannot exceed to be left out of account
_PRIOR_STARTS = 60  # draws of the prior among which starts are sought
_ENDS, _OTHERS = 3, 8  # starts of ascents: ends of earlier ones, other evaluations
_DRAWN, _NESTED = 4, 4  # and draws of the prior, nested kernels
_APART = 0.1  # of other evaluations in a column of the cube
_SHARES = (0.02, 0.1, 0.3)  # of the component that is added to a kernel with fewer of them
_SUSPECT_REFITS = 3  # of suspect draws before the next number of components begins
_CLEAN_SEARCHES = 2  # for modes, in a row, that find nothing new before a part is trusted
_SEARCH_STARTS = 6  # ascents of such a search from each of three kinds of starts
# above which an end of an ascent counts as a new mode, relative to the integral
_NEW_HEIGHT, _NEW_MASS = math.log(20.0), math.log(0.02)
_SEARCH_ITERATIONS = 60
_KEPT = 0.7  # of a known kernel's hyperparameters, in a start
_NEW_SHARE = 0.3  # of the weight for modes that are added
_TABLES = 6  # of the size of a covariance, alive while it is differentiated

_Value = TypeVar("_Value")


def integrand_for(problem: RegressionProblem, components: int) -> Integrand:
    """The likelihood of kernels with n components, as a function of the normal quantiles of their columns."""
    prior, relabeling = problem.prior, Relabeling(problem.prior, components)

    def log_likelihood(points: Tensor) -> Tensor:
        return problem.likelihoods(*prior.hyperparameters(prior.embed_normal(points, components)))

    chunk = max(1, CHUNK_BYTES // (_TABLES * problem.likelihoods.bytes_each))
    dimension = len(prior.active_columns(components))
    return Integrand(log_likelihood, dimension, chunk, relabeling.log_share, relabeling.num_copies)


def nested_kernels(prior: Hyperprior, row: Tensor, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Kernels (count, C) with one component more than a row of the cube has, drawn from the prior."""
    components = int(prior.num_components(row))
    weights = prior.mixtures(row).weights[:components]
    size = components * prior.num_inputs
    drawn = prior.draw(count, components + 1, generator=generator)
    levels = drawn[:, prior.active_columns(components + 1)].clone()
    old = row[prior.active_columns(components)]
    for k in range(count):
        share = _SHARES[k % len(_SHARES)]
        levels[k, :components] = stick_levels(torch.cat([(1.0 - share) * weights, weights.new_full((1,), share)]))
    means, scales, scalars = old[components - 1 :].split([size, size, prior.num_scalars])
    levels[:, components : components + size] = means
    first = components + size + prior.num_inputs
    levels[:, first : first + size] = scales
    levels[:, levels.shape[-1] - prior.num_scalars :] = scalars
    return prior.embed(levels.clamp(EDGE, 1.0 - EDGE), components + 1)


def best_apart(evaluations: Evaluations, columns: Tensor, count: int) -> Tensor:
    """The most likely kernels (at most ``count``, C) that differ by a tenth in one of the columns, best first."""
    cube = evaluations.best(len(evaluations.cube)).cube
    kept: list[Tensor] = []
    while len(cube) and len(kept) < count:
        kept.append(cube[0])
        cube = cube[(cube - cube[0])[:, columns].abs().amax(-1) >= _APART]
    return torch.stack(kept) if kept else cube


class EvidenceState(NamedTuple):
    """Importance sampling of n = 1..N components."""

    draws: tuple[ImportanceDraws | None, ...]  # ``None`` where there are none yet
    num_evaluations: int  # likelihoods, those of candidates for starts included
    clean: tuple[int, ...]  # searches for modes since the last that found a new one
    # the latest draws of which nothing but missing modes was in doubt: predictions are made with them
    sound: tuple[ImportanceDraws | None, ...] = ()


class EvidenceSampler:
    """Importance sampling of the evidence, step by step."""

    def __init__(self, problem: RegressionProblem, evaluations: Evaluations, ends: Sequence[int]) -> None:
        self.problem = problem
        self.evaluations = evaluations
        self.ends: list[int] = list(ends)
        sizes = range(1, problem.prior.max_components + 1)
        self.integrands: list[Integrand] = [integrand_for(problem, n) for n in sizes]

    def init(self) -> EvidenceState:
        """Nothing drawn."""
        size = self.problem.prior.max_components
        return EvidenceState((None,) * size, 0, (0,) * size)

    def step(self, state: EvidenceState, generator: torch.Generator) -> EvidenceState:
        """Begin with the first number of components that has not started, or else a round where it is needed most."""
        waiting = [index for index, draws in enumerate(state.draws) if draws is None]
        if not waiting and min(state.clean) < _CLEAN_SEARCHES and not self._drawn_evidence(state).doubt:
            return self.search_modes(state._replace(sound=state.draws), generator)
        index = waiting[0] if waiting else self._neediest(state)
        last = state.draws[index - 1] if waiting and index else None
        if last is not None and last.is_suspect and len(last.counts) < _SUSPECT_REFITS:
            index -= 1
        draws, integrand, used = state.draws[index], self.integrands[index], 0
        if draws is None:
            starts, used = self._starts(state, index + 1, generator)
            draws = start_draws(integrand, starts) or _nothing(starts)
            used += draws.num_evaluations
        if draws.proposals:
            before = draws.num_evaluations
            draws = draw_round(integrand, draws, round_size(integrand.dimension), generator=generator)
            used += draws.num_evaluations - before
        used += state.num_evaluations
        return state._replace(draws=_exchanged(state.draws, index, draws), num_evaluations=used)

    def search_modes(self, state: EvidenceState, generator: torch.Generator) -> EvidenceState:
        """Ascend from new starts, for the number of components searched least; new modes go into its proposal."""
        index = state.clean.index(min(state.clean))
        draws, integrand = state.draws[index], self.integrands[index]
        assert draws is not None
        starts, used = self._other_starts(state, index + 1, generator)
        points, log_density, spent = ascend(integrand, starts, _SEARCH_ITERATIONS)
        used, clean = used + spent, state.clean[index] + 1
        if len(points) and draws.proposals:
            proposal, integral = draws.proposals[-1], estimate(integrand, draws).log_integral
            height = log_density + integrand.log_share(points, proposal) - proposal.log_density(points)
            news = ~(height < integral + _NEW_HEIGHT)
            if bool(news.any()):
                added, mass = laplace_modes(integrand, points[news], log_density[news])
                used += EVALUATIONS_PER_AXIS * integrand.dimension * int(news.sum())
                heavy = mass + math.log(integrand.num_copies) > integral + _NEW_MASS
                if bool(heavy.any()):
                    added = StudentMixture(*(part[heavy] for part in added))
                    added = added._replace(log_weights=added.log_weights.log_softmax(-1))
                    proposals = (*draws.proposals, proposal.join(added, _NEW_SHARE))
                    draws = draws._replace(counts=(*draws.counts, draws.num_fresh), proposals=proposals, is_kept=False)
                    size, clean = round_size(integrand.dimension), 0
                    draws, used = draw_round(integrand, draws, size, generator=generator), used + size
        return state._replace(
            draws=_exchanged(state.draws, index, draws),
            num_evaluations=state.num_evaluations + used,
            clean=_exchanged(state.clean, index, clean),
        )

    def is_hopeless(self, state: EvidenceState) -> bool:
        """Whether a part that counts is given up, so that further draws would be spent in vain."""
        given_up = [draws is not None and draws.is_hopeless for draws in state.draws]
        if not any(given_up):
            return False
        total = self._drawn_evidence(state).log_evidence
        return any(gone and not self._is_negligible(state, n, total) for n, gone in enumerate(given_up, 1))

    def estimates(self, state: EvidenceState) -> list[ImportanceEstimate | None]:
        """An estimate for each number of components."""
        return [
            estimate(integrand, draws) if draws is not None and len(draws.points) else None
            for draws, integrand in zip(state.draws, self.integrands, strict=True)
        ]

    def evidence(self, state: EvidenceState) -> Evidence:
        """The evidence from the draws so far, in doubt until searches for further modes have found none."""
        drawn = self._drawn_evidence(state)
        unsearched = [n for n, clean in enumerate(state.clean, 1) if clean < _CLEAN_SEARCHES]
        if drawn.doubt or not unsearched:
            return drawn
        doubt = (
            f"no evidence that can be trusted was found after {state.num_evaluations} likelihoods of importance "
            f"sampling: modes may be missing (n = {', '.join(map(str, unsearched))}: searches from other starts "
            f"are not done, or found new ones); give a larger budget, or the prior fewer components"
        )
        deviations = drawn.log_parts_sd.clone()
        deviations[[n - 1 for n in unsearched]] = torch.inf
        unknown = torch.full_like(deviations, torch.inf)
        return drawn._replace(log_parts_sd=deviations, log_evidence_sd=math.inf, posterior_sd=unknown, doubt=doubt)

    def _drawn_evidence(self, state: EvidenceState) -> Evidence:
        """The evidence if all modes are among those found."""
        found = self.estimates(state)
        log_prior = self.problem.prior.log_prob_components
        logs = [-math.inf if one is None else one.log_integral for one in found]
        parts = log_prior + log_prior.new_tensor(logs)
        deviations = [one.log_sd if one is not None and one.is_trusted else math.inf for one in found]
        total = float(parts.logsumexp(-1))
        doubts = []
        for n, (one, sd) in enumerate(zip(found, deviations, strict=True), 1):
            if math.isinf(sd) and (state.draws[n - 1] is None or not self._is_negligible(state, n, total)):
                doubts.append(f"n = {n} ({self._trouble(state, n, one)})")
        variance = sum(
            (math.exp(part - total) * sd) ** 2
            for part, sd in zip(parts.tolist(), deviations, strict=True)
            if math.isfinite(sd)
        )
        parts_sd, doubt = parts.new_tensor(deviations), ""
        if doubts:
            given_up = any(draws is not None and draws.is_hopeless for draws in state.draws)
            remedy = "" if given_up else "a larger budget, or "
            doubt = (
                f"no evidence that can be trusted was found after {state.num_evaluations} likelihoods of importance "
                f"sampling: {', '.join(doubts)}; give {remedy}the prior fewer components"
            )
        sd = math.inf if doubts or not math.isfinite(total) else math.sqrt(variance)
        posterior_sd = torch.full_like(parts, torch.inf) if doubts else _posterior_sd(parts, parts_sd)
        return Evidence(parts, parts_sd, total, sd, posterior_sd, doubt)

    def kernels(self, state: EvidenceState) -> WeightedKernels | None:
        """The latest sound draws with their posterior weights, ``None`` if there are none."""
        if not self._drawn_evidence(state).doubt:
            state = state._replace(sound=state.draws)
        if not state.sound:
            return None
        state = state._replace(draws=state.sound)
        log_prior = self.problem.prior.log_prob_components
        parts = []
        for n, (one, draws) in enumerate(zip(self.estimates(state), state.draws, strict=True), 1):
            if one is None or draws is None or not math.isfinite(one.log_integral):
                continue
            points = draws.points[-len(one.log_weights) :]
            values = draws.log_likelihood[-len(one.log_weights) :]
            log_weights = one.log_weights - math.log(len(one.log_weights)) + log_prior[n - 1]
            used = log_weights > -torch.inf
            rows = self.problem.prior.embed_normal(points[used], n)
            parts.append(WeightedKernels(rows, values[used], log_weights[used]))
        if not parts:
            return None
        kernels = WeightedKernels(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        return kernels._replace(log_weights=kernels.log_weights.log_softmax(-1))

    def _trouble(self, state: EvidenceState, components: int, found: ImportanceEstimate | None) -> str:
        """What is wrong with the draws of kernels with n components."""
        draws = state.draws[components - 1]
        if draws is None:
            return "not started"
        if found is None:
            return "no draws"
        if draws.is_hopeless:
            return (
                f"given up: {draws.effective[-1]:.0f} effective draws in {draws.points.shape[-1]} dimensions and "
                f"k = {draws.pareto_k:.2f} after {len(draws.effective)} refits"
            )
        if math.isinf(found.pareto_k):
            return "its proposal is still being adapted"
        return f"the weights' Pareto k is {found.pareto_k:.2f}, above {TRUSTED_K}"

    def _is_negligible(self, state: EvidenceState, components: int, log_evidence: float) -> bool:
        """Whether log p(n) and the largest log likelihood found limit the part of n components to a thousandth."""
        mine = self.problem.prior.num_components(self.evaluations.cube) == components
        values = self.evaluations.log_likelihood[mine]
        draws = state.draws[components - 1]
        if draws is not None:
            values = torch.cat([values, draws.log_likelihood])
        values = values[values.isfinite()]
        largest = float(values.max()) if len(values) else -math.inf
        bound = float(self.problem.prior.log_prob_components[components - 1]) + largest
        return bound < log_evidence + math.log(_NEGLIGIBLE)

    def _neediest(self, state: EvidenceState) -> int:
        """The number of components whose part is not trusted and largest; or whose deviation counts most."""
        evidence = self._drawn_evidence(state)
        total = evidence.log_evidence
        needs = []
        for n, (part, sd) in enumerate(
            zip(evidence.log_parts.tolist(), evidence.log_parts_sd.tolist(), strict=True), 1
        ):
            draws = state.draws[n - 1]
            assert draws is not None
            if not draws.proposals or (math.isinf(sd) and self._is_negligible(state, n, total)):
                needs.append((0.0, -math.inf))
            elif math.isinf(sd):  # the fewest draws first, so that none starves the others
                needs.append((1.0, -float(len(draws.points)) / round_size(self.integrands[n - 1].dimension)))
            else:
                needs.append((0.0, part + math.log(max(sd, 1e-12))))
        return max(range(len(needs)), key=lambda index: needs[index])

    def _other_starts(self, state: EvidenceState, components: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """Starts that no other search has: draws of the prior, nested kernels, and known ones with a part redrawn."""
        prior = self.problem.prior
        candidates = self._drawn_starts(state, components, generator)
        best = self._best_drawn(state, components)
        if best is not None:
            drawn = prior.draw(_PRIOR_STARTS, components, generator=generator)
            level = torch.rand(drawn.shape, generator=generator, dtype=torch.float64, device=generator.device)
            candidates.append(torch.where(level.to(drawn) < _KEPT, best, drawn))
        chosen = [self._likeliest(cube, _SEARCH_STARTS) for cube in candidates]
        return prior.normal_quantiles(torch.cat(chosen), components), sum(map(len, candidates))

    def _starts(self, state: EvidenceState, components: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """Points to ascend from, and the likelihoods spent on finding them."""
        evaluations, prior = self.evaluations, self.problem.prior
        candidates = self._drawn_starts(state, components, generator)
        chosen = [self._likeliest(cube, count) for cube, count in zip(candidates, (_DRAWN, _NESTED), strict=False)]
        mine = prior.num_components(evaluations.cube) == components
        ends = [row for row in self.ends if bool(mine[row])]
        chosen.append(Evaluations(evaluations.cube[ends], evaluations.log_likelihood[ends]).best(_ENDS).cube)
        others = Evaluations(evaluations.cube[mine], evaluations.log_likelihood[mine])
        chosen.append(best_apart(others, prior.active_columns(components), _OTHERS))
        return prior.normal_quantiles(torch.cat(chosen).unique(dim=0), components), sum(map(len, candidates))

    def _drawn_starts(self, state: EvidenceState, components: int, generator: torch.Generator) -> list[Tensor]:
        """Draws of the prior and, if there are draws of one component less, kernels nested around the best of them."""
        candidates = [self.problem.prior.draw(_PRIOR_STARTS, components, generator=generator)]
        best = self._best_drawn(state, components - 1)
        if best is not None:
            candidates.append(nested_kernels(self.problem.prior, best, _PRIOR_STARTS, generator=generator))
        return candidates

    def _best_drawn(self, state: EvidenceState, components: int) -> Tensor | None:
        """The likeliest draw with n components as a row of the cube, if there are draws."""
        draws = state.draws[components - 1] if components else None
        if draws is None or not len(draws.points):
            return None
        row = int(draws.log_likelihood.nan_to_num(nan=-torch.inf).argmax())
        return self.problem.prior.embed_normal(draws.points[row], components)

    def _likeliest(self, cube: Tensor, count: int) -> Tensor:
        return Evaluations(cube, self.problem.evaluate(cube)).best(count).cube


def _nothing(like: Tensor) -> ImportanceDraws:
    """No draws, for a number of components of which no start has a likelihood."""
    return ImportanceDraws(like[:0], like[:0, 0], (), (), False, len(like))


def _exchanged(values: tuple[_Value, ...], index: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _posterior_sd(log_parts: Tensor, log_parts_sd: Tensor) -> Tensor:
    """Deviations of posterior probabilities, to first order, with what parts left out of account may add, (N,)."""
    posterior, known = log_parts.softmax(-1), log_parts_sd.isfinite()
    slopes = torch.diag_embed(posterior) - posterior.unsqueeze(-1) * posterior
    own = (slopes * log_parts_sd.where(known, 0.0)).square().sum(-1).sqrt()
    return own if bool(known.all()) else own + _NEGLIGIBLE
