"""Memory and speed of ``gp-ensembles stream`` on long tables: the most it takes must not depend on the rows.

    python -m benchmarks.stream_memory --rows 20000,200000,2000000 --config oe_linear

Each table, of an hourly date, a category, a number with gaps and a target, is written to a temporary folder and
streamed by a process of its own with everything that a run writes, the report included.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

_START = datetime(2000, 1, 1)
# The high-water mark of the process itself: that of resource.getrusage begins with the parent's.
_PROGRAM = """
import pathlib, re, sys
from gp_ensembles.cli.__main__ import main
assert main(sys.argv[1:]) == 0
print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


def write_long_table(path: Path, num_rows: int, seed: int = 0) -> None:
    """Write a table of so many rows, one line after the other."""
    random.seed(seed)
    level = 50.0
    with path.open("w", encoding="utf-8") as file:
        file.write("when,site,flow,load\n")
        for row in range(num_rows):
            level += random.gauss(0, 0.02)
            flow, site = random.gauss(10, 3), "xyz"[row // 7 % 3]
            written = "" if row % 23 == 5 else f"{flow:.4f}"
            time_of_row = _START + timedelta(hours=row)
            load = level + 0.5 * flow + 2 * (site == "x") + random.gauss(0, 1)
            file.write(f"{time_of_row:%Y-%m-%d %H:%M},{site},{written},{load:.4f}\n")


def peak_of_stream(table: Path, out: Path, options: list[str]) -> float:
    """Megabytes that a process takes at most to stream a table, its code included."""
    arguments = ["stream", str(table), "--target", "load", "--out", str(out), "--progress", "false", *options]
    done = subprocess.run([sys.executable, "-c", _PROGRAM, *arguments], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[-1]) / 1024


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="20000,200000", help="lengths of tables, from the shortest")
    parser.add_argument("--config", default="oe_linear", help="a config's name or file")
    given = parser.parse_args()
    print("| rows | CSV, MB | most memory, MB | rows per second |\n|---|---|---|---|")
    for num_rows in map(int, given.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            table, out = Path(folder) / "long.csv", Path(folder) / "out"
            write_long_table(table, num_rows)
            began = time.perf_counter()
            peak = peak_of_stream(table, out, ["--config", given.config])
            rate = num_rows / (time.perf_counter() - began)
            print(f"| {num_rows} | {os.path.getsize(table) / 1e6:.0f} | {peak:.0f} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
