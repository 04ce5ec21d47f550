"""Files replaced alone and together, and tables that grow: what is there when an operation fails, and what is said."""

import os
from errno import EACCES, EIO, ENOSPC
from pathlib import Path

import numpy as np
import pytest
import torch

from gp_ensembles.files.operations import OpenFile, watched
from gp_ensembles.files.replacing import (
    JOURNAL,
    STAGE,
    GrowingTable,
    complete,
    copy_file,
    replace_file,
    staged,
    write_text,
)


class Fail:
    """Refuses the n-th operation of a kind, or of any."""

    def __init__(self, number, kind=None, error=ENOSPC):
        self.number, self.kind, self.error, self.seen = number, kind, error, []

    def __call__(self, operation):
        self.seen.append(operation.kind)
        matching = [kind for kind in self.seen if self.kind in (None, kind)]
        if self.kind in (None, operation.kind) and len(matching) == self.number:
            raise OSError(self.error, os.strerror(self.error))


def count(act):
    seen = []
    with watched(lambda operation: seen.append(operation.kind)):
        act()
    return seen


def test_a_file_is_synced_before_it_has_its_name_and_its_folder_afterwards(tmp_path):
    assert count(lambda: write_text(tmp_path / "one", "two")) == ["open", "write", "fsync", "rename", "fsync"]


@pytest.mark.parametrize("number", range(1, 5))
def test_a_file_that_cannot_be_written_leaves_the_old_one_and_no_other(tmp_path, number):
    path = tmp_path / "one.txt"
    path.write_text("old")
    with watched(Fail(number)), pytest.raises(OSError, match="free some space") as caught:
        write_text(path, "new")
    assert (caught.value.errno, caught.value.filename) == (ENOSPC, str(path))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["one.txt"]


def test_a_folder_that_cannot_be_synced_is_told_of(tmp_path):
    with watched(Fail(5, error=EIO)), pytest.raises(OSError) as caught:
        write_text(tmp_path / "one.txt", "new")
    assert caught.value.filename == str(tmp_path)


@pytest.mark.parametrize("kind", ["open", "write", "fsync", "rename"])
def test_what_torch_and_numpy_make_of_a_full_disk_names_the_file(tmp_path, kind):
    big = torch.zeros(400_000, dtype=torch.float64, device="cpu")
    fillings = {
        "torch.pt": lambda file: torch.save({"x": big}, file),
        "numpy.npz": lambda file: np.savez(file, x=big.numpy()),
    }
    for name, fill in fillings.items():
        with watched(Fail(1, kind)), pytest.raises(OSError, match="No space left") as caught:
            replace_file(tmp_path / name, fill)
        assert caught.value.filename == str(tmp_path / name)
    assert os.listdir(tmp_path) == []
    replace_file(tmp_path / "torch.pt", fillings["torch.pt"])
    assert torch.equal(torch.load(tmp_path / "torch.pt", weights_only=True)["x"], big)


def test_a_copy_is_whole_or_not_there(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(3 << 20))
    number = len(count(lambda: copy_file(tmp_path / "a", tmp_path / "b")))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    (tmp_path / "b").unlink()
    for place in range(1, number):
        with watched(Fail(place)), pytest.raises(OSError):
            copy_file(tmp_path / "a", tmp_path / "b")
        assert os.listdir(tmp_path) == ["a"]


def lay_out(folder: Path) -> None:
    for name in ("a", "b", "gone"):
        (folder / name).write_text("old")
    (folder / "c.partial").write_text("new")


def replace(folder: Path) -> None:
    with staged(folder, {"c.partial": "c"}, removed=["gone"]) as place:
        for name in ("a", "b"):
            write_text(place / name, "new")


def state(folder: Path) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in ("a", "b", "c", "gone") if (folder / name).exists()}


OLD, NEW = {"a": "old", "b": "old", "gone": "old"}, {"a": "new", "b": "new", "c": "new"}


def test_files_are_replaced_together_whatever_operation_fails(tmp_path):
    lay_out(tmp_path)
    number = len(count(lambda: replace(tmp_path)))
    assert (state(tmp_path), sorted(os.listdir(tmp_path))) == (NEW, ["a", "b", "c"])
    num_old = num_new = 0
    for place in range(1, number + 1):
        folder = tmp_path / str(place)
        folder.mkdir()
        lay_out(folder)
        try:
            with watched(Fail(place)):
                replace(folder)
        except OSError:
            pass
        if (folder / JOURNAL).exists():
            assert complete(folder)
            assert state(folder) == NEW
        assert state(folder) in (OLD, NEW)
        num_old, num_new = num_old + (state(folder) == OLD), num_new + (state(folder) == NEW)
        complete(folder)
        assert not (folder / STAGE).exists()
    assert min(num_old, num_new) > 5


def test_an_error_of_the_content_or_in_the_block_is_that_error_and_replaces_nothing(tmp_path):
    lay_out(tmp_path)

    def broken(file):
        file.write(b"half")
        raise ValueError("mine")

    def fail():
        with staged(tmp_path) as place:
            write_text(place / "a", "new")
            replace_file(place / "b", broken)

    with pytest.raises(ValueError, match="mine"):
        fail()
    assert (state(tmp_path), sorted(os.listdir(tmp_path))) == (OLD, ["a", "b", "c.partial", "gone"])
    with pytest.raises(ValueError, match="mine"):
        replace_file(tmp_path / "a", broken)
    assert (state(tmp_path), sorted(os.listdir(tmp_path))) == (OLD, ["a", "b", "c.partial", "gone"])


def test_a_journal_that_is_none_of_ours_moves_nothing(tmp_path):
    lay_out(tmp_path)
    for text, words in (
        ("{", "is damaged"),
        ('{"moved": 3, "removed": []}', "is damaged"),
        ('{"moved": {"../a": "b"}, "removed": []}', "other folders"),
        ('{"moved": {}, "removed": ["/etc/passwd"]}', "other folders"),
        ('{"moved": {".new/../../a": "b"}, "removed": []}', "other folders"),
    ):
        (tmp_path / JOURNAL).write_text(text)
        with pytest.raises(ValueError, match=words):
            complete(tmp_path)
        assert state(tmp_path) == OLD


def test_a_table_is_handed_over_at_once_and_synced_when_it_has_changed(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("row\n1\n2\n")
    table = GrowingTable(path, size=6)
    assert path.read_text() == "row\n1\n"
    table.append("3\n")
    assert path.read_text() == "row\n1\n3\n"
    assert count(table.sync) == ["fsync"]
    assert count(table.sync) == []
    table.append("4\n")
    assert count(table.sync) == ["fsync"]
    table.close()
    table = GrowingTable(path)
    assert count(table.sync) == []
    with watched(Fail(1)), pytest.raises(OSError, match="free some space") as caught:
        table.append("5\n")
    assert caught.value.filename == str(path)
    table.close()
    with pytest.raises(FileNotFoundError):
        GrowingTable(tmp_path / "not there")
    path.write_text("row\n1\n")  # it is cut short or another run's; cutting it upwards would fill it with NUL bytes
    with pytest.raises(ValueError, match=r"rows\.csv has 6 bytes, but the checkpoint recorded 9"):
        GrowingTable(path, size=9)
    assert path.read_text() == "row\n1\n"


def test_errors_of_the_system_keep_their_kind_and_name(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "a", "b")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a")
    with watched(Fail(1, error=EACCES)), pytest.raises(PermissionError):
        OpenFile(tmp_path / "a")
