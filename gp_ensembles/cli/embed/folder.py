"""The folder of a run of ``embed``: tables grow beside their goal, and everything is moved into place at the end."""

import os
from pathlib import Path
from typing import TextIO, final

from gp_ensembles.cli.embed.checkpoint import save_run
from gp_ensembles.cli.embed.run import EmbedRun
from gp_ensembles.cli.embed.tables import (
    embedding_header,
    embedding_lines,
    imputed_csv,
    weights_header,
    weights_lines,
)
from gp_ensembles.cli.writing import CHECKPOINT, PREVIOUS, keep_previous, make_writable, write_json, write_text
from gp_ensembles.ensembles.interrupts import uninterrupted

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
