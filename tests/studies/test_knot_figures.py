"""Figures 1 and 2 of knot selection: a sixth knot brings nothing at the five, and knots move as the methods say."""

import json

import pytest
import torch

from studies.harness.experiment import Choices
from studies.harness.sources import Sources
from studies.knots import figures
from studies.knots.figures import made_up_rows, new_knot
from studies.knots.methods import METHODS, KnotTask
from studies.knots.sets import KnotSplit
from tests.studies.sets import read_rows


def test_a_sixth_knot_brings_nothing_at_the_five(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "NUM_POINTS", 101)
    text = new_knot(Choices(Sources(None), tmp_path, 1))
    rows = read_rows(tmp_path / "knots_figure_1.csv")
    content = json.loads((tmp_path / "knots_figure_1.json").read_text())
    bound = {float(row["place"]): float(row["bound with a knot there"]) for row in rows}
    assert len(content["knots"]) == 5
    assert {float(row["bound without it"]) for row in rows} == {content["without"]}
    for knot in content["knots"]:
        assert bound[knot] == pytest.approx(content["without"], abs=1e-3)  # the spikes
    assert min(bound.values()) > content["without"] - 1e-3  # a knot never takes anything away
    assert content["chosen"] == max(bound, key=bound.get)
    assert max(bound.values()) > content["without"] + 0.5
    assert f"{content['chosen']:.3f}" in text
    X, y = made_up_rows(0)
    # the bound stays below the evidence of the same hyperparameters: of the exact process with the best ones
    assert max(bound.values()) < METHODS["FGP"].run(KnotTask(split_of(X, y), 5, None, torch.Generator())).objective
    assert (tmp_path / "knots_figure_1.png").exists()


def split_of(X, y):
    return KnotSplit(X, y, X[:1], y[:1])
