"""Marginalization over kernels: the loop over rounds of evaluations within a budget."""

import functools
import hashlib
import operator
import time
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from tqdm import tqdm

from gp_ensembles.files import checkpoint as files
from gp_ensembles.numerics.arguments import check_made
from gp_ensembles.numerics.warn_caller import warn_caller
from gp_ensembles.papers.plain import from_plain, to_plain
from gp_ensembles.papers.quadrature.evidence import TARGET_SD, EvidenceSampler, EvidenceState
from gp_ensembles.papers.quadrature.prior import draw_seed
from gp_ensembles.papers.quadrature.problem import Deadline, OutOfTimeError, RegressionProblem
from gp_ensembles.papers.quadrature.quadrature import Evidence
from gp_ensembles.papers.quadrature.result import Marginalization
from gp_ensembles.papers.quadrature.search import (
    Quadrature,
    Round,
    Search,
    SearchState,
    add_seconds,
    evaluate_ascent,
    evaluate_batch,
    evaluate_draws,
    init_search,
    prior_covers_likelihood,
    sampler_for,
)

_FEWEST = 5  # minimum evaluations of a budget
_FEW_INPUTS = 2  # number of inputs up to which the evidence takes seconds
_KIND = files.Kind("gp_ensembles marginalization", 12, "a marginalization", "remove it or name another file")


class Budget(NamedTuple):
    """Stopping criteria; the first one that is met ends the run.

    Args:
        evaluations: Likelihoods of the search, including those of its ascents.
        seconds: Seconds of wall time; an evaluation in progress (a likelihood, or a refit of the surrogate) is
            finished.
        log_evidence_sd: Stop once the standard deviation of the log evidence is at most this: 0.2 if ``None``, which
            does not stop a search in which prior draws cover the likelihood.
        draws: Likelihoods of the importance sampling that follows the search if prior draws do not cover the
            likelihood, including its ascents; a round in progress is finished. It processes one number of components
            after another and ends at the first that fails. With zero draws the evidence remains unknown.
    """

    evaluations: int = 200
    seconds: float | None = None
    log_evidence_sd: float | None = None
    draws: int = 30_000


def marginalize(
    problem: RegressionProblem,
    budget: Budget | None = None,
    search: Search = Search(),  # noqa: B008 (immutable)
    *,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> Marginalization:
    """Marginalize over kernels: Bayesian quadrature (MASKERADE; Hamid et al., 2022), and importance sampling.

    A search evaluates prior draws. If they cover the likelihood, further kernels are selected by a policy, and
    the evidence is the quadrature's. Otherwise the likelihood is a spike: ascents find its modes, and importance
    sampling from Student-t distributions at these gives the evidence, for each number of components.

    Args:
        problem: Data and prior.
        budget: Stopping criteria; by default ``Budget()``, or, with more than two inputs, for which importance
            sampling takes minutes, ``Budget(draws=0)``: predictions, but not the evidence.
        search: Settings of kernel selection.
        checkpoint: File to which the search is written after every round, atomically; if it exists, it is resumed.
        progress: Whether to show a progress bar with best log likelihood, log evidence and its standard deviation.
        generator: Source of randomness; the result is a function of its state.

    Returns:
        The result; after a keyboard interrupt, that of the evaluations so far, with a warning. A warning is also
        issued if the evidence is in doubt, unless the budget has no draws to estimate it.

    Raises:
        ValueError: If the budget is below five evaluations or otherwise invalid, no kernel has a likelihood, or
            the checkpoint belongs to another problem or search.
        TypeError: If ``problem`` is not a ``RegressionProblem``, or evaluations or draws of the budget are no integers.

    Example:
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = RegressionProblem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40, draws=0))
        >>> found.num_evaluations, found.posterior_components.shape
        (40, torch.Size([5]))
    """
    check_made("problem", problem, RegressionProblem, "RegressionProblem(X, y)")
    budget = (Budget() if problem.X.shape[1] <= _FEW_INPUTS else Budget(draws=0)) if budget is None else budget
    _check_budget(budget)
    given, deadline = problem, Deadline(budget.seconds, time.perf_counter)
    problem = problem.within(deadline)
    path = None if checkpoint is None else Path(checkpoint)
    mark = fingerprint(problem, search)
    state = load_search(path, problem, search) if path is not None and path.exists() else None
    _check_search(search)
    target_sd = TARGET_SD if budget.log_evidence_sd is None else budget.log_evidence_sd
    bar: tqdm[Any]
    with tqdm(total=budget.evaluations, disable=not progress, desc="kernels", unit="likelihood") as bar:
        try:
            if state is None:
                state = init_search(problem, search, budget.evaluations, _of_the_host(generator))
            is_new = len(state.pending) > 0
            while len(state.pending) and not (state.num_evaluations and deadline.is_over):
                state = evaluate_draws(problem, search, state, budget.evaluations)
                _save(state, path, mark)
            if is_new or not state.history:
                state, quadrature = _record(problem, search, state, bar)
                _save(state, path, mark)
            else:
                quadrature = Quadrature(problem, state)
            while not (_is_over(state, budget) or deadline.is_over):
                state = _round(problem, search, state, quadrature, budget.evaluations)
                if not deadline.is_over:
                    state, quadrature = _record(problem, search, state, bar)
                _save(state, path, mark)
            if not prior_covers_likelihood(search, state):
                bar.total = budget.evaluations + budget.draws
                sampler = sampler_for(problem, state)
                importance = state.importance or sampler.init()
                while importance.num_evaluations < budget.draws and not (
                    deadline.is_over or sampler.is_over(importance, target_sd)
                ):
                    state = _sample(sampler, importance, state, target_sd, bar)
                    importance = state.importance or importance
                    _save(state, path, mark)
        except OutOfTimeError:
            pass  # keep what was complete before
        except KeyboardInterrupt:
            if state is None or not state.num_evaluations:
                raise
            warn_caller(
                f"interrupted after {state.num_evaluations} of {budget.evaluations} likelihoods; the result uses those"
            )
    found = Marginalization(given, cast(SearchState, state), search, deadline.is_over)
    if found.doubt and budget.draws:
        warn_caller(found.doubt)
    return found


def _save(state: SearchState, path: Path | None, mark: str) -> None:
    """Write a search to a file atomically, if a path is given."""
    if path is not None:
        files.write_checkpoint(path, _KIND, {"fingerprint": mark, "state": to_plain(state)})


def _check_budget(budget: Budget) -> None:
    for name, count in (("evaluations", budget.evaluations), ("draws", budget.draws)):
        try:
            operator.index(count)
        except TypeError as error:
            raise TypeError(f"the {name} of a budget must be an integer, got {count!r}") from error
    if not budget.evaluations >= _FEWEST:
        raise ValueError(f"a budget of {budget.evaluations} evaluations is too small; use at least {_FEWEST}")
    if not budget.draws >= 0:
        raise ValueError(f"the draws of a budget must not be negative, got {budget.draws}")
    if budget.seconds is not None and not budget.seconds >= 0:
        raise ValueError(f"the seconds of a budget must not be negative, got {budget.seconds}")
    if budget.log_evidence_sd is not None and not budget.log_evidence_sd > 0:
        raise ValueError(f"the log_evidence_sd of a budget must be positive, got {budget.log_evidence_sd}")


def _check_search(search: Search) -> None:
    if (
        search.batch_size < 1
        or search.num_ascents < 0
        or search.ascent_evaluations < 1
        or not 0 < search.initial_share <= 1
    ):
        raise ValueError(
            f"a search needs batch_size and ascent_evaluations of at least 1, num_ascents of at least 0 and "
            f"initial_share in (0, 1], got {search}"
        )


def _round(
    problem: RegressionProblem, search: Search, state: SearchState, quadrature: Quadrature, evaluations: int
) -> SearchState:
    """A batch selected by the policy and, if prior draws do not cover the likelihood, part of an ascent."""
    before = state.num_evaluations
    state = evaluate_batch(problem, search, state, quadrature, min(search.batch_size, evaluations - before))
    if state.num_evaluations == before and not problem.deadline.is_over:
        raise ValueError(f"{search.policy} selected no kernel to evaluate; a policy must select at least one")
    left = evaluations - state.num_evaluations
    if not left or not search.num_ascents or problem.deadline.is_over or prior_covers_likelihood(search, state):
        return state
    return evaluate_ascent(problem, search, state, min(search.ascent_evaluations, left))


def _sample(
    sampler: EvidenceSampler, importance: EvidenceState, state: SearchState, target_sd: float, bar: "tqdm[Any]"
) -> SearchState:
    """A step of importance sampling, recorded as a round."""
    before, generator = time.perf_counter(), torch.Generator()
    generator.set_state(state.random)
    importance = sampler.step(importance, generator, target_sd)
    state = state._replace(importance=importance, random=generator.get_state())
    evidence = sampler.evidence(importance)
    state = add_seconds(state, "importance", before)
    best = [float(state.evaluations.best(1).log_likelihood[0])]
    best += [float(one.log_likelihood.nan_to_num(nan=-torch.inf).max()) for one in importance.draws if one is not None]
    count = state.num_evaluations + importance.num_evaluations
    return _with_round(state, count, max(best), evidence, bar)


def _record(
    problem: RegressionProblem, search: Search, state: SearchState, bar: "tqdm[Any]"
) -> tuple[SearchState, Quadrature]:
    """The state with another round in its history, and its quadrature."""
    before = time.perf_counter()
    quadrature = Quadrature(problem, state)
    covered = prior_covers_likelihood(search, state)
    evidence = quadrature.estimate(quadrature.nodes) if covered else quadrature.nearest()
    state = add_seconds(state, "surrogate", before)
    best = float(quadrature.surrogate.log_scale)
    return _with_round(state, state.num_evaluations, best, evidence, bar), quadrature


def _with_round(state: SearchState, count: int, best: float, evidence: Evidence, bar: "tqdm[Any]") -> SearchState:
    """The state with another round in its history, shown in the progress bar."""
    seconds, deviation = sum(state.seconds.values()), evidence.log_evidence_sd
    totals = Round(count, seconds, best, evidence.log_evidence, deviation)
    bar.update(count - bar.n)
    bar.set_postfix_str(f"best {best:.1f}, log evidence {evidence.log_evidence:.2f} ± {deviation:.2f}")
    return state._replace(history=(*state.history, totals))


def _is_over(state: SearchState, budget: Budget) -> bool:
    if state.num_evaluations >= budget.evaluations:
        return True
    return budget.log_evidence_sd is not None and state.history[-1].log_evidence_sd <= budget.log_evidence_sd


def _of_the_host(generator: torch.Generator | None) -> torch.Generator:
    """A CPU generator: the given one, or one seeded by it or by torch's global one."""
    if generator is not None and generator.device.type == "cpu":
        return generator
    return torch.Generator().manual_seed(draw_seed(generator))


def fingerprint(problem: RegressionProblem, search: Search) -> str:
    """Hash of data, prior shape and quantiles, and settings, which identifies a checkpoint."""
    prior = problem.prior
    probe = prior.bounds[0].new_tensor([0.1, 0.5, 0.9]).unsqueeze(-1)
    of_prior = prior.means.icdf(probe), prior.scales.icdf(probe), prior.log_prob_components
    rounded = [f"{value:.9e}" for tensor in of_prior for value in tensor.detach().flatten().tolist()]
    scalars, ways = (prior.outputscale, prior.noise), (_name(search.policy), _name(problem.likelihood))
    data = files.fingerprint(problem.X, problem.y)
    settings = (data, rounded, scalars, search._replace(policy=None), ways)
    return hashlib.sha256(repr(settings).encode()).hexdigest()


def _name(choice: Any) -> str:
    """Class and settings of an option, without its memory address."""
    fields = tuple(choice) if isinstance(choice, tuple) else ()
    if isinstance(choice, functools.partial):
        choice, fields = choice.func, tuple(choice.keywords.values())
    kind = choice if isinstance(choice, type) else type(choice)
    settings = [field.tolist() if isinstance(field, Tensor) else field for field in fields]
    return f"{kind.__module__}.{kind.__qualname__}{settings}"


def load_search(path: Path, problem: RegressionProblem, search: Search) -> SearchState:
    """Read the search of a problem from a file."""
    content = files.read_checkpoint(path, _KIND)
    if content["fingerprint"] != fingerprint(problem, search):
        raise ValueError(
            f"{path} belongs to another data set, prior or search; remove it to start over, or name another file"
        )
    state: SearchState = from_plain(SearchState, content["state"])
    return state
