"""The page in a real browser: no complaint, no request, plots drawn, zoom works."""

import json
import re
import sys
from pathlib import Path

import pytest

from gp_ensembles.cli.__main__ import main
from gp_ensembles.cli.report.page import report_html

sys.path.insert(0, str(Path(__file__).parent))
from browser import NoBrowser, Page

pytestmark = pytest.mark.slow
DRAWN = "document.documentElement.dataset.drawn !== undefined || document.documentElement.dataset.failed !== undefined"


@pytest.fixture(scope="module")
def open_page(tmp_path_factory):
    """A function that opens a page; skips where there is no browser that starts."""
    pages = []

    def opened(path, width=1280, *, is_dark=False):
        try:
            page = Page(tmp_path_factory.mktemp("browser"), width, 900, is_dark=is_dark)
        except NoBrowser as error:
            pytest.skip(str(error))
        pages.append(page)
        page.open(path)
        page.wait(DRAWN)
        return page

    yield opened
    for page in pages:
        page.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    """What the command line leaves of a run with a name that is hostile."""
    folder = tmp_path_factory.mktemp("run")
    small.write(folder / "data.csv", small.rows(3600), header=("a", "<img src=http://x.y/z onerror=alert(1)>", "y"))
    (folder / "small.yaml").write_text(small.config)
    arguments = ["stream", str(folder / "data.csv"), "--target", "y", "--out", str(folder / "out"), "--warmup", "100"]
    assert main([*arguments, "--config", str(folder / "small.yaml"), "--pictures=false", "--progress=false"]) == 0
    return folder / "out"


def test_a_run_of_the_command_line_opens_without_complaint(open_page, folder):
    page = open_page(folder / "report.html")
    assert page.complaints() == []
    assert page.requests() == [(folder / "report.html").resolve().as_uri()]
    assert page.run("document.documentElement.dataset.failed") is None
    plots = page.run("document.querySelectorAll('.plot').length")
    assert int(page.run("document.documentElement.dataset.drawn")) == plots >= 5
    assert page.run(
        "[...document.querySelectorAll('.plot')].every(plot => plot.querySelector('svg.main-svg') !== null)"
    )
    lines = page.run("document.querySelectorAll('#plot-scores .scatterlayer .trace').length")
    assert lines == 4  # the model and three baselines
    embedded = page.run("document.getElementById('summary').textContent")
    assert json.loads(embedded) == json.loads((folder / "summary.json").read_text())


def test_zoom_shows_single_rows_and_all_plots_follow(open_page, folder):
    page = open_page(folder / "report.html")
    plot = "document.getElementById('plot-predictions')"
    assert page.run(f"{plot}.data.filter(one => one.name === 'observed' && one.visible !== false).length") == 0
    # A drag of the mouse over the middle of the plot.
    box = page.run(
        f"(() => {{ {plot}.scrollIntoView({{block: 'center'}}); "
        f"const box = {plot}.querySelector('.nsewdrag').getBoundingClientRect(); "
        f"return [box.left, box.top, box.width, box.height]; }})()"
    )
    left, top, width, height = box
    before = page.run(f"{plot}.layout.xaxis.range")
    y = top + height / 2
    for kind, x in (("mousePressed", 0.5), ("mouseMoved", 0.55), ("mouseMoved", 0.6), ("mouseReleased", 0.6)):
        place = {"type": kind, "x": left + x * width, "y": y, "button": "left", "buttons": 1, "clickCount": 1}
        page.call("Input.dispatchMouseEvent", place)
    page.wait("document.documentElement.dataset.range !== undefined")
    page.wait(f"{plot}.data.some(one => one.name === 'observed' && one.x.length > 0)")
    low, high = page.run(f"{plot}.layout.xaxis.range")
    span = before[1] - before[0]
    assert low == pytest.approx(before[0] + 0.5 * span, abs=0.02 * span)
    assert high == pytest.approx(before[0] + 0.6 * span, abs=0.02 * span)
    page.wait(f"Math.abs(document.getElementById('plot-weights').layout.xaxis.range[1] - {high}) < 1e-6")
    targets = page.run(f"{plot}.data.find(one => one.name === 'observed').x.length")
    assert high - low <= targets <= 2.1 * (high - low)  # half of the range more on both sides
    page.run("document.querySelector('#predictions button').click()")
    page.wait(f"Math.abs({plot}.layout.xaxis.range[1] - {before[1]}) < 1e-6")
    assert page.complaints() == []


def test_a_time_axis_and_a_button_on_a_dark_phone(open_page, run, tmp_path):
    history = run.history("load <i>MW</i>")
    for first in range(101, 4101, 250):
        history.add(run.chunk(first, 250, start=1.3e9))
    text = report_html(run.summary(time={"name": "hour", "kind": "date"}), history)
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    page = open_page(tmp_path / "report.html", 390, is_dark=True)
    assert page.run("document.documentElement.scrollWidth") == 390  # nothing sticks out
    assert page.run("document.getElementById('plot-scores').layout.xaxis.type") == "date"
    dark = page.run("getComputedStyle(document.querySelector('#plot-scores text')).fill")
    assert int(re.search(r"\d+", dark)[0]) > 128  # light letters
    page.run("[...document.querySelectorAll('button')].find(one => one.textContent === 'Last 200 rows').click()")
    page.wait("document.documentElement.dataset.range !== undefined")
    low, high = json.loads(page.run("document.documentElement.dataset.range"))
    assert high - low == 199 * 3_600_000
    assert high == (1.3e9 + 3600 * 4100) * 1000
    assert page.complaints() == []
