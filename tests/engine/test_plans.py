"""Every way to run an ensemble, with all that rows can bring, for each kind of expert: the plain loop's numbers."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble, outliers, quarantine
from gp_ensembles.engine.memory import TargetMemory
from gp_ensembles.experts import GaussianExpert, RobustExpert, StudentTExpert
from gp_ensembles.experts.adapters import ModelAdapter
from gp_ensembles.experts.base import Expert
from gp_ensembles.experts.external import ExternalExpert
from gp_ensembles.experts.refitted import InitialFit, RefittedExpert
from gp_ensembles.experts.structural import StructuralExpert
from gp_ensembles.experts.window import Refit, WindowExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.linear import InputFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk, StabilizedForgetting
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.innovations import InnovationModel
from gp_ensembles.meta_learners import FixedShare
from tests.engine.plain import Plain

NUM_ROWS, INPUTS, LAGS = 48, 2, (1, 3)
REFIT = Refit(every=15, first=12, num_rows=20)
MODELS = (InnovationModel(degrees_of_freedom=4, rate=0.1), InnovationModel(rate=0.05, autoregressive=False))


class Mean(ModelAdapter):
    """The mean of the targets; silent where the first input is large."""

    def fit(self, rows):
        center = rows.targets.mean()

        def forecast(X):
            mean = torch.where(X[:, 0] > 0.8, torch.nan, center + 0.3 * X[:, 1])
            return mean, torch.full_like(mean, 0.8)

        return forecast


def one() -> torch.Tensor:
    return torch.ones((), dtype=torch.float64)


def linear(num_inputs: int) -> LinearFeatures:
    return LinearFeatures(num_inputs, one())


def window(num_inputs: int, refit: Refit | None = None) -> WindowExpert:
    kernel = ScaleKernel(RBFKernel()).double()
    return WindowExpert(kernel, InputFeatures(num_inputs, one()), num_rows=20, refit=refit)


def refitted(num_inputs: int) -> RefittedExpert:
    model = GaussianExpert(linear(num_inputs + 2))
    return RefittedExpert(model, num_inputs, InitialFit((1, 0), 2.0), torch.tensor([1e-2]), REFIT)


def structural(num_inputs: int, slopes: torch.Tensor | None = None) -> StructuralExpert:
    return StructuralExpert(torch.tensor([[0.1, 1e-2, 1e-4]], dtype=torch.float64), 4, num_inputs, 20, slopes)


KINDS: dict[str, Callable[[int], Expert]] = {
    "static": lambda n: GaussianExpert(linear(n)),
    "walking": lambda n: GaussianExpert(linear(n), transition=RandomWalk(1e-2)),
    "forgetting": lambda n: GaussianExpert(linear(n), transition=ExponentialForgetting(0.97)),
    "stabilized": lambda n: GaussianExpert(linear(n), transition=StabilizedForgetting(0.97)),
    "square root": lambda n: GaussianExpert(linear(n), initial_state=square_root_state),
    "unknown noise": lambda n: StudentTExpert(linear(n)),
    "robust": lambda n: RobustExpert(linear(n)),
    "window": window,
    "refitted window": lambda n: window(n, REFIT),
    "refitted": refitted,
    "structural": structural,
    "changing trend": lambda n: structural(n, torch.tensor([[0.02, 0.9]], dtype=torch.float64)),
    "external": lambda n: ExternalExpert(Mean(), InputFeatures(n, one()), 10, 15),
}
SERIES = ("static", "walking", "twins", "forgetting", "stabilized", "square root", "unknown noise")
CONCERNS = (
    "nothing",
    "missing targets",
    "outliers",
    "many outliers",
    "further noise",
    "uneven steps",
    "lags",
    "innovations",
    "everything",
)


def ensemble(kind: str, concern: str) -> Ensemble:
    has_lags, has_models = concern in ("lags", "everything"), concern in ("innovations", "everything")
    width = INPUTS + (len(LAGS) if has_lags else 0)
    past = TargetMemory(LAGS, torch.sin(torch.arange(60, dtype=torch.float64))) if has_lags else None
    threshold = 4.0 if concern in ("outliers", "many outliers", "everything") else None
    first = GaussianExpert(linear(width))
    second = first.with_transition(RandomWalk(1e-2)) if kind == "twins" else KINDS[kind](width)
    return Ensemble(
        [first, second],
        FixedShare(0.03),
        innovations=MODELS if has_models else (),
        memory=past,
        outlier_threshold=threshold,
    )


def rows(concern: str) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(5)
    # Numbers that single precision holds, as external models see them.
    X = torch.randn(NUM_ROWS, INPUTS, generator=g, dtype=torch.float32).double()
    y = X[:, 0] - 0.5 * X[:, 1] + 0.3 * torch.randn(NUM_ROWS, generator=g, dtype=torch.float64)
    everything, given = concern == "everything", dict[str, torch.Tensor]()
    if everything or concern == "missing targets":
        y[[0, 7, 8, 9, 30]] = torch.nan
    if everything or concern == "outliers":
        y[[1, 12, 13, 15, 25, 47]] += torch.tensor([1e3, 40.0, -9.0, 9e5, 1e6, -1e3], dtype=torch.float64)
    if concern == "many outliers":
        y[10::3] += 60.0
    if everything or concern == "further noise":
        given["extra"] = (torch.rand(NUM_ROWS, generator=g, dtype=torch.float64) - 0.5).clamp_min(0)
    if everything or concern == "uneven steps":
        given["steps"] = torch.randint(0, 4, (NUM_ROWS,), generator=g).double()
    return X, y, given


Found = tuple[np.ndarray, ...]


def joined(parts: list) -> Found:
    """Means, variances, log densities and weights of the rows."""
    fields = [torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "variance", "log_prob")]
    weights = torch.cat([part.log_weights.exp() for part in parts], dim=1).T
    return tuple(part.detach().numpy() for part in (*fields, weights))


def some(given: dict[str, torch.Tensor], here: slice) -> dict[str, torch.Tensor]:
    return {name: value[here] for name, value in given.items()}


def blocks(whole: Ensemble, X, y, given) -> Found:
    return joined([OnlineEnsemble(whole, block_size=7).observe(X, y, **given)])


def single_rows(whole: Ensemble, X, y, given) -> Found:
    """Each row is predicted first, which changes nothing; the fast path of a row where there is one."""
    online, parts = OnlineEnsemble(whole), []
    for row in range(NUM_ROWS):
        here = slice(row, row + 1)
        ahead = online.predict(X[here], **some(given, here))
        parts.append(online.observe(X[here], y[here], **some(given, here)))
        torch.testing.assert_close(ahead.mean, parts[-1].mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(ahead.variance, parts[-1].variance, rtol=1e-9, atol=1e-9)
    return joined(parts)


def saved(whole: Ensemble, X, y, given) -> Found:
    """Some rows, a checkpoint into another ensemble, the rest; what fails below is out meanwhile."""
    half = slice(0, 30), slice(30, None)
    first, second = OnlineEnsemble(whole, block_size=5), OnlineEnsemble(whole, block_size=64)
    parts = [first.observe(X[half[0]], y[half[0]], **some(given, half[0]))]
    second.load_state_dict(first.state_dict())
    return joined([*parts, second.observe(X[half[1]], y[half[1]], **some(given, half[1]))])


def recorded(whole: Ensemble, X, y, given) -> Found:
    online = OnlineEnsemble(whole, block_size=6)
    online.records = True
    found = online.observe(X, y, **given)
    assert online.why_eager is None
    return joined([found])


def pure(whole: Ensemble, X, y, given) -> Found:
    state, parts = whole.init(), []
    for start in range(0, NUM_ROWS, 9):
        here = slice(start, start + 9)
        state, part = whole.update(state, X[here], y[here])
        parts.append(part)
    return joined(parts)


def many(whole: Ensemble, X, y, given) -> Found:
    """One of three series, whose rows come among those of the others, in calls of any length."""
    fleet, names = EnsembleFleet(whole, ["a", "b", "c"]), ["a", "b", "c"]
    parts, cuts = [], [0, 1, 20, 21, NUM_ROWS]
    for start, stop in pairwise(cuts):
        here = slice(start, stop)
        asked = [name for name in names for _ in range(stop - start)]
        shifts = range(3)  # other rows for the others
        inputs, targets = (torch.cat([part.roll(5 * shift, 0)[here] for shift in shifts]) for part in (X, y))
        more = {name: torch.cat([value.roll(5 * k, 0)[here] for k in shifts]) for name, value in given.items()}
        found = fleet.observe(asked, inputs, targets, **more)
        own = slice(0, stop - start)
        parts.append(
            found._replace(
                mean=found.mean[own],
                variance=found.variance[own],
                log_prob=found.log_prob[own],
                log_weights=found.log_weights[:, own],
            )
        )
    return joined(parts)


PLANS = {
    "blocks": blocks,
    "single rows": single_rows,
    "saved": saved,
    "recorded": recorded,
    "pure": pure,
    "many series": many,
}
RECORDED = ("static", "walking", "twins", "unknown noise")  # the others read a number


def table() -> list[tuple[str, str, str]]:
    """All that can be, less what a plan has no words for: time and further noise are arguments of what is online."""
    found = []
    for kind in [*KINDS, "twins"]:
        for concern in CONCERNS:
            for plan in PLANS:
                timed = concern in ("further noise", "uneven steps", "everything")
                if (
                    (plan == "many series" and kind not in SERIES)
                    or (plan == "recorded" and kind not in RECORDED)
                    or (plan == "pure" and timed)
                ):
                    continue
                found.append((kind, concern, plan))
    return found


@pytest.fixture(scope="module")
def expected() -> Callable[[str, str], Found]:
    """The plain loop's numbers, once for all plans."""
    known: dict[tuple[str, str], Found] = {}

    def of(kind: str, concern: str) -> Found:
        if (kind, concern) not in known:
            X, y, given = rows(concern)
            plain = Plain(ensemble(kind, concern)).observe(X, y, **given)
            known[kind, concern] = tuple(np.array(part) for part in zip(*plain, strict=True))
        return known[kind, concern]

    return of


@pytest.mark.parametrize(("kind", "concern", "plan"), table())
def test_the_plain_loop_says_the_same(kind, concern, plan, expected, monkeypatch):
    if concern == "many outliers":  # more than four of which, here, are no outliers
        monkeypatch.setattr(outliers, "MOST", 4.5 / outliers.WINDOW)
    found = PLANS[plan](ensemble(kind, concern), *rows(concern))
    for got, want in zip(found, expected(kind, concern), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("plan", ["blocks", "single rows", "saved", "recorded", "many series"])
def test_an_expert_that_fails_is_out_for_a_while(plan, monkeypatch):
    """The second one overflows, and the first has too narrow a prior to; twice, the second time for twice as long."""
    monkeypatch.setattr(quarantine, "QUARANTINE_ROWS", 9)
    X, y, given = rows("missing targets")
    X[[11, 24]] = 1e160
    narrow = LinearFeatures(INPUTS, 1e-240 * one())
    whole = Ensemble([GaussianExpert(narrow), GaussianExpert(linear(INPUTS))], FixedShare(0.03))
    expected = Plain(whole).observe(X, y)
    assert [row for row, plain in enumerate(expected) if plain.weights[1] == 0] == [*range(11, 20), *range(24, 42)]
    for got, want in zip(PLANS[plan](whole, X, y, given), zip(*expected, strict=True), strict=True):
        np.testing.assert_allclose(got, np.array(want), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", ["static", "walking", "forgetting", "unknown noise", "robust"])
def test_gradients_through_a_stream_are_finite_differences(kind):
    """In every hyperparameter, with lags, innovation models, outliers and missing targets."""
    whole, (X, y, _) = ensemble(kind, "everything"), rows("missing targets")
    y[20] += 30.0

    def score() -> torch.Tensor:
        return whole.update(whole.init(), X, y)[1].log_prob.nansum()

    parameters = [value for value in whole.parameters() if value.requires_grad]
    gradients = torch.autograd.grad(score(), parameters)
    for value, gradient in zip(parameters, gradients, strict=True):
        for place in range(value.numel()):
            ends = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    value.view(-1)[place] += step
                    ends.append(float(score()))
                    value.view(-1)[place] -= step
            difference = (ends[0] - ends[1]) / 2e-6
            assert float(gradient.view(-1)[place]) == pytest.approx(difference, rel=1e-5, abs=1e-5)
