"""The gallery: text notebooks are run and shown with their outputs; the last picture is the thumbnail.

``GALLERY=smoke``, the default, runs the notebooks of ``SMOKE``, those whose pictures other pages show among them; the
others are shown without outputs, unless an earlier build with this library has run them. ``GALLERY=all`` runs all. A
notebook that warns, or that shows no picture, is a warning of the build, which ``make docs`` takes for an error.
The CPU seconds of each, imports included, are written next to the pages, and long ones are named.
"""

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from docutils import nodes
from nbclient import NotebookClient
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
MADE = ROOT / "docs" / "generated" / "gallery"
_LOG = logging.getLogger(__name__)
getLogger("traitlets").setLevel("WARNING")  # no line for each kernel that starts
_TOO_LONG = 300  # seconds
_SENTENCE_ENDS = re.compile(r"(?<=\.)(?<!\bal\.) ")  # not after "et al."
_AT_ONCE = 2
LONG = 10.0  # seconds of a processor above which an example is named
# Run by every build: those whose pictures other pages show, and the first example of a reader.
SMOKE = frozenset(
    {"block_filter", "evidence", "fleet", "forgetting", "gaps", "quickstart", "recalibration", "weight_rules"}
)
_NOT_RUN = """:::{note}
Not run in this build: outputs are missing. `GALLERY=all make docs` runs every notebook.
:::"""
_HOW_LONG = "import time\n\nprint(time.process_time())"  # a last cell, of which the page knows nothing
# Matrices are small, and two kernels run at once; and they shall run this library, not one that is installed.
_SURROUNDINGS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run_all(is_chosen: Callable[[str], bool]) -> None:
    """Run what has changed of the notebooks chosen by their names, two at a time; show the others without outputs."""
    MADE.mkdir(parents=True, exist_ok=True)
    library = _library_mark()
    changed = [source for source in sorted(NOTEBOOKS.glob("*.py")) if not _is_made(source, library)]
    sources = [source for source in changed if is_chosen(source.stem)]
    for source in changed:
        if source not in sources:
            show_without_outputs(source)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for source, seconds in zip(sources, pool.map(lambda source: run(source, library), sources), strict=True):
            _LOG.info("gallery: %s took %.1f s of a processor", source.stem, seconds)
    taken = _seconds_of_all()
    lines = [f"{name},{seconds:.1f}\n" for name, seconds in taken.items()]
    (MADE / "seconds.csv").write_text("".join(["example,seconds\n", *lines]), encoding="utf-8")
    _LOG.info("gallery: %s", too_long(taken))


def too_long(taken: dict[str, float]) -> str:
    """What is said of the seconds that examples took."""
    found = [f"{name} ({seconds:.1f} s)" for name, seconds in taken.items() if seconds > LONG]
    return f"more than {LONG:.0f} s of a processor: {', '.join(found) or 'none'}"


def _seconds_of_all() -> dict[str, float]:
    """CPU seconds of every example that was run, in this build or before."""
    made = {source.stem: MADE / f"{source.stem}.ipynb" for source in sorted(NOTEBOOKS.glob("*.py"))}
    taken = {
        name: nbformat.read(path, as_version=4).metadata.get("seconds") for name, path in made.items() if path.exists()
    }
    return {name: seconds for name, seconds in taken.items() if seconds is not None}


def run(source: Path, library: str) -> float:
    """Run a text notebook, keep it with its outputs and its thumbnail; returns its seconds of a processor."""
    notebook = jupytext.read(source)
    notebook.cells.append(nbformat.v4.new_code_cell(_HOW_LONG))
    client = NotebookClient(
        notebook,
        timeout=_TOO_LONG,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
        extra_arguments=["--log-level=40"],  # errors only
    )
    client.execute(env={**os.environ, **_SURROUNDINGS})
    notebook.metadata["seconds"] = seconds = float(notebook.cells.pop().outputs[0]["text"])  # of the kernel's process
    wrong = complaints(notebook)
    for complaint in wrong:
        _LOG.warning("gallery: %s %s", source.stem, complaint)
    pictures = list(_pictures(notebook))
    if pictures:
        (MADE / f"{source.stem}.png").write_bytes(base64.b64decode(pictures[-1]))
    notebook.metadata["made_from"] = None if wrong else _mark(source, library)  # what is wrong is run again
    nbformat.write(notebook, MADE / f"{source.stem}.ipynb")
    return seconds


def show_without_outputs(source: Path) -> None:
    """Keep a text notebook with a note below its title that it was not run."""
    notebook = jupytext.read(source)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(_NOT_RUN))
    nbformat.write(notebook, MADE / f"{source.stem}.ipynb")
    (MADE / f"{source.stem}.png").unlink(missing_ok=True)


def complaints(notebook: Any) -> list[str]:
    """What a reader should not see of a notebook that was run: warnings and bars; and that nothing is to be seen."""
    found = [
        f"says {output['text'].strip()[:200]!r}" for output in _outputs(notebook) if output.get("name") == "stderr"
    ]
    return found if any(_pictures(notebook)) else [*found, "shows no picture"]


def _outputs(notebook: Any) -> Iterator[Any]:
    for cell in notebook.cells:
        yield from cell.get("outputs", ())


def _pictures(notebook: Any) -> Iterator[str]:
    for output in _outputs(notebook):
        if "image/png" in output.get("data", {}):
            yield output["data"]["image/png"]


def _is_made(source: Path, library: str) -> bool:
    made = MADE / f"{source.stem}.ipynb"
    return made.exists() and nbformat.read(made, as_version=4).metadata.get("made_from") == _mark(source, library)


def _mark(source: Path, library: str) -> str:
    return hashlib.sha256(source.read_bytes() + library.encode()).hexdigest()


def _library_mark() -> str:
    found = hashlib.sha256()
    for path in sorted((ROOT / "gp_ensembles").rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


def title_and_summary(source: Path) -> tuple[str, str]:
    """The heading of a text notebook and the first sentence below it."""
    first = next(cell.source for cell in jupytext.read(source).cells if cell.cell_type == "markdown")
    heading, _, rest = first.partition("\n")
    paragraph = rest.strip().partition("\n\n")[0].replace("\n", " ")
    return heading.lstrip("# "), _SENTENCE_ENDS.split(paragraph, maxsplit=1)[0]


class Gallery(SphinxDirective):
    """Cards with thumbnails for the notebooks whose names stand in the content, one a line."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """What docutils calls."""
        names = [line.strip() for line in self.content if line.strip()]
        cards = []
        for name in names:
            title, summary = title_and_summary(NOTEBOOKS / f"{name}.py")
            picture = f":img-top: ../generated/gallery/{name}.png\n:img-alt: {title}\n" if _has_picture(name) else ""
            link = f":link: ../generated/gallery/{name}\n:link-type: doc\n"
            cards.append(f":::{{grid-item-card}} {title}\n{picture}{link}\n{summary}\n:::\n")
        text = "::::{grid} 1 2 3 3\n:gutter: 3\n\n" + "\n".join(cards) + "::::\n"
        hidden = "```{toctree}\n:hidden:\n" + "\n".join(f"../generated/gallery/{name}" for name in names) + "\n```\n"
        return self.parse_text_to_nodes(text + "\n" + hidden)


def _has_picture(name: str) -> bool:
    return (MADE / f"{name}.png").exists()


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_directive("gallery", Gallery)
    run_everything = {"smoke": False, "all": True}[os.environ.get("GALLERY", "smoke")]
    app.connect("builder-inited", lambda app: run_all(lambda name: run_everything or name in SMOKE))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
