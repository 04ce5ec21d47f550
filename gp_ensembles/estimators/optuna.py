"""An Optuna sampler based on exact ensembles."""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from botorch.acquisition.analytic import LogExpectedImprovement, LogProbabilityOfFeasibility
from torch import Tensor

from gp_ensembles.bo import ExactEnsembleModel

try:
    import optuna
    from optuna.samplers import BaseSampler
except ImportError:  # optional: reported when a sampler is created
    optuna, BaseSampler = None, object

_POINTS, _ROUNDS, _CENTERS, _SPREAD = 512, 12, 8, 4.0  # points per round; rounds; centers; decades of distances
_tensor = partial(torch.tensor, dtype=torch.float64, device="cpu")


@final
class EnsembleSampler(BaseSampler):
    r"""Suggests trials by the expected improvement of an :class:`~gp_ensembles.bo.ExactEnsembleModel`.

    The first trials are random. Then a model is fitted to all complete trials, and the next trial maximizes

    .. math:: \log E\big[(f(x) - f^*)_+\big] + \sum_k \log P\big(c_k(x) \le 0\big)

    with f negated for minimization, :math:`f^*` the best feasible value and one model for each
    constraint; as long as no trial is feasible, only the second term is used. Running trials are imputed by their
    expected values, infinite values by the best or worst finite one. Bad values are clipped at the best value's
    reflection about the median, infinite constraints at the largest finite size. Conditional parameters are random.

    Args:
        seed: Seed that makes a study with one worker reproducible.
        n_startup_trials: Number of random trials before the model is used.

    Raises:
        ImportError: If Optuna is not installed.
        ValueError: If a study has several objectives, or ``n_startup_trials`` is less than two.

    Example:
        >>> import optuna  # doctest: +SKIP
        >>> study = optuna.create_study(sampler=EnsembleSampler(seed=0))  # doctest: +SKIP
        >>> study.optimize(lambda t: (t.suggest_float("x", -1, 1) - 0.3) ** 2, n_trials=20)  # doctest: +SKIP
    """

    def __init__(self, *, seed: int | None = None, n_startup_trials: int = 10) -> None:
        if optuna is None:
            raise ImportError("EnsembleSampler needs Optuna; install gp_ensembles[optuna]")
        if n_startup_trials < 2:
            raise ValueError(f"n_startup_trials is {n_startup_trials}; a model needs at least two trials")
        self._random = optuna.samplers.RandomSampler(seed)
        self._generator = torch.Generator(device="cpu")
        self._generator.seed() if seed is None else self._generator.manual_seed(seed)
        self._num_startup = n_startup_trials
        self._fits: dict[Any, tuple[int, Any]] = {}  # number of trials, and fitted hyperparameters

    def reseed_rng(self) -> None:
        """Reseed the generator, for another worker."""
        self._random.reseed_rng()
        self._generator.seed()

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Parameters common to all trials, without those that have a single value."""
        if len(study.directions) > 1:
            raise ValueError(f"EnsembleSampler supports one objective, but this study has {len(study.directions)}")
        space = optuna.search_space.intersection_search_space(study.get_trials(deepcopy=False))
        return {name: kind for name, kind in space.items() if not kind.single()}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """A random value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
        """Parameters of the next trial; empty while there are too few trials."""
        others = [t for t in study.get_trials(deepcopy=False) if search_space.keys() <= t.params.keys()]
        done = [t for t in others if t.state == optuna.trial.TrialState.COMPLETE]
        running = [t for t in others if t.state == optuna.trial.TrialState.RUNNING and t.number != trial.number]
        Y = _tensor([t.value for t in done]) * (-1 if study.direction == optuna.study.StudyDirection.MINIMIZE else 1)
        if not search_space or len(done) < self._num_startup or not bool(Y.isfinite().any()):
            return {}
        rows = [[kind.to_internal_repr(t.params[name]) for name, kind in search_space.items()] for t in done + running]
        axes = _tensor([_axis(kind) for kind in search_space.values()]).mT
        X, pending = _scaled(_tensor(rows), axes).split([len(done), len(running)])

        def learned(y: Tensor, *name: str) -> Any:
            """A model of values, in which running trials have their expected values."""
            key = (study.study_name, *search_space, name)
            model: Any = ExactEnsembleModel(X, y.unsqueeze(-1), cat_dims=axes[4].nonzero())
            last, hyperparameters = self._fits.get(key, (0, None))
            if len(X) < last + last // 10:
                model.with_hyperparameters_(hyperparameters)
            elif len(y[~y.isnan()].unique()) > 1:
                self._fits[key] = len(X), model.fit().hyperparameters
            return model.condition_on_observations(pending, model.posterior(pending).mean) if running else model

        parts: list[Any] = [lambda x: -1e9 * ((x - pending).abs() < 1e-9).all(-1).any(-1)]
        feasible = torch.ones_like(Y, dtype=torch.bool)
        for name in sorted({name for t in done for name in t.constraints}):
            C = _tensor([t.constraints.get(name, torch.nan) for t in done])
            feasible &= C <= 0
            bound = max(C[C.isfinite()].abs().tolist(), default=0.0) or 1.0
            parts.append(LogProbabilityOfFeasibility(learned(C.clamp(-bound, bound), name), {0: (None, 0.0)}))
        if bool(feasible.any()):
            Y = Y.clamp(*Y[Y.isfinite()].aminmax())
            Y = Y.clamp_min(2 * Y.median() - Y.max())  # the magnitude of very bad values says little
            model = learned(Y)
            believed = model.posterior(pending).mean.mT if running else ()
            parts.append(LogExpectedImprovement(model, torch.cat([Y[feasible], *believed]).max()))
        best = X[torch.where(feasible, Y, -torch.inf).argmax()]
        numbers = _highest(lambda X: sum(part(X.unsqueeze(1)) for part in parts), best, axes, self._generator).tolist()
        return {name: kind.to_external_repr(x) for (name, kind), x in zip(search_space.items(), numbers, strict=True)}


def _highest(height: Callable[[Tensor], Tensor], best: Tensor, axes: Tensor, generator: torch.Generator) -> Tensor:
    """Parameters with the highest value, among global points and rounds of points around the best ones."""
    draw = partial(torch.rand, _POINTS, len(best), generator=generator, dtype=torch.float64, device="cpu")
    X = _scaled(_numbers(draw(), axes), axes)
    heights = height(X)
    for _ in range(_ROUNDS):
        centers = torch.cat([best.unsqueeze(0), X[heights.topk(_CENTERS - 1).indices]]).repeat(_POINTS // _CENTERS, 1)
        steps = 10 ** (-_SPREAD * draw()[:, :1]) * (2 * draw() - 1)
        moved = centers + steps.where(draw() < draw()[:, :1], 0)
        moved = _scaled(_numbers(moved.where(draw() > 0.5 / len(best), draw()), axes), axes)
        X, heights = torch.cat([X, moved]), torch.cat([heights, height(moved)])
    return _numbers(X[heights.argmax()], axes)


def _axis(kind: Any) -> tuple[float, float, float, bool, bool]:
    """Minimum, maximum, step, whether the scale is logarithmic, and whether it is a category (by its index)."""
    if isinstance(kind, optuna.distributions.CategoricalDistribution):
        return 0, len(kind.choices) - 1, 1, False, True
    return kind.low, kind.high, kind.step or torch.nan, kind.log, False


def _scaled(X: Tensor, axes: Tensor) -> Tensor:
    """Scale parameters to the unit cube."""
    X, low, high = (part.log().where(axes[3] > 0, part) for part in (X, *axes[:2].unbind()))
    return (X - low) / (high - low)


def _numbers(X: Tensor, axes: Tensor) -> Tensor:
    """Invert :func:`_scaled`, rounding to steps."""
    low, high, step, log, _ = axes.unbind()
    X = torch.where(log > 0, torch.lerp(low.log(), high.log(), X).exp(), torch.lerp(low, high, X))
    return (low + ((X - low) / step).round() * step).where(step > 0, X).clamp(low, high)
