"""A model for each of many series, over several devices: one process for each device, with its own share of the series.

    torchrun --nproc-per-node 2 examples/series_on_devices.py meters.csv --series meter --target load --out out/meters

What all series share is fitted to the first rows of the table, in every process alike. From there on processes have
no need to communicate: each goes through the table, learns the rows of its own series on ``cuda:LOCAL_RANK``, or
on the processor where there is no GPU, and keeps its checkpoint and its predictions in its own folder,
``OUT/RANK-of-SIZE``. The predictions of a row are the same on any number of processes, up to round-off. The same
command goes on with a run that was cut short.
"""

import argparse
import csv
import io
import math
import os
import time
import zlib
from pathlib import Path

import torch
from tqdm import tqdm

from gp_ensembles import Fleet
from gp_ensembles.cli.config import load_config
from gp_ensembles.files.operations import make_folder
from gp_ensembles.files.replacing import GrowingTable, write_text
from gp_ensembles.fleet.checkpoint import HEAD
from gp_ensembles.tables import RowStream, TableOptions, open_rows
from gp_ensembles.tables.rows import Rows

COLUMNS = ("row", "series", "mean", "std", "lower", "upper", "log_prob", "y")


def main() -> None:
    """Learn the share of one process."""
    given = arguments()
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    place = given.out / f"{rank}-of-{size}"
    table = open_rows(given.data, given.target, TableOptions(series=given.series), num_warm_up=given.first)
    if (place / "fleet" / HEAD).exists():  # written last, so a first save that was killed does not count
        fleet, predictions = resumed(place, device, table)
    else:
        fleet, predictions = prepared(place, device, table, given)
    saved = time.monotonic()
    with tqdm(total=table.num_rows, initial=table.num_given, desc=f"{rank} on {device}", position=rank) as bar:
        while not table.is_at_end:
            rows = table.take(given.batch)
            predictions.append(learned(fleet, rows, rank, size))
            bar.update(rows.num_rows)
            if time.monotonic() - saved >= given.seconds:
                save(place, fleet, predictions, table)
                saved = time.monotonic()
    save(place, fleet, predictions, table)
    predictions.close()


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a table, CSV or Parquet")
    parser.add_argument("--series", required=True, help="the column with the name of the series")
    parser.add_argument("--target", required=True, help="the column to predict")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--config", type=Path, help="YAML file of the ensemble, configs/wide.yaml for a large one")
    parser.add_argument("--first", type=int, default=20_000, help="rows that what series share is fitted to")
    parser.add_argument("--warmup", type=int, default=200, help="rows of a series from which its scales come")
    parser.add_argument("--batch", type=int, default=10_000, help="rows of the table between two looks at the clock")
    parser.add_argument("--seconds", type=float, default=30.0, help="between two checkpoints")
    return parser.parse_args()


def prepared(place: Path, device: str, table: RowStream, given: argparse.Namespace) -> tuple[Fleet, GrowingTable]:
    """A fleet that knows what series share, and a table of predictions without rows."""
    own = {} if given.config is None else {"spec": load_config(given.config).ensemble}
    first, fleet = table.peek(table.num_warm_up), Fleet(**own, warmup=given.warmup, device=device)
    fleet.fit_shared(first.series or (), first.X, first.y)
    make_folder(place)
    write_text(place / "predictions.csv", ",".join(COLUMNS) + "\n")
    return fleet, GrowingTable(place / "predictions.csv")


def resumed(place: Path, device: str, table: RowStream) -> tuple[Fleet, GrowingTable]:
    """The fleet of the last checkpoint, and its table of predictions; rows that it has learned are skipped."""
    notes = Fleet.notes_in(place / "fleet")
    table.skip(notes["num_rows"])
    return Fleet.load(place / "fleet", device=device), GrowingTable(place / "predictions.csv", notes["size"])


def save(place: Path, fleet: Fleet, predictions: GrowingTable, table: RowStream) -> None:
    """Save the fleet, with how far both tables had come; predictions are on the disk before."""
    predictions.sync()
    size = predictions.path.stat().st_size
    fleet.save(place / "fleet", notes={"num_rows": table.num_given, "size": size})


def learned(fleet: Fleet, rows: Rows, rank: int, size: int) -> str:
    """Predict and learn those of some rows that are of this process's series; their predictions, as text."""
    names = rows.series or ()
    own = [row for row, name in enumerate(names) if zlib.crc32(name.encode()) % size == rank]
    if not own:
        return ""
    predicted = fleet.observe([names[row] for row in own], rows.X[own], rows.y[own])
    mean, variance = predicted.moments()
    columns = (mean, variance.sqrt(), *predicted.interval(), predicted.log_prob, rows.y[own])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row, *values in zip(own, *(column.tolist() for column in columns), strict=True):
        cells = ["" if math.isnan(value) else value for value in values]  # rows of a warm-up have no prediction
        writer.writerow([rows.first_row + row, names[row], *cells])
    return text.getvalue()


if __name__ == "__main__":
    main()
