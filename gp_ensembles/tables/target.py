"""The target of a table: numbers or named classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.tables.columns import BOOLEAN
from gp_ensembles.tables.numbers import is_missing, numbers_in
from gp_ensembles.tables.raw import CellError, Cells, texts_of

_FEW = 20


@dataclass(frozen=True)
class TargetColumn:
    """Encodes the cells of a target as numbers.

    Attributes:
        name: Its column.
        classes: Names of the classes 0, 1, ...; ``None`` for numbers.
        has_words: Whether the first rows hold true and false, read as 1 and 0.
    """

    name: str
    classes: tuple[str, ...] | None = None
    has_words: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", None if self.classes is None else tuple(self.classes))

    @classmethod
    def fit(cls, name: str, cells: Cells, decimal: str, classes: Sequence[str] | None) -> "TargetColumn":
        """From the cells (N,) of the warm-up rows.

        Raises:
            CellError: If they are text and no classes are named.
        """
        if classes is not None:
            return cls(name, tuple(classes))
        if cells.dtype.kind == "f":
            return cls(name)
        if cells.dtype.kind == "M":
            raise CellError(0, "it holds dates; a target holds numbers or classes")
        texts = [str(cell) for cell in cells]
        found = {text for text in texts if not is_missing(text)}
        words = {text.lower() for text in found} & {"true", "false"}
        if words and {text.lower() for text in found} <= {"true", "false", "1", "0"}:
            return cls(name, None, True)
        _, wrong = numbers_in(texts, decimal)
        if wrong is None:
            return cls(name)
        values, _ = numbers_in(sorted(found), decimal)
        if 2 <= len(found) <= _FEW and np.isnan(values).all():
            levels = sorted(found, key=lambda text: (BOOLEAN.get(text.lower(), 0.0), text))
            raise CellError(
                wrong,
                f"the target is text with {len(found)} values in the first {len(texts)} rows ({', '.join(levels)}): "
                f"for classification, give --classes {','.join(levels)} and any later labels (numbered from 0 in this "
                f"order)",
            )
        raise CellError(wrong, f"the target {texts[wrong]!r} is not a number; fix it, or choose another target")

    def encode(self, cells: Cells, decimal: str) -> NDArray[np.float64]:
        """Targets (B,); NaN where missing.

        Raises:
            CellError: If a cell is neither number nor class, or infinite.
        """
        if self.classes is not None:
            values = np.full(len(cells), np.nan)
            codes = {name: float(place) for place, name in enumerate(self.classes)}
            plain = {name.lower(): code for name, code in codes.items()}
            if len(plain) == len(codes):  # True and TRUE are the same class
                codes = {**codes, **{text: plain[text.lower()] for text in texts_of(cells) if text.lower() in plain}}
            for place, text in enumerate(texts_of(cells)):
                if is_missing(text) and text not in codes:
                    continue
                if text not in codes:
                    raise CellError(place, f"the target {text!r} is none of the classes {', '.join(self.classes)}")
                values[place] = codes[text]
            return values
        if cells.dtype.kind == "f":
            values = cells.astype(np.float64)
        elif cells.dtype.kind == "M":
            raise CellError(0, "the target is a date, not a number")
        else:
            texts = [str(cell) for cell in cells]
            if self.has_words:
                texts = [{"true": "1", "false": "0"}.get(text.lower(), text) for text in texts]
            values, wrong = numbers_in(texts, decimal)
            if wrong is not None:
                raise CellError(
                    wrong,
                    f"the target {texts[wrong]!r} is not a number; fix it, leave it empty, or name it with --missing",
                )
        if np.isinf(values).any():
            raise CellError(int(np.isinf(values).argmax()), "the target is infinite; leave the cell empty")
        return values
