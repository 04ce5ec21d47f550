"""The file ``report.html``: ``page.html`` filled in, self-contained."""

import base64
import gzip
import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import plotly.offline

from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.sections import cards, findings, sections
from gp_ensembles.cli.report.tables import escaped
from gp_ensembles.files.replacing import finite, write_text


def write_report(path: Path, summary: Mapping[str, Any], history: RunHistory) -> None:
    """Write the report of a run with at least one row, from its ``summary.json`` and its history, atomically."""
    write_text(path, report_html(summary, history))


def report_html(summary: Mapping[str, Any], history: RunHistory) -> str:
    """A report as HTML; arguments as in :func:`write_report`."""
    plain = json.loads(json.dumps(finite(dict(summary))))
    found, extent = sections(plain, history)
    plots = {f"plot-{name}": plot.to_plotly_json() for section in found for name, plot in section.plots.items()}
    folder = resources.files(__package__)
    page, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js")
    )
    return Template(page).substitute(
        style=style,
        script=script,
        title=escaped(f"{plain['target']} of {plain['data']}"),
        verdict=escaped(findings(plain, history)),
        run=escaped(
            f"{plain['model']} with {plain['num_experts']} experts; rows {history.first_row} to {history.last_row} of "
            f"the stream, after a warm-up of {plain['warmup']} rows."
        ),
        cards="".join(
            f"<li{' class=bad' if is_bad else ''}><strong>{escaped(value)}</strong><span>{escaped(text)}</span></li>"
            for value, text, is_bad in cards(plain, history)
        ),
        sections="\n".join(
            f'<section id="{section.name}" aria-labelledby="{section.name}-heading">'
            f'<p class="kicker">{section.subject}</p>'
            f'<h2 id="{section.name}-heading">{escaped(section.heading)}</h2>{section.body}</section>'
            for section in found
        ),
        # Inside a script element no text may end it.
        summary=json.dumps(plain).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
        figures=_packed(json.dumps({"extent": extent, "figures": plots}, allow_nan=False)),
        plotly=_packed(plotly.offline.get_plotlyjs()),
    )


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")
