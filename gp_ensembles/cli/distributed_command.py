"""``distributed``: a table through an ensemble whose experts lie over the processes that torchrun started.

    torchrun --nproc-per-node 4 -m gp_ensembles distributed table.csv --target load --config wide --out out/wide

Every process reads the table; the first one writes the results, which have the same bytes on any number of processes.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from jsonargparse import ArgumentParser, Namespace

from gp_ensembles.cli.batches import in_batches, num_to_come
from gp_ensembles.cli.config import config_from
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.run_ids import as_cells, drop_other_partials, new_id, partial_table, pass_over
from gp_ensembles.cli.running import progress_bar
from gp_ensembles.cli.scored_stream import CHUNK_ROWS, take_warm_up
from gp_ensembles.cli.series.scores import Score
from gp_ensembles.cli.stream_commands import add_table_options, request
from gp_ensembles.distributed.model import HEAD, DistributedModel
from gp_ensembles.distributed.ranks import begin_group
from gp_ensembles.files.growing import GrowingTable
from gp_ensembles.files.replacing import write_json, write_text
from gp_ensembles.files.together import staged
from gp_ensembles.streaming import StreamConfig
from gp_ensembles.streaming.predictions import OnlinePredictions
from gp_ensembles.tables import Rows, RowStream

MODEL, PREDICTIONS, SUMMARY = "model", "predictions.csv", "summary.json"


def add_options(name: str, command: ArgumentParser) -> None:
    """Give a parser the options of the command."""
    add_table_options(command)
    command.add_argument("--checkpoint_seconds", type=float, default=30.0, help="between checkpoints")
    waited = "seconds that a process waits for the others before it gives up"
    command.add_argument("--timeout", type=float, default=300.0, help=waited)
    command.add_argument("--resume", type=bool, default=False, help="go on with the run that was cut short in --out")


def run_command(name: str, values: Namespace) -> int:
    """Run the command; returns its exit code."""
    _check_options(values)
    with _group(values.device, values.timeout) as device:
        config = replace(config_from(values), device=device)
        table = request(values)
        if values.resume:
            _check_begun(values.out)
            run, stopped = _Run.load(values.out), DistributedModel.notes_in(values.out / MODEL)
            rows = table.reopen_plain(stopped["columns"])
            pass_over(rows, run.num_read, stopped.get("last", []))
        else:
            rows = table.open(values.warmup, config.ensemble.forecast_columns)
            run = _Run.start(replace(config, warmup=rows.num_warm_up), rows, progress=values.progress)
        told = run.read(rows, values.out, values.checkpoint_seconds, progress=values.progress)
    if told is not None:
        print(told)
    return 0


def _check_options(values: Namespace) -> None:
    """Raise about options of tables that this command cannot have."""
    if values.series is not None:
        raise ValueError("distributed takes tables of one series; stream takes --series")
    if values.classes is not None:
        raise ValueError("distributed predicts numbers; stream takes --classes")
    if values.explain:
        raise ValueError("stream --explain says what is made of the columns; distributed does as it says")
    if not 0 < values.timeout < math.inf:
        raise ValueError(f"--timeout is a positive number of seconds, got {values.timeout:g}")


def _check_begun(out: Path) -> None:
    """Raise if a folder holds a run that ended before its first checkpoint."""
    if not (out / MODEL / HEAD).exists() and any(out.glob("predictions.*.csv.partial")):
        raise ValueError(
            f"the run in {out} ended before its first checkpoint, and nothing of it is left to go on from; leave "
            f"--resume out to begin anew"
        )


@contextmanager
def _group(device: str, timeout: float) -> Iterator[str]:
    """The process group that torchrun's variables describe, none where there are none; gives this process's device."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield device
        return
    is_cuda = device.startswith("cuda")
    backend = "cpu:gloo,cuda:nccl" if is_cuda else "gloo"
    begin_group(backend, timeout)
    try:
        yield f"cuda:{os.environ['LOCAL_RANK']}" if device == "cuda" else device
    finally:
        dist.destroy_process_group()


@final
class _Run:
    """A model on a table, and where it stands."""

    def __init__(
        self, model: DistributedModel, num_read: int, score: Score, size: int | None = None, run_id: str | None = None
    ) -> None:
        self.model, self.num_read, self._score, self._size = model, num_read, score, size
        self._run_id = new_id() if run_id is None else run_id
        self._last: list[str] = []
        self._ranks = model.ensemble.ranks
        block = model.ensemble.block_size
        self._chunk_rows = block * max(1, CHUNK_ROWS // block)

    @classmethod
    def start(cls, config: StreamConfig, rows: RowStream, *, progress: bool) -> "_Run":
        warm, _ = take_warm_up(config, rows)
        is_first = int(os.environ.get("RANK", "0")) == 0
        model = DistributedModel(config, warm.X, warm.y, rows.feature_names, progress=progress and is_first)
        return cls(model, warm.num_rows, Score())

    @classmethod
    def load(cls, out: Path) -> "_Run":
        notes = DistributedModel.notes_in(out / MODEL)
        run_id = notes.get("run_id", "")
        if not partial_table(out / PREDICTIONS, run_id).exists():
            raise ValueError(f"the run in {out} has come to its end; leave --resume out to begin anew")
        score = Score(int(notes["score"][0]), *notes["score"][1:])
        return cls(DistributedModel.load(out / MODEL), notes["num_read"], score, notes["size"], run_id)

    def read(self, rows: RowStream, out: Path, seconds: float, *, progress: bool) -> str | None:
        """Predict and learn all rows; what is to be said at the end, by the first process."""
        is_first = self._ranks.rank == 0
        table = self._table(out) if is_first else None
        try:
            with progress_bar("stream", num_to_come(rows), progress and is_first) as bar:
                for part, is_due in in_batches(rows, self._chunk_rows, seconds):
                    said = self.model.observe(part.X, part.y)
                    text = self._text(part, said)
                    self.num_read += part.num_rows
                    self._last = as_cells(part)[-1] if part.num_rows else self._last
                    if table is not None:
                        table.append(text)
                    bar.update(part.num_rows)
                    if self._ranks.first(is_due):
                        self._save(rows, table, out)
            self._save(rows, table, out)
        finally:
            if table is not None:
                table.close()
        return self._end(rows, out) if is_first else None

    @property
    def _coverage(self) -> float | None:
        return next(iter(self.model.config.coverages), None)

    def _table(self, out: Path) -> GrowingTable:
        make_writable(out)
        partial = partial_table(out / PREDICTIONS, self._run_id)
        if self._size is None:
            ends = [] if self._coverage is None else ["lower", "upper"]
            with staged(out) as place:
                write_text(place / partial.name, ",".join(["row", "mean", "std", *ends, "log_prob", "y"]) + "\n")
        return GrowingTable(partial, self._size)

    def _text(self, rows: Rows, said: OnlinePredictions) -> str:
        """Predictions as lines; their scores are added up."""
        columns = [said.mean, said.stddev]
        covered = torch.full_like(rows.y, torch.nan)
        if self._coverage is not None:
            lower, upper = (end.cpu() for end in said.interval(self._coverage))
            columns += [lower, upper]
            covered = ((rows.y >= lower) & (rows.y <= upper)).double()
        log_prob, error = said.log_prob.cpu(), rows.y - said.mean.cpu()
        seen = ~log_prob.isnan()
        sums = (float(value[seen].sum()) for value in (log_prob, error.square(), covered))
        self._score = self._score.plus(Score(int(seen.sum()), *sums))
        lists = [column.tolist() for column in (*columns, log_prob, rows.y)]
        return "".join(
            f"{row}," + ",".join("" if math.isnan(value) else repr(value) for value in values) + "\n"
            for row, *values in zip(range(self.num_read + 1, self.num_read + 1 + rows.num_rows), *lists, strict=True)
        )

    def _save(self, rows: RowStream, table: GrowingTable | None, out: Path) -> None:
        """Save the model with where it stands; the rows of the table are on the disk before."""
        notes: dict[str, Any] = {}
        if table is not None:
            table.sync()
            size = table.path.stat().st_size
            notes = {"num_read": self.num_read, "size": size, "score": list(self._score), "columns": rows.to_plain()}
            notes |= {"run_id": self._run_id, "last": self._last}
        self._ranks.wait()
        self.model.save(out / MODEL, notes)
        if table is not None:
            drop_other_partials(out / PREDICTIONS, self._run_id)

    def _end(self, rows: RowStream, out: Path) -> str:
        told = self._score.told(self._coverage)
        summary = {"data": rows.name, "model": self.model.config.ensemble.name, "processes": self._ranks.size, **told}
        summary |= {"experts": self.model.ensemble.ensemble.num_experts}
        with staged(out, {partial_table(out / PREDICTIONS, self._run_id).name: PREDICTIONS}) as place:
            write_json(place / SUMMARY, summary)
        scores = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
        return (
            f"{rows.name}: {summary['experts']} experts on {self._ranks.size} processes\n{scores}\n{out / PREDICTIONS}"
        )
