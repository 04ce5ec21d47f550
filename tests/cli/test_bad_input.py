"""Bad input of every kind: one clear sentence, exit code 2, and nothing lost."""

import json
import re
import shutil

import pytest
import torch

from gp_ensembles.cli import scored_stream
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.scored_stream import load_checkpoint
from gp_ensembles.engine.online import OnlineEnsemble
from gp_ensembles.files.checkpoint import Kind, write_checkpoint
from gp_ensembles.numerics.cholesky import NumericalError
from tests.cli.commands import resume, run, stream, summary_of, tables_of


@pytest.fixture(scope="module")
def place(tmp_path_factory, small):
    """A folder with good files: table, config, results of a stream."""
    folder = tmp_path_factory.mktemp("bad")
    (folder / "small.yaml").write_text(small.config, encoding="utf-8")
    small.write(folder / "data.csv", small.rows(160))
    assert stream(folder, "data.csv", "good") == 0
    return folder


@pytest.fixture(autouse=True)
def _nothing_is_there_before(place):
    """Tests that assert that nothing was written do not see what others wrote."""
    shutil.rmtree(place / "never", ignore_errors=True)


@pytest.fixture
def complaint(capsys):
    """The one sentence of a failing command."""

    def of(command, *words, **options):
        capsys.readouterr()
        assert command(*words, **options) == 2
        reported = capsys.readouterr()
        assert reported.out == ""
        assert re.fullmatch(r"gp-ensembles: error: (?!.*Traceback).+\n", reported.err), reported.err
        return reported.err

    return of


BAD_CELLS = [
    (0, "inf", ["column a", "inf"]),
    (0, "red", ["column a", "'red'"]),
    (2, "blue", ["column y", "'blue'"]),
    (2, "inf", ["column y", "infinite"]),
]


def test_bad_cells_of_the_warm_up_are_named_before_anything_is_written(place, small, complaint):
    for cell, text, words in BAD_CELLS:
        rows = small.rows(160)
        rows[50][cell] = text
        small.write(place / "cells.csv", rows)
        reported = complaint(stream, place, "cells.csv", "never")
        assert all(word in reported for word in ["data row 51 (line 52)", *words]), reported
        assert not (place / "never").exists()


@pytest.mark.parametrize(("cell", "text", "words"), BAD_CELLS[1::2])
def test_bad_cells_later_end_the_run_and_what_came_before_is_kept(place, small, complaint, cell, text, words):
    rows = small.rows(160)
    good, rows[150][cell] = rows[150][cell], text
    small.write(place / "cells.csv", rows)
    shutil.rmtree(place / "cells", ignore_errors=True)
    reported = complaint(stream, place, "cells.csv", "cells")
    assert all(word in reported for word in ["data row 151 (line 152)", *words]), reported
    assert load_checkpoint(place / "cells" / "checkpoint.pt").num_read == 150
    rows[150][cell] = good
    small.write(place / "cells.csv", rows)
    assert resume(place, "cells.csv", "cells", "--skip-seen") == 0
    assert tables_of(place / "cells") == tables_of(place / "good")


def test_constant_columns_are_kept_and_wake_up(place, small, complaint):
    rows = [[a, "3.0" if number < 120 else b, y] for number, (a, b, y) in enumerate(small.rows(160))]
    small.write(place / "constant.csv", rows)
    assert stream(place, "constant.csv", "woken") == 0
    inputs = summary_of(place / "woken")["inputs"]
    assert [(entry["was_constant"], entry["activated_at"]) for entry in inputs] == [(False, 0), (True, 121)]
    small.write(place / "constant.csv", [["1", "3.0", y] for _, _, y in rows])
    assert "all inputs are constant" in complaint(stream, place, "constant.csv", "never")
    assert not (place / "never").exists()


def test_too_few_rows_are_refused(place, small, complaint):
    small.write(place / "few.csv", small.rows(50))
    predicted = complaint(stream, place, "few.csv", "never")
    assert "50 rows" in predicted
    assert "--warmup" in predicted
    assert "at least 10" in complaint(stream, place, "data.csv", "never", "--warmup", "5")
    small.write(place / "unseen.csv", [[a, b, "" if k < 55 else y] for k, (a, b, y) in enumerate(small.rows(160))])
    assert "5 of the 60" in complaint(stream, place, "unseen.csv", "never")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "z"], ["no column named z"]),
        (["--features", "a,q"], ["no column named q"]),
        (["--features", "a,y"], ["y", "features"]),
        (["--dtype", "float16"], ["dtype", "float16"]),
        (["--device", "abacus"], ["abacus"]),
        (["--device", "cpu:3"], ["'cpu:3' is unknown", "one cpu"]),
        (["--num-threads", "100000"], ["--num-threads is 100000", "processors"]),
        (["--config", "e_dobe"], ["e_dobe is neither a config nor a file", "did you mean e_doebe"]),
        (["--warmup", "many"], ["warmup", "many"]),
        (["--warmpu", "50"], ["warmpu"]),
        (["--seed", "-1"], ["seed"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml"]),
    ],
)
def test_bad_options_are_named(place, complaint, options, words):
    predicted = complaint(stream, place, "data.csv", "never", *options)
    assert all(word in predicted for word in words), predicted
    assert not (place / "never").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ensembel: oebe", ["ensembel"]),
        ("ensemble: oebee", ["ensemble", "oebee"]),
        ("ensemble: {like: oebe, stay: 0.9}", ["ensemble", "stay"]),
        ("ensemble: {like: oebe, bases: [{LinearBasis: {order: 2}}]}", ["order"]),
        ("ensemble: {like: soebe, rule: {StickySwitching: {stay: much}}}", ["stay", "much"]),
        ("warmup: 2.5", ["warmup", "2.5"]),
        ("model: [", ["broken.yaml"]),
        ("seed: 1\nwarmup: 50\nseed: 2", ["line 3", "the key seed repeats line 1"]),
        ("ensemble: {like: oebe, bases: [LinearBasiz]}", ["did you mean LinearBasis"]),
        ("ensemble: {like: oebe, basis: [LinearBasis]}", ["has no setting 'basis'; did you mean bases"]),
        ("ensemble: e_doebi", ["did you mean e_doebe"]),
        ("ensemble: {like: oebe, fit_settings: {num_sample: 2}}", ["did you mean num_samples"]),
        ("", ["is empty"]),
        ("clip: -1", ["clip must be positive"]),
        ("ensemble: {like: oebe, bases: [{FourierBasis: {num_features: 7}}]}", ["at least 2, got 7"]),
    ],
)
def test_bad_configs_are_named(place, complaint, text, words):
    (place / "broken.yaml").write_text(text, encoding="utf-8")
    predicted = complaint(stream, place, "data.csv", "never", "--config", str(place / "broken.yaml"))
    assert all(word in predicted for word in ["broken.yaml", *words]), predicted
    assert "Expected a null" not in predicted
    usual = {"target": "y", "out": place / "never"}
    predicted = complaint(run, "compare", place / "data.csv", "--configs", place / "broken.yaml", **usual)
    assert all(word in predicted for word in ["broken.yaml", *words]), predicted


def test_missing_files_and_commands_are_named(place, complaint):
    assert "absent.csv" in complaint(stream, place, "absent.csv", "never")
    assert "--target" in complaint(run, "stream", place / "data.csv")
    assert "dream" in complaint(main, ["dream"])
    assert "absent" in complaint(resume, place, "data.csv", "absent")


def test_a_folder_that_cannot_be_written_is_refused(place, complaint):
    (place / "file").write_text("in the way")
    assert "--out" in complaint(stream, place, "data.csv", "file")
    assert "--out" in complaint(stream, place, "data.csv", "file/below")


@pytest.mark.parametrize("kind", ["cut", "text", "empty", "other", "version", "keys", "folder", "expert"])
def test_bad_checkpoints_are_refused(place, complaint, kind):
    good = (place / "good" / "checkpoint.pt").read_bytes()
    bad = place / f"{kind}.pt"
    content = torch.load(place / "good" / "checkpoint.pt", weights_only=True)
    mark = Kind(content.pop("format"), content.pop("format_version"), "", "")
    del content["manifest"]
    if kind in ("cut", "text", "empty"):
        bad.write_bytes({"cut": good[: len(good) // 2], "text": b"hello", "empty": b""}[kind])
    elif kind == "other":
        torch.save({"weights": torch.zeros(2)}, bad)
    elif kind == "version":
        write_checkpoint(bad, mark._replace(version=99), content)
    elif kind == "keys":
        del content["stream"]
        write_checkpoint(bad, mark, content)
    elif kind == "folder":
        bad.mkdir()
    else:
        content["model"]["objects"] = content["model"]["objects"].replace("GaussianExpert", "Stranger")
        write_checkpoint(bad, mark, content)
    assert bad.name in complaint(resume, place, "data.csv", "never", checkpoint=bad)
    assert not (place / "never").exists()


def test_rows_to_resume_with_must_fit(place, small, complaint):
    good = place / "good"
    small.write(place / "narrow.csv", [[a, y] for a, _, y in small.rows(50)], ("a", "y"))
    assert "no column named b" in complaint(resume, place, "narrow.csv", "never", checkpoint=good)
    assert "nothing to add" in complaint(resume, place, "data.csv", "never", checkpoint=good, skip_seen=True)
    rows = small.rows(200)
    rows[159][0] = "0.5"
    small.write(place / "another.csv", rows)
    assert "row 160" in complaint(resume, place, "another.csv", "never", checkpoint=good, skip_seen=True)


def test_a_failure_keeps_old_results_and_what_was_learned(place, small, complaint, monkeypatch):
    assert stream(place, "data.csv", "kept") == 0
    names = ("predictions.csv", "weights.csv", "summary.json", "checkpoint.pt")
    old = {name: (place / "kept" / name).read_bytes() for name in names}
    small.write(place / "long.csv", small.rows(220))
    learn, calls = scored_stream.score_block, []

    def fail_later(*arguments):
        calls.append(1)
        if len(calls) == 3:
            raise NumericalError("the variance of expert 3 has vanished")
        return learn(*arguments)

    monkeypatch.setattr(scored_stream, "CHUNK_ROWS", 32)
    monkeypatch.setattr(scored_stream, "score_block", fail_later)
    assert "expert 3" in complaint(stream, place, "long.csv", "kept", "--checkpoint_seconds", "0", "--block_size", "16")
    monkeypatch.undo()
    kept = {path.name: path.read_bytes() for path in (place / "kept").iterdir()}
    assert all(kept[name] == old[name] for name in names[:3])
    assert kept["checkpoint.previous.pt"] == old["checkpoint.pt"]
    assert resume(place, "long.csv", "kept", "--skip-seen") == 0
    assert stream(place, "long.csv", "whole", "--block_size", "16") == 0
    assert tables_of(place / "kept") == tables_of(place / "whole")


def test_a_rejected_block_is_named_by_its_rows_and_can_be_gone_on_from(place, small, complaint, monkeypatch):
    small.write(place / "reject.csv", small.rows(220))
    observe, calls = OnlineEnsemble.learn, []

    def reject(self, X, y, **timing):
        calls.extend([1] if len(self.names) > 1 else [])
        if len(calls) == 3:  # after the warm-up and one chunk
            raise NumericalError("no")
        return observe(self, X, y, **timing)

    monkeypatch.setattr(scored_stream, "CHUNK_ROWS", 32)
    monkeypatch.setattr(OnlineEnsemble, "learn", reject)
    predicted = complaint(stream, place, "reject.csv", "rejected", "--block_size", "16")
    monkeypatch.undo()
    learned = scored_stream.load_checkpoint(place / "rejected" / "checkpoint.pt").progress.num_rows
    assert learned > 60
    assert f"rows {learned + 1} to " in predicted
    assert resume(place, "reject.csv", "rejected", "--skip-seen") == 0
    assert len(small.read(place / "rejected" / "predictions.csv")) == 160


def test_traceback_is_shown_on_request(place, refused):
    refused(stream(place, "absent.csv", "never", "--traceback"), "Traceback")


def test_defects_are_told_apart(place, capsys, monkeypatch):
    def broken(*arguments, progress):
        raise RuntimeError("surprise")

    monkeypatch.setattr(scored_stream.ScoredStream, "start", broken)
    assert stream(place, "data.csv", "never") == 1
    assert "RuntimeError: surprise (--traceback" in capsys.readouterr().err


def test_an_empty_out_is_refused(place, complaint):
    for out in (["--out", ""], ["--out="], ["--out", "  "]):
        assert "--out is empty" in complaint(run, "stream", place / "data.csv", *out, target="y", warmup=60)


def test_configs_are_listed_and_found_by_name(place, capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[0] == "e_doebe" and "exchange weight" in line for line in lines)
    assert stream(place, "data.csv", "by_name", config="oe_linear") == 0
    usual = {"target": "y", "warmup": 60, "out": place / "compared"}
    assert run("compare", place / "data.csv", "--configs", "oe_linear", "doe_linear", **usual) == 0
    assert set(json.loads((place / "compared" / "compare.json").read_text())) >= {"oe_linear", "doe_linear"}
