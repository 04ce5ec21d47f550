"""What rows are: categories or a quantity, for colors and for the error of nearest neighbors."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gp_ensembles.data.table import number_in

MOST_NUMBERED = 50  # whole numbers of more kinds than this are a quantity, such as a count


class Labels(NamedTuple):
    """A label for each row.

    Attributes:
        name: Name of the column.
        texts: As written, empty where missing.
        categories: Their names in order; empty if the labels are a quantity.
        values: Number of the category, or the quantity, float64, shape (N,); NaN where missing.
    """

    name: str
    texts: tuple[str, ...]
    categories: tuple[str, ...]
    values: Tensor

    def drawn(self, rows: Tensor) -> list[str] | Tensor | None:
        """What a picture of some rows (boolean, shape (N,)) is colored by: names, a quantity, or nothing known."""
        if self.categories:
            return [text for text, is_drawn in zip(self.texts, rows.tolist(), strict=True) if is_drawn]
        values = self.values[rows]
        return None if bool(torch.isnan(values).all()) else values


def make_labels(name: str, texts: Sequence[str]) -> Labels:
    """Tell categories from a quantity: text, and whole numbers of at most 50 kinds, are categories.

    Args:
        name: Name of the column.
        texts: Its cells; an empty one or ``nan`` is missing.

    Example:
        >>> make_labels("state", ["on", "off", "", "on"]).categories
        ('off', 'on')
        >>> make_labels("digit", ["10", "2"]).categories, make_labels("load", ["0.5", "2"]).categories
        (('2', '10'), ())
    """
    cells = ["" if text.strip().lower() == "nan" else text.strip() for text in texts]
    kinds = sorted(set(cells) - {""})
    numbers = {kind: number_in(kind) for kind in kinds}
    if all(value is not None and math.isfinite(value) for value in numbers.values()):
        found = {kind: value for kind, value in numbers.items() if value is not None}
        whole = all(value == round(value) for value in found.values())
        if not whole or len(set(found.values())) > MOST_NUMBERED:
            quantity = torch.tensor([found.get(cell, math.nan) for cell in cells], dtype=torch.float64, device="cpu")
            return Labels(name, tuple(cells), (), quantity)
        kinds = sorted(kinds, key=lambda kind: (found[kind], kind))
    places = {kind: float(place) for place, kind in enumerate(kinds)}
    codes = torch.tensor([places.get(cell, math.nan) for cell in cells], dtype=torch.float64, device="cpu")
    return Labels(name, tuple(cells), tuple(kinds), codes)
