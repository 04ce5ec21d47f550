"""An expert that fails is quarantined: the others go on as without it, and it returns from its prior."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble, quarantine
from gp_ensembles.engine.membership import add_experts
from gp_ensembles.experts import GaussianExpert, LaplaceExpert, MultiOutputExpert, StudentTExpert
from gp_ensembles.experts.window import WindowExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import DynamicModelAveraging, FixedShare, OnlineNewton
from gp_ensembles.numerics.cholesky import NumericalError

ROWS, FAIL, OUT = 60, 20, 15


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr(quarantine, "QUARANTINE_ROWS", OUT)


def basis(scale, batch=()):
    return LinearFeatures(2, torch.full(batch, float(scale), dtype=torch.float64))


def stream(num_rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(num_rows, generator=generator, dtype=torch.float64)
    return X, X @ torch.tensor([1.0, -0.5], dtype=torch.float64) + noise


def experts():
    return [
        GaussianExpert(basis(1.0)),
        GaussianExpert(basis(4.0), transition=RandomWalk(1e-3)),
        GaussianExpert(basis(0.2)),
    ]


def break_(online, number=1):
    """The expert has lost its variance."""
    online.state.experts[number].moments[..., :-1] = -torch.eye(3, dtype=torch.float64)


def test_while_it_is_out_it_has_no_weight_and_is_said_to_return():
    X, y = stream()
    online = OnlineEnsemble(Ensemble(experts(), FixedShare(), ["a", "b", "c"]))
    online.observe(X[:FAIL], y[:FAIL])
    break_(online)
    online.observe(X[FAIL : FAIL + 5], y[FAIL : FAIL + 5])
    assert online.log_weights.exp()[1] == 0
    assert float(online.log_weights.exp().sum()) == pytest.approx(1)
    mixture = online.predict(X[:4])
    assert bool((mixture.log_weights.exp()[1] == 0).all())
    assert bool(torch.isfinite(mixture.mean).all())
    assert online.failures[0].returns == FAIL + OUT + 1
    assert f"it is out until row {FAIL + OUT + 1}" in str(online.failures[0])
    assert online.one_row is None
    with pytest.raises(ValueError, match="in quarantine; use an OnlineEnsemble"):
        online.ensemble.update(online.state, X, y)
    grown = add_experts(online, [GaussianExpert(basis(2.0))], 0.1)
    assert grown.failures == online.failures
    online.observe(X[FAIL + 5 :], y[FAIL + 5 :])
    assert online.log_weights.exp()[1] > 0
    (report,) = online.failures
    assert (report.name, report.times, report.row, report.returns) == ("b", 1, FAIL + 1, None)
    assert str(report).endswith("it has returned from its prior")


def test_the_snapshot_leads_before_a_failure():
    X, y = stream()
    online, other = (OnlineEnsemble(Ensemble(experts(), FixedShare())) for _ in range(2))
    for one in (online, other):
        one.observe(X[:FAIL], y[:FAIL])
    back = online.snapshot(5)
    break_(online)
    online.observe(X[FAIL : FAIL + 5], y[FAIL : FAIL + 5])
    assert len(online.failures) == 1
    back()
    assert online.failures == ()
    found, expected = (one.observe(X[FAIL:], y[FAIL:]) for one in (online, other))
    torch.testing.assert_close(found.log_weights, expected.log_weights)


@pytest.mark.parametrize("rule", [FixedShare(), DynamicModelAveraging(), OnlineNewton()])
def test_when_everybody_has_failed_the_call_is_refused_and_nothing_changes(rule):
    X, y = stream()
    online = OnlineEnsemble(Ensemble(experts(), rule))
    online.observe(X[:FAIL], y[:FAIL])
    for number in range(3):
        break_(online, number)
    before = {name: value.clone() for name, value in online.state_dict().items()}
    with pytest.raises(NumericalError, match="failed at row 0 of this call"):
        online.observe(X[FAIL:], y[FAIL:])
    assert all(torch.equal(value, online.state_dict()[name]) for name, value in before.items())
    assert online.failures == ()


def batched(kind, **settings):
    return kind(basis(1.0, (2,)), **settings)


@pytest.mark.filterwarnings("ignore:the mode of a target")
@pytest.mark.parametrize(
    ("bad", "is_class"),
    [
        (lambda: StudentTExpert(basis(1.0, (2,))), False),
        (lambda: batched(GaussianExpert, transition=ExponentialForgetting(0.99)), False),
        (lambda: LaplaceExpert(basis(1.0, (2,)), LogisticLikelihood()), True),
    ],
)
def test_one_of_a_batch_is_kept_out_and_the_other_goes_on(bad, is_class):
    X, y = stream()
    y = (y > 0).double() if is_class else y
    other = LaplaceExpert(basis(3.0), LogisticLikelihood()) if is_class else GaussianExpert(basis(3.0))
    online = OnlineEnsemble(Ensemble([bad(), other], FixedShare(), ["bad", "good", "other"]), block_size=8)
    online.observe(X[:FAIL], y[:FAIL])
    online.state.experts[0][0][0] = torch.nan
    rest = online.observe(X[FAIL:], y[FAIL:])
    assert [report.name for report in online.failures] == ["bad"]
    assert bool(torch.isfinite(rest.log_prob).all())
    assert bool((rest.variance > 0).all())
    alone = OnlineEnsemble(Ensemble([bad(), other], FixedShare()), block_size=8)
    alone.observe(X, y)
    for found, wanted in zip(online.state.experts[0], alone.state.experts[0], strict=True):
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-9, atol=1e-10)


def test_objects_that_run_as_a_whole_are_kept_out_as_a_whole():
    X, y = stream()
    outputs = torch.stack([y, -y], 1)
    pair = [MultiOutputExpert(basis(1.0), 2), MultiOutputExpert(basis(2.0, (2,)), 2)]
    online = OnlineEnsemble(Ensemble(pair, FixedShare(), ["one", "two", "three"]), block_size=8)
    online.observe(X[:FAIL], outputs[:FAIL])
    online.expert_1_covariance.fill_(torch.nan)
    rest = online.observe(X[FAIL:], outputs[FAIL:])
    assert [report.name for report in online.failures] == ["two", "three"]
    assert bool(torch.isfinite(rest.log_prob).all())
    assert bool((online.log_weights.exp() > 0).all())  # they have returned


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)])
def test_forgetting_on_constant_inputs_costs_nobody_else_anything(dtype):
    """What stopped a whole ensemble: Student-t experts that forget wind up where inputs never vary."""
    features = LinearFeatures(2, torch.ones(2, dtype=dtype))
    bad = StudentTExpert(features, transition=ExponentialForgetting(0.9))
    ensemble = Ensemble([bad, StudentTExpert(LinearFeatures(2, torch.ones((), dtype=dtype)))], FixedShare())
    y = torch.randn(2500, generator=torch.Generator().manual_seed(0)).to(dtype)
    online = OnlineEnsemble(ensemble)
    predictions = online.observe(torch.ones(2500, 2, dtype=dtype), y)
    assert bool(torch.isfinite(predictions.log_prob).all())
    assert bool((predictions.variance > 0).all())
    assert {report.name for report in online.failures} <= {"0", "1"}
    assert dtype == torch.float64 or online.failures


def windows(block):
    """A batch of two exact processes of the last rows, beside another expert."""
    two = torch.Size([2])
    kernel = RBFKernel(batch_shape=two).double()
    return OnlineEnsemble(
        Ensemble([WindowExpert(kernel, 2, 30), GaussianExpert(basis(1.0))], FixedShare()), None, block
    )


@pytest.mark.parametrize("block", [1, 7, 64])
def test_windows_of_a_batch_begin_anew_together(block):
    """What the attack has found: of two windows one began anew, and the rows of both were counted as the other's."""
    X, y = stream()
    online = windows(block)
    online.observe(X[:FAIL], y[:FAIL])
    online.expert_0_projected[0, 0] = torch.nan
    online.observe(X[FAIL : FAIL + OUT + 20], y[FAIL : FAIL + OUT + 20])
    assert [(failure.name, failure.times) for failure in online.failures] == [("0", 1), ("1", 1)]
    later = slice(FAIL + OUT, FAIL + OUT + 20)
    fresh = windows(block)
    fresh.observe(X[later], y[later])
    for field in ("inputs", "targets", "num_used"):
        assert torch.equal(getattr(online.state.experts[0], field), getattr(fresh.state.experts[0], field))


def test_a_refused_call_in_which_a_window_began_anew_changes_nothing():
    """What the attack has found: the way back of windows knew only how many rows they had."""
    X, y = stream()
    online = windows(8)
    online.observe(X[:FAIL], y[:FAIL])
    online.expert_0_projected[0, 0] = torch.nan
    online.state.experts[1].moments[..., :-1] = -torch.eye(3, dtype=torch.float64)
    before = {name: value.clone() for name, value in online.state_dict().items()}
    with pytest.raises(NumericalError, match="failed at row 0 of this call"):
        online.observe(X[FAIL : FAIL + 5], y[FAIL : FAIL + 5])
    for name, value in online.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0, equal_nan=True)
