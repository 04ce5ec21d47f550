"""A stream takes as much memory for a long table as for a short one."""

from pathlib import Path

import pytest

from benchmarks.stream_memory import peak_of_stream, write_long_table
from tests.cli.commands import summary_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broad,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the high-water mark is read from /proc"),
]


def test_memory_does_not_depend_on_the_rows(tmp_path):
    """The tables differ by 6 MB of text, which take 45 MB where a table is read into memory."""
    peaks = []
    for num_rows in (20_000, 200_000):
        write_long_table(tmp_path / "long.csv", num_rows)
        peaks.append(peak_of_stream(tmp_path / "long.csv", tmp_path / "out", ["--config", "oe_linear"]))
        summary = summary_of(tmp_path / "out")
        assert summary["rows"] == num_rows - 1000
    assert peaks[1] < peaks[0] + 12
