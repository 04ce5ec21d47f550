"""``See :meth:`Base.method`.`` in the reference: what is said there stands here, too.

The source says such things once, in the base class or protocol; a reader of a page does not see it.
"""

import inspect
import re
import sys
from collections.abc import Iterator

from sphinx.application import Sphinx

_SEE = re.compile(r"See :(?:meth|attr):`(?:(\w+)\.)?(\w+)`[.,:;]\s*(.*)", re.DOTALL)


def _classes(module: str, path: str) -> Iterator[type]:
    """The class that a dotted path in a module begins in, with its bases, and classes that the module knows."""
    names = vars(sys.modules[module])
    owner = names.get(path.partition(".")[0])
    if isinstance(owner, type):
        yield from owner.__mro__
    yield from (thing for thing in names.values() if isinstance(thing, type))


def resolved(lines: list[str], module: str, path: str) -> list[str]:
    """The lines of a docstring; those of another in place of a reference to it, with what is added to it.

    Args:
        lines: The docstring.
        module: The module that it stands in.
        path: What it is of: ``Class.method``.
    """
    match = _SEE.fullmatch("\n".join(lines).strip())
    if match is None:
        return lines
    base, name, more = match.groups()
    for one in _classes(module, path):
        docstring = inspect.getdoc(getattr(one, name, None)) if base in (None, one.__name__) else None
        if docstring and name in vars(one) and not _SEE.fullmatch(docstring):
            first, _, rest = docstring.partition("\n\n")
            parts = [first, more and f"Here: {more}", rest]
            return "\n\n".join(part for part in parts if part).splitlines()
    return lines


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""

    def process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
        parts = name.split(".")
        found = (size for size in range(len(parts) - 1, 0, -1) if ".".join(parts[:size]) in sys.modules)
        size = next(found, 0)
        if not size or not name.startswith("gp_ensembles."):
            return
        owner = getattr(sys.modules[".".join(parts[:size])], parts[size], None)
        module = getattr(owner, "__module__", ".".join(parts[:size]))
        lines[:] = resolved(lines, module, ".".join(parts[size:]))

    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", process, priority=90)  # before examples get their imports
    return {"parallel_read_safe": True, "parallel_write_safe": True}
