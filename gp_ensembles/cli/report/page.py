"""The file ``report.html``: ``page.html`` filled in, self-contained."""

import base64
import gzip
import json
from collections.abc import Mapping
from importlib import resources
from string import Template
from typing import Any

import plotly.offline

from gp_ensembles.cli.report.figures import Axis
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.sections import Section, cards, sections
from gp_ensembles.cli.report.tables import escaped
from gp_ensembles.files.replacing import finite


def report_html(summary: Mapping[str, Any], history: RunHistory) -> str:
    """The report of a run with at least one row, from its ``summary.json`` and its history."""
    plain = json.loads(json.dumps(finite(dict(summary))))
    axis = Axis.of(history, plain.get("time"))
    found = list(sections(plain, history, axis))
    plots = {f"plot-{name}": plot.to_plotly_json() for section in found for name, plot in section.plots.items()}
    verdict = [section.heading for section in found if section.name in ("scores", "coverage")]
    start, end = axis.places[[0, -1]].tolist()
    rows = f"rows {history.first_row} to {history.last_row} of the stream, after a warm-up of {plain['warmup']} rows"
    folder = resources.files(__package__)
    files = {name: (folder / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    return Template(files["html"]).substitute(
        style=files["css"],
        script=files["js"],
        title=escaped(f"{plain['target']} of {plain['data']}"),
        verdict=escaped(". ".join(verdict) or "No row had a target, so nothing could be scored") + ".",
        run=escaped(f"{plain['model']} with {plain['num_experts']} experts; {rows}."),
        cards="".join(
            f"<li{' class=bad' if card.is_warning else ''}><strong>{escaped(card.value)}</strong>"
            f"<span>{escaped(card.text)}</span></li>"
            for card in cards(plain, history)
        ),
        sections="\n".join(map(_html, found)),
        # Inside a script element no text may end it.
        summary=json.dumps(plain).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        figures=_packed(json.dumps({"extent": [start, end + (start == end)], "figures": plots}, allow_nan=False)),
        plotly=_packed(plotly.offline.get_plotlyjs()),
    )


def _html(section: Section) -> str:
    plots = (f'<div class="plot" id="plot-{name}" role="figure" aria-label="{name}"></div>' for name in section.plots)
    return (
        f'<section id="{section.name}" aria-labelledby="{section.name}-heading"><p class="kicker">{section.subject}</p>'
        f'<h2 id="{section.name}-heading">{escaped(section.heading)}</h2>'
        f"{section.body}{''.join(plots)}</section>"
    )


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")
