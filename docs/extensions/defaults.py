"""Defaults of signatures as one would write them: the name of a class, not what Python prints of it."""

import re

from sphinx.application import Sphinx

_WRITTEN = (
    (re.compile(r"<factory>"), "..."),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
    (re.compile(r"<(?:\w+\.)*(\w+) object(?: at 0x[0-9a-f]+)?>"), r"\1()"),
    (re.compile(r"<(\w+\.\w+): [^<>]*>"), r"\1"),
)


def written(signature: str) -> str:
    """The signature with the defaults as one would write them."""
    for printed, plain in _WRITTEN:
        signature = printed.sub(plain, signature)
    return signature


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""

    def process(
        app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
    ) -> tuple[str | None, str | None]:
        return (None if signature is None else written(signature)), returned

    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
