"""Learning and predicting on a GPU, where numbers are compared with the host's.

On the GPU of this machine where it has one, and everywhere on a stand-in that refuses what CUDA refuses
(``tests/pretend_device.py``), so a part that leaves a tensor on the host fails on any machine. Graphs are in
``tests/engine``, commands in ``tests/cli/test_devices.py``, offline tools in ``tests/test_offline_devices.py``.
"""

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor

from gp_ensembles.engine import OnlineEnsemble
from gp_ensembles.ensembles import targets
from gp_ensembles.ensembles.bases import FourierBasis, HilbertBasis, LinearBasis, RadialBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import PRESETS, e_doebe
from gp_ensembles.ensembles.spec import EnsembleSpec
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from gp_ensembles.streaming import OnlineModel, StreamConfig
from tests.features.test_contract import CASES, inputs
from tests.fleet.instances import ENSEMBLES, rows
from tests.meta_learners.test_contract import RULES, M
from tests.pretend_graphs import pretend_gpu

CLOSE = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
LOOSE = {"rtol": 1e-6, "atol": 1e-6, "equal_nan": True}  # moments by quadrature: the nodes move with round-off
QUICK = FitSettings(LBFGS(max_iterations=2), num_samples=1)


@pytest.fixture
def same_on_both(gpu):
    """Run on the host and on a GPU; what comes back from there is there, with the same numbers."""

    def compare(run, **close) -> None:
        expected = run("cpu")
        with gpu.here():
            found = run("cuda")
            assert len(found) == len(expected)
            for there, here in zip(found, expected, strict=True):
                assert there.is_cuda
                torch.testing.assert_close(there.cpu(), here, **gpu.close(**{**CLOSE, **close}))

    return compare


@pytest.mark.parametrize("build", CASES.values(), ids=CASES)
def test_feature_maps(build, same_on_both):
    def run(device: str) -> list[Tensor]:
        features = build(torch.Size([2]), torch.float64).to(device)
        X = inputs(6).to(device)
        Phi = features(X)
        with torch.no_grad():
            bound = features.bind()(X)
        return [Phi.detach(), bound, features.prior_variance.detach()]

    same_on_both(run)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sizes", [(12,), (1, 4, 1)], ids=str)
def test_weight_rules(name, sizes, generator, same_on_both):
    log_prob = torch.randn(M, sum(sizes), generator=generator, dtype=torch.float64)
    log_prob[:, 2] = 0.0

    def run(device: str) -> list[Tensor]:
        rule = RULES[name]().to(device)
        state, predicted = rule.init(M, log_prob.to(device)), []
        for block in log_prob.to(device).split(list(sizes), dim=1):
            state, output = rule.update_block(state, block)
            predicted += [output.log_weights, output.log_prob]
        return [*predicted, rule.log_weights(state)]

    same_on_both(run)


@pytest.mark.parametrize("kind", ENSEMBLES)
def test_ensembles(kind, generator, same_on_both):
    _, X, y = rows(24, generator, classes=kind == "classes")

    def run(device: str) -> list[Tensor]:
        online = OnlineEnsemble(ENSEMBLES[kind]().to(device))
        online.records = False  # graphs are in ``tests/engine``
        there, targets = X.to(device), y.to(device)
        parts = (slice(0, 15), slice(15, 16), slice(16, 24))
        predicted = [online.observe(there[part], targets[part]) for part in parts]
        ahead = online.predict(there[:3])
        again = copy.deepcopy(online).observe(there[:5], targets[:5])
        numbers = [part for one in predicted for part in (one.mean, one.variance, one.log_prob, one.log_weights)]
        return [*numbers, ahead.mean, again.mean]

    same_on_both(run)


QUICK_ONES = ("all layers", "square roots", "classes")


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k in QUICK_ONES else pytest.mark.slow) for k in ENSEMBLES]
)
def test_fleets_without_units(kind, generator, tmp_path, same_on_both):
    names, X, y = rows(30, generator, classes=kind == "classes")

    def run(device: str) -> list[Tensor]:
        fleet = EnsembleFleet(ENSEMBLES[kind]().to(device), sorted(set(names)))
        there, targets = X.to(device), y.to(device)
        parts = (slice(24), slice(24, None))
        predicted = [fleet.observe(names[part], there[part], targets[part]) for part in parts]
        fleet.retire(names[:1])
        fleet.add(["new"])
        fleet.add(["like another"], fleet.export(names[1]))
        fleet.save(tmp_path / device)
        other = EnsembleFleet.load(tmp_path / device, device=device)
        some = ["new", "like another"]
        numbers = [part for one in predicted for part in (one.mean, one.variance, one.log_prob)]
        return [*numbers, fleet.log_weights(some), other.predict(some, there[:2]).mean]

    same_on_both(run)


SERIES = dataclasses.replace(
    PRESETS["light"],
    bases=(FourierBasis(num_features=10, starts=(0.7,)),),
    lags=None,
    extra_experts=(),
    fit_settings=QUICK,
)
FLEETS = {
    "switching": (dataclasses.replace(e_doebe, bases=(LinearBasis(),), fit_settings=QUICK), True),
    "light, shared variances": (SERIES, False),
}


def series(generator) -> tuple[list[str], Tensor, Tensor]:
    """Rows of three series in turn, then of one that comes late; gaps, and a gross error."""
    names = ["a", "b", "c"] * 18 + ["late"] * 20
    X = torch.randn(len(names), 2, generator=generator, dtype=torch.float64)
    y = 100 + X[:, 0].sin() + 0.1 * torch.randn(len(names), generator=generator, dtype=torch.float64)
    y[::17], X[5, 1], X[58, 0], y[70] = torch.nan, torch.nan, torch.nan, 500.0
    return names, X, y


@pytest.mark.parametrize("given", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [next(iter(FLEETS)), pytest.param(list(FLEETS)[1], marks=pytest.mark.slow)])
def test_fleets(name, given, generator, tmp_path, same_on_both, gpu):
    """Rows come from either device, files go on on either."""
    (spec, own), (names, X, y) = FLEETS[name], series(generator)

    def run(device: str) -> list[Tensor]:
        inputs, targets = (part.to(given if device == "cuda" else "cpu") for part in (X, y))
        fleet = Fleet(spec, warmup=15, device=device, own_variances=own)
        fleet.fit(names[:48], inputs[:48], targets[:48])
        predicted = fleet.observe(names[48:66], inputs[48:66], targets[48:66])
        fleet.save(tmp_path / device)
        parts = []
        for again in (fleet, Fleet.load(tmp_path / device, device=device), copy.deepcopy(fleet)):
            later = again.observe(names[66:], inputs[66:], targets[66:])
            parts += [later.mean, later.log_prob, *later.interval(), later.covered]
        ahead = fleet.predict(names[:3], inputs[:3])
        assert (fleet.waiting, fleet.failures) == ({}, {})
        numbers = [predicted.mean, predicted.variance, predicted.log_prob, *predicted.interval()]
        return [*numbers, *parts, ahead.mean, *ahead.interval()]

    same_on_both(run)
    found = Fleet.load(tmp_path / "cuda").observe(names[66:], X[66:], y[66:])  # a GPU's files, on a host without
    expected = Fleet.load(tmp_path / "cpu").observe(names[66:], X[66:], y[66:])
    torch.testing.assert_close(found.log_prob, expected.log_prob, **gpu.close(**CLOSE))
    with gpu.here():
        back = Fleet.load(tmp_path / "cpu", device="cuda").observe(names[66:], X[66:], y[66:])
        torch.testing.assert_close(back.log_prob.cpu(), expected.log_prob, **gpu.close(**CLOSE))


def test_states_in_files_are_on_the_host(tmp_path):
    with pretend_gpu():
        with pytest.raises(ValueError, match="memory-mapped files are on the host, not on cuda"):
            Fleet(SERIES, device="cuda", folder=tmp_path / "states")
        with pytest.raises(ValueError, match="memory-mapped files are on the host, not on cuda"):
            EnsembleFleet(ENSEMBLES["averaging"]().to("cuda"), folder=tmp_path / "states")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "gpu", "meta"])
def test_a_device_that_is_not_there_is_refused(device, tmp_path):
    for make in (lambda: Fleet(SERIES, device=device), lambda: OnlineModel(StreamConfig(device=device))):
        with pytest.raises(ValueError, match=f"device '{device}' .*use cpu"):
            make()


def small(name: str, **changes: object) -> EnsembleSpec:
    return dataclasses.replace(PRESETS[name], **{"fit_settings": QUICK, **changes})


BASES = (FourierBasis(num_features=20, starts=(0.7,)), LinearBasis())
MODELS = {
    "light": small("light"),
    "e_doebe": small("e_doebe", bases=(HilbertBasis(starts=(0.7,)), RadialBasis(num_centers=9, starts=(0.7,)), *BASES)),
    "auto": PRESETS["auto"],  # a window, wide features and boosted trees, which stay on the host
    "forecaster": small("forecaster"),
    "soebe": small("soebe", bases=BASES),
    "die_gp": small("die_gp"),
    "two classes": small("e_doebe", bases=BASES, target=targets.BinaryTarget()),
    "three classes": small("e_doebe", bases=BASES[1:], target=targets.ClassTarget(3)),
    "levels": small("e_doebe", bases=BASES[1:], target=targets.LevelTarget(3)),
    "counts": small("e_doebe", bases=BASES, target=targets.CountTarget()),
    "unknown noise": small("e_doebe", bases=BASES, target=targets.UnknownNoiseTarget()),
    "outliers": small("e_doebe", bases=BASES[1:], target=targets.OutlierTarget()),
    "two outputs": small("e_doebe", bases=BASES, target=targets.RealTarget(num_outputs=2)),
}
FAST = ("light",)
OF_LABELS = {"two classes": 2, "three classes": 3, "levels": 3, "counts": 6}


def table(name: str, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows with gaps, a wild input and, of numbers, a gross error."""
    X = torch.randn(110, 3, generator=generator, dtype=torch.float64)
    y = X[:, 0].sin() + 0.1 * torch.randn(110, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.arange(110) % 7
    if name in OF_LABELS:
        y = ((y - y.min()) / (y.max() - y.min()) * OF_LABELS[name] * 0.999).floor()
    elif name == "two outputs":
        y = torch.stack([y, X[:, 1]], dim=-1)
    else:
        y[95] = 50.0
    X[85, 1], X[90, 0], y[88] = torch.nan, 300.0, torch.nan
    return X, y


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in MODELS]
)
def test_models_on_a_stream(name, generator, tmp_path, same_on_both, gpu):
    """Rows come from the host, one at a time too; a checkpoint of one device goes on on the other."""
    X, y = table(name, generator)
    config = StreamConfig(MODELS[name], warmup=60, recalibrate=False)

    def run(device: str) -> list[Tensor]:
        model = OnlineModel(dataclasses.replace(config, device=device))
        model.fit(X[:60], y[:60])
        model.online.records = False  # graphs are in ``tests/engine``
        predicted = [model.observe(X[a:b], y[a:b]) for a, b in ((60, 66), (66, 67), (67, 68))]
        model.save(tmp_path / f"{device}.pt")
        predicted.append(model.observe(X[68:100], y[68:100]))
        ahead = model.predict(X[100:])
        assert math.isclose(sum(model.weights.values()), 1)
        # Weights, not their logarithms: the gross error leaves experts of die_gp at -65 704 nats, of which other blocks
        # on the host alone move 4e-5, 2e-9 of it (e_doebe: 7e-10, 2e-13 of it).
        numbers = [part for one in predicted for part in (one.mean, one.log_prob, one.log_weights.exp())]
        return [*numbers, ahead.mean, ahead.variance]

    # The prior variances of die_gp are up to 5e6 times its noise, and round-off with them: blocks of one and of 24 rows
    # on the host alone differ by 3e-11 in means, 6e-11 in log densities and 8e-11 in weights, host and stand-in by at
    # most 9e-11, whichever of three instruction sets computes (``ATEN_CPU_CAPABILITY``). A GPU differs by 1.4e-7.
    size = 1e-9 + 10 * gpu.round_off
    close = {"rtol": size, "atol": size, "equal_nan": True} if name == "die_gp" else CLOSE
    same_on_both(run, **close)
    with gpu.here():
        models = [OnlineModel.load(tmp_path / "cuda.pt", device="cpu"), OnlineModel.load(tmp_path / "cpu.pt")]
        models.append(OnlineModel.load(tmp_path / "cpu.pt", device="cuda"))
        for model in models:
            model.online.records = False
        first, *others = (model.observe(X[68:92], y[68:92]).log_prob.cpu() for model in models)
        for other in others:
            torch.testing.assert_close(other, first, **gpu.close(**close))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["light", "two classes"])
def test_what_is_put_behind_a_mixture(name, generator, same_on_both):
    """Recalibration, adaptive intervals, and forecasts of several rows."""
    X, y = table(name, generator)
    config = StreamConfig(MODELS[name], warmup=60)

    def learned(device: str) -> OnlineModel:
        model = OnlineModel(dataclasses.replace(config, device=device))
        model.observe(X[:75], y[:75])
        return model

    def run(device: str) -> list[Tensor]:
        model = learned(device)
        predicted, ahead = model.observe(X[75:100], y[75:100]), model.predict(X[100:])
        if name == "two classes":
            return [predicted.log_prob, ahead.class_probabilities]
        ends = model.predict_interval(X[100:])
        return [predicted.log_prob, ahead.quantile(0.9), ahead.cdf(y[100:].to(device)), *ends]

    same_on_both(run)
    if name == "light":
        same_on_both(lambda device: [learned(device).predict(X[100:]).variance], **LOOSE)
        same_on_both(lambda device: [learned(device).predict(X[100:]).sample(3)[:, :0]])
