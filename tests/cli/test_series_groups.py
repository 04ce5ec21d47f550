"""``stream --series --series-group`` beside a fleet for each group, and the same run cut short."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.config import load_config
from gp_ensembles.cli.series import fleets, run
from gp_ensembles.fleet import Fleet, GroupedFleet
from tests.cli.test_series import CONFIG, NAMES, table

KIND = {NAMES[0]: "homes", NAMES[1]: "works, old", NAMES[2]: "homes"}


def grouped_table(num_rows) -> pd.DataFrame:
    frame = table(num_rows)
    return frame.assign(kind=[KIND[name] for name in frame["meter"]])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(CONFIG)
    grouped_table(400).to_csv("all.csv", index=False)
    return tmp_path


def stream(*words, group=("--series-group", "kind")):
    fixed = ["stream", "--target", "load", "--series", "meter", *group, "--config", "small.yaml", "--progress", "false"]
    return main([*fixed, *words])


def resume(file, *words):
    return main(["resume", file, "--checkpoint", "run", "--out", "run", "--progress", "false", *words])


def same_files(folder, names=("predictions.csv", "series.csv")):
    return all((folder / "run" / name).read_bytes() == (folder / "whole" / name).read_bytes() for name in names)


def test_predictions_are_those_of_a_fleet_for_each_group(folder, capsys):
    assert stream("all.csv", "--out", "run") == 0
    assert "3 series in 2 groups of all: " in capsys.readouterr().out
    found, frame = pd.read_csv("run/predictions.csv"), grouped_table(400)
    spec = load_config("small.yaml").ensemble
    for kind, mine in frame.groupby("kind"):
        X, y = torch.tensor(mine[["x"]].to_numpy()), torch.tensor(mine["load"].to_numpy())
        expected = Fleet(spec, warmup=30).observe(mine["meter"].tolist(), X, y)
        own = found.loc[mine.index]
        for name, value in (
            ("mean", expected.mean),
            ("log_prob", expected.log_prob),
            ("upper", expected.interval()[1]),
        ):
            torch.testing.assert_close(torch.tensor(own[name].to_numpy()), value, rtol=1e-12, atol=0, equal_nan=True)
        assert own["mean"].notna().any(), kind
    series = pd.read_csv("run/series.csv")
    assert dict(zip(series["series"], series["group"], strict=True)) == KIND
    assert json.loads((folder / "run/summary.json").read_text())["groups"] == 2
    assert GroupedFleet.load(folder / "run/fleet").groups == KIND


def test_a_run_that_stops_goes_on_to_the_same_bytes(folder, capsys, monkeypatch):
    """One group waits still where the last save before the malformed row is."""
    monkeypatch.setattr(run, "BATCH_ROWS", 30)
    frame = grouped_table(400)
    late = frame[frame["kind"] != "homes"].index
    frame = frame.drop(late[late < 120]).reset_index(drop=True)
    frame.to_csv("all.csv", index=False)
    assert stream("all.csv", "--out", "whole") == 0
    lines = (folder / "all.csv").read_text().splitlines(keepends=True)
    lines[146] = f"{NAMES[0]},oops,1.0,homes\n" if "," not in NAMES[0] else f'"{NAMES[0]}",oops,1.0,homes\n'
    (folder / "table.csv").write_text("".join(lines))
    assert stream("table.csv", "--out", "run", "--checkpoint_seconds", "0") == 2
    assert "oops" in capsys.readouterr().err
    stopped = GroupedFleet.load(folder / "run/fleet")
    assert (len(stopped.names), list(stopped.waiting)) == (2, [NAMES[1]])
    (folder / "table.csv").write_text((folder / "all.csv").read_text())
    assert resume("table.csv") == 0
    assert same_files(folder)


def test_further_rows_go_on_with_a_complete_run_and_bring_new_series(folder, monkeypatch):
    frame = grouped_table(400)
    first = frame[:250][frame["meter"][:250] != NAMES[2]]
    monkeypatch.setattr(run, "BATCH_ROWS", len(first))  # hyperparameters come from the first call
    first.to_csv("first.csv", index=False)
    frame[250:].to_csv("then.csv", index=False)
    pd.concat([first, frame[250:]]).to_csv("all.csv", index=False)
    assert stream("all.csv", "--out", "whole") == 0
    assert stream("first.csv", "--out", "run") == 0
    assert resume("then.csv") == 0
    whole, parts = pd.read_csv("whole/predictions.csv"), pd.read_csv("run/predictions.csv")
    pd.testing.assert_frame_equal(whole, parts, rtol=1e-9)
    pd.testing.assert_frame_equal(pd.read_csv("whole/series.csv"), pd.read_csv("run/series.csv"), rtol=1e-9)


@pytest.mark.parametrize("in_one_table", [True, False])
def test_a_series_in_two_groups_ends_the_run_at_its_row(in_one_table, folder, capsys):
    frame = grouped_table(200)
    row = next(row for row in range(150, 200) if frame["meter"][row] == NAMES[2])
    frame.loc[row, "kind"] = "works, old"
    if in_one_table:
        frame.to_csv("bad.csv", index=False)
        assert stream("bad.csv", "--out", "run") == 2
    else:
        frame[:150].to_csv("good.csv", index=False)
        frame[150:].to_csv("bad.csv", index=False)
        assert stream("good.csv", "--out", "run") == 0
        assert resume("bad.csv") == 2
        row -= 150
    said = capsys.readouterr().err
    assert (
        f"data row {row + 1} (line {row + 2}), column kind: series '{NAMES[2]}' is in group 'works, old' here" in said
    )
    assert "was in 'homes'" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--series-group", "load"], "the column load tells the group of a series; it is neither the target"),
        (["--series-group", "sort"], "no column named sort"),
        (["--series-group", "meter"], "cannot tell its group as well"),
        (["--features", "x,kind"], "the column kind tells the group of a series"),
    ],
)
def test_what_is_no_column_of_groups_is_refused(words, message, folder, capsys):
    assert stream("all.csv", "--out", "run", *words) == 2
    assert message in capsys.readouterr().err


def test_groups_need_series_and_every_row_a_group(folder, capsys):
    assert main(["stream", "all.csv", "--target", "load", "--series-group", "kind"]) == 2
    assert "name the column of series, too" in capsys.readouterr().err
    frame = grouped_table(60)
    frame.loc[41, "kind"] = None
    frame.to_csv("gap.csv", index=False)
    assert stream("gap.csv", "--out", "run") == 2
    assert "column kind: the series of the row is in no group; name it, or leave" in capsys.readouterr().err


@pytest.mark.parametrize("first", [True, False], ids=["groups first", "groups then"])
def test_a_run_of_the_other_kind_takes_the_place_of_the_fleet(first, folder, monkeypatch):
    """Killed before the other kind's head is removed, the folder goes on as the run whose table is there."""
    monkeypatch.setattr(run, "BATCH_ROWS", 90)
    groups = {True: ("--series-group", "kind"), False: ("--kinds", "kind=drop")}
    assert stream("all.csv", "--out", "run", group=groups[first]) == 0
    assert stream("all.csv", "--out", "whole", group=groups[not first]) == 0
    saved, remove = [], fleets.remove_if_possible

    def killed(path: Path):
        saved.append(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(fleets, "remove_if_possible", killed)
    assert stream("all.csv", "--out", "run", "--checkpoint_seconds", "0", group=groups[not first]) == 130
    assert len(saved) == 1
    monkeypatch.setattr(fleets, "remove_if_possible", remove)
    assert resume("all.csv") == 0
    assert same_files(folder)
    assert not saved[0].exists()
