"""What OnlineEnsemble does on a GPU by itself: blocks recorded where they can be, rows by the host where they cannot.

On a GPU where there is one, and on a stand-in whose graphs refuse what a capture refuses; numbers are compared with
the host's.
"""

import copy
import dataclasses
import gc
import weakref
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import RBFKernel

from gp_ensembles.engine import Ensemble, OnlineEnsemble
from gp_ensembles.engine.input_checks import state_bytes
from gp_ensembles.engine.recorded import CannotRecordError, check_recordable
from gp_ensembles.engine.state import named_tensors
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import PRESETS
from gp_ensembles.experts import GaussianExpert, WindowExpert
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.features import LinearFeatures
from gp_ensembles.filters import RandomWalk
from gp_ensembles.meta_learners import FixedShare
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.fleet.instances import ENSEMBLES, INPUTS, linear, rows
from tests.pretend_graphs import pretend_gpu

CLOSE = {"rtol": 1e-8, "atol": 1e-9, "equal_nan": True}


def window() -> Ensemble:
    return Ensemble([WindowExpert(RBFKernel().double(), INPUTS, num_rows=10), GaussianExpert(linear())], FixedShare())


def test_blocks_are_replayed_and_the_last_rows_too(generator, gpu):
    ensemble = ENSEMBLES["all layers"]()
    _, X, y = rows(19, generator)
    y = y.clamp(-3, 3)  # no outliers: everything is for the graphs
    expected = OnlineEnsemble(copy.deepcopy(ensemble)).observe(X, y)
    with gpu.here() as graphs:
        online = OnlineEnsemble(ensemble.to("cuda"), block_size=8)
        found = online.observe(X.to("cuda"), y.to("cuda"))
        assert [graph.num_replays for graph in graphs] == [2, 3]  # 19 = 2 * 8 + 3
        assert online.why_eager is None
        torch.testing.assert_close(found.log_prob.cpu(), expected.log_prob, **gpu.close(**CLOSE))
        online.observe(X[:8].to("cuda"), y[:8].to("cuda"))
        assert [graph.num_replays for graph in graphs] == [3, 3]  # none is recorded twice


def test_hyperparameters_that_change_are_recorded_anew(generator, gpu):
    _, X, y = rows(24, generator)

    def run(device: str) -> torch.Tensor:
        ensemble = Ensemble([GaussianExpert(linear()), GaussianExpert(linear())], FixedShare()).to(device)
        online = OnlineEnsemble(ensemble, block_size=8)
        online.observe(X[:8].to(device), y[:8].to(device))
        ensemble.experts[0].likelihood.noise = 0.02
        return online.observe(X[8:].to(device), y[8:].to(device)).log_prob.cpu()

    expected = run("cpu")
    with gpu.here() as graphs:
        torch.testing.assert_close(run("cuda"), expected, **gpu.close(**CLOSE))
        assert len(graphs) == 2


def test_rows_far_apart_or_less_sure_are_for_the_host(generator, gpu):
    """Between them blocks are replayed."""
    _, X, y = rows(40, generator)
    steps, extra = torch.ones(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    steps[16], extra[17], extra[26] = 3.0, 0.5, 0.2
    experts = [GaussianExpert(linear(), transition=RandomWalk(1e-2)), GaussianExpert(linear())]
    expected = OnlineEnsemble(Ensemble(experts, FixedShare())).observe(X, y, steps=steps, extra=extra)
    with gpu.here() as graphs:
        online = OnlineEnsemble(Ensemble(experts, FixedShare()).to("cuda"), block_size=8)
        there = {"steps": steps.to("cuda"), "extra": extra.to("cuda")}
        found = online.observe(X.to("cuda"), y.to("cuda"), **there)
        torch.testing.assert_close(found.log_prob.cpu(), expected.log_prob, **gpu.close(**CLOSE))
        assert sum(graph.num_replays for graph in graphs) >= 4


RECORDED = [name for name in PRESETS if name not in ("auto", "deep", "forecaster")]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("light", "forecaster", "e_doebe", "die_gp") else pytest.mark.slow)
        for name in [*RECORDED, "forecaster"]
    ],
)
def test_which_presets_are_recorded(name, generator):
    """Of those without a window and trees, which cannot be; as the page on scale says."""
    X = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = X[:, 0].cumsum(0).cumsum(0) if name == "forecaster" else X[:, 0].sin()  # a trend that changes
    spec = replace(PRESETS[name], fit_settings=replace(PRESETS[name].fit_settings, method=None))
    online = spec.fit(X, (y - y.mean()) / y.std(), generator=generator)
    if name in RECORDED:
        check_recordable(online.ensemble, online.state)
    else:
        with pytest.raises(CannotRecordError, match="StructuralExpert cannot be an expert of a graph"):
            check_recordable(online.ensemble, online.state)


@pytest.mark.parametrize(
    ("make", "reason"),
    [(window, "WindowExpert cannot be an expert of a graph"), (ENSEMBLES["classes"], "reads numbers while it learns")],
)
def test_what_cannot_be_recorded_runs_as_on_the_host_and_says_why(make, reason, generator, gpu):
    _, X, y = rows(40, generator, classes=reason[0] == "r")
    ensemble = make()
    expected = OnlineEnsemble(copy.deepcopy(ensemble)).observe(X, y)
    with gpu.here() as graphs:
        online = OnlineEnsemble(ensemble.to("cuda"))
        found = online.observe(X.to("cuda"), y.to("cuda"))
        assert graphs == []
        assert reason in online.why_eager
        torch.testing.assert_close(found.mean.cpu(), expected.mean, **gpu.close(**CLOSE))


def test_a_gpu_that_refuses_to_record_runs_as_on_the_host(generator, monkeypatch, gpu):
    _, X, y = rows(40, generator)
    ensemble = ENSEMBLES["averaging"]()
    expected = OnlineEnsemble(copy.deepcopy(ensemble), block_size=16).observe(X, y)

    def refuse(graph, stream):
        raise RuntimeError("CUDA error: operation not permitted\nand more lines")

    with gpu.here() as graphs:
        monkeypatch.setattr(torch.cuda, "graph", refuse)
        online = OnlineEnsemble(ensemble.to("cuda"), block_size=16)
        found = online.observe(X.to("cuda"), y.to("cuda"))
        assert online.why_eager == "the GPU did not record a block (CUDA error: operation not permitted)"
        assert sum(graph.num_replays for graph in graphs) == 0
        exactly = {"rtol": 0, "atol": 0, "equal_nan": True}
        torch.testing.assert_close(found.log_prob.cpu(), expected.log_prob, **gpu.close(**exactly))


def test_a_call_that_is_cut_off_between_blocks_changes_nothing(generator, monkeypatch):
    _, X, y = rows(64, generator)
    with pretend_gpu() as graphs:
        online = OnlineEnsemble(ENSEMBLES["switching"]().to("cuda"), block_size=8)
        online.observe(X.to("cuda"), y.to("cuda"))
        before = [value.clone() for _, value in named_tensors(online.state)]
        replay = type(graphs[0]).replay

        def cut_off(graph):
            if graph.num_replays == 11:
                raise KeyboardInterrupt
            replay(graph)

        monkeypatch.setattr(type(graphs[0]), "replay", cut_off)
        with pytest.raises(KeyboardInterrupt):
            online.observe(X.to("cuda"), y.to("cuda"))
        for old, (_, new) in zip(before, named_tensors(online.state), strict=True):
            assert torch.equal(old.cpu(), new.cpu())


SMALL = dataclasses.replace(
    PRESETS["light"],
    bases=(LinearBasis(),),
    lags=None,
    extra_experts=(),
    fit_settings=FitSettings(LBFGS(max_iterations=2), num_samples=1),
)


def test_a_gpu_without_memory_says_what_is_needed_and_by_how_much_it_is_too_little():
    """Twice the states, F (F + 1) numbers for each expert, and of a block of B rows B (3 F + B) numbers for each."""
    experts, block_size = 2, 16
    features = LinearFeatures(INPUTS, torch.ones(experts, dtype=torch.float64), bias=False)
    ensemble = Ensemble([GaussianExpert(features)], FixedShare())
    needed = 8 * experts * (2 * INPUTS * (INPUTS + 1) + block_size * (3 * INPUTS + block_size))
    with pretend_gpu(needed):
        OnlineEnsemble(ensemble.to("cuda"), block_size=block_size)
    message = (
        rf"an ensemble of 2 experts .* would take {needed / 1e9:.3g} GB of memory of cuda:0, but only .* GB is "
        r"available, "
    )
    with (
        pretend_gpu(needed - 1000),
        pytest.raises(ValueError, match=message + "1e-06 GB too little; use fewer experts"),
    ):
        OnlineEnsemble(ensemble, block_size=block_size)


def test_states_of_an_ensemble_take_what_is_said():
    """Beside the tensors themselves, whatever their form; those of a window less its rows."""
    for kind, make in {**ENSEMBLES, "window": window}.items():
        ensemble = make()
        true = sum(v.numel() * v.element_size() for part in ensemble.init().experts for v in part)
        predicted = state_bytes(ensemble.experts, torch.ones(1, dtype=torch.float64))
        assert predicted == pytest.approx(true, rel=0.02 if kind != "window" else 0.4)
        assert predicted <= true
    window_alone = window().experts[:1]
    assert state_bytes(window_alone, torch.ones(1)) == window_alone[0].init().factor.nbytes  # in double precision


def test_a_model_that_does_not_fit_on_a_gpu_stays_as_it_was(generator):
    """Features of the warm-up fit, states of static and walking experts do not."""
    _, X, y = rows(60, generator)
    bases = (FourierBasis(num_features=100, starts=(0.7,)),)
    spec = dataclasses.replace(SMALL, bases=bases, random_walk_variances=(1e-3, 1e-2))
    with pretend_gpu(free_bytes=250_000):
        model = OnlineModel(StreamConfig(spec, warmup=40, device="cuda"))
        model.observe(X[:30], y[:30])
        with pytest.raises(ValueError, match=r"an ensemble of 3 experts .* GB too little; use fewer experts"):
            model.observe(X[30:], y[30:])
        assert (model.num_rows, model.is_fitted) == (30, False)


@pytest.mark.parametrize("there", ["cpu", torch.float32, "meta"], ids=str)
def test_what_was_recorded_is_not_kept_where_an_ensemble_leaves(there, generator):
    """Graphs hold memory of the GPU."""
    _, X, y = rows(8, generator)
    gc.freeze()  # what is older need not be looked at
    try:
        with pretend_gpu() as graphs:
            online = OnlineEnsemble(ENSEMBLES["averaging"]().to("cuda"), block_size=8)
            online.observe(X.to("cuda"), y.to("cuda"))
            recorded = weakref.ref(graphs.pop())
            assert graphs == []
            gc.collect()
            assert recorded() is not None
            online.to(there)
            gc.collect()
            assert recorded() is None
    finally:
        gc.unfreeze()


def test_a_gpu_without_memory_for_an_ensemble_that_is_moved_there_leaves_it_where_it_is(generator):
    """Half the precision takes half of it: see the test of new ensembles for what is needed."""
    features = LinearFeatures(INPUTS, torch.ones(2, dtype=torch.float64), bias=False)
    online = OnlineEnsemble(Ensemble([GaussianExpert(features)], FixedShare()), block_size=16)
    needed = 8 * 2 * (2 * INPUTS * (INPUTS + 1) + 16 * (3 * INPUTS + 16))
    _, X, y = rows(16, generator)
    before = {name: value.clone() for name, value in online.state_dict().items()}
    with pretend_gpu(needed - 1000):
        with pytest.raises(ValueError, match=r"an ensemble of 2 experts .* of memory of cuda:0.* 1e-06 GB too little"):
            online.to("cuda")
        after = online.state_dict()
        assert all(torch.equal(after[name], value) for name, value in before.items())
        online.observe(X, y)
        online.to("cuda", torch.float32)
        assert str(online.device).startswith("cuda")
        online.to("cpu")
    with pretend_gpu(needed):
        online.double().to("cuda")
