"""One-step predictions along paths equal those of an ensemble that learned the path, to round-off."""

import copy
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor

from gp_ensembles.engine.ensemble import Ensemble
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis, LinearBasis
from gp_ensembles.ensembles.extra_experts import Refitted, WideFeatures, WindowGP
from gp_ensembles.ensembles.lags import TargetLags
from gp_ensembles.ensembles.presets import auto
from gp_ensembles.experts import GaussianExpert, WindowExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import CorrelatedWalk, ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.meta_learners import BayesianModelAveraging
from gp_ensembles.streaming.forecasting.ensemble_simulators import make_simulators
from gp_ensembles.streaming.forecasting.simulators import PathRows

H = 7
ONE = torch.ones((), dtype=torch.float64)
LINEAR = GaussianExpert(LinearFeatures(2, ONE))


def series(num_rows: int = 160) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(num_rows, dtype=torch.float64)
    noise = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    y = (2 * torch.pi * rows / 12).sin() + rows / 200 + 0.2 * noise[:, 0]
    return torch.stack([rows / 100, noise[:, 1]], -1), y


def along(online: OnlineEnsemble, inputs: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances (H, M) of the simulators, a path for each expert, all with the same targets."""
    num = len(online.ensemble.expert_names)
    simulators = make_simulators(online.ensemble, online.state, inputs, torch.arange(num))
    rows = PathRows(online.ensemble.memory, online.state.history, inputs, num)
    mean, variance = torch.full((H, num), torch.nan).double(), torch.full((H, num), torch.nan).double()
    for step in range(H):
        for one in simulators:
            ahead = one.predict(step, rows.at(step, one.paths) if one.sees_targets else None)
            mean[step, one.paths], variance[step, one.paths] = ahead.mean, ahead.variance
            one.learn(step, path[step].expand(len(one.paths)), path[step] - ahead.mean)
        rows.learn(step, path[step].expand(num))
    return mean, variance


def learned(online: OnlineEnsemble, inputs: Tensor, path: Tensor) -> tuple[Tensor, Tensor]:
    """The same by a copy that learns the path."""
    online, copies, parts = copy.deepcopy(online), online.ensemble.layers.num_copies, []
    for step in range(H):
        mixture = online.predict(inputs[step : step + 1])
        parts.append((mixture.component_mean[::copies, 0], mixture.component_variance[::copies, 0]))
        online.observe(inputs[step : step + 1], path[step : step + 1])
    mean, variance = (torch.stack(part) for part in zip(*parts, strict=True))
    return mean, variance


def check(online: OnlineEnsemble) -> None:
    X, y = series()
    online.observe(X[:150], y[:150])
    inputs, path = X[150 : 150 + H], y[150 : 150 + H] + 0.3
    for one, other in zip(along(online, inputs, path), learned(online, inputs, path), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "transition",
    [
        None,
        RandomWalk(0.01),
        RandomWalk(torch.tensor([0.0, 0.01, 0.1], dtype=torch.float64)),
        CorrelatedWalk(0.01 * torch.ones(3, 3, dtype=torch.float64)),
        ExponentialForgetting(0.98),
        StabilizedForgetting(0.95),
    ],
)
def test_experts_on_inputs_under_any_transition(transition: torch.nn.Module | None) -> None:
    expert = LINEAR.with_transition(transition)
    check(OnlineEnsemble(Ensemble([expert], BayesianModelAveraging())))


@pytest.mark.parametrize("transition", [RandomWalk(0.01), ExponentialForgetting(0.98), StabilizedForgetting(0.95)])
def test_experts_on_past_targets_under_any_transition(transition: torch.nn.Module) -> None:
    expert = GaussianExpert(LinearFeatures(4, ONE), transition=transition)
    memory = TargetMemory([1, 2], series()[1][:100])
    check(OnlineEnsemble(Ensemble([expert], BayesianModelAveraging(), memory=memory)))


def test_square_root_states() -> None:
    expert = GaussianExpert(LinearFeatures(2, ONE), transition=RandomWalk(0.01), initial_state=square_root_state)
    check(OnlineEnsemble(Ensemble([expert], BayesianModelAveraging())))


def test_windows_of_inputs() -> None:
    kernel = ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=2)).double()
    window = WindowExpert(kernel, 2, num_rows=200)  # nothing is dropped on the way
    check(OnlineEnsemble(Ensemble([window], BayesianModelAveraging())))


def test_all_kinds_of_experts_on_past_targets() -> None:
    X, y = series()
    spec = replace(
        auto,
        bases=(HilbertBasis(starts=(0.7,)), FourierBasis(num_features=20)),
        static=True,
        lags=TargetLags(bases=(LinearBasis(), FourierBasis(num_features=20))),
        extra_experts=(
            WideFeatures(num_features=40, lags=True),
            WindowGP(num_rows=300, name="inputs alone"),
            Refitted(num_features=20),
        ),
        fit_settings=replace(auto.fit_settings, method=None),
    )
    online = spec.fit(X[:120], y[:120] - y[:120].mean(), generator=torch.Generator().manual_seed(0))
    kinds = {name.rpartition("/")[0] for name in online.ensemble.expert_names}
    assert len(kinds) == 16
    inputs, path = X[120 : 120 + H], y[120 : 120 + H] - y[:120].mean() + 0.3
    for one, other in zip(along(online, inputs, path), learned(online, inputs, path), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


def test_a_window_of_past_targets_is_exact_on_its_path_of_means() -> None:
    X, y = series()
    settings = replace(auto.fit_settings, method=None)
    spec = replace(
        auto, bases=(LinearBasis(),), extra_experts=(WindowGP(num_rows=300, lags=True),), fit_settings=settings
    )
    online = spec.fit(X[:120], y[:120] - y[:120].mean(), generator=torch.Generator().manual_seed(0))
    place = online.ensemble.expert_names.index("window/0")
    inputs, copies = X[120 : 120 + H], online.ensemble.layers.num_copies
    means, other = torch.empty(H).double(), copy.deepcopy(online)
    for step in range(H):  # the path of the window's own means
        means[step] = other.predict(inputs[step : step + 1]).component_mean[place * copies, 0]
        other.observe(inputs[step : step + 1], means[step : step + 1])
    for one, wanted in zip(along(online, inputs, means), learned(online, inputs, means), strict=True):
        torch.testing.assert_close(one[:, place], wanted[:, place], rtol=1e-7, atol=1e-8)
