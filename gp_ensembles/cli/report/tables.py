"""Pieces of HTML: escaped text, formatted numbers, tables."""

import html
from collections.abc import Collection, Sequence


class Markup(str):
    """HTML that is not escaped again."""

    __slots__ = ()


def escaped(value: object) -> str:
    """Text or a number as HTML."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float | None):
        return html.escape(str(value))
    if value is None:
        return "–"
    size = abs(value)
    places = 0 if isinstance(value, int) else 4 if size < 100 else 2 if size < 10_000 else 1
    is_plain = isinstance(value, int) or size == 0 or 5e-4 <= size < 1e8
    text = f"{value:,.{places}f}".replace(",", " ") if is_plain else f"{value:.3e}"
    return ("−" if text[0] == "-" else "") + text.removeprefix("-")


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[object]], best: Collection[tuple[int, int]] = ()
) -> Markup:
    """A table whose first cells head their rows; columns of numbers are aligned right.

    Args:
        caption: Its caption.
        heads: Titles of the columns; a second line is a note.
        rows: Its cells.
        best: Row and column of the cells that are marked as the best.
    """
    columns = list(zip(*rows, strict=True))
    kinds = [' class="number"' if all(map(_is_number, column)) else "" for column in columns]
    head = "".join(
        f'<th scope="col"{kind}>{escaped(title)}<small>{escaped(note)}</small></th>' if title else "<td></td>"
        for (title, _, note), kind in zip((head.partition("\n") for head in heads), kinds, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escaped(first)}</th>'
        + "".join(
            f"<td{kind}>{_cell(value, (row, place) in best)}</td>"
            for place, (value, kind) in enumerate(zip(cells, kinds[1:], strict=True), start=1)
        )
        + "</tr>"
        for row, (first, *cells) in enumerate(rows)
    )
    return Markup(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(caption)}"><table>'
        f"<caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: object, is_best: bool) -> str:
    return f'<span class="best">{escaped(value)}</span>' if is_best else escaped(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | None) and not isinstance(value, bool)
