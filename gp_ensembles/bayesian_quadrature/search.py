"""How a budget of likelihoods is spent: draws of the prior, peaks of the spectrum, ascents, acquisitions."""

import time
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.bayesian_quadrature.ascent import ascend
from gp_ensembles.bayesian_quadrature.fitting import fitted_surrogate
from gp_ensembles.bayesian_quadrature.hyperprior import draw_seed
from gp_ensembles.bayesian_quadrature.integral import Integral, integrate
from gp_ensembles.bayesian_quadrature.nodes import Nodes, draw_nodes
from gp_ensembles.bayesian_quadrature.periodogram import spectral_starts
from gp_ensembles.bayesian_quadrature.policies import InformationPolicy, Policy, PriorPolicy, draw_stratified
from gp_ensembles.bayesian_quadrature.problem import Problem
from gp_ensembles.bayesian_quadrature.store import Evaluations
from gp_ensembles.bayesian_quadrature.surrogate import Surrogate

NODES_PER_SIZE = 256
FINAL_NODES_PER_SIZE = 1024
COVARIANCE_NODES = 96
_FEWEST_EFFECTIVE = 3.0  # kernels that share the mass, before draws are said to show the whole likelihood
_CHUNK = 32  # draws evaluated at a time: between two of these a search can be stopped and saved
_GAIN = 1.0  # nats that the last part of an ascent must have brought for it to go on


class Search(NamedTuple):
    r"""How evaluations are chosen.

    Args:
        policy: Chooses kernels between ascents. ``None``: information where draws from the prior cover the likelihood
            (there it halves the error of predictions), further draws where they do not (there ascents decide, and
            information costs more than it brings).
        initial: Share of the budget that goes to draws from the prior first.
        batch_size: Kernels that the policy chooses at a time.
        ascents: Ascents to start before any is continued; 0 for none at all.
        ascent_evaluations: Likelihoods of a part of an ascent.
        covered: Effective share of the draws from the prior, :math:`(\sum L)^2 / (h \sum L^2)`, above which there are
            neither ascents nor peaks: draws show the whole of such a likelihood, and points that seek its maximum would
            only mislead the surrogate.
        spectral: Whether kernels at the peaks of the periodogram are tried (one input only).
    """

    policy: Policy | None = None
    initial: float = 0.3
    batch_size: int = 5
    ascents: int = 4
    ascent_evaluations: int = 20
    covered: float = 0.1
    spectral: bool = True


class Step(NamedTuple):
    """The state of affairs after a round: evaluations, seconds, best log-likelihood, log evidence and its deviation."""

    evaluations: int
    seconds: float
    best_log_likelihood: float
    log_evidence: float
    log_evidence_sd: float


class Path(NamedTuple):
    """An ascent: the row of its best kernel among the evaluations, its log-likelihood, and the last part's gain."""

    row: int
    log_likelihood: float
    gain: float


class SearchState(NamedTuple):
    """Everything a search knows.

    Args:
        evaluations: Evaluated kernels.
        origins: How each was chosen: 0 prior, 1 spectrum, 2 ascent, 3 policy; shape (h,).
        paths: The ascents so far.
        seconds: Time spent on likelihoods, ascents, the surrogate and the policy.
        random: State of the generator.
        nodes_seed: Seed of the nodes of all integrals.
        planned: Draws from the prior that are yet to be evaluated, shape (p, C).
        history: How the evidence developed, round by round.
    """

    evaluations: Evaluations
    origins: Tensor
    paths: tuple[Path, ...]
    seconds: dict[str, float]
    random: Tensor
    nodes_seed: int
    planned: Tensor
    history: tuple[Step, ...] = ()

    @property
    def spent(self) -> int:
        """Likelihoods evaluated so far."""
        return self.evaluations.log_likelihood.numel()


def start(problem: Problem, search: Search, evaluations: int, generator: torch.Generator) -> SearchState:
    """A search that has planned its draws from the prior and evaluated nothing."""
    nodes_seed = draw_seed(generator)
    count = max(2, min(evaluations, round(search.initial * evaluations)))
    drawn = draw_stratified(problem.prior, count, generator=generator)
    planned = drawn[_in_turns(problem.prior.num_components(drawn))]  # so that the first few are fair
    nothing = Evaluations(drawn[:0], problem.y[:0])
    seconds = {"likelihoods": 0.0, "ascents": 0.0, "surrogate": 0.0, "policy": 0.0}
    return SearchState(nothing, problem.y[:0].long(), (), seconds, generator.get_state(), nodes_seed, planned)


def draw(problem: Problem, search: Search, state: SearchState, evaluations: int) -> SearchState:
    """The next few of the planned draws; with the last of them, kernels at the peaks of the periodogram."""
    clock = time.perf_counter()
    cube = state.planned[:_CHUNK]
    state = _with(state, cube, problem.evaluate(cube), 0)._replace(planned=state.planned[_CHUNK:])
    if search.spectral and not len(state.planned) and not is_covered(search, state):
        peaks = spectral_starts(problem.X, problem.y, problem.prior)[: max(0, evaluations - state.spent)]
        state = _with(state, peaks, problem.evaluate(peaks), 1)
    return _timed(state, "likelihoods", clock)


def _in_turns(components: Tensor) -> Tensor:
    """An order in which numbers of components take turns."""
    turn = torch.empty_like(components)
    for size in components.unique():
        mine = components == size
        turn[mine] = torch.ones_like(components[mine]).cumsum(0)
    return turn.argsort(stable=True)


def climb(problem: Problem, search: Search, state: SearchState, limit: int) -> SearchState:
    """One part of an ascent, from a kernel not yet climbed from or on from the end of a path."""
    clock = time.perf_counter()
    row, path = _where(state, search)
    if row is None:
        return state
    found = ascend(problem.likelihoods, problem.prior, state.evaluations.cube[row], limit)
    first = state.spent
    state = _with(state, found.cube, found.log_likelihood, 2)
    values = found.log_likelihood.nan_to_num(nan=-torch.inf)
    top = int(values.argmax())
    before = float(state.evaluations.log_likelihood[row])
    climbed = Path(first + top, float(values[top]), float(values[top]) - before)
    kept = tuple(old for index, old in enumerate(state.paths) if index != path)
    return _timed(state._replace(paths=(*kept, climbed)), "ascents", clock)


def is_covered(search: Search, state: SearchState) -> bool:
    """Whether draws from the prior alone carry the likelihood's mass."""
    drawn = state.evaluations.log_likelihood[state.origins == 0]
    weights = drawn[drawn.isfinite()].softmax(-1)
    if not weights.numel():
        return False
    effective = float(1.0 / weights.square().sum())
    return effective >= max(_FEWEST_EFFECTIVE, search.covered * weights.numel())


def explore(problem: Problem, search: Search, state: SearchState, surrogate: Surrogate, limit: int) -> SearchState:
    """A batch chosen by the policy, evaluated."""
    generator = torch.Generator()
    generator.set_state(state.random)
    clock = time.perf_counter()
    policy = search.policy
    if policy is None:
        policy = InformationPolicy() if is_covered(search, state) else PriorPolicy()
    cube = policy.propose(surrogate, nodes_of(problem, state), limit, generator=generator).detach()
    state = _timed(state, "policy", clock)
    clock = time.perf_counter()
    state = _with(state, cube, problem.evaluate(cube), 3)._replace(random=generator.get_state())
    return _timed(state, "likelihoods", clock)


def surrogate_of(problem: Problem, state: SearchState) -> Surrogate:
    """The surrogate of everything evaluated so far, its hyper-parameters fitted."""
    return fitted_surrogate(state.evaluations, problem.geometry)


def nodes_of(problem: Problem, state: SearchState, per_size: int = NODES_PER_SIZE) -> Nodes:
    """The nodes of all integrals of this search, some of them around the best kernels."""
    best = state.evaluations.best(1).cube
    ends = state.evaluations.cube[[path.row for path in state.paths]]
    generator = torch.Generator().manual_seed(state.nodes_seed)
    return draw_nodes(problem.prior, per_size, around=torch.cat([best, ends]), generator=generator)


def integral_of(problem: Problem, surrogate: Surrogate, state: SearchState, per_size: int = NODES_PER_SIZE) -> Integral:
    """Moments of the evidence under the surrogate."""
    nodes = nodes_of(problem, state, per_size)
    return integrate(surrogate, nodes, nodes.first(COVARIANCE_NODES))


def _where(state: SearchState, search: Search) -> tuple[int | None, int | None]:
    """Row to climb from, and the path it continues: new ones first, then the best that still gains, then new ones."""
    fresh = state.evaluations.log_likelihood.nan_to_num(nan=-torch.inf).clone()
    fresh[state.origins == 2] = -torch.inf
    fresh[_climbed_from(state)] = -torch.inf
    best = int(fresh.argmax()) if bool((fresh > -torch.inf).any()) else None
    gaining = [index for index, path in enumerate(state.paths) if path.gain > _GAIN]
    if len(state.paths) >= search.ascents and gaining:
        index = max(gaining, key=lambda i: state.paths[i].log_likelihood)
        return state.paths[index].row, index
    return best, None


def _climbed_from(state: SearchState) -> Tensor:
    """Rows whose kernel is also the first of an ascent."""
    cube = state.evaluations.cube
    climbed = cube[state.origins == 2]
    others = (state.origins != 2).nonzero().squeeze(-1)
    if not climbed.numel():
        return others[:0]
    near = torch.cdist(cube[others], climbed, compute_mode="donot_use_mm_for_euclid_dist").amin(-1)
    return others[near < 1e-5]


def _with(state: SearchState, cube: Tensor, values: Tensor, origin: int) -> SearchState:
    origins = torch.cat([state.origins, state.origins.new_full((values.numel(),), origin)])
    return state._replace(evaluations=state.evaluations.append(cube, values), origins=origins)


def _timed(state: SearchState, what: str, since: float) -> SearchState:
    return state._replace(seconds={**state.seconds, what: state.seconds[what] + time.perf_counter() - since})
