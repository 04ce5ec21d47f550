"""Aligned tables to print."""

import math
from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An aligned table to print: text left, numbers right with four digits."""
    cells = [list(header), *([_cell(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    is_text = [all(isinstance(row[column], str) for row in rows) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            f"{cell:<{width}}" if text else f"{cell:>{width}}"
            for cell, width, text in zip(row, widths, is_text, strict=True)
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
