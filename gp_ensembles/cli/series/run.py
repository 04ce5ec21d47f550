"""A table of many series through a fleet: what is written, and what a run that was killed goes on from.

A partial table that carries the id of the run is appended to, and the folder ``fleet`` holds the series up to some row
with the id and the size that the table had then, which is on the disk before. A run that goes on cuts the table there
and passes over the rows that were read. At the end the table, ``series.csv`` and ``summary.json`` replace earlier ones
together.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gp_ensembles.cli.batches import in_batches, num_to_come
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.run_ids import NUM_FIRST, as_cells, drop_other_partials, is_of_run, new_id, partial_table
from gp_ensembles.cli.running import progress_bar
from gp_ensembles.cli.series.scores import Score, Scores
from gp_ensembles.cli.summary import device_name
from gp_ensembles.cli.text_tables import not_a_formula
from gp_ensembles.files.growing import GrowingTable
from gp_ensembles.files.replacing import copy_file, write_json, write_text
from gp_ensembles.files.transaction import staged
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.predictions import FleetPredictions
from gp_ensembles.tables import Rows, RowStream

FLEET, PREDICTIONS, SERIES, SUMMARY = "fleet", "predictions.csv", "series.csv", "summary.json"
BATCH_ROWS = 10_000  # that are learned together


class SeriesOutput(NamedTuple):
    """What a run leaves behind.

    Attributes:
        out: Folder of the results.
        progress: Show a progress bar.
        checkpoint_seconds: Seconds between two saves of the fleet while rows are read.
    """

    out: Path
    progress: bool = True
    checkpoint_seconds: float = 30.0


class Reading(NamedTuple):
    """The table that a run reads, or has read last.

    Attributes:
        before: Rows of earlier tables.
        first: Its first rows, as cells.
        last: The last of its rows that was read, as cells.
    """

    before: int = 0
    first: list[list[str]] = []  # noqa: RUF012  # never changed
    last: list[str] = []  # noqa: RUF012


class SeriesRun:
    """A fleet on a table, and where it stands.

    Args:
        fleet: The fleet.
        scores: Scores so far.
        num_read: Rows read so far.
        run_id: Id of the run, see :mod:`gp_ensembles.cli.run_ids`; a new one by default.
        reading: The table that it reads.
    """

    run_id: str
    num_read: int
    reading: Reading

    def __init__(
        self,
        fleet: Fleet,
        scores: Scores | None = None,
        num_read: int = 0,
        run_id: str | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.fleet: Fleet = fleet
        self.scores: Scores = Scores() if scores is None else scores
        self.num_read = num_read
        self.run_id = new_id() if run_id is None else run_id
        self.reading = Reading() if reading is None else reading

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> "SeriesRun":
        """Where a run stands that wrote into a folder.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If a file is damaged, or the device is not there.
        """
        notes = Fleet.notes_in(folder / FLEET)
        fleet = Fleet.load(folder / FLEET, device=notes["device"] if device is None else device)
        return cls(fleet, Scores(notes["scores"]), notes["num_read"], notes["run_id"], Reading(**notes["reading"]))

    def is_unfinished(self, folder: Path) -> bool:
        """Whether the run in a folder was cut short, so that it goes on with the table that it was reading.

        Raises:
            ValueError: If the rows that the run wrote are gone: others stand in their place.
        """
        if partial_table(folder / PREDICTIONS, self.run_id).exists():
            return True
        if is_of_run(folder / SUMMARY, self.run_id):
            return False
        raise ValueError(
            f"{folder} holds series that have learned {self.num_read} rows, but neither {PREDICTIONS} nor {SUMMARY} "
            f"there is of the run that taught them; run stream again"
        )

    def go_on(self, folder: Path, *, in_place: bool, with_new_table: bool) -> int | None:
        """Make the table of a folder one to be appended to, and tell how many bytes of it the run knows."""
        size: int = Fleet.notes_in(folder / FLEET)["size"]
        if with_new_table:
            self.run_id = new_id()
            if in_place:
                drop_other_partials(folder / PREDICTIONS, self.run_id)
                copy_file(folder / PREDICTIONS, partial_table(folder / PREDICTIONS, self.run_id))
        return size if in_place else None

    def run(self, rows: RowStream, output: SeriesOutput, *, size: int | None = None) -> dict[str, object]:
        """Predict and learn all rows, and write everything down.

        Raises:
            ValueError: If a row is malformed; the run can go on from where it was saved last.
            OSError: If something cannot be written.
        """
        make_writable(output.out)
        partial = partial_table(output.out / PREDICTIONS, self.run_id)
        if size is None:
            with staged(output.out) as place:
                write_text(place / partial.name, self._header())
        table = GrowingTable(partial, size)
        try:
            with progress_bar("stream", num_to_come(rows), output.progress) as bar:
                for part, is_due in in_batches(rows, BATCH_ROWS, output.checkpoint_seconds):
                    table.append(self._learn(part))
                    self.num_read += part.num_rows
                    self._note(part)
                    bar.update(part.num_rows)
                    if is_due:
                        self._save(rows, table, output.out)
            self._save(rows, table, output.out)
        finally:
            table.close()
        summary = self._summary(rows)
        with staged(output.out, {partial.name: PREDICTIONS}) as place:
            write_json(place / SUMMARY, summary)
            write_text(place / SERIES, self._series_table())
        return summary

    def _note(self, rows: Rows) -> None:
        if rows.num_rows:
            first = self.reading.first or as_cells(rows.part(slice(0, NUM_FIRST)))
            last = as_cells(rows.part(slice(rows.num_rows - 1, None)))[0]
            self.reading = self.reading._replace(first=first, last=last)

    @property
    def _coverage(self) -> float | None:
        coverages = self.fleet.intervals.coverages
        return coverages[0] if coverages else None

    def _header(self) -> str:
        ends = [] if self._coverage is None else ["lower", "upper"]
        return ",".join(["row", "series", "mean", "std", *ends, "log_prob", "y"]) + "\n"

    def _learn(self, rows: Rows) -> str:
        """Predict and learn rows; what was said of them, as text."""
        assert rows.series is not None
        predicted = self.fleet.observe(rows.series, rows.X, rows.y)
        covered = predicted.covered[0] if len(predicted.covered) else torch.full_like(predicted.mean, torch.nan)
        self.scores.add(rows.series, predicted.log_prob, rows.y.to(predicted.mean) - predicted.mean, covered)
        return _lines(rows, predicted, self._coverage, self.num_read + 1)

    def _save(self, rows: RowStream, table: GrowingTable, out: Path) -> None:
        """Save the fleet with where it stands; the rows of the table are on the disk before."""
        if not self.fleet.names:
            return
        table.sync()
        notes: dict[str, Any] = {
            "run_id": self.run_id,
            "reading": self.reading._asdict(),
            "num_read": self.num_read,
            "size": table.path.stat().st_size,
            "scores": self.scores.to_plain(),
            "columns": rows.to_plain(),
            "device": str(self.fleet.device),
        }
        self.fleet.save(out / FLEET, notes=notes)
        drop_other_partials(out / PREDICTIONS, self.run_id)

    def _summary(self, rows: RowStream) -> dict[str, object]:
        fleet, whole = self.fleet, self.scores.whole.told(self._coverage)
        del whole["rmse"]  # series have units of their own
        return {
            "run_id": self.run_id,
            "data": rows.name,
            "model": fleet.spec.name,
            "device": device_name(fleet.device),
            "dtype": str(fleet.dtype).removeprefix("torch."),
            "series": len(fleet.names),
            "waiting": len(fleet.waiting),
            "set_aside": {str(name): number for name, number in fleet.failures.items()},
            "rows_read": self.num_read,
            **whole,
        }

    def _series_table(self) -> str:
        """A line for each series: whether it learns, its rows and scores."""
        failures, waiting = self.fleet.failures, self.fleet.waiting
        lines = [",".join(["series", "state", *Score().told(self._coverage)])]
        for name in (*self.fleet.names, *waiting):
            score = self.scores.of_each.get(str(name), Score())
            state = "set aside" if name in failures else "warm-up" if name in waiting else "learning"
            values = ["" if value is None else repr(value) for value in score.told(self._coverage).values()]
            lines.append(",".join([quoted(str(name)), state, *values]))
        return "\n".join(lines) + "\n"


def quoted(name: str) -> str:
    """A name as a cell of a table."""
    text = not_a_formula(name)
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\n\r') else text


def _lines(rows: Rows, predicted: FleetPredictions, coverage: float | None, first_row: int) -> str:
    assert rows.series is not None
    columns = [predicted.mean, predicted.variance.sqrt()]
    if coverage is not None:
        columns += predicted.interval(coverage)
    lists = [column.tolist() for column in (*columns, predicted.log_prob, rows.y)]
    return "".join(
        f"{row},{quoted(name)}," + ",".join("" if math.isnan(value) else repr(value) for value in values) + "\n"
        for row, name, *values in zip(range(first_row, first_row + rows.num_rows), rows.series, *lists, strict=True)
    )
