"""The site without a mouse or without eyes: what scrolls takes the focus, and no head of a column is empty."""

import re

from sphinx.application import Sphinx

# Code, tables and equations that are wider than the screen are scrolled with the arrow keys once they have the focus.
_SCROLLING = re.compile(r'<(?:pre(?=>)|div(?= class="(?:table|math)-wrapper\b))')
_EMPTY_HEAD = re.compile(r'<th (class="[^"]*")>(?:<p></p>)?</th>')


def reachable(body: str) -> str:
    """The same page with a focus for whatever may scroll, and plain cells where heads are empty."""
    return _EMPTY_HEAD.sub(r"<td \1></td>", _SCROLLING.sub(r'\g<0> tabindex="0"', body))


def _reach(app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object) -> None:
    if isinstance(body := context.get("body"), str):
        context["body"] = reachable(body)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("html-page-context", _reach)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
