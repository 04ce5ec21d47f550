"""The DOEBE paper's experiments: oracles of the authors' way, and finished parts are read back."""

import csv
import math

import numpy as np
import pytest
import torch

from gp_ensembles.ensembles.bases import scaled_kernel
from gp_ensembles.experts.gaussian import GaussianExpert
from gp_ensembles.features import LinearFeatures
from gp_ensembles.features.hilbert import Box, HilbertAdditiveFeatures
from studies.__main__ import main
from studies.doebe import published, study
from studies.doebe.design import FAMILIES, Design
from studies.doebe.experiments import TABLES
from studies.doebe.methods import e_doebe, run_as_published, run_method
from studies.doebe.recording import Recording, record
from studies.doebe.sets import DRIFT, SourceSet, load_stream
from studies.doebe.weights import EXCHANGED, KEPT, PRUNED, TWINS, shared_bases, summary, weigh
from studies.harness.experiment import Choices
from studies.harness.sources import Sources


def made_up_recording(num_rows: int = 40, seed: int = 0) -> Recording:
    """Two samples of an expert of each of two families, static and dynamic: 8 experts."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(num_rows, dtype=torch.float64, generator=generator)
    y[5] = torch.nan
    mean = torch.randn(8, num_rows, dtype=torch.float64, generator=generator)
    variance = torch.rand(8, num_rows, dtype=torch.float64, generator=generator) + 0.5
    log_prob = torch.distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(y)
    families = ("hsgp", "hsgp", "rff", "rff") * 2
    number = torch.arange(8)
    return Recording(
        families, torch.zeros_like(number), number >= 4, number % 2, mean, variance, log_prob, y, (1.0, 2.0)
    )


def test_pruning_is_what_loses_the_dynamic_expert():
    """Table 2: pruned, the average is the static expert for good; not pruned, the dynamic one comes back."""
    for seed in range(2):
        stream = load_stream(SourceSet(DRIFT, None), 3000, seed)
        recording = shared_bases(stream, TWINS)
        found = {name: summary(run, stream.y) for name, run in weigh(recording).items()}
        pruned, kept, exchanged = (found[rule.name] for rule in (PRUNED, KEPT, EXCHANGED))
        assert pruned["last"] == 0.0
        assert kept["min_log10"] < -12
        assert kept["max_after"] > 0.99
        assert exchanged["min_log10"] >= math.log10(0.01) - 1e-9
        assert pruned["log_score"] < kept["log_score"] < exchanged["log_score"]
        assert abs(pruned["log_score"] - float(recording.log_prob[0].mean())) < 0.01


def test_weights_after_targets_are_the_golden_ones(golden):
    """What the authors' E-DOEBE predicts with, from numbers of their code."""
    with np.load(golden / "ensemble_edoebe2x3.npz") as file:
        log_prob, posterior, switch = (torch.from_numpy(file[key]) for key in ("expert_loglik", "log_w_post", "Q"))
    torch.testing.assert_close(published.weights_after_targets(log_prob.T, switch), posterior.T, rtol=1e-9, atol=1e-9)
    group, start = torch.tensor([0] * 3 + [1] * 3), torch.arange(3).repeat(2)
    found = published.chain_transition(group, start, torch.zeros_like(start), 0.01)
    torch.testing.assert_close(found, switch, rtol=0, atol=1e-15)


def test_predictions_as_published_are_the_golden_ones(shared):
    folder = shared / "golden" / "doebe"
    with np.load(folder / "ensemble_edoebe2x3.npz") as file:
        log_prob, theirs = (torch.from_numpy(file[key]) for key in ("expert_loglik", "ref_w"))
        switch = torch.from_numpy(file["Q"])
    weights = published.weights_after_targets(log_prob.T, switch).exp()
    torch.testing.assert_close(weights, theirs.T, rtol=1e-9, atol=1e-12)
    with np.load(folder / "expert_hsgp_se_refquirk.npz") as file, np.load(folder / "data_elevators.npz") as data:
        X, L, scales = (torch.from_numpy(each) for each in (data["X"], data["L"], file["lengthscale"]))
        kernel = scaled_kernel(X, math.inf, (1.0,))
        kernel.base_kernel.lengthscale = scales.reshape(1, 1, -1)
        box = Box(torch.zeros(1, 16, dtype=torch.float64), L.reshape(1, -1))
        features = published.RampedHilbertFeatures(HilbertAdditiveFeatures(kernel, box, 5))
        torch.testing.assert_close(features(X)[0].detach(), torch.from_numpy(file["phi"]), rtol=1e-8, atol=1e-9)


def test_half_of_the_determinant_is_theirs(generator):
    """By the density of all targets, and the determinant of a dense matrix."""
    X = torch.randn(30, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(30, dtype=torch.float64, generator=generator)
    expert = GaussianExpert(LinearFeatures(2, torch.tensor([0.5, 2.0], dtype=torch.float64)))
    found = published.half_determinant_evidence(expert, X, y)
    Phi = torch.cat([X, torch.ones(30, 1, dtype=torch.float64)], dim=1)
    for number, prior in enumerate((0.5, 2.0)):
        noise = float(expert.likelihood.noise.detach()[number])
        covariance = prior * Phi @ Phi.T + noise * torch.eye(30, dtype=torch.float64)
        zero = torch.zeros(30, dtype=torch.float64)
        evidence = torch.distributions.MultivariateNormal(zero, covariance).log_prob(y)
        precision = torch.eye(3, dtype=torch.float64) / prior + Phi.T @ Phi / noise
        expected = evidence + 0.25 * torch.linalg.slogdet(precision).logabsdet
        assert float(found[number].detach()) == pytest.approx(float(expected), abs=1e-9)


def test_runs_against_brute_force():
    for as_published in [False, True]:
        recording = made_up_recording()
        method = e_doebe(0.1)
        run = (run_as_published if as_published else run_method)(method, recording)
        weights = np.full(8, 1 / 8)
        switch = np.kron(np.array([[0.9, 0.1], [0.1, 0.9]]), np.eye(4))
        if as_published:  # groups by place: hsgp dynamic, hsgp static, rff dynamic, rff static
            group = np.array([1, 1, 3, 3, 0, 0, 2, 2])
            other = np.arange(8)[:, None] % 2 == np.arange(8) % 2
            switch = 0.9 * np.eye(8) + 0.1 * ((np.abs(group[:, None] - group) == 1) & other)
        for step in range(40):
            mean, variance, log_prob = (part[:, step].numpy() for part in recording[4:7])
            weights = switch @ weights
            y = float(recording.y[step])
            posterior = weights / weights.sum() if math.isnan(y) else weights * np.exp(log_prob)
            posterior = posterior / posterior.sum()
            used = posterior if as_published else weights
            center = used @ mean
            spread = used @ (variance + (mean - center) ** 2)
            assert float(run.mean[step]) == pytest.approx(center, abs=1e-12)
            if not math.isnan(y):
                gaussian = -0.5 * ((y - center) ** 2 / spread + math.log(2 * math.pi * spread))
                assert float(run.gaussian[step]) == pytest.approx(gaussian, abs=1e-12)
                assert float(run.log_prob[step]) == pytest.approx(math.log(used @ np.exp(log_prob)), abs=1e-12)
            weights = posterior


def test_the_recording_is_of_all_families_and_samples():
    stream = load_stream(SourceSet("friedman2", None), 110, 0)
    first, second = (record(stream, Design(FAMILIES), 0, "", False) for _ in range(2))
    counts = {family: first.family.count(family) for family in FAMILIES}
    assert counts == {"hsgp": 30, "rff": 30, "rbf": 30, "poly": 30, "linear": 10}
    expected = torch.distributions.Normal(first.mean, first.variance.sqrt()).log_prob(first.y)
    torch.testing.assert_close(first.log_prob, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(first.log_prob, second.log_prob)


@pytest.mark.slow
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_is_made_and_read_back(tmp_path, monkeypatch, shared, table):
    choices = Choices(Sources(shared / "data"), tmp_path, 1, max_rows=140)
    choices = choices._replace(sets=[table.sets[0].name])
    text = study.run_table(table, choices, None)
    assert all(method.name in text for method in table.methods)
    with (tmp_path / f"doebe_{table.name}.csv").open(newline="") as file:
        assert all(math.isfinite(float(row["log_score"])) for row in csv.DictReader(file))
    for end in table.pictures:
        assert (tmp_path / f"doebe_{table.name}{end}.png").stat().st_size > 1000
    monkeypatch.setattr(study, "record", lambda *_: pytest.fail("it was run again"))
    assert study.run_table(table, choices, None) == text


def test_what_is_finished_is_read_back_and_two_runs_agree(tmp_path, monkeypatch):
    words = ["doebe", "appendix-d", "--sets", "friedman2", "--trials", "1", "--max-rows", "110", "--progress", "false"]
    texts = []
    for folder in ("a", "b"):
        assert main([*words, "--out", str(tmp_path / folder)]) == 0
        texts.append((tmp_path / folder / "doebe_appendix-d.txt").read_text())
    assert texts[0] == texts[1]
    assert "delta 0.2" in texts[0]
    monkeypatch.setattr(study, "record", lambda *_: pytest.fail("it was run again"))
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    with pytest.raises(pytest.fail.Exception):
        main([*words, "--seed", "5", "--out", str(tmp_path / "a")])
