"""Pieces of HTML: text that cannot become markup, numbers that can be traced to the summary, tables."""

import html
import json
from collections.abc import Sequence
from typing import NamedTuple


class Markup(str):
    """HTML that is one already."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Its heading.
        note: What it means, shown small below.
        is_number: Whether its cells are numbers.
    """

    title: str
    note: str = ""
    is_number: bool = True


def escaped(value: object) -> Markup:
    """Text as HTML; what is HTML stays.

    Example:
        >>> escaped("<script>"), escaped(Markup("<b>7</b>"))
        ('&lt;script&gt;', '<b>7</b>')
    """
    return value if isinstance(value, Markup) else Markup(html.escape(str(value)))


def number_text(value: object) -> str:
    """A number for the eye, a dash for none.

    Example:
        >>> number_text(None), number_text(12345), number_text(0.123456), number_text(-98765.4321), number_text(1.5e9)
        ('–', '12 345', '0.1235', '−98 765.4', '1.500e+09')
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ").replace("-", "−")
    size = abs(value)
    places = 4 if size < 100 else 2 if size < 10_000 else 1
    text = f"{value:,.{places}f}" if size < 1e8 and (size >= 5e-4 or size == 0) else f"{value:.3e}"
    return text.replace(",", " ").replace("-", "−") if "e" not in text else text.replace("-", "−", int(value < 0))


def number(value: object, *path: str) -> Markup:
    """A number of the summary, with the path that leads to it.

    Example:
        >>> number(0.5, "baselines", "mean", "nmse")
        '<span data-path="[&quot;baselines&quot;, &quot;mean&quot;, &quot;nmse&quot;]">0.5000</span>'
    """
    where = html.escape(json.dumps(path))
    return Markup(f'<span data-path="{where}">{escaped(number_text(value))}</span>')


def _head(column: Column) -> str:
    note = f"<small>{escaped(column.note)}</small>" if column.note else ""
    text = escaped(column.title) + note
    return f'<th scope="col"{_kind(column)}>{text}</th>' if text else "<td></td>"  # a head without words is none


def table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> Markup:
    """A table whose first cells head their rows.

    Args:
        caption: What it shows.
        columns: Its columns, the first of which has the rows' names.
        rows: Cells, as many as columns.
    """
    head = "".join(map(_head, columns))
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escaped(first)}</th>'
        + "".join(f"<td{_kind(column)}>{escaped(cell)}</td>" for column, cell in zip(columns[1:], cells, strict=True))
        + "</tr>"
        for first, *cells in rows
    )
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(caption)}"><table><caption>'
        f"{escaped(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def joined(*parts: object) -> Markup:
    """Pieces one after the other; text among them is escaped."""
    return Markup("".join(escaped(part) for part in parts))


def embedded_json(content: object) -> Markup:
    r"""JSON that can stand in a script element, whatever its texts hold.

    Example:
        >>> embedded_json({"name": "</script>"})
        '{"name": "\\u003c/script\\u003e"}'
    """
    text = json.dumps(content, allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _kind(column: Column) -> str:
    return ' class="number"' if column.is_number else ""
