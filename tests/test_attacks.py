"""The attacks by themselves: what they measure is right, and the page holds their numbers."""

import json

import pytest

from attacks import bits, drift, page
from attacks.__main__ import main


@pytest.mark.parametrize(("precision", "most"), [("float64", 1e-8), ("float32", 0.1)])
def test_drift_is_small_and_larger_where_digits_are_lost(precision, most):
    covariance, root = (drift.measure(precision, form, 40_000) for form in drift.FORMS)
    assert 0 < root.mean < most
    assert covariance.mean < most
    assert 0 <= root.variance < most
    if precision == "float32":
        assert root.mean < covariance.mean


def test_bits_that_must_be_the_same_are(capsys):
    found = list(bits.compare("light"))
    assert [same for _, same, _ in found[:3]] == [True, True, True]
    assert all(far < 1e-8 for _, _, far in found)


def test_the_page_holds_the_numbers_and_their_commands(tmp_path, capsys):
    table = {"title": "Errors", "columns": ["precision", "error"], "rows": [["float64", "1e-12"]]}
    content = {"attack": "drift", "command": "python -m attacks drift", "tables": [table]}
    kills = {"attack": "kills", "command": "python -m attacks kills"}
    kills |= {
        "commands": {"stream": {"kill": {"tried": 9, "survived": 8}}},
        "points": {"write": {"tried": 9, "survived": 8}},
    }
    for one in (content, kills):
        (tmp_path / f"{one['attack']}.json").write_text(json.dumps(one))
    assert main(["page", "--numbers", str(tmp_path), "--out", str(tmp_path / "page.md")]) == 0
    text = (tmp_path / "page.md").read_text()
    assert "| float64 | 1e-12 |" in text
    assert "| stream | 8 of 9 |" in text
    assert "| write | 8 of 9 |" in text
    assert text.index("## Files") < text.index("8 of 9") < text.index("## Digits") < text.index("1e-12")
    assert page.versions() in text
    fuzz = {
        "attack": "fuzz",
        "engine": "mutations",
        "seconds": 9.0,
        "command": "python -m attacks fuzz --out /there/x.json",
    }
    fuzz["readers"] = {"tables": {"inputs": 7, "refused": 4, "read": 3, "findings": 0}}
    found = [{"instance": "Gaussian, float32", "rows": "large", "what": "a variance is NaN"}]
    streams = {"attack": "streams", "seconds": 5.0, "command": "python -m attacks streams", "findings": found}
    streams["experts"] = {"Gaussian": {"rows": 90, "rejected": 8}}
    text = page.page("<!-- fuzz -->\n<!-- streams -->", [fuzz, streams])
    assert "`python -m attacks fuzz`:" in text
    assert "| tables | 7 | 4 | 3 | 0 |" in text
    assert "| a variance is NaN | Gaussian, float32; large rows |" in text
    assert main(["page", "--numbers", str(tmp_path / "none"), "--out", str(tmp_path / "page.md")]) == 2
    assert main(["nothing"]) == 2
