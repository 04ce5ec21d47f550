"""Targets of the wrong kind: found before anything runs, and told as the cell of the file and the classes there are."""

import math
import shlex
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.cli import scored_stream
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.scored_stream import ScoredStream, load_checkpoint
from gp_ensembles.data import Table
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, CountTarget, LevelTarget, RealTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.checks import illegal_target
from gp_ensembles.tables.rows import Rows
from tests.cli.commands import InMemoryRows, open_table, resume, run, summary_of

FIT = FitSettings(LBFGS(max_iterations=3), num_samples=1)
SPEC = replace(oebe, bases=(LinearBasis(),), fit_settings=FIT, target=BinaryTarget())
BINARY = StreamConfig(SPEC, warmup=40)
CONFIG = "ensemble: {like: oebe, bases: [LinearBasis], target: TARGET, fit_settings: FIT}".replace(
    "FIT", "{method: {LBFGS: {max_iterations: 3}}, num_samples: 1}"
)


def make_rows(num_rows=150):
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(num_rows, 2, generator=generator, dtype=torch.float64)
    noise = torch.randn(num_rows, generator=generator, dtype=torch.float64)
    labels = (X[:, 0] + 0.3 * noise > 0).tolist()
    return [[f"{a:.5f}", f"{b:.5f}", str(int(label))] for (a, b), label in zip(X.tolist(), labels, strict=True)]


def make_table(num_rows=400):
    rows = torch.tensor([[float(cell) for cell in row] for row in make_rows(num_rows)], dtype=torch.float64)
    return Table(rows[:, :2], rows[:, 2].clone(), ("a", "b"), "y", "made")


@pytest.fixture(name="place")
def _place(tmp_path):
    targets = {"binary": "BinaryTarget", "counts": "CountTarget", "real": "RealTarget"}
    for name, target in {**targets, "classes": "{ClassTarget: {num_classes: 3}}"}.items():
        (tmp_path / f"{name}.yaml").write_text(CONFIG.replace("TARGET", target), encoding="utf-8")
    return tmp_path


def stream(place, config="binary", **options):
    usual = {"target": "y", "config": place / f"{config}.yaml", "warmup": 60, "out": place / "out"}
    return run("stream", place / "data.csv", **usual | options)


@pytest.mark.parametrize(
    ("config", "row", "value", "words"),
    [
        ("binary", 50, "2", "the target is 2, but the classes are 0 and 1 (BinaryTarget); recode other labels (-1"),
        ("binary", 0, "-1", "the target is -1, but the classes are 0 and 1 (BinaryTarget)"),
        ("counts", 59, "-1", "the target is -1, but counts must be whole numbers from zero (CountTarget); correct it"),
        ("counts", 50, "1.5", "the target is 1.5, but counts must be whole"),
        ("classes", 5, "3", "the target is 3, but the classes are 0 to 2 (ClassTarget)"),
    ],
)
def test_a_cell_of_the_warm_up_is_named_before_it_runs(place, small, capsys, monkeypatch, config, row, value, words):
    rows = make_rows()
    rows[row][2] = value
    small.write(place / "data.csv", rows)
    monkeypatch.setattr(scored_stream, "OnlineModel", lambda *_, **__: pytest.fail("something ran"))
    assert stream(place, config=config) == 2
    predicted = capsys.readouterr().err
    assert f"{place / 'data.csv'}, data row {row + 1} (line {row + 2}), column y: {words}" in predicted
    assert "leave the cell empty" in predicted
    assert "Likelihood" not in predicted
    assert not (place / "out").exists()  # nothing was written


def test_rows_to_go_on_with_are_checked_too(place, small, capsys):
    rows = make_rows()
    small.write(place / "data.csv", rows[:100])
    rows[130][2] = "3"
    small.write(place / "all.csv", rows)
    small.write(place / "tail.csv", rows[100:])
    small.write(place / "one_class.csv", [row for row in rows[100:130] if row[2] == "1"])
    for file, row, options in (("all.csv", 131, ["--skip-seen"]), ("tail.csv", 31, [])):
        assert stream(place) == 0
        assert resume(place, file, "out", *options) == 2
        predicted = capsys.readouterr().err
        assert f"{place / file}, data row {row} (line {row + 1}), column y: the target is 3" in predicted
        assert load_checkpoint(place / "out" / "checkpoint.pt").num_read == 130
    assert stream(place) == 0
    assert resume(place, "one_class.csv") == 0  # legal: only a fit needs both


def test_true_and_false_are_the_classes_1_and_0(place, small):
    rows = make_rows(100)
    small.write(place / "data.csv", rows)
    assert stream(place) == 0
    expected = (place / "out" / "predictions.csv").read_bytes()
    for words in (("true", "false"), ("TRUE", " FALSE ")):
        small.write(place / "data.csv", [[a, b, words[1 - int(label)]] for a, b, label in rows])
        assert stream(place) == 0
        assert (place / "out" / "predictions.csv").read_bytes() == expected


@pytest.mark.parametrize(("config", "kind"), [("real", "RealTarget"), ("counts", "CountTarget")])
def test_true_and_false_are_no_numbers(place, small, capsys, config, kind):
    small.write(place / "data.csv", [[a, b, str(label == "1")] for a, b, label in make_rows(100)])
    assert stream(place, config=config) == 2
    predicted = capsys.readouterr().err
    assert f"column y: the target is true/false, but {kind} predicts numbers" in predicted
    assert "BinaryTarget" in predicted


def test_classes_by_name_are_told_how_to_be_run_and_have_the_bits_of_their_numbers(place, small, capsys, refused):
    small.write(place / "data.csv", make_rows(100))
    assert stream(place) == 0
    expected = (place / "out" / "predictions.csv").read_text().splitlines()
    small.write(place / "data.csv", [[a, b, "yes" if label == "1" else "no"] for a, b, label in make_rows(100)])
    capsys.readouterr()
    assert stream(place) == 2
    predicted = capsys.readouterr().err
    assert "column y: the target is text with 2 values in the first" in predicted
    assert "--classes no,yes" in predicted
    assert stream(place, classes="no,yes") == 0
    found = (place / "out" / "predictions.csv").read_text().splitlines()
    assert found[0] == expected[0].replace("p0,p1", "p_no,p_yes")
    assert found[1:] == expected[1:]
    assert summary_of(place / "out")["classes"] == ["no", "yes"]
    three = "--classes names 3 classes, but BinaryTarget predicts 2 classes; leave out the config\n"
    refused(stream(place, classes="no,yes,perhaps"), three)
    refused(stream(place, "real", classes="no,yes"), "leave out the config, or choose one for them (die_gp_classes, ")


def test_options_with_commas_and_blanks_are_told_as_a_shell_takes_them(tmp_path, capsys):
    labels = ("on, or so", "it's off", "it's off")
    lines = [f'{k},"{labels[k % 3]}",Room {k}\n' for k in range(60)]
    (tmp_path / "data.csv").write_text('x,y,"room, floor"\n' + "".join(lines), encoding="utf-8")
    words = ["stream", str(tmp_path / "data.csv"), "--target=y", "--explain"]
    for option, start, end in (("--kinds", "drop it (--kinds ", "), or"), ("--classes", "give --classes ", " and any")):
        assert main(words) == 2
        value = capsys.readouterr().err.split(start)[1].partition(end)[0]
        words += [option, *shlex.split(value)]
    assert main(words) == 0
    assert "classes 0 to 1: it's off, on, or so" in capsys.readouterr().out


def at_hand(X, y, first_row=41):
    return InMemoryRows(Rows(X, y, None, None, first_row, None))


def test_rows_given_to_a_stream_are_counted_from_the_first_of_the_stream():
    table = make_table()
    X, y = table.X[40:], table.y[40:].clone()
    scored, whole = (ScoredStream.start(BINARY, open_table(table, 40)) for _ in range(2))
    y[330] = 2.0  # in the second chunk
    got = []
    with pytest.raises(ValueError, match=r"row 371, column y: the target is 2, but the classes are 0 and 1 \(Binary"):
        got.extend(scored.chunks(at_hand(X, y)))
    # what came before the row is learned and handed out, and the stream goes on after it
    assert scored.num_read == 370
    expected = next(whole.chunks(at_hand(X[:330], y[:330])))
    torch.testing.assert_close(got[0].rows.mean, expected.rows.mean, rtol=0, atol=0)
    assert sum(chunk.y.shape[0] for chunk in got) == 330
    assert next(scored.chunks(at_hand(X[331:], y[331:], 372))).first_row == 371


@given(
    kind=st.sampled_from([BinaryTarget(), ClassTarget(3), LevelTarget(4), CountTarget(), RealTarget()]),
    y=st.lists(st.sampled_from([math.nan, -1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0]), min_size=1, max_size=6),
)
def test_the_first_illegal_target_is_found(kind, y):
    top = math.inf if kind.num_labels is None else kind.num_labels
    illegal = [t for t in y if not (kind.is_real or math.isnan(t) or (t >= 0 and t < top and t == int(t)))]
    found = illegal_target(kind, torch.tensor(y, dtype=torch.float64))
    assert (None if found is None else found.row) == (y.index(illegal[0]) if illegal else None)
    assert found is None or found.problem.startswith(f"{illegal[0]:.10g}, but ")
