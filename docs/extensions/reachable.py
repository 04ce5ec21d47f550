"""Code that is wider than the screen can be scrolled from the keyboard: every block of code takes the focus."""

from sphinx.application import Sphinx


def _reach(app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object) -> None:
    if isinstance(body := context.get("body"), str):
        context["body"] = body.replace("<pre>", '<pre tabindex="0">')


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("html-page-context", _reach)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
