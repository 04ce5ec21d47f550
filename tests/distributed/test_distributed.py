"""Experts over one, two and four processes: the same bits, checkpoints of any number on any other, failures told."""

import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.testing._internal.distributed.fake_pg import FakeStore

from gp_ensembles.distributed import DistributedEnsemble
from gp_ensembles.distributed.model import DistributedModel
from gp_ensembles.distributed.pieces import share_of
from gp_ensembles.ensembles import Ensemble, OnlineEnsemble
from gp_ensembles.ensembles.bases import FourierBasis, LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.experts import GaussianExpert, LaplaceExpert
from gp_ensembles.filters import RandomWalk
from gp_ensembles.likelihoods import LogisticLikelihood
from gp_ensembles.meta_learners import BayesianModelAveraging, FixedShare
from gp_ensembles.streaming import StreamConfig
from tests.fleet.instances import ENSEMBLES, linear, rows

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["switching", "all layers", "unknown noise"]


def run(folder: Path, size: int, what: str, kind: str, most: float = 100.0) -> list:
    """What each process found; those that wrote nothing found ``None``."""
    folder.mkdir(exist_ok=True)
    (folder / "store").unlink(missing_ok=True)
    command = [sys.executable, "-m", "tests.distributed.worker", "--size", str(size), "--folder", str(folder)]
    command += ["--what", what, "--kind", kind]
    workers = [subprocess.Popen([*command, "--rank", str(rank)], cwd=ROOT) for rank in range(size)]
    for worker in workers:
        worker.wait(most)
    found = []
    for rank in range(size):
        path = folder / f"{what}-{rank}"
        found.append(pickle.loads(path.read_bytes()) if path.exists() else None)
    return found


def same(left, right) -> bool:
    return len(left) == len(right) and all(
        torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_alone_it_is_an_online_ensemble(kind, generator):
    ensemble = ENSEMBLES[kind]()
    online, other = DistributedEnsemble(ensemble, piece_size=1), OnlineEnsemble(ensemble)
    _, X, y = rows(120, generator)
    said, expected = online.observe(X, y), other.observe(X, y)
    close = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
    torch.testing.assert_close(said.mean, expected.mean, **close)
    torch.testing.assert_close(said.log_prob, expected.log_prob, **close)
    torch.testing.assert_close(said.log_weights.exp(), expected.log_weights.exp(), **close)
    torch.testing.assert_close(online.predict(X[:4]).variance, other.predict(X[:4]).variance, **close)


@pytest.mark.parametrize("sizes", [(1, 2), pytest.param((1, 4), marks=[pytest.mark.slow, pytest.mark.broad])])
@pytest.mark.parametrize("kind", ["all layers", pytest.param("unknown noise", marks=pytest.mark.slow)])
def test_any_number_of_processes_gives_the_same_bits_and_goes_on_with_those_of_another(kind, sizes, tmp_path):
    if sizes[1] == 4:
        kind = "switching"  # five experts
    few, many = (run(tmp_path / str(size), size, "stream", kind) for size in sizes)
    for found in many:
        assert same(found, few[0])
    later = len(few[0]) // 2
    (tmp_path / str(sizes[0]) / "state").rename(tmp_path / "moved")
    (tmp_path / str(sizes[1]) / "state").rename(tmp_path / str(sizes[0]) / "state")
    (tmp_path / "moved").rename(tmp_path / str(sizes[1]) / "state")
    for size in sizes:
        for found in run(tmp_path / str(size), size, "go on", kind):
            assert same(found, few[0][later:])


def test_an_expert_that_fails_fails_on_all_and_nothing_is_learned(tmp_path):
    before = run(tmp_path / "one", 1, "stream", "switching")[0]
    log_weights = before[len(before) // 2 - 1]
    for found in run(tmp_path / "two", 2, "break", "switching"):
        assert found[0] == "NumericalError"
        assert torch.equal(found[1], log_weights)


def test_where_a_process_ends_the_others_say_so(tmp_path):
    start = time.monotonic()
    left, gone = run(tmp_path, 2, "end", "switching")
    assert gone is None
    assert left[0] == "RankLostError"
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("rank", "num_files"),
    [(0, 2), *(pytest.param(*slow, marks=pytest.mark.slow) for slow in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)))],
)
def test_a_process_that_ends_in_a_save_leaves_the_one_before(rank, num_files, tmp_path):
    """After so many of its files; the other one says so, and the folder goes on as it was, on one process."""
    expected = run(tmp_path / "whole", 1, "stream", "switching")[0]
    found = run(tmp_path / "two", 2, f"die {rank} {num_files}", "switching")
    assert found[rank] is None
    assert found[1 - rank][0] == "RankLostError"
    assert torch.equal(found[1 - rank][1], expected[-1])
    again = run(tmp_path / "two", 1, "go on", "switching")[0]
    assert same(again, expected[len(expected) // 2 :])


def test_what_cannot_be_distributed_is_refused(monkeypatch, tmp_path, generator):
    with pytest.raises(TypeError, match="LaplaceExpert cannot lie on several processes"):
        DistributedEnsemble(Ensemble([LaplaceExpert(linear(), LogisticLikelihood())], FixedShare()))
    with pytest.raises(ValueError, match="piece_size must be positive"):
        DistributedEnsemble(ENSEMBLES["switching"](), piece_size=0)
    online = DistributedEnsemble(ENSEMBLES["switching"](), piece_size=1)
    _, X, y = rows(40, generator)
    online.observe(X, y)
    online.save(tmp_path)
    before = online.log_weights
    with pytest.raises(ValueError, match="in other pieces"):
        DistributedEnsemble(ENSEMBLES["switching"](), piece_size=2).load(tmp_path)
    with pytest.raises(ValueError, match="y must have shape"):
        online.observe(X, y[:3])
    damaged = next(tmp_path.glob("experts-*"))
    damaged.write_bytes(damaged.read_bytes()[:-50])
    with pytest.raises(ValueError, match="not a readable checkpoint"):
        online.load(tmp_path)
    assert torch.equal(online.log_weights, before)
    assert len(list(tmp_path.iterdir())) == 6  # five pieces and the head


def test_a_checkpoint_of_another_ensemble_is_refused(tmp_path, generator):
    """Of the same shapes, too: whose experts walk, forget or are weighed otherwise."""
    _, X, y = rows(40, generator)
    walks = Ensemble([GaussianExpert(linear(), transition=RandomWalk(1e-2))], FixedShare())
    online = DistributedEnsemble(walks)
    online.observe(X, y)
    online.save(tmp_path)
    others = {
        "experts.0.transition is RandomWalk there and not there here": ([GaussianExpert(linear())], FixedShare(), {}),
        "outlier threshold is none there and 4 here": (walks.experts, FixedShare(), {"outlier_threshold": 4.0}),
        "meta_learner is FixedShare there and BayesianModelAveraging": (walks.experts, BayesianModelAveraging(), {}),
    }
    for message, (experts, rule, options) in others.items():
        other = DistributedEnsemble(Ensemble(list(experts), rule, **options))
        before = other.log_weights.clone()
        with pytest.raises(ValueError, match=message):
            other.load(tmp_path)
        assert torch.equal(other.log_weights, before)
    again = DistributedEnsemble(Ensemble([GaussianExpert(linear(), transition=RandomWalk(1e-2))], FixedShare()))
    again.load(tmp_path)
    assert torch.equal(again.predict(X[:3]).mean, online.predict(X[:3]).mean)


def test_more_processes_than_pieces_of_experts_are_refused():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    try:
        with pytest.raises(ValueError, match="4 processes for 1 pieces of experts; take fewer processes, or a smaller"):
            DistributedEnsemble(ENSEMBLES["one expert"]())
    finally:
        dist.destroy_process_group()


def test_a_state_of_a_whole_ensemble_is_divided(generator):
    ensemble = ENSEMBLES["all layers"]()
    alone = OnlineEnsemble(ensemble)
    _, X, y = rows(120, generator)
    alone.observe(X[:80], y[:80])
    online = DistributedEnsemble(ensemble, state=alone.state, piece_size=1)
    found, expected = online.observe(X[80:], y[80:]), alone.observe(X[80:], y[80:])
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-8, atol=1e-9, equal_nan=True)


@pytest.mark.processor
def test_a_model_in_units_goes_on_from_its_folder_with_the_same_bits(tmp_path, generator):
    _, X, y = rows(200, generator)
    X, y = 50 + 3 * X, 1000 + 20 * y
    X[70, 0] = torch.nan
    spec = replace(oebe, bases=(FourierBasis(num_features=10), LinearBasis()), random_walk_variances=(1e-2,))
    model = DistributedModel(StreamConfig(spec), X[:60], y[:60])
    with pytest.raises(ValueError, match="X must have shape"):
        model.observe(X[60:, :1], y[60:])
    with pytest.raises(ValueError, match=r"'column 1' is .* in row 70"):
        model.observe(torch.cat([X[60:69], X[69:70] * torch.tensor([1.0, torch.inf])]), y[60:70])
    model.observe(X[60:130], y[60:130])
    for _ in range(2):
        model.save(tmp_path, {"read": 130})
    expected = model.observe(X[130:], y[130:])
    again = DistributedModel.load(tmp_path)
    assert (again.num_rows, DistributedModel.notes_in(tmp_path)) == (130, {"read": 130})
    found = again.observe(X[130:], y[130:])
    names = ("mean", "stddev", "log_prob", "log_weights")
    assert same(*([getattr(said, name) for name in names] for said in (found, expected)))
    again.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["200-3", "model.pt"]
    with pytest.raises(FileNotFoundError, match="holds no distributed model"):
        DistributedModel.load(tmp_path / "200")
    with pytest.raises(ValueError, match="predict single real numbers"):
        DistributedModel(StreamConfig(replace(spec, target=BinaryTarget())), X[:60], (y[:60] > 0).double())


@given(st.lists(st.floats(0.1, 50.0), min_size=1, max_size=30), st.data())
def test_every_piece_has_one_process_and_every_process_a_piece(costs, data):
    num = data.draw(st.integers(1, len(costs)))
    shares = [share_of(costs, rank, num) for rank in range(num)]
    assert [place for share in shares for place in share] == list(range(len(costs)))
    assert all(len(share) > 0 for share in shares)


def test_equal_pieces_are_shared_out_evenly():
    assert [len(share_of([1.0] * 32, rank, 4)) for rank in range(4)] == [8, 8, 8, 8]
