"""Fleets in files: the same bits afterwards, and a failed save leaves the previous one."""

import json
import shutil
import weakref
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from safetensors import safe_open

from gp_ensembles.engine.state import named_tensors
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.files.checkpoint import Kind, write_checkpoint
from gp_ensembles.files.operations import watched
from gp_ensembles.fleet import Fleet, ensemble_fleet
from gp_ensembles.fleet import checkpoint as shards
from gp_ensembles.fleet.ensemble_fleet import EnsembleFleet
from tests.fleet.instances import ENSEMBLES, SERIES, rows
from tests.refusals import refused

NAMES = [f"series {number}" for number in range(SERIES)]


def bits(fleet):
    return [value.clone() for name in fleet.names for _, value in named_tensors(fleet.export(name).state)]


def same(left, right):
    return len(left) == len(right) and all(
        torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) for one, other in zip(left, right, strict=True)
    )


@pytest.mark.parametrize(
    ("kind", "shard_bytes"), [("all layers", 1), ("square roots", 30_000), ("classes", 10**9), ("all layers", 10**9)]
)
def test_a_fleet_goes_on_with_the_same_bits(kind, shard_bytes, tmp_path, generator, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", shard_bytes)
    fleet = EnsembleFleet(ENSEMBLES[kind](), [*NAMES, 7])
    names, X, y = rows(120, generator, classes=kind == "classes")
    fleet.retire([NAMES[0]])
    fleet.add([NAMES[0]])
    fleet.observe(names[:60], X[:60], y[:60])
    fleet.save(tmp_path / "fleet")
    other = EnsembleFleet.load(tmp_path / "fleet")
    assert other.names == fleet.names
    assert same(bits(fleet), bits(other))
    for one in (fleet, other):
        one.observe(names[60:], X[60:], y[60:])
    assert same(bits(fleet), bits(other))
    fleet.save(tmp_path / "fleet")  # over the one before
    other = EnsembleFleet.load(tmp_path / "fleet")
    assert same(bits(fleet), bits(other))
    assert all(path.name == "fleet.pt" or path.name.startswith("shard-2-") for path in (tmp_path / "fleet").iterdir())
    num_files = len(list((tmp_path / "fleet").iterdir()))
    assert num_files == {1: 7, 10**9: 2}.get(shard_bytes, num_files)  # the head, and a shard for each or for all


def test_a_save_that_fails_leaves_the_one_before(tmp_path, generator, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), NAMES[:2])
    names, X, y = rows(80, generator)
    mine = [row for row, name in enumerate(names) if name in NAMES[:2]]
    fleet.save(tmp_path / "before")
    before = bits(fleet)
    fleet.observe([names[row] for row in mine], X[mine], y[mine])
    after, ends = bits(fleet), []
    for number in range(0, 60, 3):
        folder, left = shutil.copytree(tmp_path / "before", tmp_path / str(number)), number

        def watcher(operation, folder=folder):
            nonlocal left
            left -= 1
            if left < 0:
                raise OSError(28, "No space left on device", str(folder))

        with suppress(OSError), watched(watcher):
            fleet.save(folder)
            ends.append("saved")
        other = EnsembleFleet.load(folder)
        ends.append("new" if same(bits(other), after) else "old" if same(bits(other), before) else "neither")
    assert ends[0] == "old"
    assert ends[-2:] == ["saved", "new"]
    assert set(ends) == {"saved", "old", "new"}
    assert all(then == "new" for end, then in pairwise(ends) if end == "saved")


def test_damaged_and_foreign_files_are_refused(tmp_path, generator):
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    fleet.observe(*rows(40, generator))
    fleet.save(tmp_path / "a")
    refused(FileNotFoundError, r"contains no saved fleet \(no fleet.pt\)", lambda: EnsembleFleet.load(tmp_path))
    shard = next(path for path in (tmp_path / "a").iterdir() if path.name.startswith("shard"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    refused(ValueError, "damaged", lambda: EnsembleFleet.load(tmp_path / "a"))
    other = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    other.save(tmp_path / "b")
    shard.write_bytes((tmp_path / "b" / shard.name).read_bytes())  # whole, but of another fleet
    refused(ValueError, "belongs to another save", lambda: EnsembleFleet.load(tmp_path / "a"))
    shard.unlink()
    with pytest.raises(FileNotFoundError):
        EnsembleFleet.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("part", "word"), [("series", "GaussianExpert"), ("fleet", "EnsembleSpec"), ("fleet", "float64")]
)
def test_a_fleet_of_what_this_version_does_not_know_is_refused_with_a_remedy(part, word, tmp_path, generator):
    fleet = Fleet(replace(oebe, bases=(LinearBasis(),)), warmup=20)
    X = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    fleet.fit(["north", "south"] * 30, X, X[:, 0].sin())
    fleet.save(tmp_path)
    head = torch.load(tmp_path / shards.HEAD, weights_only=True)
    content = {name: head[name] for name in ("about", "shards")}
    content["about"][part]["objects"] = content["about"][part]["objects"].replace(word, "load")
    write_checkpoint(tmp_path / shards.HEAD, Kind(head["format"], head["format_version"], "a fleet", ""), content)
    refused(ValueError, "does not fit this version.*load.*fit the fleet again", lambda: Fleet.load(tmp_path))


def test_names_that_no_file_holds_are_refused(tmp_path):
    fleet = EnsembleFleet(ENSEMBLES["one expert"](), [("plant", 1)])
    with pytest.raises(TypeError, match=r"names of saved series must be strings or integers, got \('plant', 1\)"):
        fleet.save(tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_other_programs_find_states_and_names_in_a_shard(tmp_path, generator):
    names = ["north", '\u00e9, \ud800 "quoted"', 7]
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), names)
    _, X, y = rows(30, generator)
    fleet.observe(names * 10, X, y)
    fleet.save(tmp_path)
    with safe_open(tmp_path / "shard-1-0.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["about"]) == names
        mean = file.get_tensor("meta_log_weights")
    assert mean.tolist() == fleet.log_weights(names).tolist()
    other = EnsembleFleet.load(tmp_path)
    assert other.names == tuple(names)


def test_shards_are_loaded_one_at_a_time_into_files(tmp_path, generator, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    names, X, y = rows(60, generator)
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    fleet.observe(names, X, y)
    fleet.save(tmp_path / "fleet")
    known, most = [], 0

    def read(folder, shard):
        nonlocal most
        most = max(most, sum(one() is not None for one in known))
        found = shards.read_shard(folder, shard)
        known.append(weakref.ref(found[1]["failed"]))
        return found

    monkeypatch.setattr(ensemble_fleet, "read_shard", read)
    other = EnsembleFleet.load(tmp_path / "fleet", states=tmp_path / "states")
    assert same(bits(fleet), bits(other))
    assert len(known) == SERIES
    assert most <= 1


class InterruptedLoadError(Exception):
    """What no code of ours raises."""


@pytest.mark.parametrize(
    ("where", "how"),
    [
        *(("in files", how) for how in ("damaged", "gone", "of other shapes", "twice", "interrupted")),
        *(("in memory", how) for how in ("damaged", "twice")),
    ],
)
def test_a_load_that_fails_at_the_second_shard_leaves_no_states(where, how, tmp_path, generator, monkeypatch):
    monkeypatch.setattr(shards, "SHARD_BYTES", 1)
    saved, states = tmp_path / "fleet", tmp_path / "states"
    names, X, y = rows(60, generator)
    fleet = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    fleet.observe(names, X, y)
    fleet.save(saved)
    number, where = 0, {"states": states if where == "in files" else None}

    def read(folder, shard):
        nonlocal number
        number += 1
        path = folder / shard["file"]
        if number == 2 and how == "damaged":
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        if number == 2 and how == "gone":
            path.unlink()
        found, values = shards.read_shard(folder, shard)
        if number == 2 and how == "interrupted":
            raise InterruptedLoadError
        if number == 2 and how == "of other shapes":
            values["failed"] = values["failed"].unsqueeze(-1)
        return NAMES[:1] if how == "twice" else found, values

    with monkeypatch.context() as patched:
        patched.setattr(ensemble_fleet, "read_shard", read)
        with pytest.raises((ValueError, OSError, InterruptedLoadError)):
            EnsembleFleet.load(saved, **where)
    assert number == 2
    assert not states.exists() or not list(states.iterdir())
    if how in ("of other shapes", "twice", "interrupted"):
        assert same(bits(fleet), bits(EnsembleFleet.load(saved, **where)))


def test_a_folder_of_the_other_kind_of_fleet_is_refused_in_a_sentence(tmp_path):
    plain = EnsembleFleet(ENSEMBLES["averaging"](), NAMES)
    plain.save(tmp_path / "plain")
    refused(ValueError, "was saved by EnsembleFleet", lambda: Fleet.load(tmp_path / "plain"))
    X = torch.linspace(0, 9, 60, dtype=torch.float64).unsqueeze(-1)
    fleet = Fleet(warmup=20)
    fleet.fit(["north", "south"] * 30, X, X.squeeze(-1).sin())
    fleet.save(tmp_path / "units")
    for call in (lambda: fleet.predict(["z"], X[:1]), lambda: fleet.retire(["z"])):
        with pytest.raises(KeyError, match="unknown series 'z'; observe rows of this series first"):
            call()
