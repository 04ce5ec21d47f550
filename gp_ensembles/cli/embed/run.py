"""A run of ``embed``: what a model has said of the rows so far, and the checkpoint it goes on from."""

import time
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from gp_ensembles.cli.embed.options import build_model
from gp_ensembles.cli.embed.preparation import Prepared
from gp_ensembles.cli.torch_files import Kind, fingerprint, read_checkpoint, write_checkpoint
from gp_ensembles.ensembles.interrupts import uninterrupted
from gp_ensembles.gplvm import IEGPLVM, Embeddings
from gp_ensembles.numerics.cholesky import NumericalError

_ROWS = 4096  # mapped back at once


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
        found: Room for all n rows with a value, on the host; the first ``progress.num_done`` are filled.
        progress: How far it is filled.
    """

    def __init__(self, prepared: Prepared, model: IEGPLVM, found: Embeddings, progress: Progress) -> None:
        self.prepared = prepared
        self.model = model
        self.found = found
        self.progress = progress
        order = (prepared.present.cumsum(0) - 1).tolist()
        has_value = prepared.present.tolist()
        self._numbers: list[int] = prepared.present.nonzero().flatten().tolist()
        #: Where each row of the table stands among those with a value; ``None`` for one without.
        self.places = [place if has else None for place, has in zip(order, has_value, strict=True)]

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
        run = cls(prepared, model, room(prepared, model), progress)
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
        last = first + len(found.embedding)
        self.found.embedding[first:last] = found.embedding
        self.found.expert[first:last] = found.expert
        self.found.by_expert[:, first:last] = found.by_expert
        self.found.log_prob[first:last] = found.log_prob
        self.found.log_weights[:, first:last] = found.log_weights
        self.found.converged[:, first:last] = found.converged
        self.progress = self.progress._replace(num_done=last)

    def one_space(self) -> Tensor:
        """All rows in the latent space of the model's best expert so far, shape (n, d)."""
        return self.found.by_expert[self.model.best_expert]


def room(prepared: Prepared, model: IEGPLVM) -> Embeddings:
    """Room for what will be said of n rows."""
    Y, num_rows, num_experts = prepared.Y, len(prepared.Y), model.num_experts
    by_expert = Y.new_full((num_experts, num_rows, model.num_latent), torch.nan)
    log_weights = Y.new_full((num_experts, num_rows), torch.nan)
    expert = torch.full((num_rows,), -1, dtype=torch.int64, device=Y.device)
    converged = torch.zeros((num_experts, num_rows), dtype=torch.bool, device=Y.device)
    return Embeddings(by_expert[0].clone(), expert, by_expert, log_weights[0].clone(), log_weights, converged)


FORMAT = "gp_ensembles embed"
FORMAT_VERSION = 1
_KIND = Kind(FORMAT, FORMAT_VERSION, "embed", "choose the --out of a run of embed")


def save_run(run: EmbedRun, path: Path) -> None:
    """Write a run in one step; a reader finds the old file or the new one, never half of one.

    The file loads with ``torch.load(path, weights_only=True)``; its ``model`` is the ``state_dict`` of the model that
    ``options`` describe, its ``offset`` what was taken from the columns and ``scale`` what they were divided by.

    Raises:
        OSError: If it cannot be written.
    """
    prepared = run.prepared
    content = {
        "options": prepared.options.plain(),
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
    before, now = content["options"], prepared.options.plain()
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
