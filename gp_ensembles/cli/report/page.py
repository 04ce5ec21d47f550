"""``report.html``: one file with everything in it, which opens without a network."""

import base64
import functools
import gzip
import json
import math
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from gp_ensembles.cli.report.findings import cards, verdict
from gp_ensembles.cli.report.history import RunHistory
from gp_ensembles.cli.report.markup import Markup, embedded_json, escaped, joined
from gp_ensembles.cli.report.sections import Section, sections_of
from gp_ensembles.files.replacing import finite, write_text

REPORT = "report.html"
_DIGITS = 5  # of numbers in plots, of the range of their series
_LONG = 8
# Nothing may be fetched from anywhere: browsers refuse what this does not allow.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; font-src data:"
)


def write_report(path: Path, summary: Mapping[str, Any], history: RunHistory) -> None:
    """Write a report in one step.

    Args:
        path: The file.
        summary: What ``summary.json`` holds.
        history: What was kept of the run; it has at least one row.

    Raises:
        OSError: If the file cannot be written.
    """
    write_text(path, report_html(summary, history))


def report_html(summary: Mapping[str, Any], history: RunHistory) -> str:
    """A report as HTML; arguments as in :func:`write_report`."""
    plain = finite(dict(summary))
    assert isinstance(plain, dict)
    sections, extent = sections_of(plain, history)
    figures = {figure: content for section in sections for figure, content in section.figures.items()}
    title = f"{plain['target']} of {plain['data']}"
    last = f"rows {history.first_row} to {history.last_row}"
    head = joined(
        Markup("<header>"),
        Markup('<p class="kicker">'),
        "Predicted one row ahead, each before its target was seen",
        Markup("</p>"),
        Markup("<h1>"), title, Markup("</h1>"),
        Markup('<p class="verdict">'), verdict(plain, history), Markup("</p>"),
        Markup('<p class="quiet">'), f"{plain['model']} with {plain['num_experts']} experts; {last} of the "
        f"stream, after a warm-up of {plain['warmup']} rows.", Markup("</p></header>"),
        Markup('<p id="notice" role="status"></p>'),
        Markup('<noscript><p id="noscript">The plots need JavaScript; all tables are below.</p></noscript>'),
        Markup('<ul class="cards">'),
        *(
            joined(
                Markup(f'<li{" class=bad" if card.is_bad else ""}><strong>'), card.value,
                Markup('</strong><span class="what">'), card.text, Markup("</span></li>"),
            )
            for card in cards(plain)
        ),
        Markup("</ul>"),
    )  # fmt: skip
    folder = resources.files("gp_ensembles.cli.report")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escaped(title)}</title><style>{style}</style></head>\n<body><main>",
            head,
            *(section_html(section) for section in sections),
            "<footer><p>This file is complete: it can be sent by mail and opens without a network.</p></footer>",
            "</main>\n",
            f'<script type="application/json" id="summary">{embedded_json(plain)}</script>\n',
            f'<script type="text/plain" id="figures-gz">{_packed(figures_json(figures, extent))}</script>\n',
            f'<script type="text/plain" id="plotly-gz">{_plotly()}</script>\n',
            f"<script>{script}</script></body></html>\n",
        ]
    )


def section_html(section: Section) -> Markup:
    """A section with its heading."""
    return joined(
        Markup(f'<section id="{section.name}" aria-labelledby="{section.name}-heading">'),
        Markup(f'<p class="kicker">{escaped(section.kicker)}</p><h2 id="{section.name}-heading">'),
        section.heading, Markup("</h2>"), section.body, Markup("</section>"),
    )  # fmt: skip


def figures_json(figures: Mapping[str, Any], extent: tuple[float, float]) -> str:
    """Plots as JSON: lists of many numbers stand once, rounded to what can be seen."""
    arrays: list[list[float | None]] = []
    places: dict[str, int] = {}

    def shortened(node: object) -> object:
        if isinstance(node, dict):
            return {key: shortened(part) for key, part in node.items()}
        if not isinstance(node, list):
            return None if isinstance(node, float) and not math.isfinite(node) else node
        if len(node) < _LONG or not all(isinstance(part, int | float) for part in node):
            return [shortened(part) for part in node]
        rounded = _rounded(node)
        key = json.dumps(rounded)
        if key not in places:
            places[key] = len(arrays)
            arrays.append(rounded)
        return {"array": places[key]}

    content = {name: shortened(figure) for name, figure in figures.items()}
    return json.dumps({"arrays": arrays, "extent": extent, "figures": content}, allow_nan=False)


def _rounded(values: list[float]) -> list[float | None]:
    """Numbers to a hundred-thousandth of their range; ``None`` for those that are not finite."""
    known = [value for value in values if math.isfinite(value)]
    spread = max(known) - min(known) if known else 0.0
    if not spread > 0:
        return [value if math.isfinite(value) else None for value in values]
    digits = _DIGITS - math.floor(math.log10(spread))
    rounded = [round(value, digits) if math.isfinite(value) else None for value in values]
    return [int(value) if digits <= 0 and value is not None else value for value in rounded]


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 6, mtime=0)).decode("ascii")


@functools.cache
def _plotly() -> str:
    """The source of plotly.js as the package plotly has it, packed."""
    return _packed(resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8"))
