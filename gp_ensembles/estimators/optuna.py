"""Exact ensembles as a sampler of Optuna."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement, LogProbabilityOfFeasibility
from botorch.generation.gen import gen_candidates_scipy
from torch import Tensor

from gp_ensembles.bo import ExactEnsembleModel, WeightedAcquisition
from gp_ensembles.bo.exact_kernels import Hyperparameters

try:
    import optuna
    from optuna.samplers import BaseSampler
except ImportError:  # an extra: said as soon as a sampler is made
    optuna, BaseSampler = None, object

Space: TypeAlias = Mapping[str, Any]  # a distribution for each parameter
Fits: TypeAlias = dict[str, tuple[int, Hyperparameters]]  # by constraint: after how many trials, and what was found

_OBJECTIVE = ""
# Points of each kind, the best of them, steps from there
_PLACES, _STARTS, _SEARCH = 512, 2, {"maxiter": 8, "maxls": 4}
_SPREAD, _STAY = 4, 0.7  # powers of ten of distances to the best trial; how often a category is its own
_LONGEST_GRID = 100  # longer ones are searched like numbers without steps


@final
class EnsembleSampler(BaseSampler):
    r"""Suggests trials by the expected improvement of an :class:`~gp_ensembles.bo.ExactEnsembleModel`.

    The first trials are random. After them an ensemble learns all that are complete, and the next trial is where

    .. math:: \log E\big[(f(x) - f^*)_+\big] + \sum_k \log P\big(c_k(x) \le 0\big)

    is highest, with f negated where less is better, :math:`f^*` the best feasible value and an ensemble for each
    constraint that trials set (``trial.set_constraint``); while none is feasible only the second term counts. Trials
    that run count as if they had ended with what is expected of them. Parameters that not all trials have are random.

    Args:
        seed: Makes a study with one worker reproducible.
        n_startup_trials: Trials before the ensemble is asked.

    Raises:
        ImportError: If Optuna is not installed.
        ValueError: If a study has several objectives, or fewer than two trials are to be random.

    Example:
        >>> study = optuna.create_study(sampler=EnsembleSampler(seed=0))  # doctest: +SKIP
        >>> study.optimize(lambda t: (t.suggest_float("x", -1, 1) - 0.3) ** 2, n_trials=20)  # doctest: +SKIP
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 10) -> None:
        if optuna is None:
            raise ImportError("EnsembleSampler needs Optuna; install gp_ensembles[optuna]")
        if n_startup_trials < 2:
            raise ValueError(f"n_startup_trials is {n_startup_trials}; an ensemble needs at least two trials")
        self._random = optuna.samplers.RandomSampler(seed)
        self._generator = torch.Generator(device="cpu")
        self._generator.seed() if seed is None else self._generator.manual_seed(seed)
        self._num_startup = n_startup_trials
        self._fits: dict[tuple[str, ...], Fits] = {}  # by study and parameters

    def reseed_rng(self) -> None:
        """Other random numbers for another worker."""
        self._random.reseed_rng()
        self._generator.seed()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """What all trials have in common, but for parameters of one value."""
        if len(study.directions) > 1:
            raise ValueError(f"EnsembleSampler takes one objective, and this study has {len(study.directions)}")
        space = optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))
        return {name: kind for name, kind in space.items() if not kind.single()}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """A random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(self, study: Any, trial: Any, search_space: Space) -> Any:
        """The next trial, or nothing while there are too few."""
        others = [t for t in study.get_trials(deepcopy=False) if search_space.keys() <= t.params.keys()]
        done = [t for t in others if t.state == optuna.trial.TrialState.COMPLETE]
        running = [t for t in others if t.state == optuna.trial.TrialState.RUNNING and t.number != trial.number]
        Y = _column([each.value for each in done])
        if not search_space or len(done) < self._num_startup or not bool(Y.isfinite().any()):
            return {}
        Y = Y.clamp(*Y[Y.isfinite()].aminmax())
        Y = -Y if study.direction == optuna.study.StudyDirection.MINIMIZE else Y
        fits = self._fits.setdefault((study.study_name, *search_space), {})
        acquisition, best = _acquisition(search_space, done, Y, running, fits)
        points = _highest(acquisition, best, [_grid(kind) for kind in search_space.values()], self._generator)
        points = points if running else points[:1]
        ranked = [{n: _value(kind, u) for (n, kind), u in zip(search_space.items(), x, strict=True)} for x in points]
        taken = [{name: t.params[name] for name in search_space} for t in running]
        return next((each for each in ranked if each not in taken), ranked[0])


def _acquisition(
    space: Space, done: Sequence[Any], Y: Tensor, running: Sequence[Any], fits: Fits
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """What is to be maximized, and the best point so far."""
    X, pending = _inputs(space, done), _inputs(space, running)
    categories = [place for place, kind in enumerate(space.values()) if _is_category(kind)]

    def learned(name: str, Y: Tensor, threshold: float) -> tuple[ExactEnsembleModel, Tensor, float]:
        """A model in units of deviations, what it believes of running trials, and a number in these units."""
        known = Y[~Y.isnan()]
        mean, scale = float(known.mean()), float(known.std(correction=0)) or 1.0
        model = ExactEnsembleModel(X, (Y - mean) / scale, outcome_transform=None, cat_dims=categories)
        last, hyperparameters = fits.get(name, (0, model.hyperparameters))
        if last and len(X) < last + last // 10:
            model.with_hyperparameters_(hyperparameters)
        elif bool((known[0] != known).any()):
            fits[name] = len(X), model.fit().hyperparameters
        if running:
            with torch.no_grad():
                posterior: Any = model.posterior(pending)
                believed = posterior.mean
                model = model.condition_on_observations(pending, believed)
        return model, believed if running else Y[:0], (threshold - mean) / scale

    names = sorted({name for each in done for name in each.constraints})
    C = torch.cat([Y[:, :0], *(_column([t.constraints.get(name) for t in done]) for name in names)], dim=-1)
    feasible = (C <= 0).all(-1)
    parts: list[AcquisitionFunction] = []
    for name, column in zip(names, C.mT.unsqueeze(-1), strict=True):
        model, _, zero = learned(name, _finite(column), 0.0)
        parts.append(WeightedAcquisition(model, partial(LogProbabilityOfFeasibility, constraints={0: (None, zero)})))
    if bool(feasible.any()):
        clamped = _without_outliers(Y)
        model, believed, best = learned(_OBJECTIVE, clamped, float(clamped[feasible].max()))
        best = max([best, *believed[:, 0].tolist()])
        parts.append(WeightedAcquisition(model, partial(LogExpectedImprovement, best_f=best)))
    best_point = X[torch.where(feasible, Y[:, 0], -torch.inf).argmax()]
    return lambda x: torch.stack([part(x) for part in parts]).sum(0), best_point


def _finite(values: Tensor) -> Tensor:
    """Infinite values as the largest finite one, with their own sign; as one if there is none."""
    bound = max(values[values.isfinite()].abs().tolist(), default=0.0) or 1.0
    return values.clamp(-bound, bound)


def _without_outliers(Y: Tensor) -> Tensor:
    """Values below the mirror image of the best about the median count as that: how bad they are says little."""
    return Y.clamp_min(2 * Y.median() - Y.max())


def _highest(
    acquisition: Callable[[Tensor], Tensor], best: Tensor, grids: list[list[float]], generator: torch.Generator
) -> list[list[float]]:
    """Points, the best first: ends of searches uphill and along the grids, then those everywhere and about the best."""
    draw = partial(torch.rand, generator=generator, dtype=torch.float64, device="cpu")
    everywhere = draw(_PLACES, len(grids))
    steps = 10 ** (-_SPREAD * draw(_PLACES, 1)) * (2 * draw(_PLACES, len(grids)) - 1)
    near = (best + steps).clamp(0, 1)
    values = {place: best.new_tensor(grid) for place, grid in enumerate(grids) if grid}
    for place, grid in values.items():
        everywhere[:, place] = grid[(everywhere[:, place] * len(grid)).long()]
        near[:, place] = best[place].where(draw(_PLACES) < _STAY, everywhere[:, place])
    with torch.no_grad():
        drawn = torch.stack([everywhere, near]).unsqueeze(-2)
        heights = torch.stack([acquisition(part) for part in drawn])
        X = torch.cat([part[own.topk(_STARTS).indices] for part, own in zip(drawn, heights, strict=True)])
    for _ in range(2 if values else 1):
        if len(values) < len(grids):
            fixed = {place: X[:, 0, place] for place in values}
            search: Any = partial(gen_candidates_scipy, options=_SEARCH, fixed_features=fixed)
            with warnings.catch_warnings(record=True):  # of searches that end where the function is flat
                X, _ = search(X, acquisition, 0.0, 1.0)
        for place, grid in values.items():
            others = X.unsqueeze(1).repeat(1, len(grid), 1, 1)
            others[..., 0, place] = grid
            with torch.no_grad():
                X = torch.stack([some[acquisition(some).argmax()] for some in others])
    with torch.no_grad():
        ends = X[acquisition(X).argsort(descending=True, stable=True)]
    starts = drawn.flatten(0, 1)[heights.flatten().argsort(descending=True)]
    points: list[list[float]] = torch.cat([ends, starts]).squeeze(-2).tolist()
    return points


def _column(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([[math.nan if value is None else value] for value in values], dtype=torch.float64, device="cpu")


def _inputs(space: Space, trials: Sequence[Any]) -> Tensor:
    rows = [[_coordinate(kind, each.params[name]) for name, kind in space.items()] for each in trials]
    return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(len(trials), len(space))


def _grid(kind: Any) -> list[float]:
    """All coordinates of a parameter, if they are few."""
    if _is_category(kind):
        return [float(place) for place in range(len(kind.choices))]
    count = math.inf if kind.step is None else (kind.high - kind.low) / kind.step
    steps = range(round(count) + 1) if count < _LONGEST_GRID else ()
    return [_coordinate(kind, kind.low + step * kind.step) for step in steps]


def _is_category(kind: Any) -> bool:
    return isinstance(kind, optuna.distributions.CategoricalDistribution)


def _coordinate(kind: Any, value: Any) -> float:
    """The number of a category, or a number's place in the unit interval."""
    if _is_category(kind):
        return float(kind.to_internal_repr(value))
    place, low, high = (math.log(v) if kind.log else v for v in (value, kind.low, kind.high))
    return float((place - low) / (high - low))


def _value(kind: Any, coordinate: float) -> Any:
    """What :func:`_coordinate` makes a coordinate of."""
    if _is_category(kind):
        return kind.choices[round(coordinate)]
    low, high = (math.log(v) if kind.log else v for v in (kind.low, kind.high))
    value = low + coordinate * (high - low)
    value = math.exp(value) if kind.log else value
    value = value if kind.step is None else kind.low + round((value - kind.low) / kind.step) * kind.step
    return type(kind.low)(min(max(value, kind.low), kind.high))
