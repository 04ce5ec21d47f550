"""Failures and interruptions within a stream: the row of the call, the expert's name, and an unchanged state."""

import _thread
import signal
import threading

import pytest
import torch

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.access_lock import uninterrupted
from gp_ensembles.experts import GaussianExpert, LaplaceExpert
from gp_ensembles.experts.structural import StructuralExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import ExponentialForgetting, RandomWalk, gaussian_state
from gp_ensembles.filters.states import square_root_state
from gp_ensembles.filters.stream import BlockStream
from gp_ensembles.likelihoods.classification import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging, DynamicModelAveraging, FixedShare, OnlineNewton
from gp_ensembles.numerics.cholesky import NumericalError

NAMES = ["good", "fine", "bad", "last"]


def features(batch=1):
    return LinearFeatures(1, torch.ones(batch, dtype=torch.float64))


def stream(num_rows=60):
    g = torch.Generator().manual_seed(0)
    X = torch.randn(num_rows, 1, generator=g, dtype=torch.float64).clamp(-1, 1)
    return X, 2 * X.squeeze(-1)


def snapshot(online):
    return [value.clone() for value in online.state_dict().values()]


def unchanged(online, before):
    return all(torch.equal(old, new) for old, new in zip(before, snapshot(online), strict=True))


def spoiled(rule, batch=3, **settings):
    """The second expert of a batch (or the only one) has lost its variance, which shows where X is far from zero."""
    experts = [GaussianExpert(features()), GaussianExpert(features(batch), **settings)]
    online = OnlineEnsemble(Ensemble(experts, rule, NAMES[: batch + 1]), block_size=8)
    moments = online.expert_1_moments[1 if batch > 1 else 0]
    moments[..., :2] = torch.diag_embed(moments.new_tensor([-1e-3, 0.0]))
    return online


@pytest.mark.parametrize("rule", [BayesianModelAveraging(), FixedShare(), DynamicModelAveraging(), OnlineNewton()])
@pytest.mark.parametrize("row", [0, 5, 8, 43])
def test_the_row_and_the_expert_are_those_of_the_call(rule, row):
    X, y = stream()
    online = spoiled(rule)
    X[row] = 1e4
    online.observe(X, y)
    (failure,) = online.failures
    assert (failure.name, failure.row, failure.times) == ("bad", row + 1, 1)
    assert failure.reason.startswith("the predictive covariance")


@pytest.mark.parametrize("num_rows", [6, 60])
def test_the_last_expert_that_has_weight_raises_and_changes_nothing(num_rows):
    X, y = stream(num_rows)
    weights = torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    online = spoiled(BayesianModelAveraging(weights))
    before = snapshot(online)
    X[4] = 1e4
    with pytest.raises(NumericalError, match="expert 'bad' failed at row 4 of this call") as caught:
        online.observe(X, y)
    assert "step" not in str(caught.value)
    assert isinstance(caught.value.__cause__, NumericalError)
    assert unchanged(online, before)


def test_among_the_living():
    """Experts that died are not run and not blamed, though they would fail."""
    X, y = stream()
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    online = spoiled(BayesianModelAveraging(weights))
    online.expert_1_moments[0] = online.expert_1_moments[1]
    X[21] = 1e4
    online.observe(X, y)
    assert [(failure.name, failure.row) for failure in online.failures] == [("bad", 22)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the mode of a target")
def test_a_wound_up_covariance_is_explained():
    """As some hundred rows of one input leave it: each of them multiplies what is not excited."""
    X, y = stream(4)
    y = (y > 0).double()
    transitions = {"steady": None, "fading": ExponentialForgetting(0.5)}
    experts = [LaplaceExpert(features(), LogisticLikelihood(), transition=each) for each in transitions.values()]
    online = OnlineEnsemble(Ensemble(experts, FixedShare(), list(transitions)))
    online.expert_1_moments.mul_(1e250)
    online.observe(X, y)
    (failure,) = online.failures
    assert failure.name == "fading"
    assert "use StabilizedForgetting or Random" in failure.reason


def test_a_density_that_is_no_number():
    X, y = stream()
    online = OnlineEnsemble(Ensemble([GaussianExpert(features(3))], FixedShare(), NAMES[:3]), block_size=8)
    online.expert_0_moments[2, :, -1] = torch.nan
    online.observe(X, y)
    (failure,) = online.failures
    assert (failure.name, failure.row) == ("bad", 1)
    assert failure.reason.startswith("its predictive mean is nan and its variance 2.5")
    assert failure.reason.endswith("an overflow")  # of a forgetting that is none nothing is said


FORMS = {"covariance": gaussian_state, "root": square_root_state}
AT = 11  # of 20 rows, which no other of them is spoiled by


def huge(dtype, form, transition=None):
    """The prior of the first expert is so narrow that its numbers do not overflow at a row, as the second's do."""
    X, y = (part[:20].to(dtype) for part in stream())
    large = 1e160 if dtype == torch.float64 else 1e20
    scales = (torch.full((1,), scale, dtype=dtype) for scale in (large**-1.5, 1.0))
    experts = [GaussianExpert(LinearFeatures(1, scale), None, transition, FORMS[form]) for scale in scales]
    X[AT] = large
    return OnlineEnsemble(Ensemble(experts, FixedShare(), NAMES[:2]), block_size=8), X, y


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("transition", [None, RandomWalk(1e-60)])
def test_an_overflow_in_a_row_without_a_target_is_a_failure_there(dtype, form, transition):
    """What the attack has found: a variance that is NaN, where nothing was raised."""
    online, X, y = huge(dtype, form, transition)
    y[AT] = torch.nan
    found = online.observe(X, y)
    assert [(failure.name, failure.row) for failure in online.failures] == [("fine", AT + 1)]
    assert not bool(found.variance.isnan().any())
    assert bool(found.mean.isfinite().all())


@pytest.mark.parametrize("form", FORMS)
def test_prediction_goes_on_without_an_expert_whose_numbers_overflow(form):
    online, X, y = huge(torch.float64, form)
    online.observe(X[:AT], y[:AT])
    before = snapshot(online)
    usual, mixture = online.predict(X[:AT]), online.predict(X)
    torch.testing.assert_close(mixture.mean[:AT], usual.mean)
    assert mixture.log_weights.exp()[:, AT].tolist() == [1, 0]
    assert bool(mixture.mean.isfinite().all())
    assert not bool(mixture.variance.isnan().any())
    alone = OnlineEnsemble(Ensemble([online.ensemble.experts[1]], FixedShare(), NAMES[:1]))
    alone.observe(X[:AT], y[:AT])
    with pytest.raises(NumericalError, match=f"predicts row {AT}:"):
        alone.ensemble.predict(alone.state, X)
    with pytest.raises(
        NumericalError, match=rf"predicts row {AT + 300}: all are absent or overflow there; .* correct the inputs$"
    ):
        alone.predict(torch.cat([X[:1].expand(300, -1), X]))
    assert unchanged(online, before)


@pytest.mark.parametrize("block", [1, 4, 20])
def test_an_overflow_spoils_no_row_before_it(block):
    """An error that is infinite counts as nothing for the rows before its own."""
    X, y = (part[:20].float() for part in stream())
    y[AT] = 3e38
    y[3] = torch.nan
    experts = [GaussianExpert(LinearFeatures(1, torch.full((1,), 1.0)), None, None, form) for form in FORMS.values()]
    for expert in experts:
        expert.likelihood.noise = 1e-4
    online = OnlineEnsemble(Ensemble(experts, FixedShare(), NAMES[:2]), block_size=block)
    clean = OnlineEnsemble(Ensemble(experts, FixedShare(), NAMES[:2]), block_size=block)
    expected = clean.observe(X[:AT], y[:AT])
    with pytest.raises(NumericalError, match=f"failed at row {AT + 1} of this call"):
        online.observe(X, y)
    assert unchanged(online, snapshot(OnlineEnsemble(online.ensemble)))
    found = online.observe(X[: AT + 1], y[: AT + 1])
    torch.testing.assert_close(found.mean[:AT], expected.mean)


def structural(rule, block):
    """A batch of two, which count their rows together, beside another expert."""
    variances = torch.tensor([[0.1, 1e-2, 1e-4], [1.0, 1e-3, 0.0]], dtype=torch.float64)
    experts = [StructuralExpert(variances, 4, 1, 20), GaussianExpert(features())]
    return OnlineEnsemble(Ensemble(experts, rule, NAMES[:3]), block_size=block)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_structural_experts_of_a_batch_fail_together(block):
    """What the attack has found: a RuntimeError about shapes, where one of two failed or was dead."""
    X, y = stream()
    online = structural(FixedShare(), block)
    online.observe(X[:20], y[:20])
    online.expert_0_moments[1] = torch.nan
    online.observe(X[20:30], y[20:30])
    assert [(failure.name, failure.row) for failure in online.failures] == [("good", 21), ("fine", 21)]
    assert online.log_weights.exp().tolist() == [0, 0, 1]
    dead = structural(BayesianModelAveraging(torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)), block)
    found = dead.observe(X, y)
    alive = structural(BayesianModelAveraging(torch.tensor([1e-300, 0.5, 0.5], dtype=torch.float64)), block)
    torch.testing.assert_close(found.log_prob, alive.observe(X, y).log_prob)
    pair = [GaussianExpert(features()), structural(FixedShare(), block).ensemble.experts[0]]
    weights = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64)
    last = OnlineEnsemble(Ensemble(pair, BayesianModelAveraging(weights), NAMES[:3]), block_size=block)
    last.expert_1_moments.fill_(torch.nan)
    with pytest.raises(NumericalError, match="one of the experts 'fine' to 'bad' failed at row 0 of this call"):
        last.observe(X, y)


def test_weights_that_fail_name_the_row(monkeypatch):
    X, y = stream()
    rule = FixedShare()
    online = OnlineEnsemble(Ensemble([GaussianExpert(features(2))], rule), block_size=8)
    original = FixedShare.update_block

    def failing(self, state, *args):
        if int(state.num_seen) >= 16:
            raise NumericalError("the curvature is singular at step 3")
        return original(self, state, *args)

    monkeypatch.setattr(FixedShare, "update_block", failing)
    before = snapshot(online)
    with pytest.raises(NumericalError, match=r"weights failed at row 16 of this call: .* is singular$"):
        online.observe(X, y)
    assert unchanged(online, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("rows", [1, 8])
def test_an_interruption_never_tears_a_block(rows, monkeypatch):
    """Ctrl-C while the second of three experts learns: all have learned the block, or none."""
    X, y = stream(rows)
    build = [GaussianExpert(features()) for _ in range(3)]
    online, other = (OnlineEnsemble(Ensemble(build, FixedShare()), block_size=8) for _ in range(2))
    other.observe(X, y)
    original, calls = BlockStream.commit, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 2:
            _thread.interrupt_main()
        original(self)

    monkeypatch.setattr(BlockStream, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        online.observe(X, y)
    assert len(calls) == 3
    assert unchanged(online, snapshot(other))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c")
def test_other_threads_and_errors_leave_the_handler_alone():
    with pytest.raises(ValueError, match="inside"), uninterrupted():
        raise ValueError("inside")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    seen = []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
