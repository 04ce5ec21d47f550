"""Pieces of HTML: escaped text, formatted numbers, tables."""

import html
from collections.abc import Mapping, Sequence
from typing import Any


class Best(float):
    """A number that is marked as the best of its column."""

    __slots__ = ()


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


def table(caption: str, entries: Sequence[Mapping[str, Any]], titles: Mapping[str, str] | None = None) -> str:
    """A table of entries, a row each; a second line of a column's title is a note, and the keys are the default."""
    titles = titles or {key: key.replace("_", " ").removeprefix("num ") for entry in entries for key in entry}
    texts = {key: any(isinstance(entry.get(key), str | bool | list) for entry in entries) for key in titles}
    kinds = {key: "" if is_text else ' class="number"' for key, is_text in texts.items()}
    heads, rows = [title.partition("\n") for title in titles.values()], []
    for entry in entries:
        first, *rest = (f"{kind}>{escaped(entry.get(key))}" for key, kind in kinds.items())
        rows.append(f'<th scope="row"{first}</th>' + "".join(f"<td{cell}</td>" for cell in rest))
    head = "".join(
        f'<th scope="col"{kind}>{escaped(title)}<small>{escaped(note)}</small></th>'
        for (title, _, note), kind in zip(heads, kinds.values(), strict=True)
    )
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escaped(caption)}"><table>'
        f"<caption>{escaped(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody></table></div>"
    )
