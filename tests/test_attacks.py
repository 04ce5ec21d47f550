"""The attacks by themselves: what they measure is right, and the page holds their numbers."""

import json
from dataclasses import replace

import pytest

from attacks import bits, damage, drift, page
from attacks.__main__ import main
from attacks.recipes import RECIPES
from gp_ensembles.ensembles.build import FitSettings
from gp_ensembles.experts.empirical_bayes import LBFGS


@pytest.mark.parametrize(("precision", "most"), [("float64", 1e-8), ("float32", 0.1)])
def test_drift_is_small_and_larger_where_digits_are_lost(precision, most):
    covariance, root = (drift.measure(precision, form, 20_000) for form in drift.FORMS)
    assert 0 < root.mean < most
    assert covariance.mean < most
    assert 0 <= root.variance < most
    if precision == "float32":  # which form is nearer at so few rows hangs on the processor's rounding
        assert all(found.mean > 1e3 * drift.measure("float64", found.form, 20_000).mean for found in (root, covariance))


def test_bits_that_must_be_the_same_are(monkeypatch):
    monkeypatch.setattr(bits, "WARM_UP", 100)
    monkeypatch.setattr(bits, "ROWS", 128)
    small = replace(bits.PRESETS["light"], fit_settings=FitSettings(LBFGS(max_iterations=3), num_samples=1))
    monkeypatch.setitem(bits.PRESETS, "light", small)
    found = list(bits.compare("light"))
    assert [same for _, same, _ in found[:3]] == [True, True, True]
    assert all(far < 1e-8 for _, _, far in found)


def test_the_page_holds_the_numbers_and_their_commands(tmp_path, capsys):
    table = {"title": "Errors", "columns": ["precision", "error"], "rows": [["float64", "1e-12"]]}
    content = {"attack": "drift", "command": "python -m attacks drift", "tables": [table]}
    table = {"title": "Survived of tried", "columns": ["command", "kill"], "rows": [["stream", "8 of 9"]]}
    kills = {"attack": "kills", "command": "python -m attacks kills", "tables": [table]}
    for one in (content, kills):
        (tmp_path / f"{one['attack']}.json").write_text(json.dumps(one))
    assert main(["page", "--numbers", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "| float64 | 1e-12 |" in text
    assert "| stream | 8 of 9 |" in text
    assert "`python -m attacks kills`:" in text
    assert text.index("## Files") < text.index("8 of 9") < text.index("## Numerical precision") < text.index("1e-12")
    assert page.versions() in text
    assert main(["page", "--numbers", str(tmp_path / "none"), "--out", str(tmp_path / "page.md")]) == 2
    assert main(["nothing"]) == 2


@pytest.mark.parametrize("kind", RECIPES)
def test_damaged_and_foreign_checkpoints_are_refused_or_harmless(tmp_path, kind):
    ends = [end for _, end in damage.attempts(kind, 6, 1, tmp_path)]
    assert len(ends) == 6 * len(damage.HARMS) + len(RECIPES) - 1
    assert set(ends) <= {"refused", "harmless"}
    assert ends.count("refused") > 20
