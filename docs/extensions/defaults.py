"""Signatures as one would write them: defaults as the source says them, and names of types in place of their unions."""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap

from numpy.typing import ArrayLike
from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature
from sphinx.util.typing import stringify_annotation

_WRITTEN = (
    (re.compile(r"<factory>"), "..."),
    (re.compile(r"<class '(?:\w+\.)*(\w+)'>"), r"\1"),
    (re.compile(r"<(?:\w+\.)*(\w+) object(?: at 0x[0-9a-f]+)?>"), r"\1()"),
    (re.compile(r"<(\w+\.\w+): [^<>]*>"), r"\1"),
    (re.compile(r" \| ~?(?:\w+\.)*_DefaultType\b"), ""),  # BoTorch's, of what DEFAULT is
)
_LONGEST = 30  # characters of a constant that is shown in place of its name
_MODES = ("smart", "fully-qualified", "fully-qualified-except-typing")
_ARRAYS = sorted({stringify_annotation(ArrayLike, mode) for mode in _MODES}, key=len, reverse=True)


class _Source:
    """A default that prints as its source."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def written(signature: str, module: str | None = None) -> str:
    """The signature with defaults, and what may stand for an array, as one would write them.

    Args:
        signature: The signature, as Sphinx prints it.
        module: The module that defines it; the values of its private constants are shown in place of their names.
    """
    constants = vars(sys.modules[module]) if module in sys.modules else {}

    def value_of(match: re.Match[str]) -> str:
        equals, name = match.groups()
        if name not in constants:
            return match[0]
        text = repr(constants[name])
        return equals + (text if len(text) <= _LONGEST else f"{type(constants[name]).__name__}(...)")

    signature = re.sub(r"(= ?)(_[A-Z_]+)\b", value_of, signature)
    for printed, plain in _WRITTEN:
        signature = printed.sub(plain, signature)
    for union in _ARRAYS:
        signature = signature.replace(union, "ArrayLike")
    return signature


def of_fields(cls: type) -> dict[str, str]:
    """The source of the defaults of a record's fields, by name; Sphinx finds those of functions by itself.

    A default that a factory makes is shown as a call of it.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line in body.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            text = ast.unparse(line.value)
            factory = re.fullmatch(r"field\(default_factory=(\w+)\)", text)
            found[line.target.id] = f"{factory[1]}()" if factory else re.sub(r"^field\(.*\)$", "...", text)
    return found


def of_record(cls: type) -> str | None:
    """The signature of a data class or a named tuple; ``None`` for other classes."""
    is_tuple = issubclass(cls, tuple) and "_fields" in vars(cls)
    if not is_tuple and not (dataclasses.is_dataclass(cls) and "__dataclass_fields__" in vars(cls)):
        return None
    texts, signature = of_fields(cls), inspect.signature(cls)
    parameters = [
        one if one.default is one.empty or one.name not in texts else one.replace(default=_Source(texts[one.name]))
        for one in signature.parameters.values()
    ]
    return stringify_signature(
        signature.replace(parameters=parameters), show_return_annotation=False, unqualified_typehints=True
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """What Sphinx calls."""

    def process(
        app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returned: str | None
    ) -> tuple[str | None, str | None]:
        if what == "class" and isinstance(obj, type) and signature:
            signature = of_record(obj) or signature
        return (None if signature is None else written(signature, getattr(obj, "__module__", None))), returned

    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-signature", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
