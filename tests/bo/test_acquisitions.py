"""Every acquisition function that BoTorch exports is made from an ensemble, by the view that the table names."""

import re
from pathlib import Path

import botorch
import pytest
import torch
from botorch.acquisition import (
    LogImprovementMCAcquisitionFunction,
    MCAcquisitionFunction,
    qExpectedImprovement,
    qNoisyExpectedImprovement,
)
from botorch.exceptions.errors import UnsupportedError

from gp_ensembles.bo import WeightedAcquisition
from gp_ensembles.bo.posterior import NotGaussianError
from tests.bo import acquisition_cases
from tests.bo.acquisition_cases import (
    BEST,
    BETA,
    CASES,
    GAUSSIAN,
    MODEL,
    NONE,
    WEIGHTED,
    WEIGHTS,
    build,
    document,
    exported,
)

CLASSES = exported()
WORKING = [(name, size) for name, case in CASES.items() if case.error is None for size in case.sizes]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how_to" / "acquisition_functions.md"
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.NumericsWarning")


@pytest.fixture(autouse=True)
def _repeatable():
    """The same draws in every test."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def setting():
    return build(WEIGHTS["uneven"])


@pytest.fixture(scope="module")
def single():
    return build(WEIGHTS["uneven"], torch.float32)


def points(case, size, seed=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(5, size, case.num_inputs, generator=generator, dtype=torch.float64).to(dtype)


def make(name, setting):
    torch.manual_seed(0)
    return CASES[name].make(CLASSES[name], setting)


def test_no_acquisition_function_is_missing():
    """A new version of BoTorch may bring more: say here which view they take."""
    assert CLASSES.keys() == CASES.keys()


def test_the_page_is_up_to_date():
    """With whatever version of BoTorch there is: the views are the same."""
    page = re.sub(r"(?<=for botorch\n)[\d.]+(?=\. )", botorch.__version__, PAGE.read_text(encoding="utf-8"))
    assert page == document(), "anew: python tests/bo/acquisition_cases.py > docs/how_to/acquisition_functions.md"


def evaluate(case, acquisition, X):
    if case.alone:
        return torch.cat([acquisition(x.unsqueeze(0)) for x in X])
    return acquisition(X)


@pytest.mark.parametrize(("name", "size"), WORKING)
def test_values_are_those_of_each_input_alone(name, size, setting):
    case = CASES[name]
    acquisition, X = make(name, setting), points(case, size)
    values = evaluate(case, acquisition, X)
    assert values.shape == ((5,) if case.num_values is None else (5, case.num_values))
    assert bool(torch.isfinite(values).all())
    assert float(values.detach().std(0).min()) > 0
    if case.fixed:
        alone = torch.cat([acquisition(x.unsqueeze(0)) for x in X])
        torch.testing.assert_close(alone, values, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("name", "size"), [(n, q) for n, q in WORKING if CASES[n].fixed and q not in CASES[n].rough])
def test_gradients_are_those_of_differences(name, size, setting):
    case = CASES[name]
    acquisition, X = make(name, setting), points(case, size)
    step = 1e-6 * torch.randn(X.shape, generator=torch.Generator().manual_seed(5), dtype=X.dtype)
    X.requires_grad_()
    (gradient,) = torch.autograd.grad(evaluate(case, acquisition, X).sum(), X)
    with torch.no_grad():
        expected = (evaluate(case, acquisition, X + step) - evaluate(case, acquisition, X - step)) / 2
        expected = expected if expected.ndim == 1 else expected.sum(-1)
    found = (gradient * step).sum((-2, -1))
    assert float(found.abs().max()) > 0
    torch.testing.assert_close(found / 1e-6, expected / 1e-6, rtol=1e-3, atol=1e-6)


# Draws of their own, other ones in another precision: functions, or maxima by bisection.
DRAWN = {"PathwiseThompsonSampling"} | {name for name in CASES if name.endswith("MaxValueEntropy")}


@pytest.mark.parametrize(("name", "size"), WORKING)
def test_single_precision_agrees_with_double(name, size, setting, single):
    case = CASES[name]
    values = evaluate(case, make(name, single), points(case, size, dtype=torch.float32))
    assert values.dtype == torch.float32
    assert bool(torch.isfinite(values).all())
    if case.fixed and name not in DRAWN:
        expected = evaluate(case, make(name, setting), points(case, size))
        torch.testing.assert_close(values.double(), expected, rtol=1e-2, atol=1e-2)


# What takes pending points as more candidates of which the values are known to be those of both.
JOINT = sorted(
    name
    for name, case in CASES.items()
    if case.view == MODEL and issubclass(CLASSES[name], MCAcquisitionFunction) and 3 in case.sizes
    if not issubclass(CLASSES[name], LogImprovementMCAcquisitionFunction | qNoisyExpectedImprovement)
)


@pytest.mark.parametrize("name", JOINT)
def test_pending_points_are_candidates_as_well(name, setting):
    acquisition, X = make(name, setting), points(CASES[name], 3)
    pending = X[:1, 1:].expand(5, 2, -1)
    expected = acquisition(torch.cat([X[:, :1], pending], dim=1))
    acquisition.set_X_pending(X[0, 1:])
    torch.testing.assert_close(acquisition(X[:, :1]), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.view == WEIGHTED])
def test_pending_points_are_not_passed_over(name, setting):
    """Candidates chosen one after another would all be the same."""
    with pytest.raises(UnsupportedError, match="pending"):
        make(name, setting).set_X_pending(setting.X[:2])
    weighted = WeightedAcquisition(
        setting.model, lambda experts: qExpectedImprovement(experts, BEST, setting.sampler())
    )
    X = points(CASES[name], 1)
    before = weighted(X)
    weighted.set_X_pending(setting.X[:2])
    assert bool((weighted(X) >= before).all())
    assert weighted.X_pending is not None


@pytest.mark.parametrize("name", sorted(name for name in CASES if name.endswith("MaxValueEntropy")))
def test_entropy_searches_take_pending_points(name, setting):
    """They are looked for one after another."""
    acquisition, X = make(name, setting), points(CASES[name], 1)
    before = acquisition(X)
    acquisition.set_X_pending(X[0])
    values = acquisition(X)
    assert bool(torch.isfinite(values).all())
    if "LowerBound" in name:  # no use in observing the same again
        assert float((values - before).argmin()) == 0


# Formulas for one normal distribution that a mixture is not taken for by mistake.
NORMAL = sorted(
    name
    for name, case in CASES.items()
    if case.view == GAUSSIAN
    and name not in {"qNegIntegratedPosteriorVariance", "qLowerBoundMaxValueEntropy"}
    and not name.startswith("Pairwise")
)


@pytest.mark.parametrize("name", NORMAL)
def test_what_needs_a_view_names_it(name, setting, monkeypatch):
    monkeypatch.setattr(acquisition_cases, "GaussianView", lambda model: model)
    with pytest.raises(NotGaussianError, match="GaussianView"):
        make(name, setting)(points(CASES[name], 1))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.view == NONE])
def test_what_takes_no_view_says_so(name, setting):
    with pytest.raises(CASES[name].error):
        make(name, setting)


@pytest.mark.parametrize(
    "name",
    ["UpperConfidenceBound", "qUpperConfidenceBound", "PosteriorStandardDeviation", "qPosteriorStandardDeviation"],
)
def test_what_is_no_expectation_is_not_weighed(name, setting):
    options = {"beta": BETA} if "Confidence" in name else {}
    with pytest.raises(UnsupportedError, match="no expectation over the posterior"):
        WeightedAcquisition(setting.model, lambda experts: CLASSES[name](experts, **options))
