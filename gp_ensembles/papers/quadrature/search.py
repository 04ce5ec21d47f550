"""The search for kernels: prior draws, periodogram peaks, gradient ascents and a policy's batches; its checkpoints."""

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.files.checkpoint import Kind, read_checkpoint, write_checkpoint
from gp_ensembles.numerics.pareto import smooth_weights
from gp_ensembles.papers.quadrature.ascent import gradient_ascent, periodogram_starts
from gp_ensembles.papers.quadrature.evidence import EvidenceSampler, EvidenceState
from gp_ensembles.papers.quadrature.importance import TRUSTED_K, ImportanceDraws
from gp_ensembles.papers.quadrature.policies import InformationPolicy, Policy, PriorPolicy
from gp_ensembles.papers.quadrature.prior import draw_seed, draw_stratified
from gp_ensembles.papers.quadrature.problem import Evaluations, RegressionProblem
from gp_ensembles.papers.quadrature.quadrature import (
    EvidenceEstimate,
    QuadratureNodes,
    draw_nodes,
    estimate_evidence,
)
from gp_ensembles.papers.quadrature.student_mixture import StudentMixture
from gp_ensembles.papers.quadrature.surrogate import Surrogate, fit_surrogate

NODES_PER_SIZE = 256
FINAL_NODES_PER_SIZE = 1024
COVARIANCE_NODES = 96
_FEWEST_EFFECTIVE = 3.0  # smallest effective number of draws that counts as covering the likelihood
_CHUNK = 32  # draws evaluated at a time: between two of these a search can be stopped and saved
_GAIN = 1.0  # nats that the last part of an ascent must have gained for the ascent to be continued
_PRIOR, _PERIODOGRAM, _ASCENT, _POLICY = range(4)  # origins of evaluations
_KIND = Kind("gp_ensembles marginalization", 9, "a marginalization", "remove it or name another file")


class Search(NamedTuple):
    r"""Settings of the search for kernels.

    Args:
        policy: Selects kernels between ascents. ``None``: information where draws from the prior cover the likelihood
            (it halves the error of predictions), further draws where they do not (ascents find the mass there, and
            information is not worth its cost).
        initial_share: Share of the budget that goes to draws from the prior first.
        batch_size: Kernels that the policy selects at a time.
        num_ascents: Ascents to start before any is continued; 0 for none at all.
        ascent_evaluations: Likelihoods of a part of an ascent.
        coverage_threshold: Effective share of the draws from the prior, :math:`(\sum L)^2 / (h \sum L^2)`, above which
            there are neither ascents nor periodogram peaks: draws cover such a likelihood, and points that seek its
            maximum would only mislead the surrogate.
        use_periodogram: Whether kernels at the peaks of the periodogram are tried (one input only).
    """

    policy: Policy | None = None
    initial_share: float = 0.3
    batch_size: int = 5
    num_ascents: int = 4
    ascent_evaluations: int = 20
    coverage_threshold: float = 0.1
    use_periodogram: bool = True


class Round(NamedTuple):
    """Totals after a round: evaluations, seconds, best log-likelihood, log evidence and its standard deviation."""

    evaluations: int
    seconds: float
    best_log_likelihood: float
    log_evidence: float
    log_evidence_sd: float


class AscentPath(NamedTuple):
    """An ascent: the row of its best kernel among the evaluations, its log-likelihood, and the last part's gain."""

    row: int
    log_likelihood: float
    gain: float


class SearchState(NamedTuple):
    """State of a search, all that a checkpoint holds.

    Args:
        evaluations: Evaluated kernels.
        origins: Where each came from: 0 prior, 1 periodogram, 2 ascent, 3 policy; shape (h,).
        ascents: The ascents so far.
        seconds: Time spent on likelihoods, ascents, the surrogate and the policy.
        random: State of the generator.
        nodes_seed: Seed of the nodes of all integrals.
        pending: Draws from the prior that are yet to be evaluated, shape (p, C).
        history: Totals after each round.
        importance: Importance sampling of the evidence, once the search is over.
    """

    evaluations: Evaluations
    origins: Tensor
    ascents: tuple[AscentPath, ...]
    seconds: dict[str, float]
    random: Tensor
    nodes_seed: int
    pending: Tensor
    history: tuple[Round, ...] = ()
    importance: EvidenceState | None = None

    @property
    def num_evaluations(self) -> int:
        """Likelihoods that the search has evaluated so far."""
        return self.evaluations.log_likelihood.numel()


def init_search(
    problem: RegressionProblem, search: Search, evaluations: int, generator: torch.Generator
) -> SearchState:
    """The first state: draws from the prior are pending and nothing is evaluated."""
    nodes_seed = draw_seed(generator)
    count = max(2, min(evaluations, round(search.initial_share * evaluations)))
    drawn = draw_stratified(problem.prior, count, generator=generator)
    pending = drawn[_in_turns(problem.prior.num_components(drawn))]  # so that the first few have all sizes
    empty = Evaluations(drawn[:0], problem.y[:0])
    seconds = dict.fromkeys(("likelihoods", "ascents", "surrogate", "policy", "importance"), 0.0)
    return SearchState(empty, problem.y[:0].long(), (), seconds, generator.get_state(), nodes_seed, pending)


def evaluate_draws(problem: RegressionProblem, search: Search, state: SearchState, evaluations: int) -> SearchState:
    """Evaluate the next few pending draws; after the last of them, kernels at the peaks of the periodogram."""
    clock = time.perf_counter()
    cube = state.pending[:_CHUNK]
    state = _append(state, cube, problem.evaluate(cube), _PRIOR)._replace(pending=state.pending[_CHUNK:])
    if search.use_periodogram and not len(state.pending) and not prior_covers_likelihood(search, state):
        peaks = periodogram_starts(problem.X, problem.y, problem.prior)[: max(0, evaluations - state.num_evaluations)]
        state = _append(state, peaks, problem.evaluate(peaks), _PERIODOGRAM)
    return _add_seconds(state, "likelihoods", clock)


def _in_turns(components: Tensor) -> Tensor:
    """An order in which numbers of components take turns."""
    turn = torch.empty_like(components)
    for size in components.unique():
        mine = components == size
        turn[mine] = torch.ones_like(components[mine]).cumsum(0)
    return turn.argsort(stable=True)


def evaluate_ascent(problem: RegressionProblem, search: Search, state: SearchState, limit: int) -> SearchState:
    """Evaluate one part of an ascent, from a kernel not yet started from or on from the end of an earlier part."""
    clock = time.perf_counter()
    row, continued = _next_ascent(state, search)
    if row is None:
        return state
    found = gradient_ascent(problem.likelihoods, problem.prior, state.evaluations.cube[row], limit)
    first = state.num_evaluations
    state = _append(state, found.cube, found.log_likelihood, _ASCENT)
    values = found.log_likelihood.nan_to_num(nan=-torch.inf)
    top = int(values.argmax())
    before = float(state.evaluations.log_likelihood[row])
    ascent = AscentPath(first + top, float(values[top]), float(values[top]) - before)
    kept = tuple(old for index, old in enumerate(state.ascents) if index != continued)
    return _add_seconds(state._replace(ascents=(*kept, ascent)), "ascents", clock)


def prior_covers_likelihood(search: Search, state: SearchState) -> bool:
    """Whether draws from the prior cover the likelihood, so that a surrogate of it can be trusted."""
    drawn = state.evaluations.log_likelihood[state.origins == _PRIOR]
    weights = drawn[drawn.isfinite()].softmax(-1)
    if not weights.numel():
        return False
    effective = float(1.0 / weights.square().sum())
    pareto_k = float(smooth_weights(weights.log().unsqueeze(-1)).pareto_k)
    light = pareto_k <= TRUSTED_K or pareto_k == torch.inf  # infinite: too few draws for a tail
    return light and effective >= max(_FEWEST_EFFECTIVE, search.coverage_threshold * weights.numel())


def evaluate_batch(
    problem: RegressionProblem, search: Search, state: SearchState, surrogate: Surrogate, limit: int
) -> SearchState:
    """Evaluate a batch selected by the policy."""
    generator = torch.Generator()
    generator.set_state(state.random)
    clock = time.perf_counter()
    policy = search.policy
    if policy is None:
        policy = InformationPolicy() if prior_covers_likelihood(search, state) else PriorPolicy()
    cube = policy.select(surrogate, nodes_for(problem, state), limit, generator=generator).detach()
    state = _add_seconds(state, "policy", clock)
    clock = time.perf_counter()
    state = _append(state, cube, problem.evaluate(cube), _POLICY)._replace(random=generator.get_state())
    return _add_seconds(state, "likelihoods", clock)


def surrogate_for(problem: RegressionProblem, state: SearchState) -> Surrogate:
    """The surrogate fitted to everything evaluated so far."""
    return fit_surrogate(state.evaluations, problem.kernel_distance)


def nodes_for(problem: RegressionProblem, state: SearchState, per_size: int = NODES_PER_SIZE) -> QuadratureNodes:
    """The nodes of all integrals of this search, some of them around the best kernels."""
    best = state.evaluations.best(1).cube
    ends = state.evaluations.cube[[ascent.row for ascent in state.ascents]]
    generator = torch.Generator().manual_seed(state.nodes_seed)
    return draw_nodes(problem.prior, per_size, around=torch.cat([best, ends]), generator=generator)


def evidence_for(
    problem: RegressionProblem, surrogate: Surrogate, state: SearchState, per_size: int = NODES_PER_SIZE
) -> EvidenceEstimate:
    """Moments of the evidence under the surrogate."""
    nodes = nodes_for(problem, state, per_size)
    return estimate_evidence(surrogate, nodes, nodes.first(COVARIANCE_NODES))


def sampler_for(problem: RegressionProblem, state: SearchState) -> EvidenceSampler:
    """Importance sampling that starts from what the search has found."""
    return EvidenceSampler(problem, state.evaluations, [ascent.row for ascent in state.ascents])


def _next_ascent(state: SearchState, search: Search) -> tuple[int | None, int | None]:
    """Row to start from, and the ascent it continues: new ones first, then the best that still gains, then new ones."""
    fresh = state.evaluations.log_likelihood.nan_to_num(nan=-torch.inf).clone()
    fresh[state.origins == _ASCENT] = -torch.inf
    fresh[_started_from(state)] = -torch.inf
    best = int(fresh.argmax()) if bool((fresh > -torch.inf).any()) else None
    gaining = [index for index, ascent in enumerate(state.ascents) if ascent.gain > _GAIN]
    if len(state.ascents) >= search.num_ascents and gaining:
        index = max(gaining, key=lambda i: state.ascents[i].log_likelihood)
        return state.ascents[index].row, index
    return best, None


def _started_from(state: SearchState) -> Tensor:
    """Rows whose kernel is also the first of an ascent."""
    cube = state.evaluations.cube
    ascended = cube[state.origins == _ASCENT]
    others = (state.origins != _ASCENT).nonzero().squeeze(-1)
    if not ascended.numel():
        return others[:0]
    near = torch.cdist(cube[others], ascended, compute_mode="donot_use_mm_for_euclid_dist").amin(-1)
    return others[near < 1e-5]


def _append(state: SearchState, cube: Tensor, values: Tensor, origin: int) -> SearchState:
    origins = torch.cat([state.origins, state.origins.new_full((values.numel(),), origin)])
    return state._replace(evaluations=state.evaluations.append(cube, values), origins=origins)


def _add_seconds(state: SearchState, part: str, since: float) -> SearchState:
    return state._replace(seconds={**state.seconds, part: state.seconds[part] + time.perf_counter() - since})


def fingerprint(problem: RegressionProblem, search: Search) -> str:
    """Hash of the data, the prior's shape and quantiles, and the search settings that a checkpoint belongs to."""
    digest, prior = hashlib.sha256(), problem.prior
    probe = prior.bounds[0].new_tensor([0.1, 0.5, 0.9]).unsqueeze(-1)
    of_prior = prior.means.icdf(probe), prior.scales.icdf(probe), prior.log_prob_components
    rounded = [f"{value:.9e}" for tensor in of_prior for value in tensor.detach().flatten().tolist()]
    for tensor in (problem.X, problem.y):
        digest.update(tensor.detach().cpu().double().contiguous().numpy().tobytes())
    digest.update(repr(rounded).encode())
    digest.update(repr((prior.outputscale, prior.noise, prior.concentration, problem.reflection)).encode())
    digest.update(_name(search.policy).encode())
    digest.update(repr(search._replace(policy=None)).encode())
    digest.update(_name(problem.likelihood).encode())
    return digest.hexdigest()


def _name(choice: object) -> str:
    """A choice's class and settings, without its address in memory."""
    fields = tuple(choice) if isinstance(choice, tuple) else ()
    settings = [field.tolist() if isinstance(field, Tensor) else field for field in fields]
    return f"{type(choice).__module__}.{type(choice).__qualname__}{settings}"


def save_search(state: SearchState, path: Path, mark: str) -> None:
    """Write a search to a file, atomically."""
    content = {
        "fingerprint": mark,
        "cube": state.evaluations.cube,
        "log_likelihood": state.evaluations.log_likelihood,
        "origins": state.origins,
        "ascents": [tuple(ascent) for ascent in state.ascents],
        "seconds": state.seconds,
        "random": state.random,
        "nodes_seed": state.nodes_seed,
        "pending": state.pending,
        "history": [tuple(totals) for totals in state.history],
        "importance": None if state.importance is None else _plain(state.importance),
    }
    write_checkpoint(path, _KIND, content)


def load_search(path: Path, problem: RegressionProblem, search: Search) -> SearchState:
    """Read a search of a problem from a file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If the file is not the checkpoint of a search, or that of another problem or search.
    """
    content = read_checkpoint(path, _KIND)
    if content["fingerprint"] != fingerprint(problem, search):
        raise ValueError(
            f"{path} belongs to another data set, prior or search; remove it to start afresh, or name another file"
        )
    return SearchState(
        Evaluations(content["cube"], content["log_likelihood"]),
        content["origins"],
        tuple(AscentPath(*ascent) for ascent in content["ascents"]),
        content["seconds"],
        content["random"],
        content["nodes_seed"],
        content["pending"],
        tuple(Round(*totals) for totals in content["history"]),
        None if content["importance"] is None else _importance(*content["importance"]),
    )


def _plain(importance: EvidenceState) -> tuple[object, ...]:
    """Tuples of tensors and numbers, which files hold."""
    draws, sound = (
        [
            None if one is None else (*one._replace(proposals=()), [tuple(mixture) for mixture in one.proposals])
            for one in some
        ]
        for some in (importance.draws, importance.sound)
    )
    return draws, importance.num_evaluations, importance.clean, sound


def _importance(draws: list[Any], num_evaluations: int, clean: Sequence[int], sound: list[Any]) -> EvidenceState:
    found, kept = ([_draws(one) for one in some] for some in (draws, sound))
    return EvidenceState(tuple(found), num_evaluations, tuple(clean), tuple(kept))


def _draws(one: Any) -> ImportanceDraws | None:
    return (
        None
        if one is None
        else ImportanceDraws(*one[:-1])._replace(
            counts=tuple(one[2]),
            proposals=tuple(StudentMixture(*mixture) for mixture in one[-1]),
            effective=tuple(one[6]),
        )
    )
