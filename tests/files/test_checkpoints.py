"""Checkpoints: their manifests, damage, foreign and hostile files, and files of other versions."""

import io
import pickle
import struct
import zipfile

import pytest
import torch

from attacks.recipes import RECIPES, sample
from gp_ensembles.files import checkpoint
from gp_ensembles.files.checkpoint import Kind, digest, manifest_of, read_archive, read_checkpoint, write_checkpoint

KIND = Kind("example", 3, "an example", "give another")
CONTENT = {
    "config": {"warmup": 20, "name": "é", "rate": float("nan")},
    "inner": {"rows": torch.arange(6, dtype=torch.float64).reshape(2, 3), "flags": torch.tensor([True, False])},
    "plain": [1, 2.5, True, None, (3, "four"), {5: -0.0}],
}


def written(path, content=CONTENT, kind=KIND):
    write_checkpoint(path, kind, content)
    return path.read_bytes()


def remade(data, edit):
    """An archive with parts (name -> bytes) edited and checksums that are right."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    edit(parts)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    return made.getvalue()


# --- files of other versions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RECIPES)
def test_a_small_file_of_each_kind_is_read_and_an_earlier_version_is_refused(kind, tmp_path):
    data, wanted = sample(kind)
    assert len(data) < 40_000
    path = tmp_path / f"{kind}.pt"
    path.write_bytes(data)
    assert RECIPES[kind].numbers(path) == pytest.approx(wanted, rel=1e-9, abs=1e-9, nan_ok=True)
    content = torch.load(path, weights_only=True)
    version = content["format_version"]
    torch.save({**content, "format_version": version - 1}, path)
    words = f"{kind}.pt has checkpoint format {version - 1}, this version of the library reads {version}; resume with"
    with pytest.raises(ValueError, match=words):
        RECIPES[kind].numbers(path)


def test_files_of_other_versions_or_without_a_manifest_are_refused(tmp_path):
    file = tmp_path / "one.pt"
    for version in (2, 4, True, "3", 3.0, None, [3]):
        torch.save({"format": "example", "format_version": version}, file)
        with pytest.raises(ValueError, match=r"has checkpoint format .*, this version of the library reads 3; resume"):
            read_checkpoint(file, KIND)
    torch.save({"format": "example", "format_version": 3, "x": 1}, file)
    with pytest.raises(ValueError, match="damaged or was changed"):
        read_checkpoint(file, KIND)


# --- the manifest --------------------------------------------------------------------------------------------------


def test_a_manifest_names_what_is_in_the_file(tmp_path):
    written(tmp_path / "one.pt")
    whole = torch.load(tmp_path / "one.pt", weights_only=True)
    found = whole["manifest"]
    assert found["tensors"] == {"inner/rows": [[2, 3], "float64"], "inner/flags": [[2], "bool"]}
    assert set(found["libraries"]) == {"gp_ensembles", "torch", "gpytorch", "numpy", "python"}
    assert found["libraries"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    back = read_checkpoint(tmp_path / "one.pt", KIND)
    assert list(back) == list(CONTENT)
    assert digest(back) == digest(CONTENT) == found["digest"]


def test_digests_tell_apart_what_is_different():
    for values in (
        *([1, 1.0, True], [[1, 2], (1, 2)], [[], {}], [["b", "c"], ["bc"]], [[["b"], "c"], [["b", "c"]]], [0.0, -0.0]),
        *([0.1, 0.1 + 2**-56], [torch.zeros(2, 3), torch.zeros(3, 2)], [torch.tensor(1.0), torch.tensor([1.0])]),
        *([torch.zeros(2), torch.zeros(2, dtype=torch.int32)], [torch.tensor([0.0]), torch.tensor([-0.0])]),
    ):
        assert len({digest({"a": value}) for value in values}) == len(values)
    assert len({digest({name: "a"}) for name in (1, "1", "b")}) == 3


def test_what_is_not_plain_has_no_manifest(tmp_path):
    loop = []
    loop.append(loop)
    for bad in ({"a": object()}, {"a": b"bytes"}, {(1, 2): 3}, {"a": loop}, {"a": torch.eye(2).to_sparse()}):
        with pytest.raises(ValueError):
            manifest_of(bad)


def test_views_are_written_whole(tmp_path):
    written(tmp_path / "one.pt", {"x": [torch.ones(1).expand(1000)]})
    assert torch.equal(read_checkpoint(tmp_path / "one.pt", KIND)["x"][0], torch.ones(1000))


# --- damage --------------------------------------------------------------------------------------------------------


def harmless_or_refused(path, data, wanted):
    """Whether a file is refused; what is read otherwise must be what was written."""
    path.write_bytes(data)
    try:
        found = read_checkpoint(path, KIND)
    except ValueError:
        return True
    assert digest(found) == wanted
    return False


def flips(data, step):
    for place in range(0, len(data), step):
        for bits in (1, 0xFF):
            changed = bytearray(data)
            changed[place] ^= bits
            yield bytes(changed)


def test_flipped_bytes_are_refused_or_harmless(tmp_path):
    data, wanted = written(tmp_path / "good.pt"), digest(CONTENT)
    assert not harmless_or_refused(tmp_path / "same.pt", data, wanted)
    refused = [harmless_or_refused(tmp_path / "bad.pt", changed, wanted) for changed in flips(data, 7)]
    assert sum(refused) > len(refused) / 3


@pytest.mark.slow
def test_every_flipped_byte_and_every_cut_is_refused_or_harmless(tmp_path):
    data, wanted = written(tmp_path / "good.pt"), digest(CONTENT)
    for changed in flips(data, 1):
        harmless_or_refused(tmp_path / "bad.pt", changed, wanted)
    for end in range(len(data)):
        assert harmless_or_refused(tmp_path / "bad.pt", data[:end], wanted)


def test_bytes_changed_together_with_their_checksums_are_refused_by_digest(tmp_path):
    data, wanted = written(tmp_path / "good.pt"), digest(CONTENT)
    for place in range(48):

        def edit(parts, place=place):
            name = next(name for name in parts if name.endswith("/data/0"))
            changed = bytearray(parts[name])
            changed[place] ^= 4
            parts[name] = bytes(changed)

        assert harmless_or_refused(tmp_path / "bad.pt", remade(data, edit), wanted)


# --- hostile files -------------------------------------------------------------------------------------------------


def pickled(parts, content):
    name = next(name for name in parts if name.endswith("/data.pkl"))
    parts[name] = content


def test_nothing_in_a_file_is_imported_or_run(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    data = written(tmp_path / "good.pt")
    for named in (b"cours\nf\n", b"cos\nsystem\n(S'true'\ntR", b"cbuiltins\nbytearray\n", b"ctorch\nStorage.of\n"):
        bad = remade(data, lambda parts, named=named: pickled(parts, b"\x80\x02" + named + b"."))
        with pytest.raises(ValueError, match=r"it names|valid tensor archive"):
            read_archive(io.BytesIO(bad))


def test_absurd_sizes_are_refused_before_they_are_allocated(tmp_path):
    data = written(tmp_path / "good.pt", {"x": torch.ones(777)})
    small, large = b"M" + struct.pack("<H", 777), b"\x8a\x06" + (10**13).to_bytes(6, "little")
    huge = b"\x80\x02cbuiltins\nbytearray\n" + large + b"\x85R."
    bombs = [lambda parts: pickled(parts, huge)]
    for place in (0, 1, 2):

        def edit(parts, place=place):
            name = next(name for name in parts if name.endswith("/data.pkl"))
            pieces = parts[name].split(small)
            assert len(pieces) == 4  # the manifest, the storage, the tensor
            parts[name] = small.join(pieces[: place + 1]) + large + small.join(pieces[place + 1 :])

        bombs.append(edit)
    for edit in bombs:
        (tmp_path / "bad.pt").write_bytes(remade(data, edit))
        if edit is bombs[1]:  # the manifest's own shape: of no use in reading
            assert read_checkpoint(tmp_path / "bad.pt", KIND)["x"].shape == (777,)
            continue
        with pytest.raises(ValueError, match=r"bad\.pt is not a readable checkpoint"):
            read_checkpoint(tmp_path / "bad.pt", KIND)


def test_compressed_and_overlapping_parts_are_refused(tmp_path):
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, 2))
        archive.writestr("archive/data/0", bytes(10_000_000))
    assert len(bomb.getvalue()) < 20_000
    with pytest.raises(ValueError, match="compressed"):
        read_archive(bomb)
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("archive/data.pkl", bytes(1000))
        archive.filelist *= 50  # fifty names of one part
    with pytest.raises(ValueError, match="larger than the file"):
        read_archive(plain)


def test_shared_containers_do_not_multiply(tmp_path, monkeypatch):
    """A file of 200 bytes whose lists within lists would be a billion things."""
    monkeypatch.setattr(checkpoint, "MOST_PARTS", 10_000)
    shared = ["a"]
    for _ in range(60):
        shared = [shared, shared]
    data = written(tmp_path / "good.pt", {"x": "plain"})
    made = pickle.dumps({"format": "example", "format_version": 3, "manifest": {"digest": ""}, "x": shared}, 2)
    (tmp_path / "bad.pt").write_bytes(remade(data, lambda parts: pickled(parts, made)))
    with pytest.raises(ValueError, match=r"bad\.pt is damaged or was changed"):
        read_checkpoint(tmp_path / "bad.pt", KIND)
