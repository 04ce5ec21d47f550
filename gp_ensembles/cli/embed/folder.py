"""The folder of a run of ``embed``: tables grow beside their goal, and everything is moved into place at the end."""

import csv
import io
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO, final

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import expert_names
from gp_ensembles.cli.embed.run import EmbedRun, map_back, save_run
from gp_ensembles.cli.writing import CHECKPOINT, PREVIOUS, keep_previous, make_writable, write_json, write_text
from gp_ensembles.ensembles.interrupts import uninterrupted


def embedding_header(run: EmbedRun) -> str:
    """Columns of ``embeddings.csv``."""
    axes = [f"x{axis + 1}" for axis in range(run.model.num_latent)]
    labels = run.prepared.rows.labels
    # The label's own name could be that of another column.
    return as_lines([["row", *axes, *(f"reported_{x}" for x in axes), "expert", "log_prob"] + ["label"] * bool(labels)])


def weights_header() -> str:
    """Columns of ``weights.csv``."""
    return as_lines([["row", *expert_names()]])


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

    return as_lines([row + 1, *cells(row), *([] if labels is None else [labels.texts[row]])] for row in part)


def weights_lines(run: EmbedRun, rows: Sequence[int]) -> str:
    """Lines of ``weights.csv``: weights in force before each row; arguments as in :func:`embedding_lines`."""
    known = [place for row in rows if (place := run.places[row]) is not None]
    lines = iter(run.found.log_weights[:, known].exp().T.tolist())
    blank = [""] * run.model.num_experts

    def cells(row: int) -> list[str]:
        return blank if run.places[row] is None else [f"{weight:.9g}" for weight in next(lines)]

    return as_lines([row + 1, *cells(row)] for row in rows)


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
    return as_lines(lines)


def as_lines(rows: Iterable[Sequence[object]]) -> str:
    r"""Rows as CSV; NaN is an empty cell.

    Example:
        >>> as_lines([[1, math.nan, "a,b"]])
        '1,,"a,b"\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(["" if isinstance(cell, float) and math.isnan(cell) else cell for cell in row])
    return text.getvalue()


EMBEDDINGS = "embeddings.csv"
WEIGHTS = "weights.csv"
IMPUTED = "imputed.csv"
SUMMARY = "summary.json"
PICTURE = "embedding.png"
_PARTIAL = ".partial"


@final
class EmbedFolder:
    """Writes the results of one run; results of an earlier run stay until this one is complete.

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
        self._files: list[TextIO] = []
        self._num_written = 0
        make_writable(path)

    def begin(self, run: EmbedRun) -> None:
        """Start the tables, with the rows that the run has embedded already, and write a checkpoint."""
        headers = ((EMBEDDINGS, embedding_header(run)), (WEIGHTS, weights_header()))
        for name, header in headers:
            file = (self.path / (name + _PARTIAL)).open("w", encoding="utf-8")
            self._files.append(file)
            file.write(header)
        self.append(run)
        self.checkpoint(run)

    def append(self, run: EmbedRun) -> None:
        """Write the rows embedded since the last call, and hand them to the operating system."""
        rows = range(self._num_written, run.num_read)
        with uninterrupted():
            texts = embedding_lines(run, rows, None), weights_lines(run, rows)
            for file, text in zip(self._files, texts, strict=True):
                file.write(text)
                file.flush()
            self._num_written = run.num_read

    def checkpoint(self, run: EmbedRun) -> None:
        """Replace the checkpoint."""
        if self._keeps_previous:
            keep_previous(self.path / CHECKPOINT, self.path / PREVIOUS)
        self._keeps_previous = False
        save_run(run, self.path / CHECKPOINT)

    def finish(self, run: EmbedRun, summary: dict[str, object]) -> None:
        """Write the tables in one latent space and the summary, and move them into place."""
        self.close()
        rows = range(len(run.places))
        texts = {
            EMBEDDINGS: embedding_header(run) + embedding_lines(run, rows, run.one_space()),
            WEIGHTS: weights_header() + weights_lines(run, rows),
        }
        imputed = imputed_csv(run)
        if imputed is not None:
            texts[IMPUTED] = imputed
        for name, text in texts.items():
            write_text(self.path / (name + _PARTIAL), text)
        write_json(self.path / (SUMMARY + _PARTIAL), summary)
        for name in (*texts, SUMMARY):
            os.replace(self.path / (name + _PARTIAL), self.path / name)
        if imputed is None:
            (self.path / IMPUTED).unlink(missing_ok=True)  # an earlier run's, as is the picture
        (self.path / PICTURE).unlink(missing_ok=True)
        (self.path / PREVIOUS).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the tables as they are."""
        for file in self._files:
            file.close()
        self._files = []
