"""The page without a browser: well-formed, offline, safe with hostile names, numbers as in the summary."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import pytest
import torch

from gp_ensembles.cli.predictions import Chunk, PredictedRows
from gp_ensembles.cli.report.figures import Axis
from gp_ensembles.cli.report.page import escaped, lead_of, report_html, sections

HOSTILE = '<script>alert("1")</script><b onclick=x>&amp;%{y}'
_VOID = {"meta", "link", "br", "img", "input", "hr"}


class Checker(HTMLParser):
    """Complains of tags that do not nest, and collects what may matter."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.stack, self.ids, self.texts, self.tags, self.tables = [], [], [], [], {}

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag not in _VOID:
            self.stack.append(tag)
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "table":
            self.rows = []
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, (tag, self.stack, self.getpos())
        if tag == "table":
            self.tables[self.caption] = {row[0]: dict(zip(self.rows[0], row, strict=True)) for row in self.rows[1:]}

    def handle_data(self, data):
        self.texts.append(data)
        if "caption" in self.stack:
            self.caption = data
        elif "th" in self.stack or "td" in self.stack:
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def history(run):
    history = run.history(kinds=("moved inputs",))
    for first in range(101, 4101, 250):
        history.add(run.chunk(first, 250, start=1.3e9), {"moved inputs": max(0, first - 2000)})
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


def test_numbers_are_those_of_the_summary(run, history):
    adapter = {"num_answered": 3900, "num_absent": 100, "num_targets": 3800, "log_score": -1.7, "regret": -1064.0}
    adapter |= {"ensemble_log_score": -1.42, "bound": 9.5, "weight": 0.25, "mean_weight": 0.31, "reason": "", "fix": ""}
    summary = run.summary(external_models={"trees/0": adapter})
    text = report_html(summary, history)
    tables = checked(text).tables
    scores = tables["Scores of 3920 targets; ★ marks the best"]
    for name, entry in {"model": summary, **summary["baselines"]}.items():
        row = {title.split("nats")[0]: cell for title, cell in scores[name].items()}
        assert row["log score"] == escaped(entry["log_score"])
        assert list(row.values())[2] == escaped(entry["crps"])
        assert list(row.values())[4] == escaped(entry["nmse"])
    line = (
        "trees/0: log score -1.7000, the ensemble&#x27;s on the same 3800 targets -1.4200: in total the ensemble is 1"
    )
    assert line in text
    assert json.loads(re.search(r'id="summary">([^<]*)<', text)[1]) == json.loads(json.dumps(summary))


def test_nothing_is_fetched(run, history):
    found = checked(report_html(run.summary(), history))
    assert not [values for _, values in found.tags if {"src", "href", "srcset", "action"} & values.keys()]
    assert not [tag for tag, _ in found.tags if tag in ("link", "iframe", "img", "object", "embed", "base")]
    policies = [values["content"] for tag, values in found.tags if tag == "meta" and "http-equiv" in values]
    assert policies[0].startswith("default-src 'none'")
    assert "http" not in policies[0]


def test_hostile_names_stay_text(run):
    history = run.history(HOSTILE, kinds=(HOSTILE,))
    history.add(run.chunk(1, 600), {HOSTILE: 3})
    summary = run.summary(
        target=HOSTILE, data=HOSTILE, model=HOSTILE, features=[HOSTILE], columns=[{"name": HOSTILE, "made": HOSTILE}]
    )
    summary["baselines"] = {HOSTILE: summary["baselines"]["previous value"]}
    summary["config"] = {HOSTILE: {HOSTILE: HOSTILE}}
    text = report_html(summary, history)
    plain = checked(report_html(run.summary(columns=[{"name": "a", "made": "b"}]), history))
    found = checked(text)
    assert [tag for tag, _ in found.tags].count("script") == [tag for tag, _ in plain.tags].count("script") == 4
    assert not [values for _, values in found.tags if any(name.startswith("on") for name in values)]
    assert HOSTILE in "".join(found.texts)
    assert json.loads(re.search(r'id="summary">([^<]*)<', text)[1])["target"] == HOSTILE
    content = json.dumps(figures_of(text)["figures"])
    assert "<script" not in content
    assert "<b" not in content.replace("<br>", "")


def test_sections_have_the_plots_that_they_have_places_for(run, history):
    check = {"name": "coverage gap", "value": 0.2, "limit": 0.05, "ok": False, "meaning": "intervals covered 70 %"}
    summary = run.summary(time={"name": "hour", "kind": "date"}, health=[check])
    text = report_html(summary, history)
    names = re.findall(r'<section id="(\w+)"', text)
    assert names[:3] == ["predictions", "scores", "coverage"]
    assert {"weights", "calibration", "table", "events", "health", "columns", "settings"} <= set(names)
    assert "intervals covered 70 %</h2>" in text
    drawn = figures_of(text)
    assert drawn["extent"] == [(1.3e9 + 3600 * 101) * 1000, (1.3e9 + 3600 * 4100) * 1000]
    assert re.findall(r'id="(plot-\w+)"', text) == list(drawn["figures"])
    assert drawn["figures"]["plot-predictions"]["layout"]["xaxis"]["type"] == "date"
    for column in zip(*(trace["y"] for trace in drawn["figures"]["plot-weights"]["data"]), strict=True):
        assert sum(column) == pytest.approx(100.0)


def test_broken_windows_are_marked(run):
    history = run.history()
    for first in range(1, 4001, 250):
        chunk = run.chunk(first, 250)
        inside = chunk.rows.inside * (0.0 if 1500 < first < 2001 else 1.0)
        history.add(chunk._replace(rows=chunk.rows._replace(inside=inside)))
    broken = history.window_bins["sum broken"] > 0
    assert broken.any()
    found = list(sections(run.summary(), history, Axis.of(history, None)))
    plots = {name: plot for section in found for name, plot in section.plots.items()}
    marked = next(trace for trace in plots["coverage"].data if trace.name == "outside the limits")
    assert list(marked.y) == pytest.approx(100 * history.window_shares[broken])
    shades = plots["predictions"].layout.shapes
    assert shades[0].x0 == history.window_bins["least first"][broken][0]
    assert shades[-1].x1 == history.window_bins["greatest last"][broken][-1]
    heading = next(section.heading for section in found if section.name == "coverage")
    assert heading == "Intervals of 90 % covered 90.4\u00a0%; 1 of 7 windows outside the limits"


def test_a_small_lead_is_level(run):
    """The paired differences of 400 rows are noise of deviation one: their mean has a standard error of about 0.05."""
    history, chunk = run.history(), run.chunk(1, 400)
    noise = torch.randn(400, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    history.add(chunk._replace(baselines=dict.fromkeys(run.baselines, chunk.rows.log_prob + noise)))
    summary = run.summary(intervals={})
    sides = {}
    for lead in (0.06, 0.2, -0.06, -0.2):
        summary["baselines"] = {"mean": {**summary["baselines"]["mean"], "log_score": summary["log_score"] - lead}}
        sides[lead] = lead_of(summary, history)
    assert sides[0.06] == sides[-0.06] == ("0.06 nats", "per row: level with mean, the best baseline", False)
    assert sides[0.2] == ("0.20 nats", "per row: ahead of mean, the best baseline", False)
    assert sides[-0.2] == ("0.20 nats", "per row: behind mean, the best baseline", True)
    assert ">0.20 nats per row: behind mean, the best baseline.<" in report_html(summary, history)


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
        rows = PredictedRows(one, one * (1 - one), log_prob, nothing, nothing, nothing, nothing, shares, nothing)
        history.add(Chunk(first, y, rows, log_weights, baselines))
    scores = {"log_score": -0.5, "log_loss": 0.5, "error_rate": 0.25, "brier": 0.3333, "calibration_error": 0.02}
    base = {key: value for key, value in run.summary().items() if key not in ("nmse", "mean_absolute_error")}
    summary = {**base, **scores, "intervals": {}, "baselines": {"mean": {**scores, "log_score": -0.7, "log_loss": 0.7}}}
    found = checked(report_html(summary, history))
    assert "plot-calibration" in found.ids
    assert "plot-coverage" not in found.ids
    assert "0.7000" in found.tables["Scores of 3920 targets; ★ marks the best"]["mean"].values()
    assert "Probabilities are off by 2.0\u00a0% on average" in found.texts


@pytest.mark.parametrize("case", ["one row", "no target", "no baselines", "constant", "infinite ends"])
def test_poor_runs_have_a_page(run, case):
    history, chunk = run.history(), run.chunk(1, 1 if case == "one row" else 40)
    summary = run.summary(intervals={})
    if case == "no target":
        nothing = torch.full_like(chunk.y, torch.nan)
        rows = chunk.rows._replace(log_prob=nothing, pit=nothing, inside=nothing)
        chunk = chunk._replace(y=nothing, rows=rows, baselines=dict.fromkeys(run.baselines, nothing))
        keys = ("log_score", "log_score_gaussian", "crps", "nmse", "coverage_90", "mean_absolute_error")
        summary |= {**dict.fromkeys(keys), "rows_scored": 0}
        summary["baselines"] = {name: dict.fromkeys(keys) for name in run.baselines}
    if case == "no baselines":
        summary["baselines"] = {}
    if case == "constant":
        five = torch.full_like(chunk.y, 5.0)
        chunk = chunk._replace(y=five, rows=chunk.rows._replace(mean=five))
    if case == "infinite ends":
        chunk = chunk._replace(rows=chunk.rows._replace(upper=torch.full_like(chunk.y, torch.inf)))
    history.add(chunk)
    text = report_html(summary, history)
    checked(text)
    assert "NaN" not in json.dumps(figures_of(text))
