"""Simulators of an ensemble's sample paths: a table of the ways that kinds of experts draw them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.input_checks import without_columns
from gp_ensembles.engine.state import EnsembleState
from gp_ensembles.experts.base import BoundExpert
from gp_ensembles.experts.gaussian import BoundGaussian
from gp_ensembles.experts.refitted import BoundRefitted
from gp_ensembles.experts.robust import BoundRobust
from gp_ensembles.experts.structural import BoundStructural
from gp_ensembles.experts.window import BoundWindow
from gp_ensembles.features.base import BoundFeatures, FeatureMap
from gp_ensembles.features.compose import SelectColumns
from gp_ensembles.features.linear import ConstantFeatures
from gp_ensembles.filters.states import FilterState, LinearState, RefittedState, StructuralState, WindowState
from gp_ensembles.filters.window import mean_window, weights_of
from gp_ensembles.numerics.cholesky import cholesky
from gp_ensembles.streaming.forecasting.simulators import (
    JOINT,
    IndependentSimulator,
    LinearModel,
    LinearSimulator,
    PathRows,
    SharedSimulator,
    Simulator,
    WindowSimulator,
    joint_law,
    linear_models,
)

# From the mean as a function of a row (1, D + P) to the rows (H, D + P) of the path of means.
AlongMeans = Callable[[Callable[[Tensor], Tensor]], Tensor]


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


class _Plan:
    """Future rows of an ensemble, and what draws their paths, filled in by the ways of the table."""

    def __init__(self, num_steps: int, along: AlongMeans) -> None:
        self.num_steps, self.along = num_steps, along
        # Whatever the past, for experts that do not see it.
        self.rows = along(lambda X: X.new_zeros(1, dtype=torch.float64))
        self.laws: list[_Law] = []
        self.linear: dict[int, list[tuple[_Part, list[LinearModel]]]] = {}  # by the feature map
        self.simulators: list[Simulator] = []

    def finished(self) -> list[Simulator]:
        """All simulators: experts with laws together, and those that share a feature map."""
        shared = [_shared(self.laws)] if self.laws else []
        dependent = [_dependent(parts, self.num_steps) for parts in self.linear.values()]
        return [*self.simulators, *shared, *dependent]


def make_simulators(ensemble: Ensemble, state: EnsembleState, inputs: Tensor, experts: Tensor) -> list[Simulator]:
    """Simulators that draw S paths of future rows (H, D); ``experts`` (S,) are ascending."""

    def along(mean: Callable[[Tensor], Tensor]) -> Tensor:
        return PathRows.along_means(ensemble.memory, state.history, inputs, mean)

    plan = _Plan(inputs.shape[0], along)
    for part in _parts(ensemble, state, experts, inputs.shape[1] - len(ensemble.forecasts)):
        _WAYS.get(type(part.expert), _independent)(part.expert, part.state, part, plan)
    return plan.finished()


def _independent(expert: BoundExpert, state: FilterState, part: _Part, plan: _Plan) -> None:
    """Any expert, from its one-step predictions."""
    plan.simulators.append(IndependentSimulator(part.all_paths, expert, state, part.all_members, part.features))


def _linear(expert: BoundGaussian | BoundRobust, state: LinearState, part: _Part, plan: _Plan) -> None:
    """Linear experts in features; as any expert if so many steps do not keep their digits in one schedule."""
    moments = torch.cat([state.covariance, state.mean.unsqueeze(-1)], dim=-1)
    models = linear_models(moments, expert.noise, expert.transition, expert.prior_variance, plan.num_steps)
    if models is None:
        _independent(expert, state, part, plan)
    elif part.sees_targets:
        plan.linear.setdefault(id(expert.features), []).append((part, models))
    else:
        Phi = part.features(plan.rows).double()
        Phi = Phi.reshape(-1, *Phi.shape[-2:])
        for member, paths in zip(part.members, part.paths, strict=True):
            model = models[member]
            plan.laws.append(_Law(paths, *joint_law(model, Phi[member]), model.target_scale))


def _refitted(expert: BoundRefitted, state: RefittedState, part: _Part, plan: _Plan) -> None:
    """Refitted experts, which remember targets themselves."""
    noise, prior_variance, walk = expert.linear(state)
    models = linear_models(state.moments, noise, walk, prior_variance, plan.num_steps)
    assert models is not None  # a walk needs no schedule
    past = expert.remembered(state).unsqueeze(-1).repeat(1, part.all_paths.shape[0])

    def features(X: Tensor) -> Tensor:
        Phi = expert.features_at(state, part.features(X), past)
        return Phi.reshape(-1, *Phi.shape[-2:])[0]  # experts of the object have the same

    def remember(y: Tensor) -> None:
        nonlocal past
        past = torch.cat([past[1:], y.unsqueeze(0)])

    chosen = [models[member] for member in part.members]
    plan.simulators.append(LinearSimulator(part.all_paths, chosen, part.counts, features, plan.num_steps, remember))


def _structural(expert: BoundStructural, state: StructuralState, part: _Part, plan: _Plan) -> None:
    """Structural experts: time is all that they see."""
    num_steps = plan.num_steps
    mean, covariance = expert.ahead(state, num_steps)
    mean, factor = mean.reshape(-1, num_steps), cholesky(covariance, JOINT).reshape(-1, num_steps, num_steps)
    for member, paths in zip(part.members, part.paths, strict=True):
        plan.laws.append(_Law(paths, mean[member], factor[member]))


def _window(expert: BoundWindow, state: WindowState, part: _Part, plan: _Plan) -> None:
    """Exact Gaussian processes of the last rows, each with the law along its path of means."""
    window, weights = expert.window_of(state), weights_of(state)

    def means(X: Tensor) -> Tensor:
        return mean_window(state, part.features(X), window, weights).reshape(-1, X.shape[0])

    def law(member: int) -> tuple[Tensor, Tensor]:
        """Means (H,), and the factor (H, H) of the covariance of the targets."""
        rows = plan.along(lambda X: means(X)[member])
        covariance = expert.joint_covariance(state, part.features(rows)).double()
        return means(rows)[member], cholesky(covariance.reshape(-1, *covariance.shape[-2:])[member], JOINT)

    laws = [law(member) for member in part.members]
    if part.sees_targets:
        factor = torch.cat([law[1].expand(n, -1, -1) for law, n in zip(laws, part.counts, strict=True)])
        plan.simulators.append(WindowSimulator(part.all_paths, means, part.all_members, factor))
    else:
        plan.laws += [_Law(paths, *law) for paths, law in zip(part.paths, laws, strict=True)]


# Kinds of experts whose steps ahead depend on one another; the others draw from one-step predictions.
_WAYS: Mapping[type[BoundExpert], Callable[[Any, Any, _Part, _Plan], None]] = {
    BoundGaussian: _linear,
    BoundRobust: _linear,
    BoundRefitted: _refitted,
    BoundStructural: _structural,
    BoundWindow: _window,
}


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
        own = list(bound.columns)
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
    own = parts[0][0].features
    paths = torch.cat([part.all_paths for part, _ in parts])
    members = torch.cat([part.all_members for part, _ in parts])
    models = [models[member] for part, models in parts for member in part.members]
    counts = [count for part, _ in parts for count in part.counts]
    places = torch.arange(paths.shape[0], device=paths.device)

    def features(X: Tensor) -> Tensor:
        Phi = own(X).double()
        return Phi.reshape(-1, *Phi.shape[-2:])[members, places]

    return LinearSimulator(paths, models, counts, features, num_steps)


def _whole(numbers: list[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
