"""Pieces of HTML: escaped text, formatted numbers, tables."""

import html
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Best(float):
    """A number that is marked as the best of its column."""

    __slots__ = ()


class Column(NamedTuple):
    """A column of a table: its title, the note below it, and whether it holds numbers."""

    title: str
    note: str = ""
    is_number: bool = True


def escaped(value: object) -> str:
    """Text, a number or a list of them as HTML."""
    if isinstance(value, Best):
        return f'<span class="best">{escaped(float(value))}</span>'
    if isinstance(value, list):
        return ", ".join(map(escaped, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return "–" if value is None else html.escape(str(value))
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ").replace("-", "−")
    is_plain = value == 0 or 5e-4 <= abs(value) < 1e5
    return (f"{value:.4f}" if is_plain else f"{value:.3e}").replace("-", "−")


def table(caption: str, entries: Sequence[Mapping[str, Any]], columns: Mapping[str, Column] | None = None) -> str:
    """A table of entries, a row each, by default of all their keys."""
    if columns is None:
        texts = {key for entry in entries for key, value in entry.items() if isinstance(value, str | bool | list)}
        titles = {key: key.replace("_", " ").removeprefix("num ") for entry in entries for key in entry}
        columns = {key: Column(title, is_number=key not in texts) for key, title in titles.items()}
    kinds = [' class="number"' if column.is_number else "" for column in columns.values()]
    rows = []
    for entry in entries:
        first, *rest = (f"{kind}>{escaped(entry.get(key))}" for key, kind in zip(columns, kinds, strict=True))
        rows.append(f'<th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in rest))
    head = "".join(
        f'<th scope="col"{kind}>{escaped(column.title)}<small>{escaped(column.note)}</small></th>'
        for column, kind in zip(columns.values(), kinds, strict=True)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )
