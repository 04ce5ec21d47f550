"""The table of CONTRIBUTING that says where things are names files and folders that exist."""

import re
from pathlib import Path

import gp_ensembles

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(gp_ensembles.__file__).parent


def test_every_place_exists():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| to | go to |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) >= 20
    for row in table:
        places = re.findall(r"`([\w/]+(?:\.py|/))`", row.split("|")[2])
        assert places, row
        folder = Path(places[0]).parent if places[0].endswith(".py") else Path(places[0])
        for place in places:
            candidates = (PACKAGE / place, PACKAGE / folder / place, ROOT / place)
            assert any(path.exists() for path in candidates), (row, place)
