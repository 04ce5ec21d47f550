"""The page without a browser: well-formed, offline, safe with hostile names, numbers as in the summary."""

import base64
import gzip
import html
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from gp_ensembles.cli.predictions import Chunk
from gp_ensembles.cli.report import page
from gp_ensembles.cli.report.events import happened, kind_of
from gp_ensembles.cli.report.history import Happened
from gp_ensembles.cli.report.markup import number_text
from gp_ensembles.cli.report.page import figures_json, report_html, write_report
from gp_ensembles.cli.report.sections import sections_of

HOSTILE = '<script>alert("1")</script><b onclick=x>&amp;%{y}'
_VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Complains of tags that do not nest, and collects what may matter."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.stack, self.ids, self.paths, self.texts, self.tags = [], [], [], [], []
        self._path = None

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag not in _VOID:
            self.stack.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if "data-path" in values:
            self._path = json.loads(values["data-path"])

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, (tag, self.stack, self.getpos())

    def handle_data(self, data):
        if self._path is not None:
            self.paths.append((self._path, data))
            self._path = None
        self.texts.append(data)


@pytest.fixture(scope="module")
def history(run):
    history = run.history()
    for first in range(101, 4101, 250):
        history.add(run.chunk(first, 250, start=1.3e9), Happened({"inputs_moved": max(0, first - 2000)}))
    return history


def checked(text):
    checker = Checker()
    checker.feed(text)
    checker.close()
    assert checker.stack == []
    assert len(set(checker.ids)) == len(checker.ids)
    return checker


def figures_of(text):
    packed = re.search(r'id="figures-gz">([^<]*)<', text)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def follow(content, path):
    for key in path:
        content = content[key]
    return content


def test_numbers_are_those_of_the_summary(run, history):
    guest = {"num_answered": 3900, "num_absent": 100, "num_targets": 3800, "log_score": -1.7, "regret": -1064.0}
    guest |= {"ensemble_log_score": -1.42, "bound": 9.5, "weight": 0.25, "mean_weight": 0.31, "reason": "", "mend": ""}
    summary = run.summary(guests={"trees/0": guest})
    found = checked(report_html(summary, history))
    paths = {tuple(path): text for path, text in found.paths}
    assert ("log_score",) in paths
    assert ("baselines", "previous value", "crps") in paths
    assert ("guests", "trees/0", "regret") in paths
    for path, text in paths.items():
        value = follow(summary, path)
        assert text == number_text(value)
        if isinstance(value, float):
            told = float(text.replace("−", "-").replace(" ", ""))
            assert told == pytest.approx(value, rel=1e-3, abs=6e-5)
    embedded = re.search(r'id="summary">([^<]*)<', report_html(summary, history))[1]
    assert json.loads(embedded) == json.loads(json.dumps(summary))


def test_nothing_is_fetched(run, history):
    found = checked(report_html(run.summary(), history))
    assert not [values for _, values in found.tags if {"src", "href", "srcset", "action"} & values.keys()]
    assert not [tag for tag, _ in found.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    policies = [values["content"] for tag, values in found.tags if tag == "meta" and "http-equiv" in values]
    assert policies[0].startswith("default-src 'none'")
    assert "http" not in policies[0]


def test_hostile_names_stay_text(run):
    history = run.history(HOSTILE)
    history.add(run.chunk(1, 600), Happened({HOSTILE: 3}))
    summary = run.summary(target=HOSTILE, data=HOSTILE, model=HOSTILE, features=[HOSTILE], columns={HOSTILE: HOSTILE})
    summary["baselines"] = {HOSTILE: summary["baselines"]["previous value"]}
    summary["config"] = {HOSTILE: {HOSTILE: HOSTILE}}
    text = report_html(summary, history)
    plain = checked(report_html(run.summary(columns={"a": "b"}), history))
    found = checked(text)
    assert [tag for tag, _ in found.tags].count("script") == [tag for tag, _ in plain.tags].count("script") == 4
    assert not [values for _, values in found.tags if any(name.startswith("on") for name in values)]
    assert HOSTILE in "".join(found.texts)
    assert json.loads(re.search(r'id="summary">([^<]*)<', text)[1])["target"] == HOSTILE
    content = json.dumps(figures_of(text)["figures"])
    assert "<script" not in content
    assert "<b" not in content.replace("<br>", "")


def test_plots_are_what_plotly_knows(run, history):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    time = {"name": "hour", "kind": "date"}
    sections, extent = sections_of(run.summary(time=time), history)
    names = [section.name for section in sections]
    assert names[:4] == ["predictions", "scores", "coverage", "worst"]
    assert {"weights", "calibration", "table", "happened", "columns", "settings"} <= set(names)
    assert extent == ((1.3e9 + 3600 * 101) * 1000, (1.3e9 + 3600 * 4100) * 1000)
    plots = {name: figure for section in sections for name, figure in section.figures.items()}
    for name, figure in plots.items():
        built = graph_objects.Figure({"data": figure["data"], "layout": figure["layout"]})
        assert len(built.data) == len(figure["data"]), name
        places = [section.body for section in sections if name in section.figures]
        assert f'id="{name}"' in places[0]
    assert plots["plot-predictions"]["layout"]["xaxis"]["type"] == "date"
    weights = plots["plot-kinds"]["data"]
    for column in zip(*(trace["y"] for trace in weights), strict=True):
        assert sum(column) == pytest.approx(100.0)


def test_broken_windows_are_marked(run):
    history = run.history()
    for first in range(1, 4001, 250):
        chunk = run.chunk(first, 250)
        history.add(chunk._replace(inside=chunk.inside * (0.0 if 1500 < first < 2001 else 1.0)))
    broken = [window for window in history.windows.all() if window.num_broken]
    assert broken
    sections, _ = sections_of(run.summary(), history)
    plots = {name: figure for section in sections for name, figure in section.figures.items()}
    marked = next(trace for trace in plots["plot-coverage"]["data"] if trace["name"] == "promise broken")
    assert marked["y"] == [100 * window.share for window in broken]
    shades = plots["plot-predictions"]["layout"]["shapes"]
    assert shades[0]["x0"] == broken[0].first_row
    assert shades[-1]["x1"] == broken[-1].last_row
    heading = next(section.heading for section in sections if section.name == "coverage")
    assert heading == "Intervals of 90 % covered 90.4 %; 1 of 7 windows broke"


def test_a_run_of_classes_has_its_own_sections(run):
    generator = torch.Generator().manual_seed(1)
    history = run.history("label")
    for first in range(1, 1201, 300):
        one = torch.rand(300, generator=generator, dtype=torch.float64)
        y = (torch.rand(300, generator=generator, dtype=torch.float64) < one).double()
        shares, nothing = torch.stack([1 - one, one], -1), torch.full_like(y, torch.nan)
        log_prob = shares.gather(-1, y.long().unsqueeze(-1)).squeeze(-1).log()
        log_weights = torch.full((4, 300), 0.25, dtype=torch.float64).log()
        baselines = dict.fromkeys(run.baselines, log_prob - 0.1)
        more = one, one * (1 - one), nothing, nothing, log_prob, nothing, log_weights, baselines, shares
        history.add(Chunk(first, y, *more))
    scores = {"log_score": -0.5, "log_loss": 0.5, "error_rate": 0.25, "brier": 0.3333, "calibration_error": 0.02}
    base = {key: value for key, value in run.summary().items() if key not in ("nmse", "mean_absolute_error")}
    summary = {**base, **scores, "intervals": {}, "baselines": {"mean": {**scores, "log_score": -0.7, "log_loss": 0.7}}}
    found = checked(report_html(summary, history))
    assert "plot-confidence" in found.ids
    assert "plot-coverage" not in found.ids
    assert ("baselines", "mean", "log_loss") in {tuple(path) for path, _ in found.paths}
    assert "Probabilities are off by 2.0 % on average" in found.texts


@pytest.mark.parametrize("case", ["one row", "no target", "no baselines", "constant", "infinite ends"])
def test_poor_runs_have_a_page(run, case):
    history, chunk = run.history(), run.chunk(1, 1 if case == "one row" else 40)
    summary = run.summary(intervals={})
    if case == "no target":
        nothing = torch.full_like(chunk.y, torch.nan)
        chunk = chunk._replace(
            y=nothing, log_prob=nothing, pit=nothing, inside=nothing, baselines=dict.fromkeys(run.baselines, nothing)
        )
        keys = ("log_score", "log_score_gaussian", "crps", "nmse", "coverage_90", "mean_absolute_error")
        summary |= {**dict.fromkeys(keys), "rows_scored": 0}
        summary["baselines"] = {name: dict.fromkeys(keys) for name in run.baselines}
    if case == "no baselines":
        summary["baselines"] = {}
    if case == "constant":
        chunk = chunk._replace(y=0 * chunk.mean + 5, mean=0 * chunk.mean + 5)
    if case == "infinite ends":
        chunk = chunk._replace(upper=torch.full_like(chunk.upper, torch.inf))
    history.add(chunk)
    text = report_html(summary, history)
    checked(text)
    assert "NaN" not in json.dumps(figures_of(text))


def test_columns_are_shown_as_the_summary_has_them(run, history):
    columns = [
        {"column": "day", "kind": "date", "made of it": ["hour", "weekday"]},
        {"column": "load", "kind": "target"},
    ]
    found = checked(report_html(run.summary(columns=columns), history))
    assert {"hour, weekday", "made of it", "day"} <= set(found.texts)


def test_inputs_that_were_missing_or_asleep_are_told(run, history):
    calm = {"num_imputed": 0, "persistence": 1.0, "slept": False, "woke": 0, "has_indicator": False}
    inputs = [
        {**calm, "name": "calm"},
        {**calm, "name": "holes", "num_imputed": 1234, "persistence": 0.875, "has_indicator": True},
        {**calm, "name": "sleeper", "slept": True, "woke": 1808},
        {**calm, "name": "asleep", "slept": True},
    ]
    text = report_html(run.summary(inputs=inputs), history)
    body = text.split('id="columns"')[1].split("</section>")[0]
    found = checked(f"<section {body}</section>")
    assert {"holes", "1 234", "88 % of the last value, the mean for the rest"} <= set(found.texts)
    assert {"sleeper", "since row 1 808", "asleep", "not yet"} <= set(found.texts)
    assert "calm" not in found.texts


def test_numbers_of_plots_are_rounded_and_stand_once():
    many = [1e6 + k / 3 for k in range(9)]
    content = json.loads(figures_json({"a": {"x": many, "y": many}, "b": {"x": [*many, float("nan")]}}, (0.0, 1.0)))
    assert content["figures"]["a"]["x"] == content["figures"]["a"]["y"] == {"array": 0}
    assert content["arrays"][0] == pytest.approx(many, abs=1e-5)
    assert len(content["arrays"]) == 2
    assert content["arrays"][1][-1] is None


def test_the_page_is_written_in_one_step(run, history, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    write_report(path, run.summary(), history)
    before = path.read_text()
    assert len(before) < 2_600_000
    monkeypatch.setattr(page, "sections_of", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report(path, run.summary(), history)
    assert path.read_text() == before
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]


def test_kinds_that_nobody_named_are_readable():
    assert kind_of("inputs_delayed").title == "inputs delayed"
    assert kind_of("refit window of inputs").title == "window of inputs fitted anew"
    assert kind_of("absent trees").is_absence
    assert happened.__doc__


def test_negative_and_missing_numbers_are_typeset():
    assert number_text(-0.25) == "−0.2500"
    assert number_text(-1.5e-5) == "−1.500e-05"
    assert html.escape(number_text(None)) == "–"
