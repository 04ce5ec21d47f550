"""Any table written in any dialect reads back equal."""

import csv
import gzip
import io
import math
from datetime import datetime, timedelta

import numpy as np
import pandas as pd
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gp_ensembles.tables import TableOptions, open_rows
from gp_ensembles.tables.stream import reopen_rows

LEVELS = ["north", "süd", "o'hara", 'say "hi"', "a;b,c|d", "to\tbe", "#1", "1,5 or 2.5"]
NUMBERS = st.one_of(st.none(), st.integers(-(10**8), 10**8).map(lambda cents: cents / 100))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),  # hours since the row before
        NUMBERS,
        st.sampled_from([True, False, None]),
        st.sampled_from([*LEVELS, None]),
        NUMBERS,
    ),
    min_size=20,
    max_size=60,
)
DIALECTS = st.fixed_dictionaries(
    {
        "delimiter": st.sampled_from([",", ";", "\t", "|"]),
        "decimal": st.sampled_from([".", ","]),
        "encoding": st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "latin-1"]),
        "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        "end": st.sampled_from(["\n", "\r\n"]),
        "missing": st.sampled_from(["", "NA", "null", "?"]),
        "style": st.sampled_from(["%Y-%m-%d %H:%M", "%d.%m.%Y %H:%M", "%Y-%m-%dT%H:%M:%SZ", "%d-%b-%Y %I:%M %p"]),
        "words": st.sampled_from([("true", "false"), ("Yes", "No"), ("ON", "OFF")]),
        "is_packed": st.booleans(),
    }
)
NAMES = ("time", "flow", "on", "site", "load")


def at_hours(hours):
    """Times whose days and months cannot be taken for one another: the first is the 28th."""
    return [datetime(2024, 2, 28) + timedelta(hours=int(hour)) for hour in np.cumsum(hours)]


def written(rows, dialect):
    """The bytes of a table in a dialect."""

    def cell(value):
        if value is None:
            return dialect["missing"]
        if isinstance(value, bool):
            return dialect["words"][not value]
        return f"{value:.2f}".replace(".", dialect["decimal"]) if isinstance(value, float) else value

    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=dialect["delimiter"], quoting=dialect["quoting"], lineterminator=dialect["end"])
    writer.writerow(NAMES)
    for time, row in zip(at_hours([row[0] for row in rows]), rows, strict=True):
        writer.writerow([time.strftime(dialect["style"]), *map(cell, row[1:])])
    content = file.getvalue().encode(dialect["encoding"])
    return gzip.compress(content) if dialect["is_packed"] else content


def number(value):
    return math.nan if value is None else float(value)


@settings(max_examples=30)
@given(rows=ROWS, dialect=DIALECTS)
def test_a_table_of_any_dialect_reads_back_equal(tmp_path_factory, rows, dialect):
    path = tmp_path_factory.mktemp("round") / "table.csv"
    path.write_bytes(written(rows, dialect))
    options = TableOptions(
        kinds={"site": "category", "on": "boolean"}, time="time" if any(row[0] for row in rows[1:]) else None
    )
    stream = open_rows(path, "load", options, num_warm_up=len(rows))
    found = stream.take(len(rows) + 1)
    columns = dict(zip(stream.feature_names, found.X.T, strict=True))

    def same(column, values):
        torch.testing.assert_close(column, torch.tensor(values, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)

    same(found.y, [number(row[4]) for row in rows])
    same(columns["flow"], [number(row[1]) for row in rows])
    same(columns["on"], [number(row[2]) for row in rows])
    levels = sorted({row[3] for row in rows} - {None})
    for level in levels:
        same(columns[f"site={level}"], [number(None if row[3] is None else row[3] == level) for row in rows])
    assert [name for name in columns if name.startswith("site")] == [f"site={level}" for level in levels]
    if found.time is not None:
        times = at_hours([row[0] for row in rows])
        same(found.time, [(time - datetime(1970, 1, 1)).total_seconds() for time in times])
        moves = np.diff([time.timestamp() for time in times])
        same(found.steps, [1.0, *(moves / np.median(moves[moves > 0]))])


@settings(max_examples=30)
@given(rows=ROWS, cut=st.integers(10, 19), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5))
def test_batches_resumption_and_the_future_change_no_bit(rows, cut, sizes):
    times = at_hours([1 + row[0] for row in rows])
    frame = pd.DataFrame([(time, *row[1:]) for time, row in zip(times, rows, strict=True)], columns=list(NAMES)).astype(
        {"flow": float, "load": float}
    )
    options = TableOptions(kinds={"site": "category", "on": "boolean"})
    whole = open_rows(frame, "load", options, num_warm_up=10).take(len(rows))
    stream = open_rows(frame[:cut], "load", options, num_warm_up=10)
    parts = []
    while (part := stream.take(sizes[len(parts) % len(sizes)])).num_rows:
        parts.append(part)
    resumed = reopen_rows(frame[cut:], stream.encoder).take(len(rows))
    for name in ("X", "y", "time", "steps"):
        ours = torch.cat([getattr(part, name) for part in [*parts, resumed]])
        torch.testing.assert_close(ours, getattr(whole, name), rtol=0, atol=0, equal_nan=True)
