"""Targets of the wrong kind: found before anything runs, and told as the cell of the file and the classes there are."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gp_ensembles.cli import scored_stream
from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.bad_rows import BadRows
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.cli.tables import check_targets
from gp_ensembles.data import Table, read_csv
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget, ClassTarget, CountTarget, LevelTarget, RealTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.checks import illegal_target

FIT = FitSettings(LBFGS(max_iterations=3), num_samples=1)
SPEC = replace(oebe, bases=(LinearBasis(),), fit_settings=FIT, target=BinaryTarget())
BINARY = StreamConfig(SPEC, warmup=40)
QUICK = ["--pictures", "false", "--progress", "false"]
CONFIG = "ensemble: {like: oebe, bases: [LinearBasis], target: TARGET, fit_settings: FIT}".replace(
    "FIT", "{method: {LBFGS: {max_iterations: 3}}, num_samples: 1}"
)


def make_rows(num_rows=600):
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
    for name, target in {"binary": "BinaryTarget", "counts": "CountTarget", "real": "RealTarget"}.items():
        (tmp_path / f"{name}.yaml").write_text(CONFIG.replace("TARGET", target), encoding="utf-8")
    return tmp_path


def stream(place, data="data.csv", config="binary", warmup="200"):
    arguments = ["stream", str(place / data), "--target", "y", "--config", str(place / f"{config}.yaml")]
    return main([*arguments, "--warmup", warmup, "--out", str(place / "out"), *QUICK])


@pytest.mark.parametrize(
    ("config", "row", "value", "words"),
    [
        ("binary", 400, "2", "the target is 2, but the classes are 0 and 1 (BinaryTarget); recode other labels (-1"),
        ("binary", 0, "-1", "the target is -1, but the classes are 0 and 1 (BinaryTarget)"),
        ("counts", 599, "-1", "the target is -1, but counts must be whole numbers from zero (CountTarget); correct it"),
        ("counts", 50, "1.5", "the target is 1.5, but counts must be whole"),
    ],
)
def test_the_cell_is_named_before_anything_runs(place, small, capsys, monkeypatch, config, row, value, words):
    rows = make_rows()
    rows[row][2] = value
    small.write(place / "data.csv", rows)
    monkeypatch.setattr(scored_stream, "OnlineModel", lambda *_, **__: pytest.fail("something ran"))
    assert stream(place, config=config) == 2
    said = capsys.readouterr().err
    assert f"{place / 'data.csv'}, data row {row + 1} (line {row + 2}), column y: {words}" in said
    assert "leave the cell empty" in said
    assert "Likelihood" not in said
    assert not list((place / "out").glob("*"))  # nothing was written


def test_lines_are_those_of_the_file(place, small, capsys):
    rows = make_rows()
    rows[300][2] = "7"
    text = small.write(place / "data.csv", rows).read_text().splitlines()
    (place / "data.csv").write_text("\n\n" + "\n".join([*text[:10], "", *text[10:]]))
    assert stream(place) == 2
    assert "data row 301 (line 305)" in capsys.readouterr().err


def test_rows_to_go_on_with_are_checked_too(place, small, capsys):
    rows = make_rows(320)
    small.write(place / "data.csv", rows[:260])
    assert stream(place) == 0
    before = (place / "out" / "checkpoint.pt").read_bytes()
    rows[310][2] = "3"
    small.write(place / "all.csv", rows)
    small.write(place / "tail.csv", rows[260:])
    small.write(place / "one_class.csv", [row for row in rows[260:310] if row[2] == "1"])
    resume = ["resume", "--checkpoint", str(place / "out" / "checkpoint.pt"), "--out", str(place / "out"), *QUICK]
    for file, row, options in (("all.csv", 311, ["--skip-seen"]), ("tail.csv", 51, [])):
        assert main([*resume, str(place / file), *options]) == 2
        said = capsys.readouterr().err
        assert f"{place / file}, data row {row} (line {row + 1}), column y: the target is 3" in said
        assert (place / "out" / "checkpoint.pt").read_bytes() == before
    assert main([*resume, str(place / "one_class.csv")]) == 0  # legal: only a fit needs both


@pytest.mark.parametrize("words", [("true", "false"), ("True", "False"), ("TRUE", " FALSE ")])
def test_true_and_false_are_the_classes_1_and_0(place, small, words):
    rows = make_rows(300)
    small.write(place / "data.csv", rows)
    assert stream(place) == 0
    expected = (place / "out" / "predictions.csv").read_bytes()
    small.write(place / "data.csv", [[a, b, words[1 - int(label)]] for a, b, label in rows])
    assert stream(place) == 0
    assert (place / "out" / "predictions.csv").read_bytes() == expected


@pytest.mark.parametrize(("config", "kind"), [("real", "RealTarget"), ("counts", "CountTarget")])
def test_true_and_false_are_no_numbers(place, small, capsys, config, kind):
    small.write(place / "data.csv", [[a, b, str(label == "1")] for a, b, label in make_rows(300)])
    assert stream(place, config=config) == 2
    said = capsys.readouterr().err
    assert f"column y: true and false are classes, and {kind} predicts numbers" in said
    assert "BinaryTarget" in said


def test_other_words_are_told_how_to_be_encoded(place, small, capsys):
    small.write(place / "data.csv", [[a, b, "yes" if label == "1" else "no"] for a, b, label in make_rows(300)])
    assert stream(place) == 2
    said = capsys.readouterr().err
    assert "column y: the target 'yes' is not a number; encode the classes as 0, 1, ..." in said
    assert "--features" not in said


def test_rows_given_to_a_stream_are_counted_from_the_first_of_the_stream():
    table = make_table()
    X, y = table.X[40:], table.y[40:].clone()
    scored, whole = ScoredStream.start(BINARY, table), ScoredStream.start(BINARY, table)
    y[330] = 2.0  # in the second chunk
    got = []
    with pytest.raises(ValueError, match=r"the target of row 371 is 2, but the classes are 0 and 1 \(BinaryTarget\)"):
        got.extend(scored.chunks(X, y))
    # what came before the row is learned and handed out, and the stream goes on after it
    assert scored.num_read == 370
    expected = next(whole.chunks(X[:330], y[:330]))
    torch.testing.assert_close(got[0].mean, expected.mean, rtol=0, atol=0)
    assert sum(chunk.mean.shape[0] for chunk in got) == 330
    assert next(scored.chunks(X[331:], y[331:])).first_row == 371


@pytest.mark.parametrize("is_wild_first", [True, False])
def test_the_first_of_two_bad_rows_is_named(is_wild_first):
    table = make_table()
    X, y = table.X[40:].clone(), table.y[40:].clone()
    scored = ScoredStream.start(BINARY, table)
    scored.bad_rows = BadRows("stop")
    X[20 if is_wild_first else 30, 0], y[25] = 1e200, 0.5
    with pytest.raises(ValueError, match="in row 61" if is_wild_first else "of row 66 is 0.5"):
        list(scored.chunks(X, y))
    assert scored.num_read == (60 if is_wild_first else 65)


def test_a_table_without_a_file_is_named_by_itself():
    table = make_table(60)
    table.y[50] = 4.0
    with pytest.raises(
        ValueError, match=r"^made, data row 51, column y: the target is 4, but the classes are 0 to 2 \("
    ):
        check_targets(table, ClassTarget(3))


def test_a_table_that_was_cut_does_not_point_into_its_file(tmp_path, small):
    table = read_csv(small.write(tmp_path / "data.csv", make_rows(20)), "y")
    assert table.where(4) == f"{tmp_path / 'data.csv'}, data row 5 (line 6)"
    assert table._replace(X=table.X[3:], y=table.y[3:]).where(4) == "data, data row 5"


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
