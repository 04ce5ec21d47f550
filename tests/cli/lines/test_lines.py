"""Streams of lines: answers at once, targets when they come, bad lines survived, kills survived to the bit."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.line_session import LineSession, read_line
from gp_ensembles.cli.lines import run_lines
from gp_ensembles.ensembles.bases import LinearBasis
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.ensembles.presets import oebe
from gp_ensembles.ensembles.targets import BinaryTarget
from gp_ensembles.experts.empirical_bayes import LBFGS
from gp_ensembles.streaming import OnlineModel, StreamConfig
from gp_ensembles.tables import TableOptions
from tests.cli.commands import LINEAR, summary_of

SPEC = replace(oebe, bases=(LinearBasis(),), fit_settings=FitSettings(LBFGS(max_iterations=5), num_samples=1))
CONFIG = StreamConfig(SPEC, warmup=30)
YAML = f"{LINEAR}warmup: 30\n"


def rows(num_rows=60):
    generator = torch.Generator().manual_seed(0)
    wind = torch.randn(num_rows, generator=generator).tolist()
    noise = (0.1 * torch.randn(num_rows, generator=generator)).tolist()
    sites = ["a", "b"] * (num_rows // 2)
    return [
        {"id": f"r{k}", "wind": w, "site": s, "load": 3 * w + 5 * (s == "b") + e}
        for k, (w, s, e) in enumerate(zip(wind, sites, noise, strict=True))
    ]


def split(found):
    """A row as two lines: what is known first, and its target."""
    return [{k: v for k, v in found.items() if k != "load"}, {"id": found["id"], "load": found["load"]}]


def without_target(number):
    """The lines of all rows, but for the target of one."""
    return [line for k, row in enumerate(rows()) for line in split(row)[: 1 if k == number else 2]]


def written(path, found):
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return str(path)


def run(session, lines, tmp_path, name="out"):
    answers = io.StringIO()
    text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    summary = run_lines(session, text, answers, tmp_path / name)
    return [json.loads(line) for line in answers.getvalue().splitlines()], summary


def as_tensors(found):
    X = torch.tensor([[row["wind"], row["site"] == "a", row["site"] == "b"] for row in found], dtype=torch.float64)
    return X, torch.tensor([row["load"] for row in found], dtype=torch.float64)


def test_answers_are_those_of_the_model(tmp_path):
    found = rows()
    answers, summary = run(LineSession(CONFIG, "load"), [line for row in found for line in split(row)], tmp_path)
    X, y = as_tensors(found)
    model = OnlineModel(CONFIG).fit(X[:30], y[:30])
    assert [answer["id"] for answer in answers] == [row["id"] for row in found]
    assert all(answer["warm_up"] for answer in answers[:30])
    assert "warm_up" not in answers[30]
    log_prob = []
    for answer, row, target in zip(answers[30:], X[30:], y[30:], strict=True):
        predicted = model.predict(row.unsqueeze(0))
        assert answer["mean"] == pytest.approx(float(predicted.mean), rel=1e-12)
        assert answer["q05"] == pytest.approx(float(model.interval_of(predicted)[0]), rel=1e-9)
        log_prob.append(float(predicted.log_prob(target.reshape(1))))
        model.observe(row.unsqueeze(0), target.reshape(1))
    assert (summary["rows"], summary["rows_scored"], summary["rows_waiting"]) == (60, 30, 0)
    assert summary["log_score"] == pytest.approx(sum(log_prob) / 30, rel=1e-9)
    assert summary_of(tmp_path / "out")["rows"] == 60
    together, _ = run(LineSession(CONFIG, "load"), found, tmp_path)
    assert [answer.get("mean") for answer in together] == [answer.get("mean") for answer in answers]


def test_bad_lines_are_counted_told_and_change_nothing(tmp_path, capsys):
    found = rows()
    good = [line for row in found for line in split(row)]
    bad = ["not json", "[1, 2]", "{}", '{"id": "r99", "load": 3}', '{"id": "r70", "wind": [1]}', '{"wind": "gale"}']
    session = LineSession(CONFIG, "load")
    first, _ = run(session, good[:90], tmp_path)
    second, _ = run(session, [*bad, '{"id": "r40", "load": 1.5}', '{"id": "x", "load": "much"}'], tmp_path)
    third, summary = run(session, good[90:], tmp_path)
    plain, _ = run(LineSession(CONFIG, "load"), good, tmp_path, "plain")
    assert second == []
    assert [*first, *third] == plain
    assert summary["lines_malformed"] == 8
    predicted = capsys.readouterr().err
    assert "line 1: not JSON: Expecting value at character 1" in predicted
    assert "line 2: not a JSON object" in predicted
    assert "line 4: no row 'r99' is pending" in predicted
    assert predicted.count("later ones are only counted") == 1


def test_a_row_without_an_id_is_no_others_and_is_learned_without_a_target(tmp_path):
    found = rows()
    session, plain = LineSession(CONFIG, "load"), LineSession(CONFIG, "load")
    for one in (session, plain):
        run(one, found[:40], tmp_path)
    nameless = {"wind": 1.0, "site": "a"}
    answers, _ = run(session, [nameless, {**nameless, "id": None, "load": "n/k"}, {"id": 41, "load": 5.0}], tmp_path)
    assert [(answer["id"], answer["row"]) for answer in answers] == [(None, 41), (None, 42)]
    assert "not a number" in answers[1]["refused"]
    assert (session.tally.num_malformed, session.num_waiting, session.model.num_rows) == (2, 0, 42)
    X, _ = as_tensors([{**nameless, "load": 0.0}] * 2)
    plain.model.observe(X, torch.full((2,), torch.nan, dtype=torch.float64))
    run(session, [{**nameless, "id": 43}, {**nameless, "id": "43"}, {"id": 43.0, "load": 3.0}], tmp_path)
    assert session.num_waiting == 1  # the one whose id is text
    assert session.model.num_rows == 43
    plain.model.observe(X[:1], torch.tensor([3.0], dtype=torch.float64))
    ours, theirs = (one.model.online.state_dict() for one in (session, plain))
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-11) for name in ours)


def test_a_target_that_never_comes_is_given_up(tmp_path, capsys, refused):
    late, session = without_target(50), LineSession(CONFIG, "load", window=5)
    _, summary = run(session, late, tmp_path)
    assert (summary["rows_waiting"], summary["rows_given_up"], session.model.num_rows) == (0, 1, 60)
    X, y = as_tensors(rows())
    y[50] = torch.nan
    model = OnlineModel(CONFIG).fit(X[:30], y[:30])
    model.observe(X[30:], y[30:])
    ours, theirs = session.model.online.state_dict(), model.online.state_dict()
    assert all(torch.allclose(ours[name].double(), theirs[name].double(), atol=1e-11) for name in ours)
    reported = LineSession(CONFIG, "load")  # the same is said by hand, at once
    run(reported, [*late[:101], {"id": "r50", "load": None}], tmp_path)
    assert (reported.num_waiting, reported.model.num_rows) == (0, 51)
    (tmp_path / "small.yaml").write_text(YAML)
    command = ["stream", written(tmp_path / "rows.jsonl", late), "--format", "jsonl", "--target", "load"]
    command += ["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "cli"), "--window"]
    assert main([*command, "7"]) == 0
    assert "0 pending, 1 given up, 0 unusable lines" in capsys.readouterr().err
    assert main([*command, "7"]) == 2
    assert (
        "checkpoint.pt already exists; continue from it with resume, or choose another --out" in capsys.readouterr().err
    )
    command[command.index("--out") + 1] = str(tmp_path / "other")
    refused(main([*command, "0"]), "--window must be at least one row, got 0")


def test_what_is_odd_in_the_warm_up_costs_its_own_line_only(tmp_path, capsys):
    found = rows()
    found[7] = {**found[7], "wind": "gale"}
    session = LineSession(CONFIG, "load")
    answers, summary = run(session, found, tmp_path)
    assert ["warm_up" in answer for answer in answers] == [True] * 30 + [False] * 30
    assert (summary["lines_malformed"], session.model.num_rows) == (1, 59)
    labels = [{**row, "load": "high" if row["load"] > 2.5 else "low"} for row in rows()]
    labels[7]["load"] = "hihg"
    config = replace(CONFIG, ensemble=replace(CONFIG.ensemble, target=BinaryTarget()))
    session = LineSession(config, "load", TableOptions(classes=("low", "high")))
    answers, summary = run(session, labels, tmp_path)
    assert "'hihg' is not one of the classes low, high" in answers[7]["refused"]
    assert (summary["lines_malformed"], summary["rows_scored"]) == (1, 30)
    assert set(answers[-1]["probabilities"]) == {"low", "high"}
    hits = [answer["label"] == row["load"] for answer, row in zip(answers[30:], labels[30:], strict=True)]
    assert sum(hits) / len(hits) > 0.8
    assert summary["log_score"] > -0.6
    wild = rows()
    wild[3]["load"], wild[4]["load"] = 1e300, float("inf")
    session = LineSession(CONFIG, "load")
    answers, summary = run(session, wild, tmp_path)
    assert "the target is infinite" in answers[4]["refused"]
    assert all(abs(answer.get("mean", 0)) < 1e3 for answer in answers)


def test_a_line_that_comes_again_is_refused(tmp_path):
    found = rows()
    session = LineSession(CONFIG, "load")
    run(session, found[:40], tmp_path)
    answers, summary = run(session, [found[39], found[5], found[40]], tmp_path)
    assert [answer["id"] for answer in answers] == ["r40"]
    assert (summary["lines_malformed"], session.model.num_rows) == (2, 41)
    session = LineSession.load(tmp_path / "out" / "checkpoint.pt")
    answers, summary = run(session, [found[40]], tmp_path)
    assert (answers, session.model.num_rows) == ([], 41)


def test_a_file_that_is_read_again_is_gone_on_from(tmp_path, capsys):
    (tmp_path / "small.yaml").write_text(YAML)
    lines = [json.dumps(row) + "\n" for row in rows()]
    file = tmp_path / "rows.jsonl"
    out = ["--out", str(tmp_path / "out"), "--format", "jsonl"]
    file.write_text("".join(lines[:50]))
    command = ["stream", str(file), "--target", "load", "--config", str(tmp_path / "small.yaml"), *out]
    assert main(command) == 0
    first = capsys.readouterr().out
    file.write_text("".join(lines))
    assert main(["resume", str(file), "--checkpoint", str(tmp_path / "out" / "checkpoint.pt"), *out]) == 0
    rest = capsys.readouterr()
    assert "the first 50 lines were already read and are skipped" in rest.err
    whole, _ = run(LineSession(CONFIG, "load"), lines, tmp_path, "whole")
    assert [json.loads(line) for line in (first + rest.out).splitlines()] == whole
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({**rows()[0], "id": "new"}) + "\n")
    assert main(["resume", str(other), "--checkpoint", str(tmp_path / "out" / "checkpoint.pt"), *out]) == 0
    assert json.loads(capsys.readouterr().out)["row"] == 61


def test_classes_need_no_config(tmp_path, capsys):
    labels = [{**row, "load": "high" if row["load"] > 2.5 else "low"} for row in rows(40)]
    command = ["stream", written(tmp_path / "rows.jsonl", labels), "--target", "load", "--format", "jsonl"]
    command += ["--warmup", "30"]
    assert main([*command, "--classes", "low,high", "--out", str(tmp_path / "out")]) == 0
    assert set(json.loads(capsys.readouterr().out.splitlines()[-1])["probabilities"]) == {"low", "high"}


def test_nobody_reads_the_answers(tmp_path, monkeypatch, capsys):
    (tmp_path / "small.yaml").write_text(YAML)
    command = ["stream", written(tmp_path / "rows.jsonl", rows(40)), "--format", "jsonl", "--target", "load"]
    command += ["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as answers:
        monkeypatch.setattr(sys, "stdout", answers)
        assert main(command) == 1
    assert "standard output was closed" in capsys.readouterr().err
    assert (tmp_path / "out" / "checkpoint.pt").exists()


@pytest.mark.parametrize("cut", [20, 100])
def test_killed_and_resumed_to_the_bit_with_rows_that_wait(cut, tmp_path):
    found = rows()
    lines = [split(row) for row in found]
    late = [line for k in range(60) for line in (lines[k][0], *(lines[k - 3][1:] if k >= 3 else []))]
    whole, _ = run(LineSession(CONFIG, "load"), late, tmp_path, "whole")
    first, _ = run(LineSession(CONFIG, "load"), late[:cut], tmp_path, "cut")
    second, summary = run(LineSession.load(tmp_path / "cut" / "checkpoint.pt"), late[cut:], tmp_path, "cut")
    assert [*first, *second] == whole
    assert summary["rows_waiting"] == 3
    assert not [answer for answer in whole if answer["id"] == "r50" and "warm_up" in answer]


def test_a_warm_up_that_tells_nothing_goes_on_until_it_does(tmp_path, capsys):
    found = [{**row, "load": 7.0} for row in rows(40)] + [{**row, "id": f"s{k}"} for k, row in enumerate(rows(60))]
    session = LineSession(CONFIG, "load")
    answers, summary = run(session, found, tmp_path)
    assert len(answers) == 100
    predicted = capsys.readouterr().err
    assert predicted.count("the warm-up continues: the target is constant (7)") == 1  # tried again thirty targets later
    assert (summary["lines_malformed"], summary["problem"]) == (0, None)
    assert session.model is not None
    assert session.model.num_rows == 100
    assert summary["rows_scored"] == 40
    never = LineSession(CONFIG, "load", window=40)
    answers, _ = run(never, [{"wind": row["wind"]} for row in rows(80)] * 4, tmp_path)
    assert len(answers) == 320
    assert never.num_waiting < 80
    assert never.problem == "no target is observed in the warm-up rows"


def test_times_order_rows(tmp_path):
    found = [{**row, "when": f"2024-01-{1 + k // 24:02d}T{k % 24:02d}:00"} for k, row in enumerate(rows())]
    for options in (TableOptions(features=("wind",), time="when"), TableOptions()):
        session = LineSession(CONFIG, "load", options)
        answers, summary = run(session, found, tmp_path)
        assert (answers[-1]["time"], session.problem) == ("2024-01-03T11:00:00", None)
    assert summary["time"]["usual_step"] == 3600
    _, summary = run(session, [{**found[0], "id": "early"}], tmp_path)
    assert summary["lines_malformed"] == 1


def test_what_lines_say():
    assert read_line('{"wind": NaN, "load": null}', "load", "id").target is None
    assert read_line('\ufeff{"wind": 2}', "load", "id").record == {"wind": 2}
    assert read_line('{"a": 1, "b": 2, "id": 3}', "load", "id", ["b"]).record == {"b": 2}
    for text, problem in [
        ('{"id": true, "wind": 1}', "the id is True"),
        ('{"wind": {"speed": 1}}', "wind is a dict"),
        ('{"id": 3}', "the line needs inputs, or an id and a load"),
        ("[" * 100_000, "nested too deeply|not JSON"),
        ('{"wind": ' + "9" * 400 + "}", "wind is a whole number larger than 1e300"),
        ('{"wind": ' + "9" * 5000 + "}", "a number has thousands of digits"),
        ('{"id": NaN, "wind": 1}', "the id is nan"),
    ]:
        with pytest.raises(ValueError, match=problem):
            read_line(text, "load", "id")


def test_the_command_reads_a_pipe_and_a_csv_file(tmp_path, monkeypatch, capsys, refused):
    found = rows()
    (tmp_path / "small.yaml").write_text(YAML)
    options = ["--target", "load", "--config", str(tmp_path / "small.yaml")]
    text = "\n".join(json.dumps(row) for row in found)
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["stream", "-", "--format", "jsonl", "--out", str(tmp_path / "pipe"), *options]) == 0
    piped = capsys.readouterr()
    assert "60 rows answered, 30 scored" in piped.err
    table = tmp_path / "rows.csv"
    table.write_text("\n".join(["wind;site;load", *(f"{r['wind']};{r['site']};{r['load']}" for r in found)]))
    assert main(["stream", str(table), "--format", "csv", "--out", str(tmp_path / "csv"), *options]) == 0
    means = [
        [json.loads(line).get("mean") for line in text.splitlines()] for text in (piped.out, capsys.readouterr().out)
    ]
    assert means[0] == means[1]
    checkpoint = str(tmp_path / "csv" / "checkpoint.pt")
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"wind": 1.0, "site": "b"}\n'))
    out = ["--out", str(tmp_path / "add_experts")]
    assert main(["resume", "-", "--format", "jsonl", "--checkpoint", checkpoint, *out]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == pytest.approx(8, abs=0.5)
    for wrong, words in [
        (["stream", "-", "--format", "jsonl"], "with --target"),
        (["stream", "nowhere.jsonl", "--format", "jsonl", *options], "--follow waits for it"),
        (["stream", "-", "--follow", *options], "name its format"),
        (["resume", "-", "--checkpoint", checkpoint], "is not a checkpoint of a stream;"),
    ]:
        refused(main([*wrong, "--out", str(tmp_path / "wrong")]), words)


def start(tmp_path, *arguments):
    (tmp_path / "small.yaml").write_text(YAML)
    command = [sys.executable, "-m", "gp_ensembles", "stream", *arguments, "--format", "jsonl", "--target", "load"]
    command += ["--config", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, bufsize=1, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def answer_of(process, seconds=120.0):
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "no answer came in time"
    return json.loads(process.stdout.readline())


@pytest.mark.slow
def test_a_live_pipe_is_answered_at_once_and_ends_cleanly_on_sigterm(tmp_path):
    found = rows()
    with start(tmp_path, "-") as process:
        for row in found[:40]:
            process.stdin.write(json.dumps(row) + "\n")
            process.stdin.flush()
            answer = answer_of(process)
        assert answer["mean"] == pytest.approx(found[39]["load"], abs=1.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "40 rows answered, 10 scored" in process.stderr.read()
    assert LineSession.load(tmp_path / "run" / "checkpoint.pt").tally.num_rows == 40


@pytest.mark.slow
def test_a_growing_file_is_followed_across_rotation(tmp_path):
    found = rows()
    path = tmp_path / "rows.jsonl"
    with start(tmp_path, "--follow", str(path)) as process:
        with path.open("w") as file:
            for row in found[:35]:
                file.write(json.dumps(row) + "\n")
            file.write(json.dumps(found[35])[:10])  # half a line
            file.flush()
            for _ in range(35):
                answer_of(process)
            file.write(json.dumps(found[35])[10:] + "\n")
            file.flush()
            assert answer_of(process)["id"] == "r35"
        path.rename(tmp_path / "rows.old")
        path.write_text(json.dumps(found[36]) + "\n")
        assert answer_of(process)["id"] == "r36"
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
