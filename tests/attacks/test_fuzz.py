"""The attack on readers: its corpus is read, a sample of it finds nothing, and it finds what is planted."""

import json

import pytest

from attacks import fuzz
from attacks.readers import CORPUS, READERS, Reader, refusal_of, try_input

# What the fuzzing has found: bytes that once raised an exception that is not documented.
FOUND = {
    "tables": [b'  a   y\n  0  0.5\n  1  0.25\n  2  1\n  6  2\r\n"'],
    "configs": [
        *(b"warmup: !!" + tag for tag in (b"int\n", b"float\n", b"int '-'\n", b"timestamp x\n", b"bool perhaps\n")),
        *(b"? [a, {b: c}]\n: 1\n", b"? !!set {a}\n: 1\n"),
    ],
}


@pytest.mark.parametrize("name", READERS)
def test_the_corpus_holds_files_that_are_read(name):
    files = sorted((CORPUS / name).iterdir())
    assert files
    assert sum(path.stat().st_size for path in files) < 30_000
    assert any(refusal_of(READERS[name], path) is None for path in files)


def test_what_was_found_is_refused_in_a_sentence(tmp_path):
    for name, data in [(name, data) for name, some in FOUND.items() for data in some]:
        path = tmp_path / f"found{READERS[name].suffix}"
        path.write_bytes(data)
        is_refused, what = try_input(READERS[name], path)
        assert (is_refused, what) == (True, None) or (name == "tables" and what is None)


def test_a_few_seconds_find_nothing(tmp_path, capsys):
    given = ["--seconds", "2", "--engine", "mutations", "--crashes", str(tmp_path), "--out", str(tmp_path / "out.json")]
    assert fuzz.main(given) == 0
    (table,) = json.loads((tmp_path / "out.json").read_text())["tables"]  # a second one tells what was found
    assert [row[0] for row in table["rows"]] == list(READERS)
    assert all(inputs == refused + read > 1 for _, inputs, refused, read, _ in table["rows"])
    assert "checkpoints" in capsys.readouterr().out


def test_an_undocumented_exception_is_a_finding_and_its_input_kept(tmp_path, monkeypatch):
    def broken(path):
        if b"7" in path.read_bytes():
            raise KeyError("planted")
        raise ValueError("no")

    monkeypatch.setitem(READERS, "tables", Reader(broken, (ValueError,), ".csv", (b"7",)))
    found = fuzz.run_mutations("tables", 0.2, 0, tmp_path).findings
    assert [finding.what.split(" at ")[0] for finding in found] == ["KeyError"]
    (kept,) = tmp_path.iterdir()
    assert b"7" in kept.read_bytes()
