"""Tables of many series, ``stream --series COLUMN`` and ``resume``: files of a run, and how a killed run resumes.

Rows are appended to a partial table whose name carries the id of the run. The folder ``fleet`` holds the series up to
some row, the id, and the size of the table then, which is on disk before. A resumed run cuts the table there and skips
the rows that were read. The summary next to the complete table carries the id too, so that the rows of another run are
never taken for this one's. At the end the table, ``series.csv`` and ``summary.json`` replace earlier ones together.
"""

import json
import math
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch

from gp_ensembles.cli.out_folder import Output, make_writable
from gp_ensembles.cli.running import progress_bar
from gp_ensembles.cli.seen_rows import NUM_FIRST, as_cells, skip_rows, starts_with
from gp_ensembles.cli.summary import device_name
from gp_ensembles.cli.tables import TABLES, TableRequest
from gp_ensembles.cli.text_tables import as_csv, csv_line
from gp_ensembles.cli.writing import CHECKPOINT, PREDICTIONS, SUMMARY
from gp_ensembles.files.checkpoint import fitting
from gp_ensembles.files.operations import remove_if_possible
from gp_ensembles.files.replacing import PARTIAL, GrowingTable, complete, copy_file, staged, write_json, write_text
from gp_ensembles.files.structure import from_plain, to_plain
from gp_ensembles.fleet import Fleet
from gp_ensembles.fleet.calls import SMALL, RefusedRowError
from gp_ensembles.fleet.checkpoint import HEAD
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.tables import RowStream
from gp_ensembles.tables.rows import Rows

FLEET, SERIES = "fleet", "series.csv"
BATCH_ROWS = 10_000  # rows learned together
_REMEDY = "run stream again"
_WARM_UP = 200  # rows of each series


def stream_series(
    table: TableRequest, config: StreamConfig | None, settings: StreamConfig, warmup: int | None, output: Output
) -> str:
    """Stream a table of many series; returns the text to print."""
    fleet = Fleet(
        SMALL if config is None else config.ensemble,
        warmup=_WARM_UP if warmup is None else warmup,
        coverages=settings.coverages,
        recalibrate=settings.recalibrate,
        impute=settings.impute,
        clip=settings.clip,
        on_bad_row=settings.on_bad_row,
        seed=settings.seed,
        dtype=settings.torch_dtype,
        device=settings.device,
    )
    return series_report(SeriesRun(fleet).run(table.open(), output), output.out)


def is_of_series(checkpoint: Path) -> bool:
    """Whether a folder, or the folder of a file, holds a fleet."""
    return (_folder(checkpoint) / FLEET / HEAD).exists()


def check_started(checkpoint: Path) -> None:
    """Raise if a folder holds a run over many series none of which has completed its warm-up."""
    folder = _folder(checkpoint)
    left = (folder / SERIES).exists() or any(folder.glob("predictions.*.csv.partial"))
    if left and not (folder / CHECKPOINT).exists():
        raise ValueError(
            f"no series of the run in {folder} has completed its warm-up, so there is nothing to continue; run stream "
            f"again"
        )


def resume_series(
    table: TableRequest, checkpoint: Path, output: Output, device: str | None = None, skip_seen: bool | None = None
) -> str:
    """Continue the series of a folder: a killed run with the same table, a complete one with another."""
    folder = _folder(checkpoint)
    complete(folder)
    stopped = SeriesRun.load(folder, device)
    with fitting(folder / FLEET, _REMEDY):
        columns = from_plain(Fleet.notes_in(folder / FLEET)["columns"], _RUNS)
    rows = table.reopen(columns)
    in_place = output.out.resolve() == folder.resolve()
    is_unfinished = stopped.is_unfinished(folder)
    if is_unfinished or skip_seen:
        skip_rows(rows, stopped.num_read - stopped.num_before, stopped.last)
    elif skip_seen is None and stopped.first and starts_with(rows, stopped.first):
        raise ValueError(
            f"{rows.name} starts with the rows that the run has read; give --skip-seen to skip them, or "
            f"--skip-seen=false to learn them again"
        )
    else:
        stopped.num_before, stopped.first, stopped.last = stopped.num_read, [], []
    if not is_unfinished and rows.is_at_end:
        raise ValueError(f"{rows.name} has no rows beyond those that the run has read; there is nothing to add")
    size = Fleet.notes_in(folder / FLEET)["size"] if in_place else None  # of the table at the last save
    if not is_unfinished:
        stopped.run_id = uuid.uuid4().hex[:12]
        if in_place:
            drop_other_partials(folder / PREDICTIONS, stopped.run_id)
            copy_file(folder / PREDICTIONS, partial_table(folder / PREDICTIONS, stopped.run_id))
    return series_report(stopped.run(rows, output, size=size), output.out)


def series_report(summary: dict[str, object], out: Path) -> str:
    """Text printed after a run."""
    shown = ("log_score", "coverage")
    scores = ", ".join(
        f"{name} {value:.4g}"
        for name, value in summary.items()
        if name.startswith(shown) and isinstance(value, int | float)
    )
    predicted = f"{summary['rows']} of {summary['rows_read']} rows predicted"
    parts = [f"{summary['series']} series of {summary['data']}: {predicted}"]
    if summary["waiting"]:
        parts.append(f"{summary['waiting']} series are still in their warm-up")
    aside = summary["set_aside"]
    if isinstance(aside, dict) and aside:
        parts.append(f"{len(aside)} series were set aside because no expert was left: {', '.join(list(aside)[:5])}")
    if isinstance(bad := summary["bad_rows"], dict) and bad:
        parts.append(
            f"{sum(bad.values())} rows of {len(bad)} series had an infinite or implausibly large number: "
            f"{', '.join(list(bad)[:5])}"
        )
    return "\n".join([*parts, scores, *(str(out / name) for name in (PREDICTIONS, SERIES, FLEET))])


def _folder(checkpoint: Path) -> Path:
    return checkpoint if checkpoint.is_dir() else checkpoint.parent


class SeriesScore(NamedTuple):
    """Sums over the rows of a series that were predicted and have a target."""

    rows: int = 0  # their number
    log_prob: float = 0.0  # sum of their log densities
    squares: float = 0.0  # sum of their squared errors
    covered: float = 0.0  # number of targets inside their intervals

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


_RUNS = TABLES.with_kinds(SeriesScore)


class SeriesRun:
    """A fleet on a table, with its scores and its position after ``num_read`` rows."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet: Fleet = fleet
        self.scores: dict[str, SeriesScore] = {}
        self.num_read, self.run_id = 0, uuid.uuid4().hex[:12]
        self.num_before = 0  # rows of earlier tables; of this one the first rows and the last, as cells:
        self.first: list[list[str]] = []
        self.last: list[str] = []

    @classmethod
    def load(cls, folder: Path, device: str | None = None) -> "SeriesRun":
        """The run saved in a folder."""
        notes = Fleet.notes_in(folder / FLEET)
        with fitting(folder / FLEET, _REMEDY):
            run = cls(Fleet.load(folder / FLEET, device=notes["device"] if device is None else device))
            vars(run).update(from_plain(notes["run"], _RUNS))
        return run

    def is_unfinished(self, folder: Path) -> bool:
        """Whether the run in a folder was interrupted, so that it resumes with the table it was reading."""
        if partial_table(folder / PREDICTIONS, self.run_id).exists():
            return True
        if is_of_run(folder / SUMMARY, self.run_id):
            return False
        raise ValueError(
            f"{folder} holds series that have learned {self.num_read} rows, but {PREDICTIONS} and {SUMMARY} there "
            f"are from another run; run stream again"
        )

    def run(self, rows: RowStream, output: Output, *, size: int | None = None) -> dict[str, object]:
        """Predict and learn all rows, and write all results."""
        make_writable(output.out)
        partial = partial_table(output.out / PREDICTIONS, self.run_id)
        if size is None:
            with staged(output.out) as place:
                ends = [] if self._coverage is None else ["lower", "upper"]
                write_text(place / partial.name, csv_line(["row", "series", "mean", "std", *ends, "log_prob", "y"]))
        table = GrowingTable(partial, size)
        try:
            saved = time.monotonic()
            left = None if rows.num_rows is None else rows.num_rows - rows.num_given
            with progress_bar("stream", left, output.progress) as bar:
                while (part := rows.take(BATCH_ROWS)).num_rows:
                    table.append(self._learn(part, rows))
                    self.num_read += part.num_rows
                    self.first = self.first or as_cells(part.part(slice(0, NUM_FIRST)))
                    self.last = as_cells(part.part(slice(part.num_rows - 1, None)))[0]
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

    @property
    def _coverage(self) -> float | None:
        coverages = self.fleet.config.coverages
        return coverages[0] if coverages else None

    def _learn(self, rows: Rows, source: RowStream) -> str:
        """Predict and learn rows of a table; returns the predictions as text."""
        assert rows.series is not None
        try:
            predicted = self.fleet.observe(rows.series, rows.X, rows.y)
        except RefusedRowError as error:
            wrong, names = error.wrong, source.feature_names
            place = source.where(rows, wrong.row, source.target_name if wrong.column is None else names[wrong.column])
            raise ValueError(f"{place}: series {error.series!r}: {wrong.message(rows.first_row, names)}") from error
        mean, variance = predicted.moments()
        covered = predicted.covered[0] if len(predicted.covered) else torch.full_like(mean, torch.nan)
        scored = (values.tolist() for values in (predicted.log_prob, rows.y.to(mean) - mean, covered))
        for name, density, away, inside in zip(rows.series, *scored, strict=True):
            new = SeriesScore() if math.isnan(density) else SeriesScore(1, density, away * away, inside)
            self.scores[name] = SeriesScore.total([self.scores.get(name, SeriesScore()), new])
        columns = [mean, variance.sqrt()]
        if self._coverage is not None:
            columns += predicted.interval(self._coverage)
        numbers = range(self.num_read + 1, self.num_read + 1 + rows.num_rows)
        lists = [column.tolist() for column in (*columns, predicted.log_prob, rows.y)]
        return "".join(map(csv_line, zip(numbers, rows.series, *lists, strict=True)))

    def _save(self, rows: RowStream, table: GrowingTable, out: Path) -> None:
        """Save the fleet with its position; the rows of the table are on disk before."""
        if not self.fleet.names:
            return
        table.sync()
        notes: dict[str, Any] = {
            "run": to_plain({name: value for name, value in vars(self).items() if name != "fleet"}, _RUNS),
            "size": table.path.stat().st_size,
            "columns": to_plain(rows.encoder, _RUNS),
            "device": str(self.fleet.device),
        }
        self.fleet.save(out / FLEET, notes=notes)
        drop_other_partials(out / PREDICTIONS, self.run_id)

    def _summary(self, rows: RowStream) -> dict[str, object]:
        fleet, whole = self.fleet, SeriesScore.total(self.scores.values()).means(self._coverage)
        del whole["rmse"]  # each series has its own unit
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
            "bad_rows": {str(name): number for name, number in fleet.bad_rows.items()},
            **whole,
        }

    def _series_table(self) -> str:
        """A line for each series: its state, rows and scores."""
        failures, waiting = self.fleet.failures, self.fleet.waiting
        rows = []
        for name in (*self.fleet.names, *waiting):
            score = self.scores.get(str(name), SeriesScore())
            state = "set aside" if name in failures else "warm-up" if name in waiting else "learning"
            rows.append([str(name), state, *score.means(self._coverage).values()])
        return as_csv(["series", "state", *SeriesScore().means(self._coverage)], rows)


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
