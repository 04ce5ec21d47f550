"""The folder of a run: rows are appended beside their goal, and everything is moved into place at the end."""

import json
import math
import os
import shutil
from pathlib import Path
from typing import TextIO

from gp_ensembles.cli.checkpoint import save_checkpoint
from gp_ensembles.cli.predictions import Chunk
from gp_ensembles.cli.scored_stream import ScoredStream
from gp_ensembles.tables.clock import Clock

CHECKPOINT = "checkpoint.pt"
PREDICTIONS = "predictions.csv"
WEIGHTS = "weights.csv"
SUMMARY = "summary.json"
PREVIOUS = "checkpoint.previous.pt"
_PARTIAL = ".partial"
_COLUMNS = ("mean", "std", "q05", "q95", "log_prob", "y")


class OutputFolder:
    """Writes the results of one run; results of an earlier run stay until this one is complete.

    While the run goes on, rows stand in ``predictions.csv.partial`` and ``weights.csv.partial``, and
    ``checkpoint.pt`` is replaced from time to time (the earlier run's is kept as ``checkpoint.previous.pt``).

    Args:
        path: The folder; it is made if need be.

    Raises:
        OSError: If it cannot be made or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        make_writable(path)
        self._files: list[TextIO] = []
        self._keeps_previous = True

    def begin(self, stream: ScoredStream) -> None:
        """Start empty tables for a stream: a column for each class, and a weight for each expert."""
        self._files = [(self.path / (name + _PARTIAL)).open("w", encoding="utf-8") for name in (PREDICTIONS, WEIGHTS)]
        classes = stream.class_names or ()
        shares = [f"p_{name}" if stream.table.encoder.target.classes else f"p{name}" for name in classes]
        first = ["row"] if stream.table.encoder.clock is None else ["row", "time"]
        for file, names in zip(
            self._files, ([*_COLUMNS, *shares, *stream.further_columns], stream.model.names), strict=True
        ):
            file.write(",".join(map(_quoted, [*first, *names])) + "\n")

    def go_on(self, num_rows: int, num_warmup: int) -> bool:
        """Go on with the tables that the run of a checkpoint left in this folder, cut after row ``num_rows``.

        Returns:
            Whether there were any.

        Raises:
            ValueError: If they do not reach that row.
        """
        partials = [self.path / (name + _PARTIAL) for name in (PREDICTIONS, WEIGHTS)]
        for name, partial in zip((PREDICTIONS, WEIGHTS), partials, strict=True):
            if not partial.exists() and (self.path / name).exists():
                shutil.copyfile(self.path / name, partial)
        if not all(partial.exists() for partial in partials):
            return False
        ends = []
        for partial in partials:
            end, last = _end_of_row(partial, num_rows)
            if end == 0 or max(last, num_warmup) != num_rows:
                raise ValueError(
                    f"{partial} ends at row {last} and the checkpoint stands at row {num_rows}; choose another --out"
                )
            ends.append(end)
        for partial, end in zip(partials, ends, strict=True):
            file = partial.open("r+", encoding="utf-8")
            file.seek(end)
            file.truncate()
            self._files.append(file)
        self._keeps_previous = False
        return True

    def append(self, chunk: Chunk, clock: Clock | None) -> None:
        """Write the predictions and weights of a chunk, and hand them to the operating system.

        Args:
            chunk: The chunk.
            clock: What rows are ordered by.
        """
        rows = range(chunk.first_row, chunk.first_row + chunk.y.shape[0])
        starts = [f"{row}," for row in rows]
        if clock is not None and chunk.time is not None:
            times = clock.format(chunk.time.tolist())
            starts = [f"{start}{_quoted(time)}," for start, time in zip(starts, times, strict=True)]
        predictions, weights = self._files
        columns = [chunk.mean, chunk.variance.sqrt(), chunk.lower, chunk.upper, chunk.log_prob, chunk.y]
        if chunk.probabilities is not None:
            columns += chunk.probabilities.unbind(-1)
        columns += chunk.further.values()
        lists = [column.tolist() for column in columns]
        predictions.writelines(
            start + ",".join("" if math.isnan(value) else repr(value) for value in values) + "\n"
            for start, *values in zip(starts, *lists, strict=True)
        )
        form = ",".join(["%.9g"] * chunk.log_weights.shape[0]) + "\n"
        weights.writelines(
            start + form % tuple(values)
            for start, values in zip(starts, chunk.log_weights.exp().T.tolist(), strict=True)
        )
        for file in self._files:
            file.flush()

    def checkpoint(self, stream: ScoredStream) -> None:
        """Replace the checkpoint; the rows it has read are in the tables already."""
        if self._keeps_previous:
            keep_previous(self.path / CHECKPOINT, self.path / PREVIOUS)
        self._keeps_previous = False
        save_checkpoint(stream, self.path / CHECKPOINT)

    def finish(self, summary: dict[str, object]) -> None:
        """Move the tables into place and write the summary."""
        self.close()
        write_json(self.path / (SUMMARY + _PARTIAL), summary)
        for name in (PREDICTIONS, WEIGHTS, SUMMARY):
            os.replace(self.path / (name + _PARTIAL), self.path / name)
        (self.path / PREVIOUS).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the tables as they are."""
        for file in self._files:
            file.close()
        self._files = []


def is_unfinished(path: Path) -> bool:
    """Whether a folder holds tables of a run that did not come to its end."""
    return all((path / (name + _PARTIAL)).exists() for name in (PREDICTIONS, WEIGHTS))


def make_writable(path: Path) -> None:
    """Make a folder if need be, and see whether it can be written.

    Raises:
        OSError: If it cannot.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OSError(f"the folder {path} cannot be written: {error.strerror}; choose another --out") from error


def make_folder(path: Path) -> None:
    """Make a folder for results.

    Raises:
        OSError: If it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"the folder {path} cannot be made: {error.strerror}; choose another --out") from error


def keep_previous(checkpoint: Path, previous: Path) -> None:
    """Copy a checkpoint of complete results before it is replaced, unless runs that failed have done so."""
    if checkpoint.exists() and not previous.exists():
        shutil.copyfile(checkpoint, previous)


def write_text(path: Path, text: str) -> None:
    """Write a text file in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_json(path: Path, content: object) -> None:
    """Write a JSON file in one step; numbers that JSON does not know become strings."""
    write_text(path, json.dumps(finite(content), indent=2, allow_nan=False) + "\n")


def finite(content: object) -> object:
    """Plain containers with numbers that JSON does not know as strings."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, list):
        return [finite(value) for value in content]
    return str(content) if isinstance(content, float) and not math.isfinite(content) else content


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"' if any(mark in name for mark in ',"\n') else name


def _end_of_row(path: Path, row: int) -> tuple[int, int]:
    """Where the line of a row ends, in bytes, and the number of the last whole row up to it (0 for none)."""
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
