"""The DOEBE paper's experiments: what each must show, and that finished parts are read back and not run again."""

import csv
import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from studies.doebe import scores as doebe_scores
from studies.doebe import study as doebe
from studies.doebe import weights as doebe_weights
from studies.doebe.methods import (
    FAMILIES,
    Averaging,
    Method,
    e_doebe,
    family_methods,
    score,
    whole_methods,
)
from studies.doebe.recording import Recording, load_recording, record, save_recording
from studies.doebe.sets import (
    DRIFT,
    load_stream,
    set_names,
    static_then_drifting,
)
from studies.doebe.tables import compare_pairs
from studies.doebe.weights import twin_densities, weigh

PRUNED, KEPT, EXCHANGED = range(3)


def made_up_recording(num_rows: int = 40, seed: int = 0) -> Recording:
    """Two samples of an expert of each of two families, static and dynamic: 8 experts."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(num_rows, dtype=torch.float64, generator=generator)
    y[5] = torch.nan
    mean = torch.randn(8, num_rows, dtype=torch.float64, generator=generator)
    variance = torch.rand(8, num_rows, dtype=torch.float64, generator=generator) + 0.5
    log_prob = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(y)
    is_dynamic = torch.arange(8) >= 4
    sample = torch.tensor([0, 1] * 4)
    return Recording(("hsgp", "hsgp", "rff", "rff") * 2, is_dynamic, sample, mean, variance, log_prob, y, (1.0, 2.0))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """All experiments once on small synthetic sets, and the tables they returned."""
    out = tmp_path_factory.mktemp("doebe")
    texts = {name: doebe.run(name, None, out, max_rows=200) for name in ("1", "3", "C", "D")}
    return out, texts


def test_collapse_on_a_stream_that_begins_to_drift():
    """Experiment 2's three statements, for several draws."""
    for seed in range(3):
        stream = load_stream(DRIFT, None, 3000, seed)
        found = weigh(twin_densities(stream, "", False))
        check_three_statements(found)


def test_collapse_on_the_robot_arm(shared):
    stream = load_stream("sarcos_thin10", shared / "data", None, 0)
    found = weigh(twin_densities(stream, "", False))
    check_three_statements(found)
    assert found[KEPT].summary()["min_log10"] < -40


def check_three_statements(found):
    """Pruned, the dynamic expert dies for good; not pruned, it comes back; under E-DOEBE it is never far."""
    pruned, kept, exchanged = (weights.log_weight for weights in found)
    dead = torch.isneginf(pruned)
    first = int(dead.int().argmax())
    assert bool(dead.any())
    assert bool(dead[first:].all())
    assert float(pruned[first - 1]) < math.log(1e-16)
    lowest = int(kept.argmin())
    assert float(kept[lowest]) < math.log(1e-12)
    assert float(kept[lowest:].max()) > math.log(0.99)
    assert float(exchanged.min()) >= math.log(0.01) - 1e-9
    scores = [weights.log_score for weights in found]
    assert scores[PRUNED] < scores[KEPT] < scores[EXCHANGED]


def test_weights_against_brute_force():
    """Bayes' rule, pruning and the exchange, step by step in linear space."""
    log_prob = torch.randn(2, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    log_prob[1, 10:20] -= 6.0
    log_prob[1, 30:50] += 8.0
    pruned, kept, mixed = np.array([0.5, 0.5]), np.array([0.5, 0.5]), np.array([0.5, 0.5])
    expected = []
    for column in log_prob.T.exp().numpy():
        mixed = 0.98 * mixed + 0.01
        expected.append((pruned[1], kept[1], mixed[1]))
        alive = pruned * (pruned >= 1e-16)
        pruned, kept, mixed = (w * column / (w * column).sum() for w in (alive, kept, mixed))
    found = torch.stack([weights.log_weight.exp() for weights in weigh(log_prob)], dim=1)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-300)


def test_experiment_2_is_read_back(tmp_path, monkeypatch):
    text = doebe.run("2", None, tmp_path, seeds=2, max_rows=400)
    with (tmp_path / "doebe_experiment_2.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stream"], row["seed"]) for row in rows] == [(DRIFT, seed) for seed in "000111"]
    assert (tmp_path / f"doebe_experiment_2_{DRIFT}-seed1.png").stat().st_size > 1000
    monkeypatch.setattr(doebe_weights, "twin_densities", lambda *_: pytest.fail("it was run again"))
    assert doebe.run("2", None, tmp_path, seeds=2, max_rows=400) == text
    with pytest.raises(pytest.fail.Exception):
        doebe.run("2", None, tmp_path, seeds=3, max_rows=400)


def test_the_static_part_stands_still():
    table = static_then_drifting(1000, generator=torch.Generator().manual_seed(3))
    rest = table.y - (2 * table.X[:, 0]).sin() - (3 * table.X[:, 1]).cos()
    assert 0.27 < float(rest[:600].std()) < 0.33
    assert float(rest[800:].std()) > 0.33


def test_members_are_twins_in_one_order():
    recording = made_up_recording()
    assert e_doebe().members(recording).tolist() == list(range(8))
    assert e_doebe(num_samples=1).members(recording).tolist() == [0, 2, 4, 6]
    assert Method("OE-RFF", Averaging(), True, False, ("rff",)).members(recording).tolist() == [2, 3]
    assert Method("DOE-RFF", Averaging(), False, True, ("rff",)).members(recording).tolist() == [6, 7]
    with pytest.raises(ValueError, match="no expert of OE-Poly"):
        Method("OE-Poly", Averaging(), True, False, ("poly",)).members(recording)


def test_scores_against_brute_force():
    recording = made_up_recording()
    found = score(e_doebe(0.1, num_samples=2), recording)
    weights = np.full(8, 1 / 8)
    switch = np.kron(np.array([[0.9, 0.1], [0.1, 0.9]]), np.eye(4))
    total, gaussian, errors = [], [], []
    for mean, variance, log_prob, y in zip(
        recording.mean.T.numpy(), recording.variance.T.numpy(), recording.log_prob.T.numpy(), recording.y.numpy(),
        strict=True,
    ):  # fmt: skip
        weights = switch @ weights
        if math.isnan(y):
            continue
        center = weights @ mean
        spread = weights @ (variance + (mean - center) ** 2)
        total.append(math.log(weights @ np.exp(log_prob)))
        gaussian.append(-0.5 * ((y - center) ** 2 / spread + math.log(2 * math.pi * spread)))
        errors.append((y - center) ** 2)
        weights = weights * np.exp(log_prob) / (weights @ np.exp(log_prob))
    seen = recording.y[~recording.y.isnan()].numpy()
    assert found["log_score"] == pytest.approx(np.mean(total), abs=1e-12)
    assert found["log_score_gaussian"] == pytest.approx(np.mean(gaussian), abs=1e-12)
    assert found["nmse"] == pytest.approx(np.mean(errors) / seen.var(), abs=1e-12)


def test_a_recording_comes_back(tmp_path):
    recording = made_up_recording()
    save_recording(recording, tmp_path / "a.npz", "mark")
    back = load_recording(tmp_path / "a.npz", "mark")
    assert back is not None
    assert back.family == recording.family
    assert back.seconds == recording.seconds
    torch.testing.assert_close(back.mean, recording.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(back.y, recording.y, rtol=0, atol=0, equal_nan=True)
    assert load_recording(tmp_path / "a.npz", "another") is None
    whole = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "a.npz").write_bytes(whole[: len(whole) // 2])
    assert load_recording(tmp_path / "a.npz", "mark") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_the_recording_is_of_all_families_and_samples():
    stream = load_stream("friedman2", None, 160, 0)
    recording = record(stream, 0, "", False)
    counts = {family: recording.family.count(family) for family in FAMILIES}
    assert counts == {"hsgp": 30, "rff": 30, "rbf": 30, "poly": 30, "linear": 10}
    assert recording.mean.shape == (130, 120)
    expected = torch.distributions.Normal(recording.mean, recording.variance.sqrt()).log_prob(recording.y)
    torch.testing.assert_close(recording.log_prob, expected, rtol=1e-9, atol=1e-9)


def test_one_seed_gives_one_answer():
    stream = load_stream("friedman1", None, 120, 0)
    first, second = (record(stream, 5, "", False) for _ in range(2))
    assert torch.equal(first.log_prob, second.log_prob)


def test_wilcoxon_against_all_signs():
    """The exact two-sided p-value, by going through every choice of signs."""
    generator = np.random.default_rng(0)
    for num_sets in (4, 7, 9):
        gains = generator.normal(0.4, 1.0, num_sets)
        ranks = rankdata(np.abs(gains))
        observed = abs(ranks @ np.sign(gains))
        sums = [abs(ranks @ np.array(signs)) for signs in itertools.product((-1, 1), repeat=num_sets)]
        found = compare_pairs((gains + 3.0).tolist(), [3.0] * num_sets)
        assert found.p_value == pytest.approx(np.mean(np.array(sums) >= observed - 1e-9))
        assert found.num_better == int((gains > 0).sum())
    assert math.isnan(compare_pairs([1.0, 2.0], [1.0, 2.0]).p_value)


@pytest.mark.slow
def test_every_experiment_writes_its_files(finished):
    out, texts = finished
    for name, text in texts.items():
        stem = out / f"doebe_experiment_{name}"
        assert stem.with_suffix(".txt").read_text() == text + "\n"
        assert stem.with_suffix(".png").stat().st_size > 1000
        content = json.loads(stem.with_suffix(".json").read_text())
        with stem.with_suffix(".csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert len(rows) == len(content["rows"]) == 2 * len(doebe.TABLES[name].methods)
        assert all(math.isfinite(float(row["log_score"])) for row in rows)
    assert not [path for path in out.rglob("*") if "partial" in path.name]


def test_the_tables_name_every_method(finished):
    _, texts = finished
    assert all(method.name in texts["1"] for method in family_methods())
    assert all(method.name in texts["3"] for method in whole_methods())
    assert all(f"delta {delta}" in texts["D"] for delta in ("0.0001", "0.001", "0.01", "0.05", "0.1"))
    assert "S=5" in texts["C"]


def test_what_is_finished_is_read_back(finished, tmp_path, monkeypatch):
    out, texts = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    monkeypatch.setattr(doebe_scores, "record", lambda *_: pytest.fail("the experts were run again"))
    shutil.rmtree(copy / "doebe_scores")
    assert doebe.run("d", None, copy, max_rows=200) == texts["D"]
    monkeypatch.setattr(doebe_scores, "score", lambda *_: pytest.fail("a method was scored again"))
    assert doebe.run("D", None, copy, max_rows=200) == texts["D"]
    with pytest.raises(pytest.fail.Exception):
        doebe.run("D", None, copy, max_rows=240)


def test_a_set_that_fails_is_noted_and_the_others_go_on(finished, tmp_path, monkeypatch):
    def broken(name, *rest):
        if name == "friedman1":
            raise ValueError("no such luck")
        return load_stream(name, *rest)

    out, _ = finished
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    monkeypatch.setattr(doebe_scores, "load_stream", broken)
    assert "friedman1 failed: no such luck" in doebe.run("D", None, copy, max_rows=200)
    monkeypatch.setattr(doebe_scores, "set_names", lambda _: ["friedman1"])
    with pytest.raises(ValueError, match="none of the sets could be run; friedman1: no such luck"):
        doebe.run("D", None, copy, max_rows=200)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"experiment": "7"}, "experiments are 1, 2, 3, C, D; there is no '7'"),
        ({"seeds": 0}, "seeds=0 runs nothing"),
        ({"max_rows": 20}, "max_rows=20 leaves too few rows"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, arguments, message):
    given = {"experiment": "1", "seeds": 1, "max_rows": 200, **arguments}
    with pytest.raises(ValueError, match=message):
        doebe.run(given.pop("experiment"), None, tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def test_a_folder_without_a_manifest_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="manifest"):
        doebe.run("1", tmp_path, tmp_path / "out", max_rows=200)


def test_sets_of_the_folder(shared):
    assert set_names(shared / "data") == [
        "elevators", "pol", "bike", "kin8nm", "cadata", "cpusmall", "sarcos_ias", "friedman1", "friedman2",
    ]  # fmt: skip
    with pytest.raises(ValueError, match="read from a folder"):
        load_stream("pol", None, 200, 0)
