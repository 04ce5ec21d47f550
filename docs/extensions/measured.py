"""``{measured} NAME``: the table that a benchmark has written, with its command, its day and its processor.

``{study} PAPER/EXPERIMENT``: what a study has left in ``studies/results``, a row for each case.
"""

import csv
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx

from benchmarks import measured

RESULTS = Path(__file__).resolve().parents[2] / "studies" / "results"


def study_table(file: Path) -> str:
    """Means of a study's scores, with their standard errors where there are several draws."""
    with file.open(encoding="utf-8", newline="") as lines:
        scores = list(csv.DictReader(lines))
    columns = list(dict.fromkeys(score["score"] for score in scores))
    cases: dict[str, dict[str, str]] = {}
    for score in scores:
        error = f" ± {measured.shown(float(score['standard_error']))}" if score["standard_error"] else ""
        cases.setdefault(score["case"], {})[score["score"]] = measured.shown(float(score["mean"])) + error
    rows = [[case, *(found[name] for name in columns)] for case, found in cases.items()]
    lines = [["", *columns], ["---"] * (len(columns) + 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class _Table(Directive):
    """A table as a page would write it by hand, read by the parser of the page; its argument is a name."""

    required_arguments = 1

    def parsed(self, file: Path, text: str) -> list[nodes.Node]:
        self.state.document.settings.env.note_dependency(str(file))
        held = nodes.container()
        self.state.nested_parse(StringList(text.splitlines(), source=str(file)), self.content_offset, held)
        return held.children


class Measured(_Table):
    """What a benchmark has kept."""

    def run(self) -> list[nodes.Node]:
        """The table, with its command, its day and its processor."""
        file = measured.FOLDER / f"{self.arguments[0]}.json"
        if not file.exists():
            raise self.error(f"no command has written {file.name}")
        return self.parsed(file, measured.markdown(measured.read(file.stem)))


class Study(_Table):
    """What a study has left."""

    def run(self) -> list[nodes.Node]:
        """The table."""
        file = RESULTS / f"{self.arguments[0]}.csv"
        if not file.exists():
            raise self.error(f"no study has left {file.name}")
        return self.parsed(file, study_table(file))


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("measured", Measured)
    app.add_directive("study", Study)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
