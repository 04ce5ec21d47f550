"""Lines break where a reader would: numbers nowhere; in tables long names at their joints, short acronyms nowhere."""

import re

from sphinx.application import Sphinx

_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
_CODE = re.compile(r'(?<=<span class="pre">)[^<]{10,}(?=</span>)')
_TEXT = re.compile(r"(?<=>)[^<>]+(?=<(?!/span>))")  # what stands in a span is code
_PATH = re.compile(r"(?<!\S)[\w./]{24,}(?!\S)")
_NO_PROSE = re.compile(r"(<(pre|code|math|script|style|svg)\b.*?</\2>)", re.DOTALL)
_PROSE = re.compile(r"(?:(?<=>)|\A)[^<>]*\d [^<>]+")
_IN_NUMBER = re.compile(r"(?<=\d) (?=\d{3}\b|%)")  # 1 014, 90 %
_JOINT = re.compile(r"(?<=[\w)\]][./_(=,-])(?=\w)(?!py\b)")
_CAPITAL = re.compile(r"(?<=[a-z]{3})(?=[A-Z])")
_ANYWHERE, _ON_PHONES = "<wbr>", '<wbr class="phone">'
_LONG, _LONG_NAME = 24, 36  # on a screen that is wide code is broken from so many letters on, and a name inside


def breaking(page: str) -> str:
    """The page with the places where the words of its tables may break, and without those where they may not."""
    return _TABLE.sub(lambda table: _of_table(table[0]), whole_numbers(page))


def whole_numbers(page: str) -> str:
    """The page whose numbers are not broken over lines; code and equations stay as they are."""
    parts = _NO_PROSE.split(page)  # prose, what is none, the name of its tag, prose, ...
    parts[::3] = [_PROSE.sub(lambda text: _IN_NUMBER.sub("\u00a0", text[0]), prose) for prose in parts[::3]]
    del parts[2::3]
    return "".join(parts)


def _of_table(table: str) -> str:
    is_list = table.startswith('<table class="autosummary')  # of names, which has room for them on a wide screen

    def of_code(found: re.Match[str]) -> str:
        joint = _ANYWHERE if len(found[0]) >= _LONG and not is_list else _ON_PHONES
        return joint.join(of_name(name) for name in _JOINT.split(found[0]))

    def of_name(name: str) -> str:
        return _CAPITAL.sub(_ANYWHERE if len(name) >= _LONG_NAME and not is_list else _ON_PHONES, name)

    return _CODE.sub(of_code, _TEXT.sub(_of_text, table))


def _of_text(found: re.Match[str]) -> str:
    text = _IN_NUMBER.sub("\u00a0", found[0])
    text = re.sub(r"(?<=\de)-(?=\d)", "-\u2060", text)  # 1e-16
    text = re.sub(r"\b([A-Z]{1,4})-(?=[A-Z])", "\\1-\u2060", text)  # OE-HSGP
    return _PATH.sub(lambda path: _JOINT.sub(_ANYWHERE, path[0]), text)


def _break(app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object) -> None:
    if isinstance(body := context.get("body"), str):
        context["body"] = breaking(body)


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""
    app.connect("html-page-context", _break)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
