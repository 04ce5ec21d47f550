"""Check of the links, pictures and anchors of the site; a broken one is a warning of the build."""

import os
import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from sphinx.application import Sphinx
from sphinx.util import logging

_LOG = logging.getLogger(__name__)
# A link from a page of source code back to the reference: the page of a name, and an anchor on it.
_BACK = re.compile(r'href="([^"#]*/generated/([\w.]+)\.html)#([\w.]+)"')
_ATTRIBUTE = re.compile(r'\s(href|src|id)="([^"]*)"')


class _Page(NamedTuple):
    targets: list[str]
    anchors: set[str]


def _read(path: Path) -> _Page:
    """Where a page leads to, and the anchors that it has; Sphinx writes all attributes in double quotes."""
    found: dict[str, list[str]] = {"href": [], "src": [], "id": []}
    for name, value in _ATTRIBUTE.findall(path.read_text(encoding="utf-8")):
        found[name].append(unescape(value))
    return _Page([*dict.fromkeys(found["href"] + found["src"])], set(found["id"]))


def broken(site: Path) -> Iterator[str]:
    """One line for each internal link of the folder that leads nowhere; what is outside it is not asked."""
    pages = {str(path): _read(path) for path in sorted(site.resolve().rglob("*.html"))}
    exists = cache(os.path.exists)
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = os.path.normpath(os.path.join(path, "..", unquote(parts.path))) if parts.path else path
            if not exists(there):
                yield f"{os.path.relpath(path, site)}: {target} does not exist"
            elif parts.fragment and there in pages and unquote(parts.fragment) not in pages[there].anchors:
                yield f"{os.path.relpath(path, site)}: {target} has no such anchor"


def anchored(link: re.Match[str]) -> str:
    """A link back to the reference with the anchor of its page.

    ``sphinx.ext.viewcode`` knows one name for each module, by which not all of a module's names may be documented.
    """
    page, anchor = link[2], link[3]
    if f"{anchor}.".startswith(f"{page}."):
        return link[0]
    rest = re.search(rf"(?:^|\.){page.rpartition('.')[2]}((?:\.\w+)*)$", anchor)
    return link[0] if rest is None else f'href="{link[1]}#{page}{rest[1]}"'


def mend_sources(site: Path) -> None:
    """Correct the links back to the reference on all pages of source code."""
    for path in site.glob("_modules/**/*.html"):
        text = path.read_text(encoding="utf-8")
        path.write_text(_BACK.sub(anchored, text), encoding="utf-8")


def _mend(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        mend_sources(Path(app.outdir))


def _warn(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        for line in broken(Path(app.outdir)):
            _LOG.warning("links: %s", line)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("build-finished", _mend, priority=900)
    app.connect("build-finished", _warn, priority=999)  # when others have left their files
    return {"parallel_read_safe": True, "parallel_write_safe": True}
