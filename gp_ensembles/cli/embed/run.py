"""A run of ``embed``: the model, the embeddings so far, the checkpoint and the folder of results."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import Prepared, build_model, expert_names
from gp_ensembles.cli.out_folder import make_writable
from gp_ensembles.cli.text_tables import csv_lines
from gp_ensembles.cli.writing import (
    CHECKPOINT,
    PREVIOUS,
    SUMMARY,
    WEIGHTS,
    keep_previous,
)
from gp_ensembles.ensembles.interrupts import uninterrupted
from gp_ensembles.files.checkpoint import Kind, fingerprint, read_checkpoint, unchanged, write_checkpoint
from gp_ensembles.files.growing import GrowingTable
from gp_ensembles.files.replacing import PARTIAL, write_json, write_text
from gp_ensembles.files.together import staged
from gp_ensembles.gplvm import IEGPLVM, Embeddings
from gp_ensembles.gplvm.records import ROW_AXES
from gp_ensembles.numerics.cholesky import NumericalError

EMBEDDINGS = "embeddings.csv"
IMPUTED = "imputed.csv"
PICTURE = "embedding.png"
_ROWS = 4096  # mapped back at once
_KIND = Kind("gp_ensembles embed", 3, "embed", "choose the --out of a run of embed", (unchanged,), ("options",))


class Progress(NamedTuple):
    """How far a run has come.

    Attributes:
        num_done: Rows with a value that are embedded, the warm-up included.
        start_seconds: Time of the start from the warm-up rows.
        stream_seconds: Time of all rows after them.
    """

    num_done: int
    start_seconds: float
    stream_seconds: float


@final
class EmbedRun:
    """Rows embedded in the order of time.

    Args:
        prepared: The rows.
        model: A started model.
        found: Memory for all n rows with a value, on the host; the first ``progress.num_done`` are filled.
        progress: How far it is filled.
    """

    progress: Progress

    def __init__(self, prepared: Prepared, model: IEGPLVM, found: Embeddings, progress: Progress) -> None:
        self.prepared = prepared
        self.model = model
        self.found = found
        self.progress = progress
        order = (prepared.present.cumsum(0) - 1).tolist()
        has_value = prepared.present.tolist()
        self._numbers: list[int] = prepared.present.nonzero().flatten().tolist()
        #: Where each row of the table stands among those with a value; ``None`` for one without.
        self.places: list[Any | None] = [place if has else None for place, has in zip(order, has_value, strict=True)]

    @classmethod
    def start(cls, prepared: Prepared) -> "EmbedRun":
        """Embed the warm-up rows together.

        Raises:
            ValueError: If there are more latent dimensions than columns, or the rows vary in too few directions.
            NumericalError: If an expert's posterior is not positive definite.
        """
        options, num_rows = prepared.options, len(prepared.Y)
        model = build_model(options, prepared.Y.shape[1], num_rows)
        began = time.perf_counter()
        first = model.start(prepared.Y[: prepared.warmup].to(options.torch_device))
        progress = Progress(0, time.perf_counter() - began, 0.0)
        run = cls(prepared, model, empty_embeddings(prepared, model), progress)
        run._keep(first)
        return run

    @property
    def num_read(self) -> int:
        """Rows of the table up to the last one embedded."""
        done = self.progress.num_done
        return len(self.places) if self.is_complete else self._numbers[done - 1] + 1

    @property
    def is_complete(self) -> bool:
        """Whether all rows are embedded."""
        return self.progress.num_done >= len(self.prepared.Y)

    def advance(self) -> int:
        """Embed the next block and learn it; an interruption waits until that is done.

        Returns:
            Number of rows embedded.

        Raises:
            ValueError: If the model refuses a row; it is as it was before the block.
            NumericalError: If a density or posterior breaks down; likewise.
        """
        options = self.prepared.options
        first = self.progress.num_done
        block = self.prepared.Y[first : first + options.block_size].to(options.torch_device)
        with uninterrupted():
            began = time.perf_counter()
            try:
                found = self.model.update(block, options.block_size)
            except (ValueError, NumericalError) as error:
                numbers = self._numbers[first : first + len(block)]
                kind = NumericalError if isinstance(error, NumericalError) else ValueError
                rows = self.prepared.rows
                where = rows.where(numbers[0]) + (f" to {numbers[-1] + 1}" if len(numbers) > 1 else "")
                raise kind(f"{where}: {error}") from error
            self._keep(found)
            seconds = time.perf_counter() - began  # the copy to the host has waited for the device
            self.progress = self.progress._replace(stream_seconds=self.progress.stream_seconds + seconds)
        return len(block)

    def _keep(self, found: Embeddings) -> None:
        first = self.progress.num_done
        num_rows = len(found.embedding)
        for kept, new, axis in zip(self.found, found, ROW_AXES, strict=True):
            kept.narrow(axis, first, num_rows).copy_(new)
        self.progress = self.progress._replace(num_done=first + num_rows)

    def one_space(self) -> Tensor:
        """All rows in the latent space of the model's best expert so far, shape (n, d)."""
        return self.found.by_expert[self.model.best_expert]


def empty_embeddings(prepared: Prepared, model: IEGPLVM) -> Embeddings:
    """Memory for the embeddings of n rows."""
    Y, num_rows, num_experts = prepared.Y, len(prepared.Y), model.num_experts
    by_expert = Y.new_full((num_experts, num_rows, model.num_latent), torch.nan)
    log_weights = Y.new_full((num_experts, num_rows), torch.nan)
    expert = torch.full((num_rows,), -1, dtype=torch.int64, device=Y.device)
    converged = torch.zeros((num_experts, num_rows), dtype=torch.bool, device=Y.device)
    return Embeddings(by_expert[0].clone(), expert, by_expert, log_weights[0].clone(), log_weights, converged)


def save_run(run: EmbedRun, path: Path) -> None:
    """Write a run in one step; a reader finds the old file or the new one, never half of one.

    The file loads with ``torch.load(path, weights_only=True)``; its ``model`` is the ``state_dict`` of the model that
    ``options`` describe, its ``offset`` what was taken from the columns and ``scale`` what they were divided by.

    Raises:
        OSError: If it cannot be written.
    """
    prepared = run.prepared
    content = {
        "options": asdict(prepared.options),
        "names": list(prepared.rows.names),
        "fingerprint": fingerprint(prepared.rows.Y),
        "offset": prepared.offset,
        "scale": prepared.scale,
        "model": dict(run.model.state_dict()),
        "found": dict(run.found._asdict()),
        "progress": list(run.progress),
    }
    write_checkpoint(path, _KIND, content)


def load_run(path: Path, prepared: Prepared) -> EmbedRun:
    """Read a run that goes on where it was saved.

    Args:
        path: The file.
        prepared: The rows and options with which to go on.

    Raises:
        OSError: If the file is not there or cannot be read.
        ValueError: If it is not a checkpoint of ``embed``, is damaged, or was made from other rows or with other
            options.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path} to go on from; leave --resume out to start")
    content = read_checkpoint(path, _KIND)
    try:
        _check_same(content, prepared, path)
        model = build_model(prepared.options, prepared.Y.shape[1], len(prepared.Y))
        model.load_state_dict(content["model"])
        found = Embeddings(**content["found"])
        return EmbedRun(prepared, model, found, Progress(*content["progress"]))
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not fit this version of the library ({reason}); start anew without --resume"
        ) from error


def _check_same(content: dict[str, Any], prepared: Prepared, path: Path) -> None:
    before, now = content["options"], asdict(prepared.options)
    for name, value in now.items():
        if before[name] != value:
            raise ValueError(
                f"{path} was made with {name} = {before[name]}, not {value}; give the same options, or start anew "
                f"without --resume"
            )
    same = content["names"] == list(prepared.rows.names) and content["fingerprint"] == fingerprint(prepared.rows.Y)
    if not same:
        raise ValueError(
            f"{path} was made from other rows than {prepared.rows.name} holds; give the same file and columns, or "
            f"start anew without --resume"
        )


def map_back(run: EmbedRun, X: Tensor, expert: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of rows at latent inputs by the model as it is now, in its units, on the host."""
    device = run.model.omega.device
    parts = []
    for first in range(0, len(X), _ROWS):
        part = slice(first, first + _ROWS)
        found = run.model.inverse_transform(X[part].to(device), expert[part].to(device))
        parts.append((found.mean.cpu(), found.variance.cpu()))
    return torch.cat([mean for mean, _ in parts]), torch.cat([variance for _, variance in parts])


def embedding_header(run: EmbedRun) -> str:
    """Columns of ``embeddings.csv``."""
    axes = [f"x{axis + 1}" for axis in range(run.model.num_latent)]
    labels = run.prepared.rows.labels
    # The label's own name could be that of another column.
    return csv_lines(
        [["row", *axes, *(f"reported_{x}" for x in axes), "expert", "log_prob"] + ["label"] * bool(labels)]
    )


def weights_header() -> str:
    """Columns of ``weights.csv``."""
    return csv_lines([["row", *expert_names()]])


def embedding_lines(run: EmbedRun, rows: Sequence[int], one_space: Tensor | None) -> str:
    """Lines of ``embeddings.csv``.

    Args:
        run: The run.
        rows: Rows of the table, counted from zero; those with a value must have been embedded.
        one_space: Places of all rows with a value in one latent space; ``None`` while the space is not chosen.
    """
    found, labels, part = run.found, run.prepared.rows.labels, list(rows)
    known = [place for row in part if (place := run.places[row]) is not None]
    blank = [math.nan] * run.model.num_latent
    one = [blank] * len(known) if one_space is None else one_space[known].tolist()
    # Densities of scaled rows, in units of the data.
    scales = torch.where(torch.isnan(run.prepared.Y[known]), 0.0, run.prepared.scale.log()).sum(-1)
    log_prob = (found.log_prob[known] - scales).tolist()
    lines = zip(one, found.embedding[known].tolist(), found.expert[known].tolist(), log_prob, strict=True)

    def cells(row: int) -> list[object]:
        if run.places[row] is None:
            return [*blank, *blank, "", ""]
        x, reported, expert, density = next(lines)
        return [*x, *reported, expert, density]

    return csv_lines([row + 1, *cells(row), *([] if labels is None else [labels.texts[row]])] for row in part)


def weights_lines(run: EmbedRun, rows: Sequence[int]) -> str:
    """Lines of ``weights.csv``: weights in force before each row; arguments as in :func:`embedding_lines`."""
    known = [place for row in rows if (place := run.places[row]) is not None]
    lines = iter(run.found.log_weights[:, known].exp().T.tolist())
    blank = [""] * run.model.num_experts

    def cells(row: int) -> list[str]:
        return blank if run.places[row] is None else [f"{weight:.9g}" for weight in next(lines)]

    return csv_lines([row + 1, *cells(row)] for row in rows)


def imputed_csv(run: EmbedRun) -> str | None:
    """What the model, as it is now, expects in the gaps of rows with a value; ``None`` if there are none."""
    gaps = torch.isnan(run.prepared.Y)
    if not bool(gaps.any()):
        return None
    rows, numbers = run.prepared.rows, run.prepared.present.nonzero().flatten()
    with_gaps = gaps.any(-1)
    X = run.one_space()[with_gaps]
    expert = torch.full((len(X),), run.model.best_expert, dtype=torch.int64, device=X.device)
    mean, variance = (part.double() for part in map_back(run, X, expert))
    mean, std = mean * run.prepared.scale + run.prepared.offset, variance.sqrt() * run.prepared.scale
    lines: list[list[object]] = [["row", "column", "mean", "std"]]
    for row, column in gaps[with_gaps].nonzero().tolist():
        number = int(numbers[with_gaps][row]) + 1
        lines.append([number, rows.names[column], float(mean[row, column]), float(std[row, column])])
    return csv_lines(lines)


@final
class EmbedFolder:
    """Writes the results of one run; results of an earlier run stay until all of this one's replace them together.

    While the run goes on, rows stand in ``embeddings.csv.partial`` as they were reported (``x1`` and so on are empty:
    they are places in the latent space of the expert that is the best at the end) and in ``weights.csv.partial``,
    and ``checkpoint.pt`` is replaced from time to time; that of an earlier run is kept as ``checkpoint.previous.pt``.

    Args:
        path: The folder; it is made if need be.
        keeps_previous: Keep the checkpoint that is there, being that of other results.

    Raises:
        OSError: If it cannot be made or written.
    """

    def __init__(self, path: Path, keeps_previous: bool) -> None:
        self.path = path
        self._keeps_previous = keeps_previous
        self._tables: list[GrowingTable] = []
        self._num_written = 0
        make_writable(path)

    def begin(self, run: EmbedRun) -> None:
        """Start the tables, with the rows that the run has embedded already, and write a checkpoint."""
        headers = {EMBEDDINGS: embedding_header(run), WEIGHTS: weights_header()}
        with staged(self.path) as place:
            for name, header in headers.items():
                write_text(place / (name + PARTIAL), header)
            if self._keeps_previous:
                keep_previous(self.path, place)
            save_run(run, place / CHECKPOINT)
        self._tables = [GrowingTable(self.path / (name + PARTIAL)) for name in headers]
        self.append(run)

    def append(self, run: EmbedRun) -> None:
        """Write the rows embedded since the last call, and hand them to the operating system."""
        rows = range(self._num_written, run.num_read)
        with uninterrupted():
            texts = embedding_lines(run, rows, None), weights_lines(run, rows)
            self._num_written = run.num_read
            for table, text in zip(self._tables, texts, strict=True):
                table.append(text)

    def checkpoint(self, run: EmbedRun) -> None:
        """Replace the checkpoint, which holds all that is embedded: tables are written anew from it."""
        save_run(run, self.path / CHECKPOINT)

    def finish(self, run: EmbedRun, summary: dict[str, object], draw: Callable[[Path], object]) -> None:
        """Put the tables in one latent space, the summary and what is drawn in the place of earlier results.

        Args:
            run: The complete run.
            summary: Its summary.
            draw: Draws its picture into a folder, if it can.
        """
        self.close()
        rows = range(len(run.places))
        imputed = imputed_csv(run)
        unfinished = [name + PARTIAL for name in (EMBEDDINGS, WEIGHTS)]
        with staged(self.path, removed=[*unfinished, IMPUTED, PICTURE, PREVIOUS]) as place:
            write_text(place / EMBEDDINGS, embedding_header(run) + embedding_lines(run, rows, run.one_space()))
            write_text(place / WEIGHTS, weights_header() + weights_lines(run, rows))
            if imputed is not None:
                write_text(place / IMPUTED, imputed)
            write_json(place / SUMMARY, summary)
            draw(place)

    def close(self) -> None:
        """Close the tables as they are."""
        for table in self._tables:
            table.close()
        self._tables = []
