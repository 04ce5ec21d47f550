"""Files of a run: rows are appended to partial tables, and all results replace earlier ones together at the end."""

import math
from collections.abc import Callable
from pathlib import Path

from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.predictions import Chunk
from gp_ensembles.cli.scored_stream import ScoredStream, save_checkpoint
from gp_ensembles.cli.text_tables import csv_line, quoted
from gp_ensembles.files.replacing import PARTIAL, GrowingTable, copy_file, staged, write_json, write_text
from gp_ensembles.tables.clock import Clock

CHECKPOINT = "checkpoint.pt"
PREDICTIONS = "predictions.csv"
WEIGHTS = "weights.csv"
SUMMARY = "summary.json"
PREVIOUS = "checkpoint.previous.pt"
_COLUMNS = ("mean", "std", "q05", "q95", "log_prob", "y")


def checkpoint_of(given: Path) -> Path:
    """The checkpoint of a run, given by itself or its folder."""
    path = given / CHECKPOINT if given.is_dir() else given
    if not path.exists():
        raise ValueError(f"{path} does not exist; stream writes it to --out when the warm-up is complete")
    return path


class OutputFolder:
    """Writes the results of one run; earlier results stay until all new ones replace them together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        make_writable(path)
        self._tables: list[GrowingTable] = []
        self._last_row = -1  # up to which the tables are complete

    def start(self, stream: ScoredStream) -> None:
        """Start empty tables for a stream (a column for each class, a weight for each expert) with its checkpoint."""
        classes = stream.class_names or ()
        shares = [f"p_{name}" if stream.encoder.target.classes else f"p{name}" for name in classes]
        first = ["row"] if stream.encoder.clock is None else ["row", "time"]
        columns = [*_COLUMNS, *shares, *stream.extra_columns], stream.model.names
        with staged(self.path) as place:
            for name, names in zip((PREDICTIONS, WEIGHTS), columns, strict=True):
                write_text(place / (name + PARTIAL), csv_line([*first, *names]))
            checkpoint = self.path / CHECKPOINT
            if checkpoint.exists() and not (self.path / PREVIOUS).exists():  # else a failed run has kept it
                copy_file(checkpoint, place / PREVIOUS)  # of complete results
            save_checkpoint(stream, place / CHECKPOINT)
        self._tables, self._last_row = [GrowingTable(partial) for partial in self._partials], stream.num_read

    def go_on(self, stream: ScoredStream) -> bool:
        """Continue the tables of a checkpoint's run in this folder, cut after the last row learned."""
        for name, partial in zip((PREDICTIONS, WEIGHTS), self._partials, strict=True):
            if not partial.exists() and (self.path / name).exists():
                copy_file(self.path / name, partial)
        if not is_unfinished(self.path):
            return False
        num_rows, first_row = stream.progress.num_rows, stream.model.config.warmup + 1
        if stream.history is not None and stream.history.first_row is not None:
            first_row = stream.history.first_row
        wanted = max(num_rows, first_row - 1)
        ends = []
        for partial in self._partials:
            end, last = _end_of_row(partial, num_rows)
            if end == 0 or max(last, first_row - 1) != wanted:
                raise ValueError(
                    f"{partial} ends at row {last} and the checkpoint is at row {num_rows}; choose another --out"
                )
            ends.append(end)
        self._tables = [GrowingTable(partial, end) for partial, end in zip(self._partials, ends, strict=True)]
        self._last_row = wanted
        return True

    @property
    def _partials(self) -> list[Path]:
        return [self.path / (name + PARTIAL) for name in (PREDICTIONS, WEIGHTS)]

    def append(self, chunk: Chunk, clock: Clock | None) -> None:
        """Append the predictions and weights of a chunk to the tables."""
        rows = range(chunk.first_row, chunk.first_row + chunk.y.shape[0])
        starts = [f"{row}," for row in rows]
        if clock is not None and chunk.time is not None:
            times = clock.format(chunk.time.tolist())
            starts = [f"{start}{quoted(time)}," for start, time in zip(starts, times, strict=True)]
        found = chunk.rows
        columns = [found.mean, found.variance.sqrt(), found.lower, found.upper, found.log_prob, chunk.y]
        columns += [*found.probabilities.unbind(-1), *chunk.interval_ends.values()]
        lists = [column.tolist() for column in columns]
        form = ",".join(["%.9g"] * chunk.log_weights.shape[0]) + "\n"
        texts = (
            "".join(
                start + ",".join("" if math.isnan(value) else repr(value) for value in values) + "\n"
                for start, *values in zip(starts, *lists, strict=True)
            ),
            "".join(
                start + form % tuple(values)
                for start, values in zip(starts, chunk.log_weights.exp().T.tolist(), strict=True)
            ),
        )
        last_row, self._last_row = max(self._last_row, rows.stop - 1), -1
        for table, text in zip(self._tables, texts, strict=True):
            table.append(text)
        self._last_row = last_row

    def checkpoint(self, stream: ScoredStream) -> None:
        """Replace the checkpoint, provided that the tables on disk hold all rows it has read."""
        if stream.num_read > self._last_row:
            return
        for table in self._tables:
            table.sync()
        save_checkpoint(stream, self.path / CHECKPOINT)

    def finish(self, summary: dict[str, object], drawn: str, draw: Callable[[Path], object]) -> None:
        """Replace earlier results by the tables, the summary and what is drawn, a file of this name."""
        for table in self._tables:
            table.sync()
        self.close()
        tables = {name + PARTIAL: name for name in (PREDICTIONS, WEIGHTS)}
        with staged(self.path, tables, removed=(PREVIOUS, drawn)) as place:
            write_json(place / SUMMARY, summary)
            draw(place)

    def close(self) -> None:
        """Close the tables as they are."""
        for table in self._tables:
            table.close()
        self._tables = []


def is_unfinished(path: Path) -> bool:
    """Whether a folder holds tables of an unfinished run."""
    return all((path / (name + PARTIAL)).exists() for name in (PREDICTIONS, WEIGHTS))


def _end_of_row(path: Path, row: int) -> tuple[int, int]:
    """Byte at which the line of a row ends, and the number of the last complete row up to it (0 for none)."""
    end, last = 0, 0
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                break
            if number:
                here = int(line.split(b",", 1)[0])
                if here > row:
                    break
                last = here
            end += len(line)
    return end, last
