"""Equations as MathML, which browsers and screen readers know: no script, nothing from a network."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

_NAMES = "(?:log|exp|sin|cos|tan|lg|ln)"
_OPERAND = r"(?=<m(?:i|n|sub|sup|subsup|frac|sqrt|row)[ >])"
_AFTER = re.compile(rf"(<mi>{_NAMES}</mi>){_OPERAND}")
_BEFORE = re.compile(rf"(</m(?:i|n|sub|sup|subsup|frac)>)(?=<mi>{_NAMES}</mi>)")
_THIN = '<mspace width="0.167em"/>'


def converted(latex: str, display: str = "inline") -> str:
    """The equation in MathML, with a thin space on either side of the names of functions, as TeX sets them."""
    spaced = _AFTER.sub(rf"\1{_THIN}", convert(latex, display=display))
    return _BEFORE.sub(rf"\1{_THIN}", spaced)


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(converted(node.astext()))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    if node["number"]:
        self.body.append(f'<span class="eqno">({get_node_equation_number(self, node)})</span>')
    latex = node.astext().strip()
    rows = latex if "&" not in latex and r"\\" not in latex else rf"\begin{{split}}{latex}\end{{split}}"
    self.body.append(converted(rows, display="block"))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
