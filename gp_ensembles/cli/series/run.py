"""Run of a fleet on a table of many series: its files, and what a killed run resumes from.

Rows are appended to a partial table whose name carries the id of the run. The folder ``fleet`` holds the series up to
some row, the id, and the size of the table then, which is on disk before. A resumed run cuts the table there and skips
the rows that were read. The summary next to the complete table carries the id too, so that the rows of another run are
never taken for this one's. At the end the table, ``series.csv`` and ``summary.json`` replace earlier ones together.
"""

import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from gp_ensembles.cli.commands import Output
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.running import progress_bar
from gp_ensembles.cli.seen_rows import NUM_FIRST, as_cells
from gp_ensembles.cli.summary import device_name
from gp_ensembles.cli.text_tables import as_csv, csv_line
from gp_ensembles.files.growing import GrowingTable
from gp_ensembles.files.operations import remove_if_possible
from gp_ensembles.files.replacing import PARTIAL, copy_file, write_json, write_text
from gp_ensembles.files.transaction import staged
from gp_ensembles.fleet import Fleet
from gp_ensembles.tables import RowStream
from gp_ensembles.tables.rows import Rows

FLEET, PREDICTIONS, SERIES, SUMMARY = "fleet", "predictions.csv", "series.csv", "summary.json"
BATCH_ROWS = 10_000  # rows learned together


class SeriesScore(NamedTuple):
    """Sums over the rows of a series that were predicted and have a target.

    Attributes:
        rows: Their number.
        log_prob: Sum of their log densities.
        squares: Sum of their squared errors.
        covered: Number of targets inside their intervals.
    """

    rows: int = 0
    log_prob: float = 0.0
    squares: float = 0.0
    covered: float = 0.0

    @classmethod
    def total(cls, scores: Iterable["SeriesScore"]) -> Self:
        """The sums of several."""
        return cls(*map(sum, zip(*scores, strict=True)))

    def means(self, coverage: float | None) -> dict[str, float | int | None]:
        """Means by name; ``None`` without a row."""
        num = self.rows or math.nan
        means = {"log_score": self.log_prob / num, "rmse": math.sqrt(self.squares / num)}
        if coverage is not None:
            means[f"coverage_{100 * coverage:g}"] = self.covered / num
        return {"rows": self.rows, **{name: value if self.rows else None for name, value in means.items()}}


class SeriesScores:
    """Scores by series."""

    def __init__(self, known: Mapping[str, Sequence[float]] | None = None) -> None:
        self.of_each = {name: SeriesScore(int(sums[0]), *sums[1:]) for name, sums in (known or {}).items()}

    def add(self, names: Iterable[str], log_prob: Tensor, error: Tensor, covered: Tensor) -> None:
        """Rows (N,) of series: log densities, errors, whether targets are covered; NaN without a prediction."""
        for name, density, away, inside in zip(names, log_prob.tolist(), error.tolist(), covered.tolist(), strict=True):
            new = SeriesScore() if math.isnan(density) else SeriesScore(1, density, away * away, inside)
            self.of_each[name] = SeriesScore.total([self.of_each.get(name, SeriesScore()), new])

    @property
    def whole(self) -> SeriesScore:
        """All series together."""
        return SeriesScore.total(self.of_each.values())

    def to_plain(self) -> dict[str, list[float]]:
        """Sums by name, from which to construct a copy."""
        return {name: list(score) for name, score in self.of_each.items()}


class Reading(NamedTuple):
    """Position in the table that a run reads or has read last.

    Attributes:
        before: Rows of earlier tables.
        first: Its first rows, as cells.
        last: The last row read of it, as cells.
    """

    before: int = 0
    first: list[list[str]] = []  # noqa: RUF012  # never changed
    last: list[str] = []  # noqa: RUF012


class SeriesRun:
    """A fleet on a table, with its scores and its position after ``num_read`` rows."""

    run_id: str
    num_read: int
    reading: Reading

    def __init__(
        self,
        fleet: Fleet,
        scores: SeriesScores | None = None,
        num_read: int = 0,
        run_id: str | None = None,
        reading: Reading | None = None,
    ) -> None:
        self.fleet: Fleet = fleet
        self.scores: SeriesScores = SeriesScores() if scores is None else scores
        self.num_read = num_read
        self.run_id = new_id() if run_id is None else run_id
        self.reading = Reading() if reading is None else reading

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> "SeriesRun":
        """The run saved in a folder.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If a file is damaged, or the device does not exist.
        """
        notes = Fleet.notes_in(folder / FLEET)
        fleet = Fleet.load(folder / FLEET, device=notes["device"] if device is None else device)
        scores, reading = SeriesScores(notes["scores"]), Reading(**notes["reading"])
        return cls(fleet, scores, notes["num_read"], notes["run_id"], reading)

    def is_unfinished(self, folder: Path) -> bool:
        """Whether the run in a folder was interrupted, so that it resumes with the table it was reading.

        Raises:
            ValueError: If the rows that the run wrote are gone.
        """
        if partial_table(folder / PREDICTIONS, self.run_id).exists():
            return True
        if is_of_run(folder / SUMMARY, self.run_id):
            return False
        raise ValueError(
            f"{folder} holds series that have learned {self.num_read} rows, but {PREDICTIONS} and {SUMMARY} there "
            f"are of another run; run stream again"
        )

    def reopen_table(self, folder: Path, *, in_place: bool, with_new_table: bool) -> int | None:
        """Prepare the partial table of a folder for appending; returns its size in bytes at the last save, if known."""
        size: int = Fleet.notes_in(folder / FLEET)["size"]
        if with_new_table:
            self.run_id = new_id()
            if in_place:
                drop_other_partials(folder / PREDICTIONS, self.run_id)
                copy_file(folder / PREDICTIONS, partial_table(folder / PREDICTIONS, self.run_id))
        return size if in_place else None

    def run(self, rows: RowStream, output: Output, *, size: int | None = None) -> dict[str, object]:
        """Predict and learn all rows, and write all results.

        Raises:
            ValueError: If a row is malformed; the run can be resumed from its last save.
        """
        make_writable(output.out)
        partial = partial_table(output.out / PREDICTIONS, self.run_id)
        if size is None:
            with staged(output.out) as place:
                write_text(place / partial.name, self._header())
        table = GrowingTable(partial, size)
        try:
            saved = time.monotonic()
            left = None if rows.num_rows is None else rows.num_rows - rows.num_given
            with progress_bar("stream", left, output.progress) as bar:
                while (part := rows.take(BATCH_ROWS)).num_rows:
                    table.append(self._learn(part))
                    self.num_read += part.num_rows
                    self._note(part)
                    bar.update(part.num_rows)
                    if part.num_rows == BATCH_ROWS and time.monotonic() - saved >= output.checkpoint_seconds:
                        self._save(rows, table, output.out)
                        saved = time.monotonic()
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
        coverages = self.fleet.config.coverages
        return coverages[0] if coverages else None

    def _header(self) -> str:
        ends = [] if self._coverage is None else ["lower", "upper"]
        return csv_line(["row", "series", "mean", "std", *ends, "log_prob", "y"])

    def _learn(self, rows: Rows) -> str:
        """Predict and learn rows; returns the predictions as text."""
        assert rows.series is not None
        predicted = self.fleet.observe(rows.series, rows.X, rows.y)
        mean, variance = predicted.moments()
        covered = predicted.covered[0] if len(predicted.covered) else torch.full_like(mean, torch.nan)
        self.scores.add(rows.series, predicted.log_prob, rows.y.to(mean) - mean, covered)
        columns = [mean, variance.sqrt()]
        if self._coverage is not None:
            columns += predicted.interval(self._coverage)
        columns += [predicted.log_prob, rows.y]
        numbers = range(self.num_read + 1, self.num_read + 1 + rows.num_rows)
        lists = [column.tolist() for column in columns]
        return "".join(map(csv_line, zip(numbers, rows.series, *lists, strict=True)))

    def _save(self, rows: RowStream, table: GrowingTable, out: Path) -> None:
        """Save the fleet with its position; the rows of the table are on disk before."""
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
        fleet, whole = self.fleet, self.scores.whole.means(self._coverage)
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
        """A line for each series: its state, rows and scores."""
        failures, waiting = self.fleet.failures, self.fleet.waiting
        rows = []
        for name in (*self.fleet.names, *waiting):
            score = self.scores.of_each.get(str(name), SeriesScore())
            state = "set aside" if name in failures else "warm-up" if name in waiting else "learning"
            rows.append([str(name), state, *score.means(self._coverage).values()])
        return as_csv(["series", "state", *SeriesScore().means(self._coverage)], rows)


def new_id() -> str:
    """A unique id of a run."""
    return uuid.uuid4().hex[:12]


def partial_table(table: Path, run_id: str) -> Path:
    """Path of the rows of an unfinished run."""
    return table.with_name(f"{table.stem}.{run_id}{table.suffix}{PARTIAL}")


def drop_other_partials(table: Path, run_id: str) -> None:
    """Remove the partial tables of all runs but one."""
    mine = partial_table(table, run_id)
    for path in table.parent.glob(f"{table.stem}.*{table.suffix}{PARTIAL}"):
        if path != mine:
            remove_if_possible(path)


def is_of_run(summary: Path, run_id: str) -> bool:
    """Whether a summary belongs to a run."""
    with suppress(OSError, ValueError, AttributeError):
        return bool(json.loads(summary.read_text(encoding="utf-8")).get("run_id") == run_id)
    return False
