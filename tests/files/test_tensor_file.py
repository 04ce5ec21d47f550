"""Files of tensors: damage, other files, sizes that cannot be, and saves that fail."""

import json
import struct
from contextlib import suppress
from hashlib import sha256

import pytest
import torch
from safetensors.torch import load_file

from gp_ensembles.files.checkpoint import read_tensors, write_tensors
from gp_ensembles.files.operations import watched

TENSORS = {
    "x": torch.arange(6, dtype=torch.float64).reshape(2, 3) / 7,
    "none": torch.zeros(2, 0, dtype=torch.float32),
    "one": torch.tensor(7),
    "flags": torch.tensor([True, False]),
}


def test_what_is_written_is_read_here_and_by_others(tmp_path):
    path = tmp_path / "one.safetensors"
    digest = write_tensors(path, TENSORS, {"names": ["a", 1, None]})
    assert digest == sha256(path.read_bytes()).hexdigest()
    found, about = read_tensors(path, digest)
    assert about == {"names": ["a", 1, None]}
    for read in (found, load_file(path)):
        torch.testing.assert_close(read, TENSORS, rtol=0, atol=0)


def test_every_changed_and_every_missing_byte_is_noticed(tmp_path):
    path = tmp_path / "one.safetensors"
    digest = write_tensors(path, TENSORS, ["a"])
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="is damaged, was changed or belongs to another save"):
            read_tensors(path, digest)
        path.write_bytes(whole[:place])
        with pytest.raises(ValueError, match="is damaged"):
            read_tensors(path, digest)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_tensors(path, digest)


def _file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ABOUT = {"__metadata__": {"about": "[]"}}
ONE = {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}
HOSTILE = {
    "nothing": b"",
    "no header": _file(b"{"),
    "a longer header than the file": _file(ABOUT, length=2**60),
    "more data than it contains": _file({**ABOUT, "x": {**ONE, "shape": [2**40], "data_offsets": [0, 2**43]}}),
    "a shape of another size": _file({**ABOUT, "x": {**ONE, "shape": [2**40]}}, bytes(8)),
    "an unknown dtype": _file({**ABOUT, "x": {**ONE, "dtype": "X9"}}, bytes(8)),
    "overlapping tensors": _file({**ABOUT, "x": ONE, "y": ONE}, bytes(8)),
    "no metadata": _file({"x": ONE}, bytes(8)),
    "metadata that is no JSON": _file({"__metadata__": {"about": "["}}),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_files_that_say_what_cannot_be_are_refused_even_with_their_digest(what, tmp_path):
    path = tmp_path / "one.safetensors"
    path.write_bytes(HOSTILE[what])
    with pytest.raises(ValueError, match="is not a tensor file written by this library"):
        read_tensors(path, sha256(HOSTILE[what]).hexdigest())


@pytest.mark.parametrize("number", range(8))
def test_a_write_that_fails_leaves_the_file_before(number, tmp_path):
    path = tmp_path / "one.safetensors"
    known = {write_tensors(tmp_path / "other", TENSORS, ["b"]): ["b"], write_tensors(path, TENSORS, ["a"]): ["a"]}
    left, is_done = number, False

    def watcher(operation):
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device", str(path))

    with watched(watcher), suppress(OSError):
        write_tensors(path, TENSORS, ["b"])
        is_done = True
    found = sha256(path.read_bytes()).hexdigest()
    assert read_tensors(path, found)[1] == known[found]
    assert known[found] == ["b"] or not is_done
