"""Search for kernels: prior draws, periodogram peaks, gradient ascents and batches selected by a policy."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from gp_ensembles.numerics.pareto import smooth_weights
from gp_ensembles.numerics.short_length_scales import short_length_scales
from gp_ensembles.papers.quadrature.evidence import EvidenceSampler, EvidenceState
from gp_ensembles.papers.quadrature.importance import TRUSTED_K
from gp_ensembles.papers.quadrature.kernel_mixture import Prediction, quadrature_prediction
from gp_ensembles.papers.quadrature.likelihoods import LogMarginalLikelihoods
from gp_ensembles.papers.quadrature.policies import InformationPolicy, Policy, PriorPolicy
from gp_ensembles.papers.quadrature.prior import EDGE, Hyperprior, draw_seed, draw_stratified, stick_levels
from gp_ensembles.papers.quadrature.problem import RegressionProblem, WeightedKernels
from gp_ensembles.papers.quadrature.quadrature import (
    Evidence,
    QuadratureNodes,
    draw_nodes,
    estimate_evidence,
    nearest_evidence,
    positive_weights,
    root_weights,
)
from gp_ensembles.papers.quadrature.surrogate import Evaluations, Surrogate

NODES_PER_SIZE = 256
FINAL_NODES_PER_SIZE = 1024
COVARIANCE_NODES = 96
_FEWEST_EFFECTIVE = 3.0  # minimum effective number of draws to cover the likelihood
_CHUNK = 32  # draws evaluated at once: a search can be stopped and saved in between
_GAIN = 1.0  # nats that the last part of an ascent must have gained for it to continue
_PRIOR, _PERIODOGRAM, _ASCENT, _POLICY = range(4)  # origins of evaluations
_OVERSAMPLING = 5  # frequencies per cycle over the range
_MAX_FREQUENCIES = 5_000
_FEWEST_HARMONIC = 3  # components: trend, frequency and a harmonic
_FEWEST_CYCLES = 4.0  # over the range, for a frequency with harmonics; slower ones belong to the trend
_NEAR_PEAK, _TRIED = 0.2, 5  # distance from a peak, in cycles over the range, and number of frequencies tried
_PRESENT = 8.0  # F statistic above which a harmonic is present
_TREND_SHARE = 0.5  # weight of a component at (almost) zero frequency, for a trend


class Search(NamedTuple):
    r"""Settings of the search for kernels.

    Args:
        policy: Selects kernels between ascents. ``None``: information if draws from the prior cover the likelihood
            (it halves the error of predictions), further draws if they do not (ascents find the mass then, and
            information is not worth its cost).
        initial_share: Share of the budget for initial draws from the prior.
        batch_size: Number of kernels that the policy selects at once.
        num_ascents: Number of ascents to start before any is continued; 0 for none.
        ascent_evaluations: Likelihoods per part of an ascent.
        coverage_threshold: Effective share of the draws from the prior, :math:`(\sum L)^2 / (h \sum L^2)`, above which
            there are neither ascents nor periodogram peaks: draws cover such a likelihood, and points near its
            maximum would only mislead the surrogate.
        use_periodogram: Whether to try kernels at periodogram peaks (one input only).
    """

    policy: Policy | None = None
    initial_share: float = 0.3
    batch_size: int = 5
    num_ascents: int = 4
    ascent_evaluations: int = 20
    coverage_threshold: float = 0.1
    use_periodogram: bool = True


class Round(NamedTuple):
    """Totals after a round."""

    evaluations: int
    seconds: float
    best_log_likelihood: float
    log_evidence: float
    log_evidence_sd: float


class AscentPath(NamedTuple):
    """An ascent: the row of its best kernel among the evaluations, its log likelihood, and the last part's gain."""

    row: int
    log_likelihood: float
    gain: float


class SearchState(NamedTuple):
    """State of a search, as stored in a checkpoint."""

    evaluations: Evaluations
    origins: Tensor  # origin of each: 0 prior, 1 periodogram, 2 ascent, 3 policy; (h,)
    ascents: tuple[AscentPath, ...]
    seconds: dict[str, float]  # spent on likelihoods, ascents, the surrogate and the policy
    random: Tensor  # state of the generator
    nodes_seed: int  # for all integrals
    pending: Tensor  # draws from the prior not yet evaluated, (p, C)
    history: tuple[Round, ...] = ()
    importance: EvidenceState | None = None  # once the search is over

    @property
    def num_evaluations(self) -> int:
        """Number of likelihoods evaluated by the search so far."""
        return self.evaluations.log_likelihood.numel()


def init_search(
    problem: RegressionProblem, search: Search, evaluations: int, generator: torch.Generator
) -> SearchState:
    """The initial state: draws from the prior are pending and nothing is evaluated."""
    nodes_seed = draw_seed(generator)
    count = max(2, min(evaluations, round(search.initial_share * evaluations)))
    drawn = draw_stratified(problem.prior, count, generator=generator)
    pending = drawn[_in_turns(problem.prior.num_components(drawn))]  # so that the first few include all sizes
    empty = Evaluations(drawn[:0], problem.y[:0])
    seconds = dict.fromkeys(("likelihoods", "ascents", "surrogate", "policy", "importance"), 0.0)
    return SearchState(empty, problem.y[:0].long(), (), seconds, generator.get_state(), nodes_seed, pending)


def evaluate_draws(problem: RegressionProblem, search: Search, state: SearchState, evaluations: int) -> SearchState:
    """Evaluate the next few pending draws; after the last of them, kernels derived from the data."""
    clock = time.perf_counter()
    values = problem.evaluate_in_time(state.pending[:_CHUNK])
    done, pending = state.pending.tensor_split([len(values)])
    state = _append(state, done, values, _PRIOR)._replace(pending=pending)
    if search.use_periodogram and not len(state.pending) and not prior_covers_likelihood(search, state):
        data = problem.X, problem.y, problem.prior
        starts = torch.cat([short_starts(*data), harmonic_starts(*data), periodogram_starts(*data)])
        starts = starts[: max(0, evaluations - state.num_evaluations)]
        values = problem.evaluate_in_time(starts)
        state = _append(state, starts[: len(values)], values, _PERIODOGRAM)
    return add_seconds(state, "likelihoods", clock)


def _in_turns(components: Tensor) -> Tensor:
    """An order that alternates numbers of components."""
    turn = torch.empty_like(components)
    for size in components.unique():
        mine = components == size
        turn[mine] = torch.ones_like(components[mine]).cumsum(0)
    return turn.argsort(stable=True)


def evaluate_ascent(problem: RegressionProblem, search: Search, state: SearchState, limit: int) -> SearchState:
    """Evaluate one part of an ascent, from a new kernel or from the end of an earlier part."""
    clock = time.perf_counter()
    row, continued = _next_ascent(state, search)
    if row is None:
        return state
    start = state.evaluations.cube[row]
    found = gradient_ascent(problem.likelihoods, problem.prior, start, limit, is_over=lambda: problem.deadline.is_over)
    first = state.num_evaluations
    state = _append(state, found.cube, found.log_likelihood, _ASCENT)
    values = found.log_likelihood.nan_to_num(nan=-torch.inf)
    top = int(values.argmax())
    before = float(state.evaluations.log_likelihood[row])
    ascent = AscentPath(first + top, float(values[top]), float(values[top]) - before)
    kept = tuple(old for index, old in enumerate(state.ascents) if index != continued)
    return add_seconds(state._replace(ascents=(*kept, ascent)), "ascents", clock)


def prior_covers_likelihood(search: Search, state: SearchState) -> bool:
    """Whether draws from the prior cover the likelihood, so that its surrogate is reliable."""
    drawn = state.evaluations.log_likelihood[state.origins == _PRIOR]
    weights = drawn[drawn.isfinite()].softmax(-1)
    if not weights.numel():
        return False
    effective = float(1.0 / weights.square().sum())
    pareto_k = float(smooth_weights(weights.log().unsqueeze(-1))[1])
    light = pareto_k <= TRUSTED_K or pareto_k == torch.inf  # infinite: too few draws for a tail
    return light and effective >= max(_FEWEST_EFFECTIVE, search.coverage_threshold * weights.numel())


def evaluate_batch(
    problem: RegressionProblem, search: Search, state: SearchState, quadrature: "Quadrature", limit: int
) -> SearchState:
    """Evaluate a batch selected by the policy, given the quadrature so far."""
    generator = torch.Generator()
    generator.set_state(state.random)
    clock = time.perf_counter()
    policy = search.policy
    if policy is None:
        policy = InformationPolicy() if prior_covers_likelihood(search, state) else PriorPolicy()
    cube = policy.select(quadrature.surrogate, quadrature.nodes, limit, generator=generator).detach()
    state = add_seconds(state, "policy", clock)
    clock = time.perf_counter()
    values = problem.evaluate_in_time(cube)
    state = _append(state, cube[: len(values)], values, _POLICY)._replace(random=generator.get_state())
    return add_seconds(state, "likelihoods", clock)


class Quadrature:
    """Evidence and weights of Bayesian quadrature (Hamid et al., 2022), by the surrogate of the likelihood."""

    def __init__(self, problem: RegressionProblem, state: SearchState) -> None:
        self.problem = problem
        self.state = state

    @cached_property
    def surrogate(self) -> Surrogate:
        """The surrogate fitted to everything evaluated so far."""
        return Surrogate(self.state.evaluations, self.problem.kernel_distance)

    @cached_property
    def nodes(self) -> QuadratureNodes:
        """Nodes for the weights and for the policy."""
        return self._draw_nodes(NODES_PER_SIZE)

    @cached_property
    def evidence(self) -> Evidence:
        """The evidence for each number of components, with more nodes."""
        return self.estimate(self._draw_nodes(FINAL_NODES_PER_SIZE))

    @property
    def log_evidence(self) -> float:
        """Log evidence of the targets, in nats."""
        return self.evidence.log_evidence

    @property
    def log_evidence_sd(self) -> float:
        """Its standard deviation under the surrogate, combined with that of the jackknife."""
        return self.evidence.log_evidence_sd

    @cached_property
    def log_weights(self) -> Tensor:
        """Log weights of the evaluated kernels, shape (h,), without those that have no likelihood."""
        return positive_weights(self.surrogate, self.nodes)

    @cached_property
    def root_weights(self) -> Tensor:
        """Weights of the paper's mixture of products of roots, shape (h, h)."""
        return root_weights(self.surrogate, self.nodes)

    @property
    def kernels(self) -> WeightedKernels:
        """The evaluated kernels with positive weights."""
        return WeightedKernels(*self.surrogate.evaluations, self.log_weights)

    def predict(self, X: Tensor) -> Prediction:
        """Moments of the targets at points (M, D) by the paper's products of roots, with standard errors."""
        return quadrature_prediction(self.problem, self.surrogate, self.nodes, X)

    def estimate(self, nodes: QuadratureNodes) -> Evidence:
        """The evidence from given nodes."""
        return estimate_evidence(self.surrogate, nodes, nodes.first(COVARIANCE_NODES))

    def nearest(self) -> Evidence:
        """A crude evidence by the nearest kernel, with unknown error, never above the largest likelihood."""
        return nearest_evidence(self.surrogate, self.nodes)

    def _draw_nodes(self, per_size: int) -> QuadratureNodes:
        """The first nodes for all integrals of this search, some of them around the best kernels."""
        evaluations = self.state.evaluations
        ends = evaluations.cube[[ascent.row for ascent in self.state.ascents]]
        around = torch.cat([evaluations.best(1).cube, ends])
        generator = torch.Generator().manual_seed(self.state.nodes_seed)
        return draw_nodes(self.problem.prior, per_size, around=around, generator=generator)


def sampler_for(problem: RegressionProblem, state: SearchState) -> EvidenceSampler:
    """Importance sampling that starts from the results of the search."""
    return EvidenceSampler(problem, state.evaluations, [ascent.row for ascent in state.ascents])


def _next_ascent(state: SearchState, search: Search) -> tuple[int | None, int | None]:
    """Starting row and continued ascent: first new ones, then the best that still gains, then new ones again."""
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
    """Rows with kernels from which an ascent started."""
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


def add_seconds(state: SearchState, part: str, since: float) -> SearchState:
    """The state with the seconds since ``since`` added to a part of the work."""
    return state._replace(seconds={**state.seconds, part: state.seconds[part] + time.perf_counter() - since})


def periodogram_starts(X: Tensor, y: Tensor, prior: Hyperprior) -> Tensor:
    """For each number of components, kernels at the largest peaks of a periodogram of data X (N, 1), y (N,).

    Returns rows of the cube, shape (4 N_max, C), or (0, C) for several inputs and for constant data.
    """
    flat = bool((X.amax(0) <= X.amin(0)).any()) or bool(y.amax() <= y.amin())
    if X.shape[1] != 1 or flat:
        return X.new_zeros(0, prior.num_columns)
    x = X.squeeze(-1) - X.mean()
    peaks, power = _peaks(x, y, prior.max_components, _nyquist(prior, X))
    median = prior.scales.icdf(X.new_full((1,), 0.5))
    narrow = (0.25 / (x.max() - x.min())).reshape(1)
    rows = []
    for scale in (median, narrow):
        for count in range(1, prior.max_components + 1):
            trend = (
                torch.cat([peaks.new_zeros(1), peaks[: count - 1]]),
                _shares(torch.cat([power.new_full((1,), _TREND_SHARE), power[: count - 1]])),
            )
            for means, weights in (trend, (peaks[:count], _shares(power[:count]))):
                rows.append(_row(prior, weights, means.unsqueeze(-1), scale.expand(count, 1)))
    return torch.stack(rows)


def harmonic_starts(X: Tensor, y: Tensor, prior: Hyperprior) -> Tensor:
    """Kernels with a trend, the main frequency of data X (N, 1), y (N,), and the harmonics that are present.

    Returns rows of the cube, (K, C), or (0, C) if there are no harmonics, or the prior has fewer than three components.
    """
    extent = float(X.amax() - X.amin())
    if X.shape[1] != 1 or prior.max_components < _FEWEST_HARMONIC or not extent > 0 or bool(y.amax() <= y.amin()):
        return X.new_zeros(0, prior.num_columns)
    x, nyquist = X.squeeze(-1) - X.mean(), _nyquist(prior, X)
    peaks, _ = _peaks(x, y, 2 * prior.max_components, nyquist)
    is_slow = peaks * extent < _FEWEST_CYCLES
    trend = [torch.ones_like(x), x / extent, (x / extent).square()]
    trend += [column for peak in peaks[is_slow] for column in _waves(peak, x)]
    near = torch.linspace(-_NEAR_PEAK, _NEAR_PEAK, _TRIED, device=X.device, dtype=X.dtype) / extent
    found = [_multiples(frequency, trend, x, y, prior) for frequency in (peaks[~is_slow, None] + near).flatten()]
    means, shares = max(found, key=lambda one: float(one[1].sum()) * (len(one[1]) > 1), default=(x[:0], x[:0]))
    narrow, rows = X.new_full((1,), 0.25 / extent), []
    for of_trend in (narrow, prior.scales.icdf(X.new_full((1,), 0.5))):
        for count in range(2, len(means) + 1):
            weights = _shares(torch.cat([shares.new_full((1,), _TREND_SHARE), shares[:count]]))
            scales = torch.cat([of_trend, narrow.expand(count)])
            rows.append(_row(prior, weights, torch.cat([0.0 * narrow, means[:count]])[:, None], scales[:, None]))
    return torch.stack(rows) if rows else X.new_zeros(0, prior.num_columns)


def _multiples(
    frequency: Tensor, trend: list[Tensor], x: Tensor, y: Tensor, prior: Hyperprior
) -> tuple[Tensor, Tensor]:
    """A frequency and the harmonics that are present in addition to a trend, and their shares of the rest."""
    columns, means, shares = list(trend), [], []
    plain = left = _residual(columns, y).square().sum()
    for multiple in range(1, prior.max_components):
        waves = _waves(multiple * frequency, x)
        rest = _residual([*columns, *waves], y).square().sum()
        present = float(left - rest) * len(x) > 2.0 * _PRESENT * float(rest)  # an F statistic of two columns
        if present and bool(multiple * frequency < _nyquist(prior, x)):
            columns += waves
            means.append(multiple * frequency)
            shares.append((left - rest) / plain)
            left = rest
        elif multiple == 1:
            break
    return torch.stack([*means, frequency])[: len(means)], torch.stack([*shares, plain])[: len(shares)]


def short_starts(X: Tensor, y: Tensor, prior: Hyperprior) -> Tensor:
    """A one-component kernel with the short length scales of rapidly varying data X (N, D), y (N,).

    Returns rows of the cube, shape (1, C), or (0, C) if there are none.
    """
    found = short_length_scales(X, y)
    if found is None:
        return X.new_zeros(0, prior.num_columns)
    scale = 0.5 / (math.pi * found).unsqueeze(0)
    return _row(prior, scale.new_ones(1), torch.zeros_like(scale), scale).unsqueeze(0)


def _shares(power: Tensor) -> Tensor:
    return power / power.sum()


def _peaks(x: Tensor, y: Tensor, count: int, nyquist: float) -> tuple[Tensor, Tensor]:
    """Frequencies and their shares of the variance, largest first."""
    extent = float(x.max() - x.min())
    size = min(max(int(nyquist * extent * _OVERSAMPLING), 1), _MAX_FREQUENCIES)
    grid = torch.arange(1, size + 1, device=x.device, dtype=x.dtype) * (nyquist / size)
    columns = [torch.ones_like(x), x / extent]
    residual = _residual(columns, y)
    total = y.square().sum()
    frequencies, shares = [], []
    angles = 2.0 * math.pi * grid.unsqueeze(-1) * x
    cosines, sines = angles.cos(), angles.sin()
    for _ in range(count):
        power = (cosines @ residual).square() + (sines @ residual).square()
        frequencies.append(grid[power.argmax()])
        columns += _waves(frequencies[-1], x)
        rest = _residual(columns, y)
        shares.append(((residual.square().sum() - rest.square().sum()) / total).clamp_min(1e-3))
        residual = rest
    return torch.stack(frequencies), torch.stack(shares)


def _waves(frequency: Tensor, x: Tensor) -> list[Tensor]:
    angle = 2.0 * math.pi * frequency * x
    return [angle.cos(), angle.sin()]


def _nyquist(prior: Hyperprior, like: Tensor) -> float:
    """The largest frequency under the prior of one input."""
    return float(prior.means.icdf(like.new_full((1,), 1.0 - EDGE)))


def _residual(columns: list[Tensor], y: Tensor) -> Tensor:
    design = torch.stack(columns, -1)
    # singular for few rows, for which this is the minimum-norm solution
    value: Tensor = y - design @ torch.linalg.pinv(design) @ y
    return value


def _row(prior: Hyperprior, weights: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Inverse of the prior's map: sticks from weights, probabilities from means and scales (n, D) by bisection."""
    count = weights.numel()
    parts = _probability(prior.means.icdf, means), _probability(prior.scales.icdf, scales)
    levels = [stick_levels(weights), *(part.flatten() for part in parts)]
    levels.append(weights.new_full((prior.num_scalars,), 0.5))
    return prior.embed(torch.cat(levels).clamp(EDGE, 1.0 - EDGE), count)


def _probability(icdf: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """Probabilities of values by bisection of a prior's quantile function."""
    lower, upper = torch.full_like(values, EDGE), torch.full_like(values, 1.0 - EDGE)
    for _ in range(50):
        middle = 0.5 * (lower + upper)
        below = icdf(middle) < values
        lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
    return 0.5 * (lower + upper)


def gradient_ascent(
    likelihoods: LogMarginalLikelihoods,
    prior: Hyperprior,
    start: Tensor,
    max_evaluations: int,
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Evaluations:
    r"""L-BFGS from a kernel (C,) toward larger :math:`\log L + \log N(v; 0, I)`; stores every evaluation."""
    components = int(prior.num_components(start))
    cubes: list[Tensor] = []
    values: list[Tensor] = []

    def objective(point: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) >= max_evaluations or (values and is_over()):
            raise StopIteration
        v = torch.as_tensor(point).to(start).requires_grad_()
        cube = prior.embed_normal(v, components).unsqueeze(0)
        value = likelihoods(*prior.hyperparameters(cube)).squeeze(0)
        cubes.append(cube.detach().squeeze(0))
        values.append(value.detach())
        if not bool(value.isfinite()):
            raise StopIteration
        target = 0.5 * v.square().sum() - value
        (gradient,) = torch.autograd.grad(target, v)
        return float(target.detach()), gradient.cpu().double().numpy()

    first = prior.normal_quantiles(start, components).cpu().double().numpy()
    limit = float(torch.special.ndtri(start.new_tensor(1.0 - EDGE)))
    with suppress(StopIteration):  # evaluations are used up, or a likelihood failed
        minimize(objective, first, jac=True, method="L-BFGS-B", bounds=[(-limit, limit)] * len(first))
    return Evaluations(torch.stack(cubes), torch.stack(values))
