"""Options for reading a table; what is not given is detected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

OnBadTime = Literal["skip", "refuse"]
KINDS = ("number", "boolean", "category", "date", "drop")


@dataclass(frozen=True)
class TableOptions:
    """Options for reading a table; everything not given is detected on its first rows.

    Attributes:
        delimiter: The field separator of a text table, one character.
        decimal: The decimal mark, ``.`` or ``,``.
        encoding: Its character encoding, as Python names it.
        header: Whether its first row holds names; without them columns are ``column 1``, ``column 2``, ...
        features: Names of the input columns, in the desired order; all but the target by default.
        kinds: Column types by name: ``number``, ``boolean``, ``category``, ``date`` or ``drop``.
        time: The column that orders the rows, a date or a number; by default the first date column that never
            decreases on the warm-up rows.
        classes: Class labels of the target, in the order of their numbers 0, 1, ...
        series: The column with the series of each row; it is not an input, and rows of different series have no common
            order of time.
        missing: Values treated as missing besides empty cells, NA and the like, such as ``-999``.
        gaps: Columns that are read besides ``features``: forecasts of others.
        timezone: The zone of times without a UTC offset, such as ``Europe/Paris``. The two
            occurrences of the hour repeated in the fall are then resolved by the order of the rows.
        on_bad_time: Policy for a row whose time is missing, unreadable, before that of the row before, or far
            ahead of the next rows: ``skip`` learns nothing from it and counts it, ``refuse`` is an error.

    Raises:
        ValueError: If a type or zone is unknown, or a delimiter or decimal mark is invalid.

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
    timezone: str | None = None
    on_bad_time: OnBadTime = "skip"

    def __post_init__(self) -> None:
        for name in ("features", "classes", "gaps", "missing"):
            given: Any = getattr(self, name)
            if isinstance(given, str) or not (given is None or isinstance(given, Sequence)):
                raise TypeError(f"{name} must be a sequence of names, got {given!r}")
            object.__setattr__(self, name, given if given is None else tuple(given))
        for column, kind in self.kinds.items():
            if kind not in KINDS:
                raise ValueError(f"the type of {column} is {kind!r}; choose one of {', '.join(KINDS)}")
        if self.timezone is not None:
            try:
                ZoneInfo(self.timezone)
            except (ValueError, OSError, ZoneInfoNotFoundError):
                raise ValueError(
                    f"{self.timezone!r} is not a known time zone; use a name such as Europe/Paris or America/New_York"
                ) from None
        if self.on_bad_time not in get_args(OnBadTime):
            raise ValueError(f"on_bad_time must be 'skip' or 'refuse', got {self.on_bad_time!r}")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise ValueError(f"the delimiter must be one character such as ; or a tab, got {self.delimiter!r}")
        if self.decimal not in (None, ".", ","):
            raise ValueError(f"the decimal mark must be a point or a comma, got {self.decimal!r}")
        if self.decimal is not None and self.decimal == self.delimiter:
            raise ValueError(f"{self.decimal!r} cannot be both the delimiter and the decimal mark")
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes must be at least two different values, got {', '.join(self.classes)}")
