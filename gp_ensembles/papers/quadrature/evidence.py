"""Evidence for each number of components by importance sampling, and bounds on their sum."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
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

TARGET_SD = 0.2  # of the log evidence, unless a budget sets another
_NEGLIGIBLE = 1e-3  # parts below this share of the evidence are ignored
_PRIOR_STARTS = 60  # prior draws from which starting points are selected
_ENDS, _OTHERS = 3, 8  # starting points of ascents: ends of earlier ones, other evaluations
_DRAWN, _NESTED = 4, 4  # and prior draws, nested kernels
_APART = 0.1  # distance from other evaluations in a column of the cube
_SHARES = (0.02, 0.1, 0.3)  # weight of a component that is added to a kernel
_MOST_REFITS, _MOST_REFITS_OF_ONE = 6, 12  # refits before several components, or one, are given up
_CLEAN_SEARCHES = 2  # consecutive mode searches without a new mode before a part is trusted
_SEARCH_STARTS = 6  # ascents per search from each of three kinds of starting points
# log height and log mass, relative to the proposal and the integral, above which an ascent's end is a new mode
_NEW_HEIGHT, _NEW_MASS = math.log(20.0), math.log(0.02)
_SEARCH_ITERATIONS = 60
_KEPT = 0.7  # share of a known kernel's hyperparameters that a starting point keeps
_NEW_SHARE = 0.3  # weight of added modes
_LARGEST_LOG_ODDS = 700.0  # largest with a finite exponential
_TABLES = 6  # covariance-sized arrays alive during differentiation

_Value = TypeVar("_Value")


def integrand_for(problem: RegressionProblem, components: int) -> Integrand:
    """The likelihood of kernels with n components, as a function of the normal quantiles of their columns."""
    prior, relabeling = problem.prior, Relabeling(problem.prior, components)

    def log_likelihood(points: Tensor) -> Tensor:
        return problem.log_likelihood(prior.embed_normal(points, components))

    chunk = max(1, CHUNK_BYTES // (_TABLES * problem.likelihoods.bytes_each))
    dimension = len(prior.active_columns(components))
    return Integrand(log_likelihood, dimension, chunk, relabeling.log_share, relabeling.num_copies)


def nested_kernels(prior: Hyperprior, row: Tensor, count: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Kernels (count, C) with one more component than a row of the cube, drawn from the prior."""
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
    """The most likely kernels (at most ``count``, C) that differ by 0.1 in one of the columns, best first."""
    cube = evaluations.best(len(evaluations.cube)).cube
    kept: list[Tensor] = []
    while len(cube) and len(kept) < count:
        kept.append(cube[0])
        cube = cube[(cube - cube[0])[:, columns].abs().amax(-1) >= _APART]
    return torch.stack(kept) if kept else cube


class EvidenceState(NamedTuple):
    """State of importance sampling for n = 1..N components, one after another."""

    draws: tuple[ImportanceDraws | None, ...]  # ``None`` if there are none yet
    num_evaluations: int  # likelihoods, including those of candidate starting points
    clean: tuple[int, ...]  # mode searches since the last that found a new one


class EvidenceSampler:
    """Stepwise importance sampling of the evidence, one number of components after another."""

    def __init__(self, problem: RegressionProblem, evaluations: Evaluations, ends: Sequence[int]) -> None:
        self.problem = problem
        self.evaluations = evaluations
        self.ends: list[int] = list(ends)
        sizes = range(1, problem.prior.max_components + 1)
        self.integrands: list[Integrand] = [integrand_for(problem, n) for n in sizes]

    def init(self) -> EvidenceState:
        """State without draws."""
        size = self.problem.prior.max_components
        return EvidenceState((None,) * size, 0, (0,) * size)

    def step(self, state: EvidenceState, generator: torch.Generator, target_sd: float = TARGET_SD) -> EvidenceState:
        """A round of draws, or a mode search, for the first number of components that is not done."""
        found = self.estimates(state)
        index = self._num_done(state, found, target_sd)
        one = found[index]
        if one is not None and one.is_trusted and one.log_sd <= target_sd:
            return self.search_modes(state, index, generator)
        draws, integrand, used = state.draws[index], self.integrands[index], state.num_evaluations
        if draws is None:
            starts, candidates = self._starts(state, index + 1, generator)
            nothing = ImportanceDraws(starts[:0], starts[:0, 0], (), (), False, len(starts))
            draws = start_draws(integrand, starts) or nothing  # if no starting point has a likelihood
            used += candidates + draws.num_evaluations
        if draws.proposals:
            before = draws.num_evaluations
            draws = draw_round(integrand, draws, round_size(integrand.dimension), generator=generator)
            used += draws.num_evaluations - before
        return state._replace(draws=_exchanged(state.draws, index, draws), num_evaluations=used)

    def search_modes(self, state: EvidenceState, index: int, generator: torch.Generator) -> EvidenceState:
        """Ascend from new starting points for index + 1 components; new modes are added to the proposal."""
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

    def is_over(self, state: EvidenceState, target_sd: float = TARGET_SD) -> bool:
        """Whether all numbers of components are done, or the next one has been given up."""
        done = self._num_done(state, self.estimates(state), target_sd)
        return done == len(state.draws) or self._is_given_up(state, done)

    def _is_given_up(self, state: EvidenceState, index: int) -> bool:
        """Whether sampling of index + 1 components has been given up; the first one gets more attempts."""
        draws = state.draws[index]
        if draws is None:
            return False
        spent = not draws.is_kept and len(draws.effective) >= (_MOST_REFITS if index else _MOST_REFITS_OF_ONE)
        return not draws.proposals or spent or (draws.is_hopeless and index > 0)

    def estimates(self, state: EvidenceState) -> list[ImportanceEstimate | None]:
        """An estimate for each number of components."""
        return [
            estimate(integrand, draws) if draws is not None and len(draws.points) else None
            for draws, integrand in zip(state.draws, self.integrands, strict=True)
        ]

    def evidence(self, state: EvidenceState) -> Evidence:
        """The evidence of the finished 1..m components, or of one component, and a bound on the rest."""
        found, log_prior = self.estimates(state), self.problem.prior.log_prob_components
        done = self._num_done(state, found)
        logs, deviations = [-math.inf] * len(found), [math.inf] * len(found)
        for index, one in enumerate(found[: max(done, 1)]):
            if one is not None and (one.is_trusted or not done):
                logs[index], deviations[index] = one.log_integral, one.log_sd
        parts, parts_sd = log_prior + log_prior.new_tensor(logs), log_prior.new_tensor(deviations)
        total = float(parts.logsumexp(-1))
        rest = [float(log_prior[k]) + self._largest(state, k) for k in range(max(done, 1), len(found))]
        log_rest = float(parts.new_tensor([-math.inf, *rest]).logsumexp(-1))
        shares = (parts - total).exp() * parts_sd
        sd = float(shares.nan_to_num(nan=0.0).square().sum().sqrt()) if math.isfinite(total) else math.inf
        doubt = self._doubt(state, done, found[done], log_rest - total) if done < len(found) else ""
        return Evidence(parts, parts_sd, total, sd, _posterior_sd(parts, parts_sd), doubt, log_rest)

    def kernels(self, state: EvidenceState) -> WeightedKernels | None:
        """Draws for the finished numbers of components, with posterior weights; ``None`` if there are none."""
        found = self.estimates(state)
        log_prior = self.problem.prior.log_prob_components
        parts = []
        for index in range(self._num_done(state, found)):
            one, draws = found[index], state.draws[index]
            if one is None or draws is None or not one.is_trusted:
                continue
            points = draws.points[-len(one.log_weights) :]
            values = draws.log_likelihood[-len(one.log_weights) :]
            log_weights = one.log_weights - math.log(len(one.log_weights)) + log_prior[index]
            used = log_weights > -torch.inf
            rows = self.problem.prior.embed_normal(points[used], index + 1)
            parts.append(WeightedKernels(rows, values[used], log_weights[used]))
        if not parts:
            return None
        kernels = WeightedKernels(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
        return kernels._replace(log_weights=kernels.log_weights.log_softmax(-1))

    def _num_done(
        self, state: EvidenceState, found: list[ImportanceEstimate | None], target_sd: float = math.inf
    ) -> int:
        """Number of parts, from one component on, that are trusted and accurate enough, or negligible."""
        log_prior = self.problem.prior.log_prob_components.tolist()
        total = -math.inf
        for index, one in enumerate(found):
            searched = state.clean[index] >= _CLEAN_SEARCHES
            if one is not None and one.is_trusted and one.log_sd <= target_sd and searched:
                total = float(np.logaddexp(total, log_prior[index] + one.log_integral))
            elif one is None or log_prior[index] + self._largest(state, index) >= total + math.log(_NEGLIGIBLE):
                return index
        return len(found)

    def _largest(self, state: EvidenceState, index: int) -> float:
        """The largest log likelihood found with up to index + 1 components, attainable with more components, too."""
        mine = self.problem.prior.num_components(self.evaluations.cube) <= index + 1
        drawn = [draws.log_likelihood for draws in state.draws[: index + 1] if draws is not None]
        return float(torch.cat([self.evaluations.log_likelihood[mine], *drawn]).nan_to_num(nan=-torch.inf).max())

    def _doubt(self, state: EvidenceState, done: int, found: ImportanceEstimate | None, log_odds: float) -> str:
        """Why the parts of more components are unknown, and a bound on their weight."""
        draws = state.draws[done]
        if draws is None:
            reason = "not started"
        elif found is None:
            reason = "no draws"
        elif self._is_given_up(state, done):
            reason = (
                f"given up: {draws.effective[-1]:.0f} effective draws in {draws.points.shape[-1]} dimensions and "
                f"k = {draws.pareto_k:.2f} after {len(draws.effective)} refits"
            )
        elif math.isinf(found.pareto_k):
            reason = "its proposal is still being adapted"
        elif not found.is_trusted:
            reason = f"the weights' Pareto k is {found.pareto_k:.2f}, above {TRUSTED_K}"
        else:
            reason = "searches from other starting points are unfinished, or found new modes"
        larger = "" if self._is_given_up(state, done) else "a larger budget, or "
        if not done:
            return (
                f"no evidence is reliable (n = 1: {reason}): that of one component is a guess; use {larger}another "
                f"prior or likelihood"
            )
        size, most = done + 1, len(state.draws)
        which = f"{size} components" if size == most else f"{size} to {most} components"
        share = 1.0 / (1.0 + math.exp(-min(log_odds, _LARGEST_LOG_ODDS)))
        return (
            f"the evidence omits {which}, which may contribute up to {share:.0%} of it (n = {size}: {reason}); "
            f"use {larger}a prior with at most {done} component(s)"
        )

    def _other_starts(self, state: EvidenceState, components: int, generator: torch.Generator) -> tuple[Tensor, int]:
        """New starting points: prior draws, nested kernels, and known ones with a part redrawn."""
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
        """Starting points, and the number of likelihoods evaluated to find them."""
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
        """Prior draws and, if there are draws with one component less, kernels nested around the best of them."""
        candidates = [self.problem.prior.draw(_PRIOR_STARTS, components, generator=generator)]
        best = self._best_drawn(state, components - 1)
        if best is not None:
            candidates.append(nested_kernels(self.problem.prior, best, _PRIOR_STARTS, generator=generator))
        return candidates

    def _best_drawn(self, state: EvidenceState, components: int) -> Tensor | None:
        """The most likely draw with n components as a row of the cube, if there are draws."""
        draws = state.draws[components - 1] if components else None
        if draws is None or not len(draws.points):
            return None
        row = int(draws.log_likelihood.nan_to_num(nan=-torch.inf).argmax())
        return self.problem.prior.embed_normal(draws.points[row], components)

    def _likeliest(self, cube: Tensor, count: int) -> Tensor:
        return Evaluations(cube, self.problem.evaluate(cube)).best(count).cube


def _exchanged(values: tuple[_Value, ...], index: int, value: _Value) -> tuple[_Value, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _posterior_sd(log_parts: Tensor, log_parts_sd: Tensor) -> Tensor:
    """Deviations of posterior probabilities (N,), to first order, including bounds on ignored parts."""
    posterior, known = log_parts.softmax(-1), log_parts_sd.isfinite()
    slopes = torch.diag_embed(posterior) - posterior.unsqueeze(-1) * posterior
    own = (slopes * log_parts_sd.where(known, 0.0)).square().sum(-1).sqrt()
    return own if bool(known.all()) else own + _NEGLIGIBLE
