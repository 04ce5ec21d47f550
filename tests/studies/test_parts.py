"""Every study that is run in parts: cut and resumed, no part twice, failures named, mistakes in one sentence."""

import math
import random
from typing import NamedTuple

import pandas as pd
import pytest

from studies.__main__ import main
from studies.arena import study as arena
from studies.arena.running import Arena
from studies.fusion import study as fusion
from studies.ie_gplvm import study as gplvm
from studies.knots import study as knots
from studies.maskerade import study as maskerade
from studies.optimization import study as optimization
from tests.studies.sets import write_set


class Study(NamedTuple):
    """A command of several parts, what makes one and where it is kept, and other settings of which none is finished."""

    words: str
    place: object
    makes: str
    folder: str
    table: str
    others: tuple[str, ...]
    failing: str
    mistakes: dict[str, str]


NUMBERS = {"--trials 0": "--trials=0 is out of range", "--seed -1": "--seed=-1 is out of range"}
STUDIES = {
    "fusion": Study(
        "fusion figure-3a --methods equal PoE --inference laplace --num-rows 60 --trials 1",
        *(fusion, "run_part", "fusion_parts", "fusion_figure_3a"),
        ("--seed 1", "--num-rows 70"),
        "equal, K = 2, M = 30, |x| < 1, split 1 failed: no luck today",
        {
            **NUMBERS,
            "--methods GPT": "there is no method GPT; choose from MoGPE, PoGPE",
            "--methods PoE PoE": "a method is named twice",
            "--num-rows 49": "num_rows=49 is out of range; give at least 50",
            "--inference guess": "--inference must be one of hmc, laplace, nuts, got guess",
            "--chains -1": "--chains=-1 is out of range",
            "--draws -1": "--draws=-1 is out of range",
        },
    ),
    "knots": Study(
        "knots boston --methods FGP ORVk --max-knots 4 --trials 1",
        *(knots, "run_part", "knots_parts", "knots_boston"),
        ("--max-knots 5", "--max-rows 40", "--seed 1"),
        "FGP, split 1 failed: no luck today",
        {
            **NUMBERS,
            "--methods GPT": "there is no method GPT; choose from FGP, OBVk",
            "--methods FGP FGP": "a method is named twice",
            "--max-rows 5": "--max_rows=5 is out of range",
            "--max-knots 0": "--max_knots=0 is out of range",
        },
    ),
    "maskerade": Study(
        "maskerade table-5 --sets airline --methods sobol rbf --evaluations 8 --trials 1",
        *(maskerade, "run_part", "maskerade_parts", "maskerade_table-5"),
        ("--evaluations 9", "--as-published true --methods sobol"),
        "airline, sobol, part 1 failed: no luck today",
        {
            **NUMBERS,
            "--sets yacht": "there is no set yacht; choose from",
            "--methods maskerade-x": "there is no method maskerade-x",
            "--methods sm sm": "a method is named twice",
            "--evaluations 4": "--evaluations=4 is out of range",
            "--max-rows 3": "--max_rows=3 is out of range",
        },
    ),
    "gplvm": Study(
        "ie-gp figure-7 --sets digits --methods pca kernel_pca --max-rows 60 --trials 1 --block-size 18",
        *(gplvm, "run_part", "latent_parts", "figure_7"),
        ("--seed 7", "--max-rows 70"),
        "digits, pca, draw 1 failed: no luck today",
        {
            **NUMBERS,
            "--sets mnist": "there is no set mnist; choose from digits, oil_flow, usps_0to4, mnist_5k",
            "--methods tsne": "there is no method tsne; choose from ie_gplvm, ie_gplvm_one_space",
            "--methods pca pca": "a method is named twice",
            "--max-rows 0": "--max_rows=0 is out of range",
            "--block-size 0": "--block_size=0 is out of range",
            "--iterations 0": "--iterations=0 is out of range",
        },
    ),
    "optimization": Study(
        "optimization regret --problems branin --methods random sobol --trials 2 --iterations 3",
        *(optimization, "run_one", "runs", "regret"),
        ("--seed 2", "--iterations 4"),
        "branin, random, trial 1 failed: no luck today",
        {
            "--trials 0": "--trials=0 is out of range",
            "--problems branin parabola": "there is no problem parabola; choose from branin",
            "--methods annealing": "there is no method annealing; choose from ensemble-logei",
            "--methods random random": "a method is named twice",
            "--iterations 0": "--iterations=0 is out of range",
            "--num-initial 1": "models need two observations",
            "--device gpu": "device 'gpu'",
        },
    ),
    "arena": Study(
        "arena --sets flow --methods previous linear --rows 200 --seeds 2",
        *(Arena, "run", "arena_parts", "arena"),
        ("--rows 220",),
        "flow, previous, seed 1 failed: no luck today",
        {
            "--methods guess": "there is no method guess",
            "--sets tiny": "there is no set tiny",
            "--rows 5": "--rows=5 is out of range",
            "--seeds 0": "--seeds=0 is out of range",
        },
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sets of the names that the studies ask for."""
    draw, folder = random.Random(0), tmp_path_factory.mktemp("sets")
    boston = [[draw.random() for _ in range(4)] for _ in range(60)]
    rows = [[*x, 5 + 3 * (x[1] - 0.5) ** 2 - x[3] + 0.1 * draw.gauss(0, 1)] for x in boston]
    write_set(folder, "boston_raw", ["crim", "rm", "ptratio", "lstat", "medv"], rows)
    rows = [[1949 + t / 12, 100 + t + 20 * math.sin(t / 2)] for t in range(50)]
    write_set(folder, "airline_passengers", ["year", "y"], rows)
    xs = [draw.gauss(0, 1) for _ in range(640)]
    rows = [[x, math.sin(t / 3) + x] for t, x in enumerate(xs)]
    return write_set(folder, "flow", ["x", "y"], rows)


@pytest.fixture
def command(data, tmp_path, monkeypatch):
    """Run the command of a study with further words."""
    monkeypatch.setattr(fusion, "draw_boxes", lambda *_: None)
    monkeypatch.setattr(knots, "draw_runs", lambda *_: None)
    monkeypatch.setattr(gplvm, "draw_embeddings", lambda *_, **__: None)
    monkeypatch.setattr(arena, "draw_arena", lambda *_: None)

    def run(study, more="", out="out"):
        given = [*study.words.split(), *more.split(), "--data", str(data), "--out", str(tmp_path / out)]
        without = ("fusion", "optimization")
        given = [word for word in given if word not in ("--data", str(data))] if given[0] in without else given
        return main([*given, "--progress", "false"])

    return run


@pytest.mark.parametrize("name", STUDIES)
def test_a_run_that_was_cut_resumes_and_makes_no_part_twice(name, command, tmp_path, monkeypatch, capsys):
    study, calls = STUDIES[name], []
    made, parts = getattr(study.place, study.makes), tmp_path / "out" / study.folder

    def interrupted(*given, **settings):
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return made(*given, **settings)

    monkeypatch.setattr(study.place, study.makes, interrupted)
    assert command(study) == 130
    assert "the same command goes on with them" in capsys.readouterr().err
    kept = {path: path.read_bytes() for path in parts.iterdir()}
    assert len([path for path in kept if path.suffix == ".json"]) == 1
    assert command(study) == 0
    text, num_parts = capsys.readouterr().out, len(list(parts.glob("*.json")))
    assert len(calls) == num_parts + 1
    assert {path: path.read_bytes() for path in kept} == kept
    assert command(study) == 0
    assert (capsys.readouterr().out, len(calls)) == (text, num_parts + 1)
    sorted(parts.glob("*.json"))[-1].write_text("half a fi")
    assert command(study) == 0
    assert len(calls) == num_parts + 2
    assert command(study, out="whole") == 0
    tables = [pd.read_csv(tmp_path / out / f"{study.table}.csv") for out in ("out", "whole")]
    columns = [column for column in tables[0] if "second" not in column]
    pd.testing.assert_frame_equal(*(table[columns] for table in tables))


@pytest.mark.parametrize("name", STUDIES)
def test_what_fails_is_named_the_rest_goes_on_and_other_settings_are_other_parts(name, command, monkeypatch, capsys):
    study, calls = STUDIES[name], []
    made = getattr(study.place, study.makes)

    def fails_first(*given, **settings):
        calls.append(given)
        if len(calls) == 1:
            raise ValueError("no luck today")
        return made(*given, **settings)

    def fails(*given, **settings):
        raise ValueError("no luck at all")

    monkeypatch.setattr(study.place, study.makes, fails_first)
    assert command(study) == 0
    assert study.failing in capsys.readouterr().out
    assert command(study) == 0
    assert "failed" not in capsys.readouterr().out
    monkeypatch.setattr(study.place, study.makes, fails)
    assert command(study) == 0
    for more in study.others:
        status, reported = command(study, more), capsys.readouterr()
        assert "no luck at all" in reported.out + reported.err
        assert status == (2 if "nothing could be run" in reported.err else 0)


@pytest.mark.parametrize("name", STUDIES)
def test_mistakes_are_one_sentence_and_cost_nothing(name, command, tmp_path, capsys):
    for words, message in STUDIES[name].mistakes.items():
        assert command(STUDIES[name], words) == 2
        error = capsys.readouterr().err
        assert (message in error, error.count("\n")) == (True, 1), error
        assert not (tmp_path / "out").exists()
