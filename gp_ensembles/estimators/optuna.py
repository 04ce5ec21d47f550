"""Exact ensembles as a sampler of Optuna."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, final

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement, LogProbabilityOfFeasibility
from botorch.optim.optimize_mixed import optimize_acqf_mixed_alternating
from torch import Tensor

from gp_ensembles.bo import ExactEnsembleModel, WeightedAcquisition

try:
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.search_space import IntersectionSearchSpace
    from optuna.study import Study, StudyDirection
    from optuna.trial import FrozenTrial, TrialState
except ImportError:
    raise ImportError("gp_ensembles.estimators.optuna needs Optuna; install gp_ensembles[optuna]") from None

_RESTARTS, _RAW_SAMPLES = 3, 128
_MOST_STEPS = 100  # values of a number that are searched one by one; more are searched as if continuous


@final
class EnsembleSampler(BaseSampler):
    r"""Suggests trials by the expected improvement of an :class:`~gp_ensembles.bo.ExactEnsembleModel`.

    The first trials are random. After them an ensemble learns all that are complete, and the next trial is where

    .. math:: \log E\big[(f(x) - f^*)_+\big] + \sum_k \log P\big(c_k(x) \le 0\big)

    is highest, with f turned so that more is better, :math:`f^*` the best feasible value, and an ensemble for each
    constraint that trials set (``trial.set_constraint``); while no trial is feasible only the second term counts. Trials
    that run count as if they had ended with what is expected of them. Numbers are searched on their own scale, linear or
    logarithmic, with their steps; categories have no order. Parameters that not all trials have are random.

    Args:
        seed: Makes a study with one worker reproducible.
        n_startup_trials: Trials before the ensemble is asked.

    Raises:
        ValueError: In a study of several objectives.

    Example:
        >>> import optuna  # doctest: +SKIP
        >>> study = optuna.create_study(sampler=EnsembleSampler(seed=0))  # doctest: +SKIP
        >>> study.optimize(lambda t: (t.suggest_float("x", -1, 1) - 0.3) ** 2, n_trials=20)  # doctest: +SKIP
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 10) -> None:
        if n_startup_trials < 2:
            raise ValueError(f"n_startup_trials is {n_startup_trials}; an ensemble needs at least two trials")
        self._random = RandomSampler(seed)
        self._seeds = torch.Generator(device="cpu")
        self._seeds.seed() if seed is None else self._seeds.manual_seed(seed)
        self._space = IntersectionSearchSpace()
        self._num_startup = n_startup_trials

    def reseed_rng(self) -> None:
        """Other random numbers for another worker."""
        self._random.reseed_rng()
        self._seeds.seed()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """What all trials have in common, but for parameters of one value."""
        if len(study.directions) > 1:
            raise ValueError(f"EnsembleSampler takes one objective, and this study has {len(study.directions)}")
        return {name: kind for name, kind in self._space.calculate(study).items() if not kind.single()}

    def sample_independent(self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        """A random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Any:
        """The next trial, or nothing while there are too few."""
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        Y = _column([each.value for each in done])
        if not search_space or len(done) < self._num_startup or not bool(Y.isfinite().any()):
            return {}
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        running = [t for t in running if t.number != trial.number and search_space.keys() <= t.params.keys()]
        Y = Y.clamp(*Y[Y.isfinite()].aminmax())
        Y = -Y if study.direction == StudyDirection.MINIMIZE else Y
        seed = int(torch.randint(2**31, (), generator=self._seeds, device="cpu"))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            acquisition = _acquisition(search_space, done, Y, running)
            x = _highest(acquisition, search_space)
        return {name: _value(kind, u) for (name, kind), u in zip(search_space.items(), x, strict=True)}


@final
class _Sum(AcquisitionFunction):
    """The sum of logarithmic acquisition functions."""

    def __init__(self, parts: Sequence[AcquisitionFunction]) -> None:
        super().__init__(parts[0].model)
        self.parts = torch.nn.ModuleList(parts)

    def forward(self, X: Tensor) -> Tensor:
        return torch.stack([part(X) for part in self.parts]).sum(0)


def _acquisition(
    space: dict[str, BaseDistribution], done: list[FrozenTrial], Y: Tensor, running: list[FrozenTrial]
) -> AcquisitionFunction:
    """Log expected improvement of feasible trials, and the log probability of each constraint."""
    X, pending = _inputs(space, done), _inputs(space, running)
    names = sorted({name for each in done for name in each.constraints})
    C = torch.cat([Y[:, :0], *(_column([t.constraints.get(name, math.nan) for t in done]) for name in names)], dim=-1)
    feasible = (C <= 0).all(-1)
    parts: list[AcquisitionFunction] = []
    for column in C.mT.unsqueeze(-1):
        model, _ = _learned(space, X, column, pending)
        parts.append(WeightedAcquisition(model, lambda each: LogProbabilityOfFeasibility(each, {0: (None, 0.0)})))
    if bool(feasible.any()):
        model, believed = _learned(space, X, Y, pending)
        best = torch.cat([Y[feasible], believed]).max()
        parts.append(WeightedAcquisition(model, lambda each: LogExpectedImprovement(each, best_f=best)))
    return parts[0] if len(parts) == 1 else _Sum(parts)


def _learned(
    space: dict[str, BaseDistribution], X: Tensor, Y: Tensor, pending: Tensor
) -> tuple[ExactEnsembleModel, Tensor]:
    """A fitted model, which believes its own expectation at pending points, and that expectation."""
    categories = [place for place, kind in enumerate(space.values()) if isinstance(kind, CategoricalDistribution)]
    model = ExactEnsembleModel(X, Y, cat_dims=categories)
    if bool((Y[0] != Y).any()):
        model.fit()
    if not pending.shape[0]:
        return model, Y[:0]
    with torch.no_grad():
        believed = model.posterior(pending).mean
        return model.condition_on_observations(pending, believed), believed


def _highest(acquisition: AcquisitionFunction, space: dict[str, BaseDistribution]) -> list[float]:
    """Where an acquisition function is highest, in coordinates."""
    categories = {}
    steps = {}
    bounds = torch.zeros(2, len(space), dtype=torch.float64, device="cpu")
    for place, kind in enumerate(space.values()):
        values = _grid(kind)
        bounds[1, place] = values[-1] if values else 1.0
        if values:
            (categories if isinstance(kind, CategoricalDistribution) else steps)[place] = values
    with warnings.catch_warnings():  # of searches that end where the function is flat
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        X, _ = optimize_acqf_mixed_alternating(
            acquisition, bounds, steps, categories, {"max_discrete_values": _MOST_STEPS}, 1, _RAW_SAMPLES, _RESTARTS
        )
    coordinates: list[float] = X[0].tolist()
    return coordinates


def _column(values: Sequence[float | None]) -> Tensor:
    return torch.tensor([[math.nan if value is None else value] for value in values], dtype=torch.float64, device="cpu")


def _inputs(space: dict[str, BaseDistribution], trials: Sequence[FrozenTrial]) -> Tensor:
    """Coordinates of trials, shape (n, D)."""
    rows = [[_coordinate(kind, each.params[name]) for name, kind in space.items()] for each in trials]
    return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(len(trials), len(space))


def _grid(kind: Any) -> list[float]:
    """All coordinates there are, if they are few."""
    if isinstance(kind, CategoricalDistribution):
        return [float(place) for place in range(len(kind.choices))]
    if kind.step is None or (kind.high - kind.low) / kind.step >= _MOST_STEPS:
        return []
    count = round((kind.high - kind.low) / kind.step)
    return [_coordinate(kind, kind.low + place * kind.step) for place in range(count + 1)]


def _coordinate(kind: Any, value: Any) -> float:
    """The number of a category, or a number's place in the unit interval."""
    if isinstance(kind, CategoricalDistribution):
        return float(kind.to_internal_repr(value))
    place, low, high = (math.log(v) if kind.log else v for v in (value, kind.low, kind.high))
    return (place - low) / (high - low)


def _value(kind: Any, coordinate: float) -> Any:
    """The value at a coordinate; see :func:`_coordinate`."""
    if isinstance(kind, CategoricalDistribution):
        return kind.choices[round(coordinate)]
    low, high = (math.log(v) if kind.log else v for v in (kind.low, kind.high))
    value = low + coordinate * (high - low)
    value = math.exp(value) if kind.log else value
    if kind.step is not None:
        value = kind.low + round((value - kind.low) / kind.step) * kind.step
    value = min(max(value, kind.low), kind.high)
    return int(value) if isinstance(kind.low, int) else value
