"""Encoders of columns and targets: frozen records, fitted on the warm-up rows, that turn cells into numbers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.tables.dates import Dates, parse
from gp_ensembles.tables.numbers import is_missing, numbers_in
from gp_ensembles.tables.raw import CellError, Cells, as_option, texts_of

Encoded = NDArray[np.float64]
NUM_HASHES = 16
BOOLEAN = {"true": 1.0, "yes": 1.0, "on": 1.0, "t": 1.0, "y": 1.0,
           "false": 0.0, "no": 0.0, "off": 0.0, "f": 0.0, "n": 0.0}  # fmt: skip
_DAY = 86400.0
_FEW = 20


@dataclass(frozen=True)
class ColumnEncoder(ABC):
    """Encodes the cells of one column into numbers."""

    kind: ClassVar[str]
    name: str

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the K columns of numbers."""

    @abstractmethod
    def encode(self, cells: Cells, decimal: str) -> Encoded:
        """Numbers of cells (B,), shape (B, K), NaN where missing; a ``CellError`` where one is not of this type."""

    @abstractmethod
    def describe(self) -> str:
        """The encoding in a few words."""


@final
@dataclass(frozen=True)
class NumberColumn(ColumnEncoder):
    """Numbers, unchanged."""

    kind: ClassVar[str] = "number"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        return to_numbers(cells, decimal)[:, None]

    def describe(self) -> str:
        return "unchanged"


@final
@dataclass(frozen=True)
class BooleanColumn(ColumnEncoder):
    """True and false as 1 and 0."""

    kind: ClassVar[str] = "boolean"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        values = np.full((len(cells), 1), np.nan)
        for place, cell in enumerate(texts_of(cells)):
            if is_missing(cell):
                continue
            value = BOOLEAN.get(cell.lower(), {"1": 1.0, "0": 0.0}.get(cell))
            if value is None:
                raise CellError(place, f"{cell!r} is neither true nor false; fix it, or declare the column a category")
            values[place, 0] = value
        return values

    def describe(self) -> str:
        return "1 for true, 0 for false"


@final
@dataclass(frozen=True)
class CategoryColumn(ColumnEncoder):
    """A category of few levels: 1 in the column of its level, 0 in the others."""

    kind: ClassVar[str] = "category"
    levels: tuple[str, ...]  # the levels of the warm-up rows; other, later ones are 0 in all columns

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in self.levels)

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        places = {level: place for place, level in enumerate(self.levels)}
        values = np.zeros((len(cells), len(self.levels)))
        for row, text in enumerate(texts_of(cells)):
            if text in places:
                values[row, places[text]] = 1.0
            elif is_missing(text):
                values[row] = np.nan
        return values

    def describe(self) -> str:
        return f"1 for its level among {len(self.levels)}, all 0 for new levels"


@final
@dataclass(frozen=True)
class HashedColumn(ColumnEncoder):
    """A category of many levels: +1 or -1 in one of a few columns, by scikit-learn's ``FeatureHasher``."""

    kind: ClassVar[str] = "hashed"
    num_columns: int = NUM_HASHES

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}#{place + 1}" for place in range(self.num_columns))

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        texts = texts_of(cells)
        if not texts:
            return np.zeros((0, self.num_columns))
        from sklearn.feature_extraction import FeatureHasher

        hasher = FeatureHasher(self.num_columns, input_type="string")
        values: Encoded = hasher.transform([[text] for text in texts]).toarray().astype(np.float64)
        values[[is_missing(text) for text in texts]] = np.nan
        return values

    def describe(self) -> str:
        return f"hashed into {self.num_columns} columns"


@final
@dataclass(frozen=True)
class DateColumn(ColumnEncoder):
    r"""Dates as calendar features: elapsed time, and for each period :math:`\sin` and :math:`\cos` of the phase."""

    kind: ClassVar[str] = "date"
    style: str  # the format of its text
    origin: float  # seconds since 1970 of the first row
    # Those of ``day``, ``week`` and ``year`` that are encoded, in local time; ``week`` adds an indicator of weekends
    periods: tuple[str, ...]
    has_elapsed: bool = True  # whether the days since the first row are a column
    # Least and greatest offset from UTC in the first rows, in seconds; empty without offsets
    zone: tuple[float, ...] = ()
    timezone: str | None = None  # the zone of its times, if they have no offset

    def __post_init__(self) -> None:
        object.__setattr__(self, "periods", tuple(self.periods))
        object.__setattr__(self, "zone", tuple(self.zone))

    @property
    def names(self) -> tuple[str, ...]:
        waves = tuple(f"{self.name}: {wave} of {period}" for period in self.periods for wave in ("sine", "cosine"))
        weekend = (f"{self.name}: weekend",) * ("week" in self.periods)
        return (f"{self.name}: days",) * self.has_elapsed + waves + weekend

    def parse(self, cells: Cells) -> Dates:
        """Its cells as dates."""
        return parse(cells, self.style, self.zone, self.timezone)

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        dates = self.parse(cells)
        parts = [(dates.seconds - self.origin) / _DAY] if self.has_elapsed else []
        for period in self.periods:
            phase = 2 * math.pi * _phase(dates.wall, period)
            parts += [np.sin(phase), np.cos(phase)]
        if "week" in self.periods:
            parts.append(np.where(np.isnan(dates.wall), np.nan, _phase(dates.wall, "week") >= 5 / 7))
        return np.stack(parts, axis=-1) if parts else np.zeros((len(cells), 0))

    def describe(self) -> str:
        waves = f"sine and cosine of {', '.join(self.periods)}" if self.periods else ""
        weekend = "weekend" * ("week" in self.periods)
        return ", ".join(part for part in ("days since the first row" * self.has_elapsed, waves, weekend) if part)


@final
@dataclass(frozen=True)
class DroppedColumn(ColumnEncoder):
    """A column that is left out."""

    kind: ClassVar[str] = "drop"

    @property
    def names(self) -> tuple[str, ...]:
        return ()

    def encode(self, cells: Cells, decimal: str) -> Encoded:
        return np.zeros((len(cells), 0))

    def describe(self) -> str:
        return "left out"


def to_numbers(cells: Cells, decimal: str, *, may_be_wrong: bool = False) -> NDArray[np.float64]:
    """Cells of numbers, shape (B,); NaN for other text where that may be."""
    if cells.dtype.kind == "f":
        values: NDArray[np.float64] = cells.astype(np.float64)
    elif cells.dtype.kind == "M":
        raise CellError(0, "it is a date, not a number")
    else:
        values, wrong = numbers_in(texts_of(cells), decimal)
        if wrong is not None and not may_be_wrong:
            raise CellError(wrong, f"{str(cells[wrong])!r} is not a number; fix it, or name it with --missing")
    return values


def _phase(wall: NDArray[np.float64], period: str) -> NDArray[np.float64]:
    """Share of a period that has passed; weeks begin on Monday, years on the first of January."""
    if period == "day":
        return (wall % _DAY) / _DAY
    if period == "week":
        return ((wall - 4 * _DAY) % (7 * _DAY)) / (7 * _DAY)  # 1970 began on a Thursday
    years = np.where(np.isnan(wall), 0.0, wall).astype("datetime64[s]").astype("datetime64[Y]")
    start = years.astype("datetime64[s]").astype(np.int64)
    end = (years + np.timedelta64(1, "Y")).astype("datetime64[s]").astype(np.int64)
    return (wall - start) / (end - start)


@dataclass(frozen=True)
class TargetColumn:
    """Encodes the cells of a target as numbers."""

    name: str  # its column
    classes: tuple[str, ...] | None = None  # names of the classes 0, 1, ...; ``None`` for numbers
    has_words: bool = False  # whether the first rows hold true and false, read as 1 and 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", None if self.classes is None else tuple(self.classes))

    @classmethod
    def fit(cls, name: str, cells: Cells, decimal: str, classes: Sequence[str] | None) -> "TargetColumn":
        """From the cells (N,) of the warm-up rows."""
        if classes is not None:
            return cls(name, tuple(classes))
        if cells.dtype.kind == "f":
            return cls(name)
        if cells.dtype.kind == "M":
            raise CellError(0, "it contains dates; a target must be numbers or classes")
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
                f"for classification, give --classes {as_option(*levels)} and any later labels (numbered from 0 in "
                f"this order)",
            )
        raise CellError(wrong, f"the target {texts[wrong]!r} is not a number; fix it, or choose another target")

    def encode(self, cells: Cells, decimal: str) -> NDArray[np.float64]:
        """Targets (B,); NaN where missing."""
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
                    raise CellError(place, f"the target {text!r} is not one of the classes {', '.join(self.classes)}")
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
