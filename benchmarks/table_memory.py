"""Memory of reading alone: long tables through ``open_rows``, from every kind of file, beside pandas reading the whole.

    python -m benchmarks.table_memory --rows 200000,2000000

The tables are those of ``stream_memory``. Each is read to its end by a process of its own, batch by batch.
"""

import argparse
import gzip
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.stream_memory import write_long_table

_BEGIN = """
import pathlib, re, sys, time
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) / 1024
"""
_OURS = """
import sklearn.feature_extraction, pandas, pyarrow.parquet
from gp_ensembles.tables import open_rows
before, start = peak(), time.perf_counter()
total = sum(batch.num_rows for batch in open_rows(sys.argv[1], "load"))
"""
_WHOLE = """
import pandas
before, start = peak(), time.perf_counter()
total = len(pandas.read_csv(sys.argv[1], parse_dates=["when"]))
"""
_END = "print(total, peak() - before, time.perf_counter() - start)\n"


def measured(program: str, path: Path, is_piped: bool = False) -> tuple[int, float, float]:
    """Rows that a program reads, megabytes that it takes at most beyond its code, and its seconds."""
    with path.open("rb") as file:
        command = [sys.executable, "-c", _BEGIN + program + _END, "-" if is_piped else str(path)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, stdin=file)
    total, megabytes, seconds = done.stdout.split()
    return int(total), float(megabytes), float(seconds)


def write_others(path: Path) -> dict[str, Path]:
    """The same table as other files."""
    import pandas as pd

    files = {"CSV": path, "gzip": path.with_suffix(".csv.gz"), "UTF-16, tabs, decimal commas": path.with_suffix(".tsv")}
    with path.open("rb") as source, gzip.open(files["gzip"], "wb", compresslevel=1) as packed:
        shutil.copyfileobj(source, packed)
    with (
        path.open(encoding="utf-8") as source,
        files["UTF-16, tabs, decimal commas"].open("w", encoding="utf-16") as to,
    ):
        to.writelines(line.replace(",", "\t").replace(".", ",") for line in source)
    files["Parquet"] = path.with_suffix(".parquet")
    pd.read_csv(path, parse_dates=["when"]).to_parquet(files["Parquet"], row_group_size=100_000)
    return files


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="20000,200000", help="lengths of tables")
    given = parser.parse_args()
    print("| source | rows | file, MB | most memory, MB | seconds beside pandas |\n|---|---|---|---|---|")
    for num_rows in map(int, given.rows.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "long.csv"
            write_long_table(path, num_rows)
            files = write_others(path)
            _, whole, seconds = measured(_WHOLE, path)
            read = {name: (file, measured(_OURS, file)) for name, file in files.items()}
            read["standard input"] = (path, measured(_OURS, path, is_piped=True))
            print(f"| pandas, all at once | {num_rows} | {path.stat().st_size / 1e6:.0f} | {whole:.0f} | 1 |")
            for name, (file, (total, megabytes, ours)) in read.items():
                assert total == num_rows
                size = file.stat().st_size / 1e6
                print(f"| {name} | {num_rows} | {size:.0f} | {megabytes:.0f} | {ours / seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
