"""The loop: likelihoods until the budget is spent, the time is up or the evidence is known well enough."""

import time
import warnings
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from gp_ensembles.bayesian_quadrature.checkpoint import fingerprint, load_state, save_state
from gp_ensembles.bayesian_quadrature.hyperprior import draw_seed
from gp_ensembles.bayesian_quadrature.integral import Integral
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.result import Marginalization
from gp_ensembles.bayesian_quadrature.search import (
    Search,
    SearchState,
    Step,
    climb,
    draw,
    explore,
    integral_of,
    is_covered,
    start,
    surrogate_of,
)
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

_FEWEST = 5


class Budget(NamedTuple):
    """When to stop: whichever comes first.

    Args:
        evaluations: Likelihoods, those of ascents included.
        seconds: Seconds of wall time; a round that has begun is finished.
        log_evidence_sd: Stop once the standard deviation of the log evidence is below this; meaningful where draws of
            the prior cover the likelihood, for elsewhere the deviation is only the surrogate's opinion.
    """

    evaluations: int = 200
    seconds: float | None = None
    log_evidence_sd: float | None = None


def marginalize(
    problem: Problem,
    budget: Budget = Budget(),  # noqa: B008 (immutable)
    search: Search = Search(),  # noqa: B008
    *,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    generator: torch.Generator | None = None,
) -> Marginalization:
    """Marginalize over kernels by Bayesian quadrature (MASKERADE; Hamid et al., 2022).

    Args:
        problem: Data and prior.
        budget: When to stop.
        search: How kernels are chosen.
        checkpoint: File that the search is written to after every round, atomically, and goes on from if it is there.
        progress: Whether to show a progress bar: best log-likelihood, log evidence and its standard deviation.
        generator: Source of randomness; the result is a function of its state.

    Returns:
        The result; what there is of it after an interruption from the keyboard, with a warning.

    Raises:
        ValueError: If the budget is below five evaluations, no kernel has a likelihood, or the checkpoint belongs to
            another problem or search.

    Example:
        >>> import torch
        >>> X = torch.linspace(0, 3, 20, dtype=torch.float64).unsqueeze(-1)
        >>> problem = Problem(X, torch.sin(5.0 * X.squeeze(-1)))
        >>> found = marginalize(problem, Budget(40), progress=False, generator=torch.Generator().manual_seed(0))
        >>> found.num_evaluations, found.posterior_components.shape
        (40, torch.Size([5]))
    """
    if budget.evaluations < _FEWEST:
        raise ValueError(f"a budget of {budget.evaluations} evaluations is too small; give it at least {_FEWEST}")
    path = None if checkpoint is None else Path(checkpoint)
    mark = fingerprint(problem, search)
    state = load_state(path, mark) if path is not None and path.exists() else None
    _check_search(search)
    clock = time.perf_counter()
    bar: tqdm[Any]
    with tqdm(total=budget.evaluations, disable=not progress, desc="kernels", unit="likelihood") as bar:
        try:
            if state is None:
                state = start(problem, search, budget.evaluations, generator or _seeded())
            is_new = len(state.planned) > 0
            while len(state.planned) and not (state.spent and _is_late(budget, clock)):
                state = draw(problem, search, state, budget.evaluations)
                _save(state, path, mark)
            if is_new or not state.history:
                state, surrogate = _record(problem, state, bar)
                _save(state, path, mark)
            else:
                surrogate = surrogate_of(problem, state)
            while not _is_over(state, budget, clock):
                state = _round(problem, search, state, surrogate, budget.evaluations)
                state, surrogate = _record(problem, state, bar)
                _save(state, path, mark)
        except KeyboardInterrupt:
            if state is None or not state.spent:
                raise
            warnings.warn(
                f"interrupted after {state.spent} of {budget.evaluations} likelihoods; the result is that of those",
                stacklevel=2,
            )
    return Marginalization(problem, state)


def _save(state: SearchState, path: Path | None, mark: str) -> None:
    if path is not None:
        save_state(state, path, mark)


def _check_search(search: Search) -> None:
    if search.batch_size < 1 or search.ascents < 0 or search.ascent_evaluations < 1 or not 0 < search.initial <= 1:
        raise ValueError(
            f"a search needs batch_size and ascent_evaluations of at least 1, ascents of at least 0 and initial in "
            f"(0, 1], got {search}"
        )


def _round(problem: Problem, search: Search, state: SearchState, surrogate: Surrogate, evaluations: int) -> SearchState:
    """A batch of the policy's, and part of an ascent if the likelihood needs any."""
    before = state.spent
    state = explore(problem, search, state, surrogate, min(search.batch_size, evaluations - state.spent))
    if state.spent == before:
        raise ValueError(f"{search.policy} proposed no kernel to evaluate; a policy must propose at least one")
    left = evaluations - state.spent
    if not left or not search.ascents or is_covered(search, state):
        return state
    return climb(problem, search, state, min(search.ascent_evaluations, left))


def _record(problem: Problem, state: SearchState, bar: "tqdm[Any]") -> tuple[SearchState, Surrogate]:
    """The state with a further line of history, and its surrogate."""
    before = time.perf_counter()
    surrogate = surrogate_of(problem, state)
    integral: Integral = integral_of(problem, surrogate, state)
    seconds = {**state.seconds, "surrogate": state.seconds["surrogate"] + time.perf_counter() - before}
    step = Step(
        state.spent,
        sum(seconds.values()),
        float(surrogate.log_scale),
        float(integral.log_evidence),
        float(integral.log_evidence_sd),
    )
    bar.update(state.spent - bar.n)
    bar.set_postfix_str(
        f"best {step.best_log_likelihood:.1f}, log evidence {step.log_evidence:.2f} ± {step.log_evidence_sd:.2f}"
    )
    return state._replace(seconds=seconds, history=(*state.history, step)), surrogate


def _is_over(state: SearchState, budget: Budget, clock: float) -> bool:
    if state.spent >= budget.evaluations:
        return True
    if _is_late(budget, clock):
        return True
    return budget.log_evidence_sd is not None and state.history[-1].log_evidence_sd <= budget.log_evidence_sd


def _is_late(budget: Budget, clock: float) -> bool:
    return budget.seconds is not None and time.perf_counter() - clock >= budget.seconds


def _seeded() -> torch.Generator:
    """A generator from torch's global one, so that ``torch.manual_seed`` of the user's counts."""
    return torch.Generator().manual_seed(draw_seed(None))
