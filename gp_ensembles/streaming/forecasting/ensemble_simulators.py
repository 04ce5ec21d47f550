"""The simulators of an ensemble, by the kind of each expert that has paths."""

from collections.abc import Callable
from typing import NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.input_checks import without_columns
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.external import BoundExternal
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.refitted import BoundRefitted
from gp_ensembles.experts.robust import BoundRobust
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.filters.states import (
    FilterState,
    GaussianState,
    RefittedState,
    SquareRootState,
    StructuralState,
    WindowState,
)
from gp_ensembles.filters.window import mean_window, weights_of
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.streaming.forecasting.linear import LinearModel, LinearSimulator, OwnLags, joint_law, linear_models
from gp_ensembles.streaming.forecasting.rows import PathRows
from gp_ensembles.streaming.forecasting.simulators import Ahead, IndependentSimulator, SharedSimulator, Simulator

_WHAT = "the joint covariance of the future rows"


# From the mean as a function of a row (1, D + P) to the rows (H, D + P) of the path of means.
_AlongMeans = Callable[[Callable[[Tensor], Tensor]], Tensor]


class _Part(NamedTuple):
    """Experts of one object that have paths."""

    expert: BoundExpert
    state: FilterState
    features: BoundFeatures
    members: list[int]  # of the flattened batch
    paths: list[Tensor]  # paths of each of them
    sees_targets: bool

    @property
    def all_paths(self) -> Tensor:
        return torch.cat(self.paths)

    @property
    def counts(self) -> list[int]:
        return [one.shape[0] for one in self.paths]

    @property
    def all_members(self) -> Tensor:
        """Which expert of the object each path has, shape (L,)."""
        device = self.paths[0].device
        return _whole(self.members, device).repeat_interleave(_whole(self.counts, device))


class _Law(NamedTuple):
    """Paths (L,) of one expert that have the same rows: means (H,), factor (H, H) and target scale (H,)."""

    paths: Tensor
    mean: Tensor
    factor: Tensor
    target_scale: Tensor | None = None


@final
class _WindowMeans:
    """Means of the windows of one object at any rows, the weights of the window's targets solved for once.

    Means are exact: each path has its own rows. How variances shrink, and how a path's errors move its later means,
    depends on its rows, too, at O(n²) for n rows of the window; it is taken from the path of means, once for all paths.
    Without past targets among the inputs that is the exact joint law.
    """

    def __init__(self, expert: BoundWindow, state: WindowState, features: BoundFeatures) -> None:
        self._expert, self._state, self._features = expert, state, features
        self._window, self._weights = expert.window_of(state), weights_of(state)

    def __call__(self, X: Tensor) -> Tensor:
        """Means at rows X (L, D + P), shape (M, L), double precision."""
        mean = mean_window(self._state, self._features(X), self._window, self._weights)
        return mean.reshape(-1, X.shape[0])

    def joint_law(self, member: int, along: _AlongMeans) -> tuple[Tensor, Tensor]:
        """Means (H,) of one expert along its path of means, and the factor (H, H) of the covariance of the targets.

        Raises:
            NumericalError: If the covariance is not positive definite.
        """
        rows = along(lambda X: self(X)[member])
        covariance = self._expert.joint_covariance(self._state, self._features(rows)).double()
        covariance = covariance.reshape(-1, *covariance.shape[-2:])[member]
        return self(rows)[member], cholesky(covariance, _WHAT)


@final
class _WindowSimulator(Simulator):
    """Paths of windows that see past targets; ``members`` (L,) are experts, ``factor`` (L, H, H) Cholesky factors."""

    def __init__(self, paths: Tensor, means: _WindowMeans, members: Tensor, factor: Tensor) -> None:
        super().__init__(paths, sees_targets=True)
        self._means, self._members = means, members
        self._moved = SharedSimulator(paths, factor.new_zeros(factor.shape[:2]), factor)

    def predict(self, step: int, X: Tensor | None) -> Ahead:
        """See :meth:`Simulator.predict`."""
        assert X is not None
        moved, variance, _ = self._moved.predict(step, None)
        own = self._means(X)[self._members, torch.arange(X.shape[0], device=X.device)]
        return Ahead(own + moved, variance)

    def learn(self, step: int, y: Tensor, errors: Tensor) -> None:
        """See :meth:`Simulator.learn`."""
        self._moved.learn(step, y, errors)


def make_simulators(ensemble: Ensemble, state: EnsembleState, inputs: Tensor, experts: Tensor) -> list[Simulator]:
    """Simulators that draw S paths of future rows (H, D); ``experts`` (S,) are ascending."""
    num_steps, num_shared = inputs.shape[0], inputs.shape[1] - len(ensemble.forecasts)

    def along(mean: Callable[[Tensor], Tensor]) -> Tensor:
        return PathRows.along_means(ensemble.memory, state.history, inputs, mean)

    rows = along(lambda X: X.new_zeros(1, dtype=torch.float64))  # whatever the past, for experts that do not see it
    simulators: list[Simulator] = []
    laws: list[_Law] = []
    linear: dict[int, list[tuple[_Part, list[LinearModel]]]] = {}
    for part in _parts(ensemble, state, experts, num_shared):
        if isinstance(part.expert, BoundStructural) and part.expert.slope is not None:
            laws += _with_slope(part, part.expert, num_steps)
            continue
        models = _linear(part, num_steps)
        if isinstance(part.expert, BoundWindow):
            assert isinstance(part.state, WindowState)
            means = _WindowMeans(part.expert, part.state, part.features)
            found = [means.joint_law(member, along) for member in part.members]
            if part.sees_targets:
                factor = torch.cat([law[1].expand(n, -1, -1) for law, n in zip(found, part.counts, strict=True)])
                simulators.append(_WindowSimulator(part.all_paths, means, part.all_members, factor))
            else:
                laws += [_Law(paths, *law) for paths, law in zip(part.paths, found, strict=True)]
        elif isinstance(part.expert, BoundRefitted):
            assert models is not None
            simulators.append(_with_own_lags(part, part.expert, models, num_steps))
        elif models is None:
            own = part.all_paths, part.expert, part.state, part.all_members, part.features
            simulators.append(IndependentSimulator(*own))
        elif part.sees_targets:
            linear.setdefault(id(part.expert.features), []).append((part, models))
        else:
            Phi = _design(part, rows)
            for member, paths in zip(part.members, part.paths, strict=True):
                model = models[member]
                laws.append(_Law(paths, *joint_law(model, Phi[member]), model.target_scale))
    if laws:
        simulators.append(_shared(laws))
    simulators += [_dependent(parts, num_steps) for parts in linear.values()]
    return simulators


def _parts(ensemble: Ensemble, state: EnsembleState, experts: Tensor, num_shared: int) -> list[_Part]:
    """The expert objects that have paths, with their paths."""
    edges = torch.searchsorted(experts, torch.arange(len(ensemble.expert_names) + 1, device=experts.device)).tolist()
    places = torch.arange(experts.shape[0], device=experts.device)
    parts, start, forecasts = [], 0, ensemble.forecasts
    for expert, bound, one in zip(ensemble.experts, ensemble.bind(), state.experts, strict=True):
        ends = edges[start : start + expert.num_experts + 1]
        members = [m for m in range(expert.num_experts) if ends[m] < ends[m + 1]]
        start += expert.num_experts
        if not members:
            continue
        paths = [places[ends[m] : ends[m + 1]] for m in members]
        own = list(bound.columns) if isinstance(bound, BoundExternal) else []
        features = _of_columns(bound.features, own, forecasts)
        parts.append(_Part(bound, one, features, members, paths, not own and _sees(expert.features, num_shared)))
    return parts


def _sees(features: FeatureMap, num_shared: int) -> bool:
    """Whether a map sees past targets, which follow the inputs that experts share."""
    if isinstance(features, SelectColumns):
        return bool((features.columns >= num_shared).any())
    return not isinstance(features, ConstantFeatures) and features.num_inputs > num_shared


def _of_columns(features: BoundFeatures, own: list[int], forecasts: tuple[int, ...]) -> BoundFeatures:
    """Features of whole rows: of an expert's own columns, or of all but those that are forecasts."""
    if own:
        return lambda X: features(X[:, own])
    return (lambda X: features(without_columns(X, forecasts))) if forecasts else features


def _linear(part: _Part, num_steps: int) -> list[LinearModel] | None:
    """All experts of an object as linear models; ``None`` if they are not linear."""
    expert, state = part.expert, part.state
    if isinstance(expert, BoundStructural) and isinstance(state, StructuralState):
        ones = torch.ones_like(expert.noise)
        return linear_models(state.moments, expert.noise, expert.walk, ones, num_steps)
    if isinstance(expert, BoundGaussian | BoundRobust) and isinstance(state, GaussianState | SquareRootState):
        moments = _moments(state)
        return linear_models(moments, expert.noise, expert.transition, expert.prior_variance, num_steps)
    if isinstance(expert, BoundRefitted) and isinstance(state, RefittedState):
        noise, prior_variance, walk = expert.linear(state)
        return linear_models(state.moments, noise, walk, prior_variance, num_steps)
    return None


def _with_own_lags(part: _Part, expert: BoundRefitted, models: list[LinearModel], num_steps: int) -> Simulator:
    """A refitted expert, which remembers targets itself."""
    assert isinstance(part.state, RefittedState)
    own = OwnLags(expert, part.state, part.features, part.all_paths.shape[0])
    chosen = [models[member] for member in part.members]
    return LinearSimulator(part.all_paths, chosen, part.counts, own, num_steps, own.remember)


def _with_slope(part: _Part, expert: BoundStructural, num_steps: int) -> list[_Law]:
    """Structural experts whose slope walks: the state of one step is not that of the next but for a walk."""
    assert isinstance(part.state, StructuralState)
    mean, covariance = expert.ahead(part.state, num_steps)
    mean, factor = mean.reshape(-1, num_steps), cholesky(covariance, _WHAT).reshape(-1, num_steps, num_steps)
    return [_Law(paths, mean[member], factor[member]) for member, paths in zip(part.members, part.paths, strict=True)]


def _moments(state: GaussianState | SquareRootState) -> Tensor:
    if isinstance(state, GaussianState):
        return state.moments
    return torch.cat([state.covariance, state.mean.unsqueeze(-1)], dim=-1)


def _design(part: _Part, rows: Tensor) -> Tensor:
    """Features of the future rows of all experts of an object, (M, H, F), double precision."""
    if isinstance(part.expert, BoundStructural) and isinstance(part.state, StructuralState):
        numbers = part.state.num_rows + torch.arange(rows.shape[0], device=rows.device)
        design = part.expert.design(numbers)
        return design.expand(part.expert.noise.numel(), *design.shape)
    Phi = part.features(rows).double()
    return Phi.reshape(-1, *Phi.shape[-2:])


def _shared(laws: list[_Law]) -> Simulator:
    """All experts that have the same rows on all paths together."""
    paths = torch.cat([one.paths for one in laws])
    counts = _whole([one.paths.shape[0] for one in laws], paths.device)
    law = torch.arange(len(laws), device=paths.device).repeat_interleave(counts)
    mean, factor = torch.stack([one.mean for one in laws]), torch.stack([one.factor for one in laws])
    scale = None
    if any(one.target_scale is not None for one in laws):
        ones = torch.ones_like(mean[0])
        scale = torch.stack([ones if one.target_scale is None else one.target_scale for one in laws])[law]
    return SharedSimulator(paths, mean[law], factor[law], scale)


def _dependent(parts: list[tuple[_Part, list[LinearModel]]], num_steps: int) -> Simulator:
    """Experts on one feature map that sees past targets: static ones and their random walks."""
    first = parts[0][0]
    paths = torch.cat([part.all_paths for part, _ in parts])
    members = torch.cat([part.all_members for part, _ in parts])
    models = [models[member] for part, models in parts for member in part.members]
    counts = [count for part, _ in parts for count in part.counts]
    places = torch.arange(paths.shape[0], device=paths.device)
    own: Callable[[Tensor], Tensor] = first.features

    def features(X: Tensor) -> Tensor:
        Phi = own(X).double()
        return Phi.reshape(-1, *Phi.shape[-2:])[members, places]

    return LinearSimulator(paths, models, counts, features, num_steps)


def _whole(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
