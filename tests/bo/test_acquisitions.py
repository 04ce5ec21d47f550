"""Every acquisition function that BoTorch exports is made from an ensemble, as the table says."""

import math
import re
from pathlib import Path

import pytest
import torch

from tests.bo import acquisition_cases as cases
from tests.bo.contract_cases import numpy_draws

CLASSES = cases.exported()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "acquisition_functions.md"
pytestmark = [
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning"),
    pytest.mark.usefixtures("_repeatable"),
]


@pytest.fixture(scope="module")
def setting():
    return cases.build(cases.WEIGHTS["uneven"], num_samples=32)


@pytest.fixture(scope="module")
def single():
    return cases.build(cases.WEIGHTS["uneven"], torch.float32, num_samples=32)


def points(case, size, seed=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(3, size, case.num_inputs, generator=generator, dtype=torch.float64).to(dtype)


def make(name, setting):
    torch.manual_seed(0)
    return cases.CASES[name].make(CLASSES[name], setting)


def test_no_acquisition_function_is_missing():
    """A new version of BoTorch may bring more: say here what they take."""
    assert CLASSES.keys() == cases.CASES.keys()


def test_the_page_is_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page, re.M)) == {n: c.given for n, c in cases.CASES.items()}


def evaluate(case, acquisition, X):
    if case.alone:
        return torch.cat([acquisition(x.unsqueeze(0)) for x in X])
    return acquisition(X)


# Draws of their own, other ones in another precision: functions, or maxima by bisection.
DRAWN = {"PathwiseThompsonSampling"} | {name for name in cases.CASES if name.endswith("MaxValueEntropy")}


@pytest.mark.parametrize("name", [name for name, case in cases.CASES.items() if case.error is None])
def test_values_and_gradients(name, setting, single):
    """Values are those of each input alone, gradients those of differences, single precision agrees with double."""
    case = cases.CASES[name]
    for size in case.sizes:
        acquisition, X = make(name, setting), points(case, size)
        values = evaluate(case, acquisition, X).detach()
        assert values.shape == ((len(X),) if case.num_values is None else (len(X), case.num_values))
        assert bool(torch.isfinite(values).all())
        assert float(values.std(0).min()) > 0
        if case.fixed and size not in case.rough:
            check_gradient(case, acquisition, X)
        if case.fixed:
            if name == "PathwiseThompsonSampling":
                acquisition = make(name, setting)  # it draws for the number of its first batch
            alone = torch.cat([acquisition(x.unsqueeze(0)) for x in X])
            torch.testing.assert_close(alone, values, rtol=1e-10, atol=1e-10)
    rounded = evaluate(case, make(name, single), X.float())  # of the largest size
    assert rounded.dtype == torch.float32
    assert bool(torch.isfinite(rounded).all())
    if case.fixed and name not in DRAWN:
        torch.testing.assert_close(rounded.double(), values, rtol=1e-2, atol=1e-2)


def check_gradient(case, acquisition, X):
    step = 1e-6 * torch.randn(X.shape, generator=torch.Generator().manual_seed(5), dtype=X.dtype)
    X = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(evaluate(case, acquisition, X).sum(), X)
    with torch.no_grad():
        expected = (evaluate(case, acquisition, X + step) - evaluate(case, acquisition, X - step)) / 2
        expected = expected if expected.ndim == 1 else expected.sum(-1)
    found = (gradient * step).sum((-2, -1))
    assert float(found.abs().max()) > 0
    torch.testing.assert_close(found / 1e-6, expected / 1e-6, rtol=1e-3, atol=1e-6)


def test_formulas_of_members_are_what_draws_of_the_mixture_estimate():
    s = cases.build(cases.WEIGHTS["uneven"], num_samples=2**11, smoothing=1e-5)
    for name, drawn in (
        ("ExpectedImprovement", "qExpectedImprovement"),
        ("ProbabilityOfImprovement", "qProbabilityOfImprovement"),
        ("LogProbabilityOfFeasibility", "qLogProbabilityOfFeasibility"),
        ("ExpectedHypervolumeImprovement", "qExpectedHypervolumeImprovement"),
    ):
        X = points(cases.CASES[name], 1)
        wanted = make(drawn, s._replace(model=s.exact))(X)
        assert float(wanted.abs().max()) > 0.05
        torch.testing.assert_close(make(name, s)(X), wanted, rtol=0.03, atol=0.005)


def test_values_are_expectations_over_the_weighted_mixture():
    """NumPy draws an expert by its weight, then candidates and baseline jointly: within four standard errors."""
    s = cases.build(cases.WEIGHTS["uneven"], num_samples=2**13, smoothing=1e-5)
    distance = math.sqrt(cases.BETA * math.pi / 2)
    X = points(cases.CASES["qExpectedImprovement"], 3)[:1]
    posterior = s.model.posterior(torch.cat([X[0], s.baseline]))
    drawn, mean = numpy_draws(posterior, 50_000)[..., 0], posterior.mean[:3, 0].numpy()
    best = drawn[:, :3].max(-1)
    wanted = {
        "ExpectedImprovement": (best - cases.BEST).clip(0),
        "NoisyExpectedImprovement": (best - drawn[:, 3:].max(-1)).clip(0),
        "UpperConfidenceBound": (mean + distance * abs(drawn[:, :3] - mean)).max(-1),
    }
    for name in (*wanted, "LogExpectedImprovement", "LogNoisyExpectedImprovement"):
        found, utility = float(make(f"q{name}", s)(X)), wanted[name.removeprefix("Log")]
        error = utility.std() * math.sqrt(1 / len(drawn) + 1 / s.num_samples)
        assert abs((math.exp(found) if "Log" in name else found) - utility.mean()) < 4 * error + 1e-4, name


def test_pending_points_are_joint_candidates(setting):
    X = points(cases.CASES["qExpectedImprovement"], 3)
    for name in ("qLogExpectedImprovement", "qExpectedImprovement", "qUpperConfidenceBound"):
        together, pending = make(name, setting)(X[:1]), make(name, setting)
        pending.set_X_pending(X[0, 1:])
        torch.testing.assert_close(pending(X[:1, :1]), together)


def test_the_knowledge_gradient_obeys_the_tower_rule(setting):
    """Where the same point is chosen whatever is observed, nothing is gained: E[E[f(x) | y]] = E[f(x)]."""
    count, chosen = 512, setting.X[:1] / 2
    acquisition = CLASSES["qKnowledgeGradient"](setting.model, num_fantasies=None, sampler=setting.sampler(count))
    X = torch.cat([points(cases.CASES["qKnowledgeGradient"], 3), chosen.expand(3, count, -1)], dim=1)
    posterior = setting.model.posterior(chosen)
    with torch.no_grad():
        assert float((acquisition(X) - posterior.mean).abs().max()) < 4 * float(posterior.variance.sqrt()) / count**0.5


def test_what_takes_no_ensemble_says_so(setting):
    for name in (name for name, case in cases.CASES.items() if case.given == cases.NONE):
        with pytest.raises(cases.CASES[name].error):
            make(name, setting)
