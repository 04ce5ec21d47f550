"""What a reader is told about a table: one frozen record; whatever is left out is found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

KINDS = ("number", "boolean", "category", "date", "drop")


@dataclass(frozen=True)
class TableOptions:
    """How a table is to be read. Everything is found on its first rows where it is not given.

    Attributes:
        delimiter: The mark between cells of a text table, one character.
        decimal: The mark before decimals, ``.`` or ``,``.
        encoding: Its character encoding, as Python names it.
        header: Whether its first row holds names; without them columns are ``column 1``, ``column 2``, ...
        features: Names of the input columns, in the order wanted; all but the target by default.
        kinds: What columns are, by name: ``number``, ``boolean``, ``category``, ``date`` or ``drop``.
        time: The column that orders the rows, a date or a number; by default the first date column that never
            decreases on the warm-up rows.
        classes: Values of a target that tells classes, in the order of their labels 0, 1, ...
        series: The column that tells which series each row belongs to: no input, and rows of several series are in no
            common order of time.
        missing: Cells that mean that there is no value, besides empty ones, NA and the like: ``-999``.
        gaps: Columns that are read besides the features, whatever ``features`` says: forecasts of others.

    Raises:
        ValueError: If a kind is unknown, or a mark is none.

    Example:
        >>> TableOptions(kinds={"hour": "category"}).kinds["hour"]
        'category'
    """

    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None
    features: tuple[str, ...] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    time: str | None = None
    classes: tuple[str, ...] | None = None
    gaps: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    series: str | None = None

    def __post_init__(self) -> None:
        for name in ("features", "classes", "gaps", "missing"):
            given: Any = getattr(self, name)
            if isinstance(given, str) or not (given is None or isinstance(given, Sequence)):
                raise TypeError(f"{name} must be a sequence of names, got {given!r}")
            object.__setattr__(self, name, given if given is None else tuple(given))
        for column, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"the kind of {column} is {kind!r}; choose one of {', '.join(KINDS)}")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"the delimiter must be one character such as ; or a tab, got {self.delimiter!r}")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"the decimal mark must be a point or a comma, got {self.decimal!r}")
        if self.decimal is not None and self.decimal == self.delimiter:
            raise ValueError(f"{self.decimal!r} cannot be both the delimiter and the decimal mark")
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes must be at least two different values, got {', '.join(self.classes)}")
