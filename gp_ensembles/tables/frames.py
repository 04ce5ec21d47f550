"""Tables of typed values: frames of pandas, polars and others, Parquet files, and lists of dictionaries."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gp_ensembles.extras import needs_cli
from gp_ensembles.tables.raw import Cells, RawRows, RawSource, unique_names
from gp_ensembles.tables.text import table_name

_BATCH = 2048
_MARKS_OF_FRAMES = ("columns", "column_names", "__narwhals_dataframe__")  # one of them is an attribute of any frame


def array_source(columns: Mapping[str, Cells], name: str) -> RawSource:
    """Columns in memory, each (N,)."""
    num_rows = len(next(iter(columns.values())))

    def rows(chosen: Sequence[str]) -> Iterator[RawRows]:
        for start in range(0, num_rows, _BATCH):
            yield RawRows({column: columns[column][start : start + _BATCH] for column in chosen}, None)

    return RawSource(name, name, tuple(columns), rows, num_rows)


def frame_source(frame: Any) -> RawSource:
    """A frame of pandas, polars, pyarrow or any other that narwhals supports; a TypeError where it is none."""
    nw = _narwhals()
    names = "column_names" if nw.dependencies.is_pyarrow_table(frame) else "columns"
    given = list(getattr(frame, names)) if is_frame(frame) else []
    header, notes = unique_names([str(column) for column in given])
    if nw.dependencies.is_pandas_dataframe(frame) and given != list(header):  # a name twice, or numbers
        frame = frame.set_axis(list(header), axis=1)
    whole = nw.from_native(frame, eager_only=True)
    schema = zip(header, whole.schema.values(), strict=True)
    kinds = {column: "category" for column, kind in schema if isinstance(kind, nw.Categorical | nw.Enum)}

    def rows(columns: Sequence[str]) -> Iterator[RawRows]:
        names = dict(zip(header, whole.columns, strict=True))
        for start in range(0, whole.shape[0], _BATCH):
            part = whole[start : start + _BATCH]
            yield RawRows({column: _cells(part[names[column]]) for column in columns}, None)

    return RawSource("table", "table", header, rows, whole.shape[0], notes, kinds)


def parquet_source(path: str) -> RawSource:
    """A Parquet file, read in batches."""
    try:
        from pyarrow import ArrowInvalid, Table, parquet
        from pyarrow.types import is_dictionary
    except ImportError:
        raise ImportError(f"reading {path} needs pyarrow; install gp_ensembles[parquet]") from None
    nw = _narwhals()
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {str(error).splitlines()[0]}") from None
    schema = file.schema_arrow
    header, notes = unique_names(schema.names)
    kinds = {column: "category" for column, kind in zip(header, schema.types, strict=True) if is_dictionary(kind)}

    def rows(columns: Sequence[str]) -> Iterator[RawRows]:
        names = dict(zip(header, schema.names, strict=True))
        read = [names[column] for column in columns]
        # Group by group: asked for all at once, pyarrow keeps what it has read to the end.
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(_BATCH, row_groups=[group], columns=read):
                frame = nw.from_native(Table.from_batches([batch]), eager_only=True)
                yield RawRows({column: _cells(frame[names[column]]) for column in columns}, None)

    return RawSource(table_name(path), path, header, rows, file.metadata.num_rows, notes, kinds)


def cells_of_records(records: Sequence[Mapping[str, Any]], header: Sequence[str]) -> dict[str, Cells]:
    """Columns of dictionaries of text, numbers and Booleans, such as lines of JSON; an absent key is missing."""
    return {name: _of_values([row.get(name) for row in records]) for name in header}


def is_frame(value: Any) -> bool:
    """Whether a value is a frame of pandas, polars, pyarrow or any other that narwhals supports."""
    if all(getattr(value, mark, None) is None for mark in _MARKS_OF_FRAMES):
        return False
    return bool(_narwhals().dependencies.is_into_dataframe(value))


def has_numbers_only(frame: Any) -> bool:
    """Whether all columns of a frame are numbers."""
    return all(kind.is_numeric() for kind in _narwhals().from_native(frame, eager_only=True).schema.values())


def with_index(frame: Any) -> Any:
    """A frame of pandas with an index of dates as its first column; any other unchanged."""
    is_pandas = is_frame(frame) and _narwhals().dependencies.is_pandas_dataframe(frame)
    if is_pandas and type(frame.index).__name__ in ("DatetimeIndex", "PeriodIndex"):
        name = str(frame.index.name or "time")
        if name not in frame.columns:
            return frame.reset_index(names=name)
    return frame


def is_parquet(path: str) -> bool:
    """Whether a file starts as a Parquet file does."""
    file = Path(path)
    if not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(4) == b"PAR1"


def _narwhals() -> Any:
    with needs_cli("a frame or Parquet file"):
        import narwhals.stable.v1 as nw

    return nw


def _cells(series: Any) -> Cells:
    """A column of a frame as numbers, dates or text."""
    nw, kind = _narwhals(), series.dtype
    if kind.is_numeric():
        numbers: NDArray[np.float64] = series.cast(nw.Float64).to_numpy().astype(np.float64)
        return numbers
    if isinstance(kind, nw.Duration):
        spans: NDArray[np.timedelta64] = series.to_numpy().astype("timedelta64[ns]")
        seconds: NDArray[np.float64] = np.where(np.isnat(spans), np.nan, spans.astype(np.int64) / 1e9)
        return seconds
    if isinstance(kind, nw.Datetime) and kind.time_zone is not None:
        # Text with offsets: local time and UTC are both read from it.
        return _of_values(
            [None if value is None or value != value else value.isoformat() for value in series.to_list()]
        )
    if isinstance(kind, nw.Datetime | nw.Date):
        dates: NDArray[np.datetime64] = series.to_numpy().astype("datetime64[us]")
        return dates
    return _of_values(series.to_list())


def _of_values(values: list[Any]) -> Cells:
    """Values of any types: numbers if all are, else text."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)
    cells = np.empty(len(values), dtype=object)
    cells[:] = [_text(value) for value in values]
    return cells


def _text(value: Any) -> str:
    if value is None or type(value).__name__ in ("NAType", "NaTType") or value != value:  # NaN and the like
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if type(value).__name__ == "Period":  # of pandas
        value = value.start_time
    return str(value).strip()
