"""Docstrings of properties, read like those of methods: napoleon takes what stands before a colon for a type."""

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

_read: dict[str, list[str]] = {}


def _before(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    if what == "property":
        _read[name] = GoogleDocstring(list(lines), app.config, app, "method", name, obj, options).lines()


def _after(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = _read.pop(name, lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _before, priority=400)  # napoleon has 500
    app.connect("autodoc-process-docstring", _after, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
